"""Newcomers die, stand still or are late while they connect: no old rank stops before every party is connected."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.unit.runtime.live.connecting import RELEASED_AT
from tests.unit.runtime.live.jobs import MOVES, Job
from tests.unit.runtime.live.nursery import Nursery


@pytest.fixture(scope="module")
def undisturbed(nursery: Nursery) -> dict[str, Any]:
    return Job(nursery, "undisturbed", 2, script="connecting.train").begin().end()


def begun(nursery: Nursery, harm: str, move: str = "both-of-2") -> Job:
    """A job in which the newcomer for rank 1 is harmed so."""
    old, new, joins, leavers = MOVES[move]
    job = Job(nursery, f"{harm}-{move}", old, script="connecting.train", harm=harm)
    return job.offered(new, joins, leavers, wait=False).begin()


def whys(job: Job) -> set[tuple[int, str, str]]:
    """How the attempt has ended for each old rank, and why."""
    ended = [line for line in job.trace if line.get("event") == "handover-ended"]
    return {(line["rank"], line["word"], line["why"]) for line in ended}


def trained_on(nursery: Nursery, job: Job) -> dict[str, Any]:
    """The results of the old ranks, which end as they should."""
    ends = {name: nursery.wait(job.pids.pop(name)) for name in ("old0", "old1")}
    assert ends == {"old0": 0, "old1": 0}, job.output("old0") + job.output("old1")
    return {name: nursery.result(f"{job.name}-{name}") for name in ends}


def test_a_newcomer_killed_while_it_connects_ends_the_attempt_beside_the_training(
    nursery: Nursery, undisturbed: dict[str, Any]
) -> None:
    job = begun(nursery, "killed")
    assert trained_on(nursery, job) == undisturbed
    assert whys(job) == {(rank, "abort", "party 3 is gone") for rank in (0, 1)}
    assert job.ended() == {"new0": 1, "new1": -signal.SIGKILL}
    assert "run 2 does not take over run 1: party 3 is gone" in job.output("new0")


@pytest.mark.parametrize("move", ["both-of-2", "rank-1-of-2"])
def test_a_newcomer_that_stands_still_while_it_connects_stops_no_rank(
    nursery: Nursery, undisturbed: dict[str, Any], move: str
) -> None:
    job = begun(nursery, "still", move)
    assert trained_on(nursery, job) == undisturbed
    assert whys(job) == {(rank, "abort", "completed") for rank in (0, 1)}
    os.kill(job.pids["new1"], signal.SIGKILL)
    assert job.ended() == {"new0": 1, "new1": -signal.SIGKILL} if "new0" in job.pids else {"new1": -signal.SIGKILL}


def test_newcomers_that_are_long_in_connecting_take_over_when_they_are_done(nursery: Nursery) -> None:
    job = begun(nursery, "late")
    results = job.end()
    (_, over) = (entry for entry in job.log if entry["kind"] == "Opened")
    assert over["takesOver"] == 1
    assert over["step"] > RELEASED_AT
    assert [results[name] for name in ("old0", "old1")] == [{"left": over["step"]}] * 2
    assert results["new0"]["weights"] == results["new1"]["weights"]
    assert whys(job) == set()
