"""Ranks change while a save is under way in the background: nothing of it is committed later, and it is made again."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.cli.main import main
from tests.support.uploaders import uploaders
from tests.unit.runtime.live.jobs import WAIT_AT, Job, by_rank, undisturbed
from tests.unit.runtime.live.nursery import Nursery

EVERY = 4
STOPPED_AT = WAIT_AT + 2
ENVIRON = {"PERDURE_BACKGROUND_BYTES": "0", "PERDURE_EVERY_STEPS": str(EVERY)}
MOVES = {
    "rank-1-of-2": (2, 2, (1,), (1,)),
    "rank-0-of-2": (2, 2, (0,), (0,)),
    "both-of-2": (2, 2, (0, 1), (0, 1)),
    "2-to-3": (2, 3, (2,), ()),
    "3-to-2-without-rank-0": (3, 2, (), (0,)),
}


def commits(job: Job) -> list[dict[str, Any]]:
    return [entry for entry in job.log if entry["kind"] == "Committed"]


@pytest.mark.parametrize("name", MOVES)
def test_a_save_under_way_is_dropped_and_the_newer_run_makes_one_at_once(nursery: Nursery, name: str) -> None:
    old, new, joins, leavers = MOVES[name]
    job = (
        Job(nursery, f"saves-{name}", old, script="saves.train", environ=ENVIRON)
        .offered(new, joins, leavers, at=WAIT_AT)
        .begin()
    )
    results = job.end()
    (opened,) = (entry for entry in job.log if entry["kind"] == "Opened" and entry["run"] == 2)
    assert opened["takesOver"] == 1
    assert [commit for commit in commits(job) if commit["run"] == 1] == []
    first = commits(job)[0]
    assert opened["step"] == STOPPED_AT
    assert STOPPED_AT <= first["step"] < STOPPED_AT + EVERY, "it does not wait for the next one that is due"
    if old == new:
        assert by_rank(results) == by_rank(undisturbed(nursery, old, script="saves.train", environ=ENVIRON))
    told, *others = [found["told"] for found in results.values() if found.get("rank") is not None]
    assert all(other == told for other in others)
    assert [one[1] for one in told] == [commit["step"] for commit in commits(job)]
    assert main(["verify", str(job.root)]) == 0
    assert not set(job.pids.values()) & set(uploaders().values())


def test_an_attempt_that_comes_to_nothing_leaves_the_save_under_way(nursery: Nursery) -> None:
    job = Job(nursery, "saves-aborted", 2, script="saves.train", environ=ENVIRON, thaw_at=STOPPED_AT + 2)
    found = job.offered(2, (1,), (1,), at=WAIT_AT, die="restored").begin().ended()
    assert found["old0"] == found["old1"] == 0, job.output("old0")
    results = {name: nursery.result(f"{job.name}-{name}") for name in ("old0", "old1")}
    assert {entry["run"] for entry in job.log if entry["kind"] == "Opened"} == {1}
    assert all(result["under_way"][str(STOPPED_AT + 1)] == EVERY for result in results.values())
    assert by_rank(results) == by_rank(undisturbed(nursery, 2, script="saves.train", environ=ENVIRON))
