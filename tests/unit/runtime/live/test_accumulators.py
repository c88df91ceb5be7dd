"""Ranks change while a script adds to accumulators: no sum lacks a sample, and none has one twice."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from tests.support.covering import covering
from tests.unit.runtime.live.accumulators import VALID
from tests.unit.runtime.live.jobs import MOVES, WAIT_AT, Job
from tests.unit.runtime.live.nursery import Nursery

EPOCHS = 4
BATCH = 6
SIZES = {
    "in the middle": (48, 6),
    "at an epoch's first batch": (24, 12),
    "at the second loader's first batch": (12, 12),
}
"""How many samples the two loaders have, and where ranks change then, which is behind step 6."""


def total(*sizes: int) -> dict[str, float]:
    """Of all samples of datasets of these sizes."""
    return {"loss": float(sum(Fraction(0.1 * i) for size in sizes for i in range(size))), "n": sum(sizes)}


def expected(sizes: tuple[int, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for epoch in range(EPOCHS):
        for number, size in enumerate(sizes):
            found[f"{epoch}/{number}"] = total(size, VALID)
        found[f"{epoch}/rest"] = total(VALID)
    return {**found, "end": total(*EPOCHS * sizes)}


@pytest.mark.parametrize(("move", "where"), covering(list(MOVES), list(SIZES)))
def test_every_sum_is_whole_whichever_ranks_leave_or_come(nursery: Nursery, move: str, where: str) -> None:
    check_sums(nursery, move, where, shards=False)


SHARDED = [move for move, (old, new, *_) in MOVES.items() if 1 not in (old, new)]
LONG = [move for move in SHARDED if move != "3-to-2-without-rank-0"]


@pytest.mark.parametrize(
    "move", [pytest.param(move, marks=pytest.mark.chaos if move in LONG else ()) for move in SHARDED]
)
def test_every_sum_is_whole_beside_a_sharded_model(nursery: Nursery, move: str) -> None:
    check_sums(nursery, move, "in the middle", shards=True)


def check_sums(nursery: Nursery, move: str, where: str, *, shards: bool) -> None:
    (old, new, joins, leavers), sizes = MOVES[move], SIZES[where]
    name = f"{move}-{list(SIZES).index(where)}" + "-sharded" * shards
    job = Job(nursery, name, old, script="accumulators.train", sizes=sizes, batch=BATCH, epochs=EPOCHS, shards=shards)
    results = job.offered(new, joins, leavers, at=WAIT_AT).begin().end()
    (_, over) = (entry for entry in job.log if entry["kind"] == "Opened")
    assert (over["takesOver"], over["step"]) == (1, 6)
    whole = expected(sizes)
    for name, result in results.items():
        assert result["read"] == {place: whole[place] for place in result["read"]}, name
    for new_rank in joins:
        assert results[f"new{new_rank}"]["read"].keys() == whole.keys() - missed(sizes), new_rank


def missed(sizes: tuple[int, int]) -> set[str]:
    """What a newcomer does not read: the values read in finished epochs."""
    return {"0/0", "0/1", "0/rest"} if sum(sizes) <= 6 * BATCH else set()
