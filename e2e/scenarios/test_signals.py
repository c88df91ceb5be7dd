"""What nodes announce, one signal of each class, and what becomes of the training: see docs/signals.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from e2e.harness import devices
from e2e.harness.announcing import Announcer
from e2e.harness.drain import evict
from e2e.harness.evidence import Entry
from e2e.harness.handover import Way
from e2e.harness.lab import Lab
from e2e.harness.twin import Twin
from e2e.harness.watching import Object
from e2e.scenarios import lanes
from e2e.scenarios.conftest import NOTICE_SECONDS, Train, Undisturbed
from e2e.scenarios.training import START_SECONDS, Config, Training, Trouble, nothing_lost

pytestmark = pytest.mark.cluster

LONG = Config(epochs=6)
STEP = r"PACE run \d+: \d+ steps"
PACE = {"PACE_SECONDS": "0.3", "PACE_HOLDS": "4", "PACE_HOLD_SECONDS": "2", "PACED_RUNS": "9"}
"""Four minutes for up to five runs, of which none may be over before a test has seen it."""
READ_ONLY = ("ReadonlyFilesystem", "FilesystemIsReadOnly", "Remounting filesystem read-only")
XID = ("SysLogsXIDError", "SysLogsXIDErrorIsNotHealthy", "ErrorCode:79 PCI:0000:65:00 XID error")
DEADLOCK = ("KernelDeadlock", "DockerHung", "task docker:20744 blocked for more than 120 seconds.")
CORDON = "cordon"
FULL = "example.com/full"
"""A taint that is no announcement; it only keeps new members off."""
NO_ROOM = "the run trains on while new members start, "
VACATE = "perdure.dev/vacate"
MOVING = Trouble(
    environ=PACE,
    spec={
        "disruption": {
            "onCordon": "MoveIfRoom",
            "signals": {"npd-readonly-filesystem": "Vacate", "npd-kernel-deadlock": "CheckpointNow"},
        }
    },
)
SUSPECT = Trouble(
    environ={
        "PACE_SECONDS": "0.3",
        "PACE_HOLDS": "13,0",
        "PACE_HOLD_SECONDS": "4",
        "PACED_RUNS": "2",
        "PACE_RECORDED": "1",
    },
    spec={"disruption": {"signals": {"nvsentinel-xid": "Fault"}}},
)
"""The second run is still far from its first commit, whose retention deletes the first run's, when a test looks."""
DEVICE = "example.com/gpu"
SICK = replace(SUSPECT, devices={DEVICE: "1"}, spec={"disruption": {"signals": {"device-unhealthy": "Fault"}}})
GROWING = Config(members=2, batch=48, epochs=12)
AVOIDING = Trouble(environ=PACE, spec={"disruption": {"onCordon": "MoveIfRoom"}})
MAINTENANCE = ("cloud.google.com/scheduled-maintenance-time", "1795600000")
IGNORING = Trouble(environ=PACE, spec={"disruption": {"onCordon": "Ignore"}})
PREEMPTED = ("PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod")
TAINTED = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
LATE = timedelta(seconds=30)
"""A busy kubelet shows a request, and stops a container, late. Without the deadline it would be minutes."""
HANGING = Trouble(
    script="hanging.py",
    environ={"SAVE_AT": "10", "HANG_AFTER": "20", "PACE_SECONDS": "0"},
    spec={"checkpoint": {"everySteps": None, "everySeconds": 3600}},
)


@pytest.fixture
def announcer(lab: Lab) -> Iterator[Announcer]:
    """Of a scenario's nodes; nothing of it stays."""
    with Announcer(lab.kubectl) as found:
        yield found


def empty_node(lab: Lab, lane: str, training: Training) -> str:
    """The one node of the lane that no member is on."""
    (found,) = {*lanes.nodes(lab, lane)} - {training.node(rank=0), training.node(rank=1)}
    return found


def takes_back(announcer: Announcer, node: str) -> datetime:
    """As aws-node-termination-handler writes it; when the node is gone, by the table of these tests."""
    seen = announcer.taints(node, "aws-node-termination-handler/spot-itn", "spot-itn-4d3c", "NoSchedule")
    return seen + timedelta(seconds=NOTICE_SECONDS)


def trains_on(training: Training) -> None:
    """Waits until rank 0 has done a few steps more."""
    with training.log(rank=0) as log:
        log.wait(STEP, times=log.count(STEP) + 3, seconds=60)


