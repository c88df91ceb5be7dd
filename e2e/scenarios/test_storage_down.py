"""The object store is away when a job must save: the drain waits, says for whom and until when, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e.cluster.s3 import S3
from e2e.harness.lab import Lab
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import Config, Trouble, nothing_lost

pytestmark = pytest.mark.cluster

PATIENT = Trouble(
    spec={"checkpoint": {"everySteps": None, "everySeconds": 3600}, "disruption": {"exitTimeoutSeconds": 240}}
)
FAILED_SAVE = r"exit save failed \(attempt (\d+) of step"


@pytest.mark.parametrize(
    ("take_away", "give_back"), [(S3.kill, S3.start), (S3.freeze, S3.thaw)], ids=["killed", "frozen"]
)
def test_a_drain_waits_for_a_store_that_comes_back(
    lab: Lab,
    train: Train,
    undisturbed: Undisturbed,
    take_away: Callable[[S3], None],
    give_back: Callable[[S3], None],
) -> None:
    weights = undisturbed(Config())
    with train(trouble=PATIENT) as training:
        training.trains(steps=12)
        members = [training.member(rank)["metadata"]["name"] for rank in (0, 1)]
        with training.log(rank=0) as log, lab.drain(training.node(rank=1)) as drain:
            take_away(lab.cluster.s3)
            try:
                attempts = log.wait(FAILED_SAVE, times=3, seconds=150)
                awaited = training.shows("ExitSave")
                waited = drain.still_waits()
            finally:
                give_back(lab.cluster.s3)
            drained = drain.finish()
        training.completes()
    assert [attempt[1] for attempt in attempts] == ["1", "2", "3"]
    assert waited
    assert all(member in awaited["message"] for member in members)
    assert "until" in awaited["message"]
    assert drained.status == 0, drained.output
    assert training.verdict() == nothing_lost(weights)
