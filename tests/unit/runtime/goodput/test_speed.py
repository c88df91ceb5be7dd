"""The time of a step, term by term."""

from __future__ import annotations

from math import inf

import pytest

from perdure.goodput.speed import Speed

SPEED = Speed(alpha=1.0, beta=0.5, c_in=10.0, d_in=2.0, c_out=100.0, d_out=20.0, profiled=4)


@pytest.mark.parametrize(
    ("nodes", "ranks", "micro", "accumulation", "seconds"),
    [
        (1, 1, 8, 0, 5.0),  # alpha + 8 beta
        (1, 1, 8, 3, 20.0),  # four parts
        (1, 2, 8, 0, 15.0),  # and c_in
        (1, 5, 8, 0, 21.0),  # and three more ranks
        (2, 2, 8, 0, 105.0),
        (2, 5, 8, 0, 165.0),
        (3, 5, 8, 1, 170.0),  # the exchange follows the last part alone
        (8, 8, 8, 0, 225.0),
        (1, 1, 0.5, 0, 1.25),  # a mean size
    ],
)
def test_a_step_takes_its_parts_and_one_exchange(
    nodes: int, ranks: int, micro: float, accumulation: int, seconds: float
) -> None:
    assert SPEED.step_seconds(nodes, ranks, micro, accumulation) == seconds


def test_nothing_is_believed_beyond_twice_the_ranks_that_were_measured() -> None:
    assert SPEED.step_seconds(1, 8, 1, 0) < inf
    assert SPEED.step_seconds(1, 9, 1, 0) == inf
    assert SPEED.believed_ranks == 8


def test_computing_needs_no_exchange() -> None:
    assert SPEED.compute_seconds(8) == 5.0
    assert SPEED.network_seconds(1, 1) == SPEED.network_seconds(3, 1) == 0.0
