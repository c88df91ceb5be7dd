"""What Kubernetes itself does to members: a node that goes silent, a pod that needs their place, memory that is out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from e2e.harness.lab import Lab
from e2e.scenarios import lanes
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import AHEAD, START_SECONDS, Config, Trouble, nothing_lost

pytestmark = pytest.mark.cluster

LOST_SECONDS = 5
PACE = {"PACE_SECONDS": "0.3", "PACE_HOLDS": "13"}
SILENT = Trouble(environ=PACE, spec={"failure": {"lostNodeSeconds": LOST_SECONDS}})
EVICTED = Trouble(environ=PACE)
DEVICE = "example.com/seat"
"""Each node's single seat: a pod that needs it needs a member's place."""
SEATED = Trouble(environ=PACE, devices={DEVICE: "1"})
URGENT = "urgent"


@contextlib.contextmanager
def silent(lab: Lab, node: str) -> Iterator[None]:
    """The node's kubelet stands still: its pods go on, unseen."""
    lab.cluster.freeze_node(node)
    try:
        yield
    finally:
        lab.cluster.thaw_node(node)
        is_well(lab, node, "Ready")


@contextlib.contextmanager
def starved(lab: Lab, node: str) -> Iterator[None]:
    """The node has no memory left, by its kubelet, which evicts whom it can."""
    lab.cluster.starve_node(node)
    try:
        yield
    finally:
        lab.cluster.feed_node(node)
        is_well(lab, node, "MemoryPressure=False")


def is_well(lab: Lab, node: str, condition: str) -> None:
    """Waits until its kubelet says so."""
    seconds = START_SECONDS
    lab.kubectl("wait", f"node/{node}", f"--for=condition={condition}", f"--timeout={seconds}s", seconds=seconds + 10)


def preempting(lab: Lab, namespace: str, node: str) -> None:
    """A pod that outranks all others and needs the device of this node."""
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": URGENT}}
    lab.kubectl.apply({**priority, "value": 1_000_000})
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "urgent",
        "image": "perdure-operator:dev",
        "command": ["sleep", "infinity"],
        "resources": {"limits": {DEVICE: "1"}},
        "securityContext": security,
    }
    spec = {
        "priorityClassName": URGENT,
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "containers": [container],
    }
    metadata = {"name": URGENT, "namespace": namespace}
    lab.kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def test_a_job_goes_on_without_a_node_that_has_gone_silent_and_loses_no_finished_step(
    lab: Lab, train: Train, undisturbed: Undisturbed
) -> None:
    with train(trouble=SILENT) as training:
        training.trains(steps=12)
        gone, stays = training.node(rank=1), training.member(rank=0)
        with silent(lab, gone):
            training.shows("NodeUnreachable")
            training.trains(steps=1, run=2)
            began = training.began_on(2)
            former = [pod["metadata"]["name"] for pod in training.formers()]
        status = training.completes()
    verdict = training.verdict()
    assert gone not in began
    assert stays["metadata"]["uid"] in training.planned(2)
    assert len(former) == 1
    assert (verdict.samples_lost, verdict.samples_repeated) == (0, 0)
    assert training.steps_redone(rank=0) == 0
    assert max(verdict.steps_lost, status["stepsLost"]) <= AHEAD
    assert verdict.weights == undisturbed(Config()).weights
    assert (status["failures"]["code"], status["failures"]["infrastructure"]) == (0, 1)


@pytest.mark.chaos  # for its pod it is as an eviction
def test_a_member_that_the_scheduler_preempts_saves_and_its_place_is_taken_elsewhere(
    lab: Lab, lane: str, train: Train, undisturbed: Undisturbed
) -> None:
    with lab.devices(lanes.nodes(lab, lane), DEVICE, each=1), train(trouble=SEATED) as training:
        training.trains(steps=12)
        taken = training.node(rank=1)
        preempting(lab, training.job.namespace, taken)
        lab.kubectl(
            "wait",
            f"pod/{URGENT}",
            f"--namespace={training.job.namespace}",
            "--for=condition=Ready",
            f"--timeout={START_SECONDS}s",
            seconds=START_SECONDS + 10,
        )
        status = training.completes()
        lab.kubectl("delete", "pod", URGENT, f"--namespace={training.job.namespace}")
    assert taken not in training.nodes_of(2)
    assert training.verdict() == nothing_lost(undisturbed(Config()))
    assert (status["failures"]["code"], status["failures"]["infrastructure"]) == (0, 0)


def test_a_member_that_its_kubelet_evicts_for_memory_costs_no_finished_step(
    lab: Lab, train: Train, undisturbed: Undisturbed
) -> None:
    with train(trouble=EVICTED) as training:
        training.trains(steps=12)
        left, stays = training.node(rank=1), training.member(rank=0)
        with starved(lab, left):
            training.trains(steps=1, run=2)
            evicted = training.evicted()
        status = training.completes()
    verdict = training.verdict()  # only the killed trainer could have reported its last steps
    assert evicted <= training.planned(1)
    assert len(evicted) == 1
    assert stays["metadata"]["uid"] in training.planned(2)
    assert left not in training.began_on(2)
    assert verdict.samples_repeated == 0
    assert training.steps_redone(rank=0) == 0
    assert max(verdict.steps_lost, status["stepsLost"]) <= AHEAD
    assert verdict.weights == undisturbed(Config()).weights
    assert status["failures"]["code"] == 0
