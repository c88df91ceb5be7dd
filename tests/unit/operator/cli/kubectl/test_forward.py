"""What `what-if drain` foresees is what the real operator then does: both are asked, of the same jobs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure_operator.api.default_signals import VACATE_ANNOTATION
from perdure_operator.api.signal_rows import SignalSource
from perdure_operator.api.status import Takeover
from perdure_operator.cli.kubectl.forward import How, Outlook, asked_to_leave, drained, play
from perdure_operator.cluster.protocol import JOBS as TRAINING_JOBS
from perdure_operator.cluster.protocol import PODS
from perdure_operator.decide import Stage as JobStage
from perdure_operator.decide import stage_of
from perdure_operator.state.snapshot import Snapshot
from tests.support.raw import job, template
from tests.support.stage import KEY, Stage
from tests.unit.operator.cli.kubectl.seen import cordoned, moved, planned, training

PATIENT = {"replacementTimeoutSeconds": 30}
JOBS: dict[str, dict[str, Any]] = {
    "usual": {},
    "ExitCode": {"completion": "ExitCode"},
    "does not wait": {"disruption": {"replacementTimeoutSeconds": 0}},
    "ignores cordons": {"disruption": PATIENT | {"signals": {"cordon": "Ignore"}}},
    "saves at cordons": {"disruption": PATIENT | {"signals": {"cordon": "CheckpointNow"}}},
    "moves if there is room": {"disruption": PATIENT | {"signals": {"cordon": "VacateIfRoom"}}},
    "elastic": {"elastic": {"minReplicas": 1, "maxReplicas": 2}},
    "on GPUs": {"template": template(resources={"limits": {"nvidia.com/gpu": 1}})},
}


def observed(stage: Stage) -> Snapshot:
    snapshot = asyncio.run(stage.observer.observe(KEY))
    assert snapshot is not None
    return snapshot


def really(stage: Stage, nodes: list[str], *, room: bool) -> tuple[How, int]:
    """How the operator moves the job off these nodes, and the size of the run that goes on."""
    for one in nodes:
        stage.cordon(one)
    return goes_on(stage, room=room)


def goes_on(stage: Stage, *, room: bool) -> tuple[How, int]:
    """How the job goes on, and the size of its next run."""
    stage.settle()
    run = stage.status().run
    for _ in range(40):
        stage.wait(1)
        if room:
            stage.run_pods(["n4"])
            stage.settle()
        status = stage.status()
        if stage_of(status) is JobStage.HANDING_OVER:
            assert status.next is not None
            assert status.next.plan is not None
            return How.LIVE, len(status.next.plan.members)
        if stage_of(status) is JobStage.LEAVING:
            return How.RECREATE, 0
        if status.current is not None and status.current.run != run and status.how is Takeover.IN_PLACE:
            return How.IN_PLACE, len(status.current.plan.members)
    return How.TRAINS_ON, 0


@pytest.mark.parametrize("nodes", [["n2"], ["n1", "n2"]], ids=" ".join)
@pytest.mark.parametrize("room", [True, False], ids=["room", "no room"])
@pytest.mark.parametrize("spec", JOBS.values(), ids=JOBS)
def test_the_operator_does_what_was_foreseen(spec: dict[str, Any], room: bool, nodes: list[str]) -> None:
    stage = training(**spec)
    foreseen = play(drained(observed(stage), nodes), room=room)
    stage.node("n4")
    assert (foreseen.how, foreseen.size) == really(stage, nodes, room=room)


IGNORES_USERS = {"ignores its users": {"disruption": PATIENT | {"signals": {"vacate-job": "Ignore"}}}}


@pytest.mark.parametrize("room", [True, False], ids=["room", "no room"])
@pytest.mark.parametrize("spec", (JOBS | IGNORES_USERS).values(), ids=JOBS | IGNORES_USERS)
def test_the_operator_does_what_was_foreseen_of_a_request_of_a_user(spec: dict[str, Any], room: bool) -> None:
    stage = training(**spec)
    foreseen = play(asked_to_leave(observed(stage), "n2"), room=room, by=SignalSource.JOB)
    stage.node("n4")
    annotations = {VACATE_ANNOTATION: "n2"}
    stage.cluster.change(TRAINING_JOBS, *KEY, lambda raw: raw["metadata"].update(annotations=annotations))
    assert (foreseen.how, foreseen.size) == goes_on(stage, room=room)


def test_a_job_that_ignores_requests_of_its_users_is_told_so() -> None:
    stage = training(**IGNORES_USERS["ignores its users"])
    seen = play(asked_to_leave(observed(stage), "n2"), room=True, by=SignalSource.JOB)
    assert seen.why == "its reaction to the annotation perdure.dev/vacate is Ignore"


def told(stage: Stage, node: str, *, room: bool = True) -> Outlook:
    return play(drained(observed(stage), [node]), room=room)


def test_each_way_is_told_with_its_reason() -> None:
    assert told(training(), "n2").why == ""
    assert "Session" in told(training(**JOBS["ExitCode"]), "n2").why
    assert "nvidia.com/gpu" in told(training(**JOBS["on GPUs"]), "n2").why
    assert told(training(**JOBS["does not wait"]), "n2").why == "disruption.replacementTimeoutSeconds is 0"
    assert told(training(**JOBS["ignores cordons"]), "n2").why == "its reaction to a cordoned node is Ignore"
    late = told(training(), "n2", room=False)
    assert late.why.startswith("no standby was ready in time")
    assert late.seconds == 31  # the quiet second, and replacementTimeoutSeconds
    assert (late.saved_by is not None, late.starting) == (True, 1)


def test_a_node_without_a_pod_of_the_job_changes_nothing() -> None:
    assert told(training(), "n3").how is How.TRAINS_ON


def test_a_move_that_has_begun_is_played_to_its_end() -> None:
    begun = cordoned()
    assert told(begun, "n1").how is How.LIVE
    assert told(begun, "n1").starting == 2
    assert told(planned(), "n1").how is How.LIVE
    assert told(moved(), "n3").how is How.LIVE


@pytest.mark.parametrize("room", [True, False], ids=["room", "no room"])
def test_a_pod_that_has_a_node_is_awaited_and_one_whose_image_is_not_found_is_not(room: bool) -> None:
    begun = cordoned()
    begun.cluster.change(PODS, "ns", begun.names()[-1], lambda raw: raw["spec"].update(nodeName="n3"))
    seen = drained(observed(begun), ["n2"])
    assert (play(seen, room=room).how, play(seen, room=room).starting) == (How.LIVE, 1)
    stuck = {"waiting_reason": "ErrImagePull", "node": "n3"}
    pods = (pod.model_copy(update=stuck if pod.name == begun.names()[-1] else {}) for pod in seen.pods)
    assert play(seen.model_copy(update={"pods": tuple(pods)}), room=room).how is not How.LIVE


def test_a_run_whose_members_still_import_is_awaited() -> None:
    stage = training()
    for name in stage.names():
        stage.cluster.change(PODS, "ns", name, lambda raw: raw["status"].update(conditions=[]))
    assert told(stage, "n2").how is How.LIVE
    assert told(stage, "n2").starting == 3


def test_a_job_without_a_run_waits() -> None:
    stage = Stage()
    stage.node("n1")
    stage.apply(job(suspend=True))
    stage.start()
    stage.wait(1)
    assert told(stage, "n1").how is How.WAITS


def test_nothing_is_written() -> None:
    stage = training()
    before = list(stage.cluster.writes)
    told(stage, "n2")
    assert list(stage.cluster.writes) == before
