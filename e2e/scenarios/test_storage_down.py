"""The object store is away, or has changed its keys, when a job must save: the drain waits, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from e2e.cluster.s3 import S3
from e2e.harness import observed
from e2e.harness.handover import Way
from e2e.harness.lab import Lab, bucket_of
from e2e.harness.shared_run import SharedRun
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import Config, Trouble, nothing_lost

pytestmark = pytest.mark.cluster

PATIENT = {"checkpoint": {"everySteps": None, "everySeconds": 3600}, "disruption": {"exitTimeoutSeconds": 240}}
OWN = "s3-to-be-taken-away"
OWN_PORT = 9001
ALL_LEAVE = {**PATIENT, "disruption": {"exitTimeoutSeconds": 240, "replacementTimeoutSeconds": 0}}
Outage = tuple[Callable[[S3], None], Callable[[S3], None]]
KILLED: Outage = (S3.kill, S3.start)
FROZEN: Outage = (S3.freeze, S3.thaw)
STEP = r"PACE run 1: \d+ steps"
FAILED_SAVE = r"exit save failed \(attempt (\d+) of step"


@pytest.fixture
def s3(lab: Lab) -> Iterator[S3]:
    """A server that no other scenario uses."""
    with SharedRun.current().locked(OWN):
        own = lab.cluster.another_s3(OWN, OWN_PORT)
        own.start()
        yield own
        own.kill()


def held(moment: str, s3: S3) -> Trouble:
    """A training on this server that stands still at this moment of a hand-over."""
    hold = {"HOLD": moment, "HOLD_SECONDS": "8", "PACE_SECONDS": "0.3", "PACED_RUNS": "2"}
    return Trouble(script="holding.py", environ=hold, spec=PATIENT, s3=s3)


AWAY = [pytest.param(KILLED, id="killed"), pytest.param(FROZEN, id="frozen", marks=pytest.mark.chaos)]


@pytest.mark.chaos
@pytest.mark.parametrize("outage", AWAY)
def test_a_drain_waits_for_a_store_that_comes_back(
    lab: Lab, train: Train, undisturbed: Undisturbed, s3: S3, outage: Outage
) -> None:
    take_away, give_back = outage
    with train(trouble=Trouble(spec=ALL_LEAVE, s3=s3)) as training:
        training.trains(steps=12)
        members = [training.member(rank)["metadata"]["name"] for rank in (0, 1)]
        take_away(s3)  # before the drain, which may be over soon
        with training.log(rank=0) as log, lab.drain(training.node(rank=1)) as drain:
            try:
                attempts = log.wait(FAILED_SAVE, times=2, seconds=150)  # one line a minute
                awaited = training.shows("ExitSave")
                waited = drain.still_waits()
            finally:
                give_back(s3)
            drained = drain.finish()
        training.completes()
    first, second = (int(attempt[1]) for attempt in attempts)
    assert first == 1 < second
    assert waited
    assert all(member in awaited["message"] for member in members)
    assert "until" in awaited["message"]
    assert drained.status == 0, drained.output
    assert training.verdict() == nothing_lost(undisturbed(Config()))


@pytest.mark.parametrize("outage", AWAY)
def test_a_hand_over_waits_for_a_store_that_comes_back_while_everybody_trains(
    lab: Lab, train: Train, undisturbed: Undisturbed, s3: S3, outage: Outage
) -> None:
    take_away, give_back = outage
    with train(trouble=Trouble(spec=PATIENT, s3=s3)) as training:
        training.trains(steps=12)
        take_away(s3)  # before the drain, which may be over soon
        with training.log(rank=0) as log, lab.drain(training.node(rank=1)) as drain:
            try:
                training.watch.wait("the members are assigned", observed.asked_to_leave, seconds=90)
                log.wait(STEP, times=log.count(STEP) + 2, seconds=60)  # they train on
                waited = drain.still_waits()
            finally:
                give_back(s3)
            drained = drain.finish()
        training.completes()
    assert waited
    assert drained.status == 0, drained.output
    assert training.ways() == [Way.LIVE]
    assert training.verdict() == nothing_lost(undisturbed(Config()))


@pytest.mark.chaos
def test_a_store_frozen_when_the_hand_over_is_to_be_decided_is_waited_for(
    lab: Lab, train: Train, undisturbed: Undisturbed, s3: S3
) -> None:
    with train(trouble=held("putting decider 2", s3)) as training:
        training.trains(steps=4)
        decider = training.member(rank=0)
        with training.log(rank=0) as log, lab.drain(training.node(rank=1)) as drain:
            training.holds("putting decider 2", decider)
            s3.freeze()
            try:
                log.wait("hand-over to run 2: the log does not answer", seconds=150)
                training.is_disrupted_by("run 2 is offered to the members")
                waited = drain.still_waits()
            finally:
                s3.thaw()
            drained = drain.finish()
        training.completes()
    assert waited
    assert drained.status == 0, drained.output
    assert training.runs() == [1, 2]
    assert training.ways() == [Way.LIVE]
    assert training.verdict() == nothing_lost(undisturbed(Config()))


@pytest.mark.chaos
def test_a_store_frozen_when_the_hand_over_is_decided_does_not_stop_the_new_run(
    lab: Lab, train: Train, undisturbed: Undisturbed, s3: S3
) -> None:
    with train(trouble=held("put decider 2", s3)) as training:
        training.trains(steps=4)
        decider = training.member(rank=0)
        with training.log(rank=0) as log, lab.drain(training.node(rank=1)) as drain:
            training.holds("put decider 2", decider)
            s3.freeze()
            try:
                log.wait("PACE run 2: 3 steps", seconds=60)
                waited = drain.still_waits()
            finally:
                s3.thaw()
            drained = drain.finish()
        training.completes()
    assert waited
    assert drained.status == 0, drained.output
    assert training.ways() == [Way.LIVE]
    assert training.verdict() == nothing_lost(undisturbed(Config()))


@pytest.mark.chaos
def test_a_drain_saves_with_the_keys_that_have_taken_the_place_of_those_in_its_environment(
    lab: Lab, train: Train, undisturbed: Undisturbed, s3: S3
) -> None:
    rotated = replace(s3, secret_key="rotated-while-it-trains")
    with train(trouble=Trouble(spec=PATIENT, s3=s3, environ={"PACE_SECONDS": "0.5"})) as training:
        training.trains(steps=12)
        s3.kill()
        rotated.start()
        training.job.gives_keys(bucket_of(rotated))
        with lab.drain(training.node(rank=1)) as drain:
            drained = drain.finish(seconds=180)
        status = training.completes()
    assert drained.status == 0, drained.output
    assert training.verdict() == nothing_lost(undisturbed(Config()))
    assert training.runs() == [1, 2]
    assert status["failures"]["infrastructure"] + status["failures"]["code"] == 0