def test_members_leave_a_node_for_each_reason_once_there_is_room_without_a_stop(
    lab: Lab, lane: str, train: Train, undisturbed: Undisturbed, announcer: Announcer
) -> None:
    with train(LONG, MOVING) as training:
        training.trains(steps=3)
        other, left, spare = training.node(rank=0), training.node(rank=1), empty_node(lab, lane, training)

        announcer.finds(left, *DEADLOCK)
        asked = training.job.root.wait_for_commit(seconds=60, reason="asked")
        announcer.withdraws(left, DEADLOCK[0])
        trains_on(training)

        for node in (other, spare):
            announcer.taints(node, FULL, "", "NoSchedule")
        announcer.cordons(left)
        cordoned = training.is_disrupted_by(f"cordoned; {NO_ROOM}no time limit")
        trains_on(training)
        announcer.withdraws(left, CORDON)
        training.is_undisturbed()
        announcer.annotates(left, VACATE, "true")
        named = training.is_disrupted_by(f"{VACATE}; {NO_ROOM}until")
        announcer.withdraws(left, VACATE)
        training.is_undisturbed()
        trains_on(training)
        stayed = training.runs()

        announcer.cordons(left)
        training.is_disrupted_by(f"cordoned; {NO_ROOM}no time limit")
        announcer.withdraws(spare, FULL)
        training.trains(steps=3, run=2)
        announcer.withdraws(left, CORDON)
        announcer.withdraws(other, FULL)

        training.has_pods(
            2
        )  # where a leaver still is, its node is no emptier than another: two members would share one
        announcer.finds(other, *READ_ONLY)
        training.trains(steps=3, run=3)
        announcer.withdraws(other, READ_ONLY[0])

        training.has_pods(2)
        announcer.annotates(spare, VACATE, "true")
        training.trains(steps=3, run=4)
        announcer.withdraws(spare, VACATE)

        given_back = training.node(rank=1)
        taken = takes_back(announcer, given_back)
        training.trains(steps=1, run=5)
        training.hurries()
        status = training.completes()
    assert stayed == [asked.run] == [1]
    assert left in cordoned
    assert left in named
    assert training.nodes_of(2) == {other, spare}
    assert other not in training.nodes_of(3)
    assert spare not in training.nodes_of(4)
    assert given_back not in training.nodes_of(5)
    assert max(training.ends(run=4)) <= taken + LATE
    assert training.ways() == [Way.LIVE, Way.LIVE, Way.LIVE, Way.RECREATE]
    assert training.verdict() == nothing_lost(undisturbed(LONG))
    assert (status["failures"]["code"], status["failures"]["infrastructure"]) == (0, 0)


@pytest.mark.chaos  # below a device is at fault, which has the same consequences and one more
def test_what_a_faulty_node_has_computed_is_stored_nowhere_and_the_job_goes_on_from_its_last_commit(
    train: Train, undisturbed: Undisturbed, announcer: Announcer
) -> None:
    with train(trouble=SUSPECT) as training:
        training.trains(steps=13)  # the last commit is that of step 10, and the next is half a minute away
        training.job.root.wait_for_commit(seconds=60)
        suspect, before = training.node(rank=1), training.job.root.entries()
        announcer.finds(suspect, *XID)
        training.trains(steps=1, run=2)
        stored = training.job.root.saved(run=1)
        training.hurries()
        status = training.completes()
    nothing_suspect_is_left(training, before, stored, status, undisturbed(Config()))
    assert suspect not in training.nodes_of(2)


def test_what_a_member_with_a_sick_device_has_computed_is_stored_nowhere_and_another_device_is_given_out(
    lab: Lab, lane: str, train: Train, undisturbed: Undisturbed
) -> None:
    with lab.devices(lanes.nodes(lab, lane), DEVICE, each=2) as plugins, train(trouble=SICK) as training:
        training.trains(steps=13)  # as above
        training.job.root.wait_for_commit(seconds=60)
        node, before = training.node(rank=1), training.job.root.entries()
        ((device, well),) = devices.given(training.member(rank=1)).items()
        plugins.becomes(node, device, "Unhealthy")
        training.trains(steps=1, run=2)
        stored = training.job.root.saved(run=1)
        found = [training.member(rank) for rank in (0, 1)]
        training.hurries()
        status = training.completes()
    nothing_suspect_is_left(training, before, stored, status, undisturbed(Config()))
    assert well == "Healthy"
    assert [list(devices.given(pod).values()) for pod in found] == [["Healthy"]] * 2
    assert not [pod for pod in found if pod["spec"]["nodeName"] == node and device in devices.given(pod)]


def nothing_suspect_is_left(
    training: Training, before: Sequence[Entry], stored: set[int], status: Object, twin: Twin
) -> None:
    """The suspect run has stored and reported nothing more; another continued from its last commit."""
    after, verdict = training.job.root.entries(), training.verdict()
    (opened,) = [entry.body for entry in after if entry.kind == "Opened" and entry.run == 2]
    (commit,) = [entry.seq for entry in before if entry.kind == "Committed"]
    assert stored == {10}
    assert [entry for entry in after if entry.run == 1] == before
    assert (opened["resumes"], opened.get("image")) == (commit, None)
    assert not training.planned(1) & training.planned(2)
    assert status["stepsLost"] >= 3
    assert (verdict.samples_lost, verdict.samples_repeated) == (0, 0)
    assert verdict.weights == twin.weights
    assert (status["failures"]["code"], status["failures"]["infrastructure"]) == (0, 0)


