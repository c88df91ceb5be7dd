"""Ranks change while a script measures its gradient noise: all go on with what all had heard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.unit.runtime.live.jobs import MOVES, WAIT_AT, Job
from tests.unit.runtime.live.nursery import Nursery

LAST = 4 * 7 - 1
"""The step before which a rank looks last: four epochs of seven."""
CHANGED_AT = WAIT_AT + 2
"""The step before which ranks change that are ready in step WAIT_AT."""


@pytest.mark.parametrize(("move", "shards"), [*((move, False) for move in MOVES), ("2-to-3", True)])
def test_the_averages_are_equal_on_all_ranks_and_go_on(nursery: Nursery, move: str, *, shards: bool) -> None:
    old, new, joins, leavers = MOVES[move]
    job = Job(nursery, f"measuring-{move}-{shards}", old, script="measuring.train", shards=shards)
    job.offered(new, joins, leavers, at=WAIT_AT)
    results = job.begin().end()
    by_rank = [result["heard"] for result in results.values()]
    for step in map(str, range(LAST + 1)):
        assert same({**found[step], "own": 0} for found in by_rank if step in found), step
    last = next(found[str(LAST)] for found in by_rank if str(LAST) in found)
    assert LAST - 5 <= last["steps"] <= LAST  # those that were not heard at the change do not count, nor is one lost
    changed_at = min((step for found in by_rank for step in found if found[step]["run"] == 2), key=int)
    begun = [found[changed_at] for found in by_rank if changed_at in found]
    assert len(begun) == new
    assert begun[0]["steps"] >= WAIT_AT - 3
    assert sum(found["own"][0] for found in begun) == pytest.approx(begun[0]["noise"][0])


def same(found: Iterable[Any]) -> bool:
    first, *others = found
    return all(one == first for one in others)


@pytest.mark.parametrize("measures", [True, False])
def test_a_newcomer_that_alone_measures_or_does_not_is_no_rank(nursery: Nursery, *, measures: bool) -> None:
    """Its votes would have another length, which ends gloo's processes. The others train on."""
    job = Job(nursery, f"measures-{measures}", 2, script="measuring.train", measures=not measures)
    job.offered(2, (1,), (1,), at=WAIT_AT, measures=measures).begin()
    assert job.ended() == {"old0": 0, "old1": 0, "new1": 1}
    assert "is to measure its training" in job.output("new1")


def test_a_newcomer_measures_its_first_step_if_the_others_do(nursery: Nursery) -> None:
    """Nothing was heard before, so votes of ranks that measure it and of those that do not would differ in length."""
    job = Job(nursery, "measures-first", 2, script="measuring.train", every=CHANGED_AT)
    results = job.offered(3, (1,), (), at=WAIT_AT).begin().end()
    (_, over) = (entry for entry in job.log if entry["kind"] == "Opened")
    assert over["step"] == CHANGED_AT
    heard = [[found["heard"][str(step)]["steps"] for step in (CHANGED_AT, LAST)] for found in results.values()]
    assert heard == [heard[0]] * 3
    assert heard[0][0] == 0 < heard[0][1]
