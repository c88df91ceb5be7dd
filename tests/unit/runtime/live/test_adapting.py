"""Ranks change live while a loader's batch changes: the decisions go over, and the training is the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.unit.runtime.live.jobs import MOVES, WAIT_AT, Job, undisturbed
from tests.unit.runtime.live.nursery import Nursery
from tests.unit.runtime.whole_numbers import SAMPLES

LIST: list[dict[str, Any]] = [
    {"epoch": 0, "consumed": 0, "batch": 8},
    {"epoch": 0, "consumed": 24, "batch": 16, "rate": 2.0, "noise": 24.0},
    {"epoch": 1, "consumed": 0, "batch": 20, "rate": 1.5},
    {"epoch": 2, "consumed": 20, "batch": 40, "rate": 0.5},
]
SIZES = [8, 8, 8, 16, 16, 4, 20, 20, 20, 20, 40]
"""The batches of the steps."""
SCRIPT: dict[str, Any] = {"script": "adapting.train", "decisions": LIST}
COMPARED = ("steps", "weights", "momentum", "rate", "progress")


def ends(results: dict[str, Any]) -> dict[int, list[Any]]:
    return {one["rank"]: [one[name] for name in COMPARED] for one in results.values() if "rank" in one}


@pytest.mark.parametrize("move", MOVES)
def test_a_run_whose_ranks_change_makes_the_same_steps_by_the_same_decisions(nursery: Nursery, move: str) -> None:
    old, new, joins, leavers = MOVES[move]
    job = Job(nursery, f"adapting-{move}", old, **SCRIPT).offered(new, joins, leavers).begin()
    results = job.end()
    (alone,) = ends(undisturbed(nursery, 1, **SCRIPT)).values()
    assert ends(results) == dict.fromkeys(range(new), alone)
    (_, over) = (entry for entry in job.log if entry["kind"] == "Opened")
    assert over["step"] in range(1, WAIT_AT + 4)
    seen: dict[int, Counter[int]] = {epoch: Counter() for epoch in range(3)}
    for line in job.trace:
        if "ids" in line:
            seen[line["epoch"]].update(line["ids"])
    assert seen == {epoch: Counter(range(SAMPLES)) for epoch in range(3)}
    check_parts(results, over["step"], old, new)
    (decided, *others) = (one["decisions"] for one in results.values() if "decisions" in one)
    assert all(other == decided for other in others)
    changed = [one for one in decided if one["ranks"] != old]
    assert decided[0]["ranks"] == old
    where = [SAMPLES * one["epoch"] + one["consumed"] for one in changed[:1]]
    assert where == ([] if old == new else [sum(SIZES[: over["step"]])])


@pytest.mark.parametrize("move", ["rank-1-of-2", "2-to-3", "3-to-2-without-rank-0"])
def test_a_run_that_measures_goes_on_measuring_and_deciding_with_other_ranks(nursery: Nursery, move: str) -> None:
    old, new, joins, leavers = MOVES[move]
    each = {"PERDURE_EVERY_STEPS": "1"}
    job = Job(nursery, f"measuring-{move}", old, environ=each, script="adapting.train", most=20, epochs=5, noise=1e9)
    results = job.offered(new, joins, leavers).begin().end()
    (_, over) = (entry for entry in job.log if entry["kind"] == "Opened")
    assert over["takesOver"] == 1
    assert len({str(end) for end in ends(results).values()}) == 1
    (decided, *others) = (one["decisions"] for one in results.values() if "decisions" in one)
    assert all(other == decided for other in others)
    assert decided[-1]["ranks"] == new
    assert [(one["epoch"], one["consumed"], one["batch"], one["ranks"]) for one in decided[:2]] == [
        (0, 0, 8, old),
        (0, 8, 40 // old * old, old),
    ], "where the first checkpoint was due"
    seen: Counter[tuple[int, int]] = Counter()
    for line in job.trace:
        if "ids" in line:
            seen.update((line["epoch"], number) for number in line["ids"])
    assert seen == Counter((epoch, number) for epoch in range(5) for number in range(SAMPLES))


def check_parts(results: dict[str, Any], step: int, old: int, new: int) -> None:
    """No rank gets more samples at once than it can hold, before and after the change."""
    for one in results.values():
        sizes: Counter[int] = Counter()
        for at, world, samples in one["parts"]:
            assert world == (old if at < step else new)
            assert samples <= 3
            sizes[at] += 1
        for at, parts in sizes.items():
            world = old if at < step else new
            assert parts == -(-SIZES[at] // (3 * world)), (at, world)
