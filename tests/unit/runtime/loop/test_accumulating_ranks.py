"""Accumulators on one to three real ranks, whose number changes from run to run."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from tests.unit.runtime.session.ranks import Scene, play

SIZES = {"three": (3, [0, 4]), "one": (1, [0, 12]), "two": (2, [1, 22]), "three-again": (3, [])}
"""How many ranks each run has, and which of them is asked to leave in which step: one epoch has nine."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    folder = tmp_path_factory.mktemp("accumulating")
    environ = {"PERDURE_CHECK_SECONDS": "0"}
    return play(
        folder,
        [
            *(
                Scene(name, "summing", world, {"root": str(folder / "sizes"), "leave": leave}, environ)
                for name, (world, leave) in SIZES.items()
            ),
            Scene("never", "summing", 2, {"root": str(folder / "never")}, environ),
        ],
    )


def total(size: int) -> dict[str, float]:
    return {"loss": float(sum(Fraction(0.1 * i) for i in range(size))), "n": size}


def expected() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for epoch in range(3):
        found |= {f"trained {epoch}": total(50), f"evaluated {epoch}": total(17)}
    return {**found, "every": {f"epoch {epoch}": sum(range(50)) for epoch in range(3)}}


def test_the_sums_of_all_samples_are_read_on_all_ranks(played: dict[str, list[Any]]) -> None:
    assert played["never"] == [expected()] * 2


def test_they_are_the_same_to_the_last_bit_where_the_number_of_ranks_changes(played: dict[str, list[Any]]) -> None:
    read: dict[str, Any] = {}
    for name in SIZES:
        assert played[name] == [played[name][0]] * len(played[name]), name
        assert all(read.setdefault(at, value) == value for at, value in played[name][0].items()), name
    assert list(played["three"][0]) == []
    assert "evaluated 0" in played["one"][0]
    assert read == expected()