@pytest.mark.chaos
def test_no_new_member_trains_on_an_avoided_node_and_members_there_stay(
    lab: Lab, lane: str, train: Train, undisturbed: Undisturbed, announcer: Announcer
) -> None:
    with train(GROWING, AVOIDING) as training:
        training.trains(steps=3)
        stays, left, spare = training.member(rank=0), training.node(rank=1), empty_node(lab, lane, training)
        avoided = str(stays["spec"]["nodeName"])
        for node in (avoided, spare):
            announcer.labels(node, *MAINTENANCE)
        announcer.cordons(left)
        training.is_disrupted_by(f"cordoned; {NO_ROOM}no time limit")
        with lab.drain(left) as drain:
            for node, pods in ((spare, 1), (avoided, 2)):
                training.has_warm_pods_on(node, pods)
            trains_on(training)
            waited, stayed = drain.still_waits(), training.runs()
            announcer.withdraws(spare, MAINTENANCE[0])
            training.trains(steps=3, run=2)
            drained = drain.finish()
        announcer.withdraws(left, CORDON)

        announcer.labels(left, *MAINTENANCE)
        training.scales(replicas=3)
        with training.log(rank=0) as log:  # no member reports a larger run
            log.wait("PACE run 3: 1 steps", seconds=START_SECONDS)
        training.hurries()
        status = training.completes()
    verdict = training.verdict()
    assert (waited, stayed) == (True, [1])
    assert drained.status == 0, drained.output
    assert training.began_on(2) == sorted([avoided, spare])
    assert training.began_on(3) == sorted([avoided, spare, spare])
    assert training.landed_on(left) - training.planned(1)
    assert all(stays["metadata"]["name"] in training.job.root.members(run) for run in (1, 2, 3))
    assert training.ways() == [Way.LIVE] * 2
    assert (verdict.steps_lost, verdict.samples_lost, verdict.samples_repeated) == (0, 0, 0)
    assert training.batches() == undisturbed(GROWING).batches
    assert (status["failures"]["code"], status["failures"]["infrastructure"]) == (0, 0)


def test_a_pod_that_is_to_be_taken_moves_alone_and_one_whose_cordon_is_ignored_is_never_evicted(
    lab: Lab, train: Train, undisturbed: Undisturbed, announcer: Announcer
) -> None:
    with train(LONG, IGNORING) as training:
        training.trains(steps=3)
        stays, goes = training.member(rank=0), training.member(rank=1)
        cordoned = str(stays["spec"]["nodeName"])
        announcer.cordons(cordoned)
        with lab.drain(cordoned) as drain:
            refused = evict(lab.kubectl, training.job.namespace, goes["metadata"]["name"])
            trains_on(training)
            training.is_undisturbed()
            stayed = training.runs()
            announcer.takes(goes, *PREEMPTED)
            training.trains(steps=3, run=2)
            announcer.takes(training.member(rank=1), *TAINTED)
            training.trains(steps=3, run=3)
            waited = drain.still_waits()
            training.has_pods(2)
            training.hurries()
            status = training.completes()
            drained = drain.finish()
    assert refused.returncode != 0
    assert "would violate the pod's disruption budget" in refused.stderr
    assert (waited, stayed) == (True, [1])
    first, second, third = (training.planned(run) for run in (1, 2, 3))
    assert first & second == first & third == second & third == {stays["metadata"]["uid"]}
    assert [training.began_on(run).count(cordoned) for run in (1, 2, 3)] == [1, 1, 1]
    assert drained.status == 0, drained.output
    assert training.ways() == [Way.LIVE] * 2
    assert training.verdict() == nothing_lost(undisturbed(LONG))
    assert (status["failures"]["code"], status["failures"]["infrastructure"]) == (0, 0)


def test_what_cannot_be_saved_before_a_node_is_taken_is_given_up_before_and_counted_as_lost(
    train: Train, announcer: Announcer
) -> None:
    with train(trouble=HANGING) as training:
        training.trains(steps=20)
        given_back = training.node(rank=1)
        taken = takes_back(announcer, given_back)
        training.trains(steps=1, run=2)
        saved = training.shows("ExitTimeout")
        status = training.completes()
    verdict = training.verdict()
    assert max(training.ends(run=1)) <= taken + LATE
    assert given_back not in training.nodes_of(2)
    assert (saved["type"], saved["status"]) == ("Saved", "False")
    assert status["stepsLost"] == 10
    assert (verdict.steps_lost, verdict.samples_lost, verdict.samples_repeated) == (10, 0, 0)
    assert (status["failures"]["code"], status["failures"]["infrastructure"]) == (0, 0)
