"""Histories of the faults that random histories never draw: the code survives their arrangements, and they do occur."""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.faults import FAULTS
from tests.simulation.history import History, Request, Result, planned

SEEDS: Final = 6
"""The arrangement occurs within so many histories."""
ALONE: Final = [name for name, fault in FAULTS.items() if fault.alone]
MANY_MEMBERS: Final = {"pool-vanishes"}
"""A history of it takes as long as those of all others together."""
UNARRANGED: Final = {"file-missed", "image-pull"}
"""What any history may count, whatever it arranges."""


@pytest.mark.parametrize("name", ALONE)
def test_what_is_arranged_is_borne(name: str) -> None:
    few = 1 if name in MANY_MEMBERS else 2
    results = [History(Request(seed, only=(name,))).play() for seed in range(few)]
    while len(results) < SEEDS and not any(arranged(result) for result in results):
        results.append(History(Request(len(results), only=(name,))).play())
    assert [str(result.violation) for result in results if result.violation] == []
    assert any(arranged(result) for result in results)


def arranged(result: Result) -> bool:
    return bool(set(result.fired) - UNARRANGED)


def test_no_swarm_draws_what_is_arranged() -> None:
    drawn = {fault.name for seed in range(50) for _, fault, _ in planned(Request(seed, everything=True))}
    assert drawn
    assert not drawn & set(ALONE)
