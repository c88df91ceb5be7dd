"""Each shipped row, with the node as its component leaves it: from the raw object to what the job does.

The objects are written after the components' own sources and documents; docs/signals.md links them.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from perdure_operator.api.default_signals import DEFAULT_SIGNALS
from perdure_operator.api.signal_rows import Reaction, SignalRow, SignalSource
from perdure_operator.cluster.read import parse
from perdure_operator.decide.signals import rows_shown
from perdure_operator.state.signal_table import SHIPPED_TABLE, table
from perdure_operator.state.snapshot import NodeView
from tests.support.jobs import Job, job

HEARD = "2026-08-01T11:59:00Z"
Json = dict[str, Any]


def node(
    *taints: Json,
    conditions: tuple[Json, ...] = (),
    labels: Json | None = None,
    annotations: Json | None = None,
    **spec: Any,
) -> Json:
    """A node as the API server shows it: with the kubelet's conditions, and with labels that mean nothing here."""
    kubelet = [
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID"),
        condition("Ready", "True", "KubeletReady"),
    ]
    changed = {one["type"] for one in conditions}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "n1",
            "labels": {"kubernetes.io/hostname": "n1", "kubernetes.io/os": "linux", **(labels or {})},
            "annotations": {"node.alpha.kubernetes.io/ttl": "0", **(annotations or {})},
        },
        "spec": {"podCIDR": "10.0.1.0/24", **({"taints": list(taints)} if taints else {}), **spec},
        "status": {"conditions": [*(one for one in kubelet if one["type"] not in changed), *conditions]},
    }


def condition(kind: str, status: str, reason: str) -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "as it says",
        "lastHeartbeatTime": HEARD,
        "lastTransitionTime": HEARD,
    }


def taint(key: str, effect: str = "NoSchedule", value: str | None = None, added: str | None = None) -> Json:
    more = {name: text for name, text in (("value", value), ("timeAdded", added)) if text}
    return {"key": key, "effect": effect, **more}


UNSCHEDULABLE = taint("node.kubernetes.io/unschedulable", added=HEARD)
AWS = "aws-node-termination-handler"

WRITTEN: dict[str, Json] = {
    "node-deletion": {**node(), "metadata": {"name": "n1", "deletionTimestamp": HEARD, "finalizers": ["f"]}},
    "node-silence": node(conditions=(condition("Ready", "Unknown", "NodeStatusUnknown"),)),
    "taint-not-ready": node(taint("node.kubernetes.io/not-ready", "NoExecute", added=HEARD)),
    "taint-unreachable": node(taint("node.kubernetes.io/unreachable", "NoExecute", added=HEARD)),
    "cluster-autoscaler": node(taint("ToBeDeletedByClusterAutoscaler", value="1785585540")),
    "cluster-autoscaler-candidate": node(
        taint("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule", value="1785585540")
    ),
    "karpenter": node(taint("karpenter.sh/disrupted")),
    "aws-spot-interruption": node(taint(f"{AWS}/spot-itn", value="1234567890"), UNSCHEDULABLE, unschedulable=True),
    "aws-rebalance-recommendation": node(taint(f"{AWS}/rebalance-recommendation", value="rebalance-1")),
    "aws-scheduled-maintenance": node(taint(f"{AWS}/scheduled-maintenance", value="instance-event-0d59937")),
    "aws-asg-termination": node(taint(f"{AWS}/asg-lifecycle-termination", value="asg-lifecycle-term-1")),
    "gke-impending-termination": node(taint("cloud.google.com/impending-node-termination")),
    "gke-active-maintenance": node(labels={"cloud.google.com/active-node-maintenance": "ONGOING"}),
    "gke-scheduled-maintenance": node(labels={"cloud.google.com/scheduled-maintenance-time": "1785589200"}),
    "gke-maintenance-ahead": node(labels={"cloud.google.com/scheduled-maintenance-time": "1785589200"}),
    "aks-node-remediation": node(taint("remediator.kubernetes.azure.com/unschedulable"), UNSCHEDULABLE),
    "aks-scheduled-event": node(conditions=(condition("VMEventScheduled", "True", "VMEventScheduled"),)),
    "aks-filesystem": node(
        conditions=(condition("FilesystemCorruptionProblem", "True", "FilesystemCorruptionDetected"),)
    ),
    "aks-kubelet": node(conditions=(condition("KubeletProblem", "True", "KubeletIsDown"),)),
    "aks-container-runtime": node(conditions=(condition("ContainerRuntimeProblem", "True", "ContainerRuntimeIsDown"),)),
    "aks-gpu-missing": node(conditions=(condition("GPUMissing", "True", "GPUMissing"),)),
    "aks-gpu-xid": node(conditions=(condition("XIDErrors", "True", "XIDErrors"),)),
    "aks-nvlink": node(conditions=(condition("NVLinkStatusInactive", "True", "NVLinkStatusInactive"),)),
    "aks-infiniband": node(conditions=(condition("IBLinkFlapping", "True", "IBLinkFlapping"),)),
    "aks-gpu-throttling": node(conditions=(condition("GPUClockThrottling", "True", "GPUClockThrottling"),)),
    "eks-nvidia-xid": node(conditions=(condition("AcceleratedHardwareReady", "False", "NvidiaXID79Error"),)),
    "eks-accelerated-hardware": node(
        conditions=(condition("AcceleratedHardwareReady", "False", "NeuronHBMUncorrectableError"),)
    ),
    "eks-kernel": node(conditions=(condition("KernelReady", "False", "ForkFailedOutOfPIDs"),)),
    "eks-networking": node(conditions=(condition("NetworkingReady", "False", "IPAMDNotRunning"),)),
    "eks-storage": node(conditions=(condition("StorageReady", "False", "XFSSmallAverageClusterSize"),)),
    "eks-container-runtime": node(conditions=(condition("ContainerRuntimeReady", "False", "PodStuckTerminating"),)),
    "npd-readonly-filesystem": node(conditions=(condition("ReadonlyFilesystem", "True", "FilesystemIsReadOnly"),)),
    "npd-frequent-kubelet-restart": node(
        conditions=(condition("FrequentKubeletRestart", "True", "FrequentKubeletRestart"),)
    ),
    "npd-frequent-runtime-restart": node(
        conditions=(condition("FrequentContainerdRestart", "True", "FrequentContainerdRestart"),)
    ),
    "npd-kubelet-unhealthy": node(conditions=(condition("KubeletUnhealthy", "True", "KubeletUnhealthy"),)),
    "npd-runtime-unhealthy": node(conditions=(condition("ContainerRuntimeUnhealthy", "True", "ContainerdUnhealthy"),)),
    "npd-kernel-deadlock": node(conditions=(condition("KernelDeadlock", "True", "DockerHung"),)),
    "npd-xfs-shutdown": node(conditions=(condition("XfsShutdown", "True", "XfsHasShutdown"),)),
    "npd-net-device": node(conditions=(condition("FrequentUnregisterNetDevice", "True", "UnregisterNetDevice"),)),
    "npd-cper-hardware-error": node(
        conditions=(condition("CperHardwareErrorFatal", "True", "CperHardwareErrorFatal"),)
    ),
    "nvsentinel-maintenance": node(conditions=(condition("CSPMaintenance", "True", "CSPMaintenanceIsNotHealthy"),)),
    "nvsentinel-gpu": node(conditions=(condition("GpuMemWatch", "True", "GpuMemWatchIsNotHealthy"),)),
    "nvsentinel-xid": node(conditions=(condition("SysLogsXIDError", "True", "SysLogsXIDErrorIsNotHealthy"),)),
    "nvsentinel-gpu-gone": node(
        conditions=(condition("SysLogsGPUFallenOff", "True", "SysLogsGPUFallenOffIsNotHealthy"),)
    ),
    "nvsentinel-nvswitch": node(
        conditions=(condition("NVSwitchFatalError", "True", "NVSwitchFatalErrorIsNotHealthy"),)
    ),
    "out-of-service": node(taint("node.kubernetes.io/out-of-service", "NoExecute", value="nodeshutdown")),
    "medik8s-remediation": node(taint("remediation.medik8s.io/self-node-remediation", added=HEARD)),
    "medik8s-drain": node(taint("medik8s.io/drain"), UNSCHEDULABLE, unschedulable=True),
    "node-readiness": node(taint("readiness.k8s.io/storage-ready", value="pending")),
    "maintenance-planned": node(conditions=(condition("MaintenancePlanned", "True", "KernelUpgrade"),)),
    "drain-in-progress": node(conditions=(condition("DrainInProgress", "True", "KernelUpgrade"),)),
    "maintenance-in-progress": node(conditions=(condition("MaintenanceInProgress", "True", "KernelUpgrade"),)),
    "graceful-node-shutdown": node(conditions=(condition("GracefulNodeShutdownInProgress", "True", "NodeShutdown"),)),
    "vacate-annotation": node(annotations={"perdure.dev/vacate": "true"}),
    "memory-pressure": node(conditions=(condition("MemoryPressure", "True", "KubeletHasInsufficientMemory"),)),
    "disk-pressure": node(conditions=(condition("DiskPressure", "True", "KubeletHasDiskPressure"),)),
    "pid-pressure": node(conditions=(condition("PIDPressure", "True", "KubeletHasInsufficientPID"),)),
    "no-execute": node(taint("example.com/broken", "NoExecute", added=HEARD)),
    "cordon": node(UNSCHEDULABLE, unschedulable=True),
}


def pod(*conditions: Json, **container: Any) -> Json:
    """A member's pod as the API server shows it."""
    kubelet = [condition(kind, "True", "") for kind in ("PodReadyToStartContainers", "Initialized", "Ready")]
    scheduled = condition("PodScheduled", "True", "")
    status = {"name": "trainer", "ready": True, "state": {"running": {"startedAt": HEARD}}, **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "digits-ab12-0", "namespace": "default", "uid": "u0"},
        "spec": {"nodeName": "n1", "containers": [{"name": "trainer"}]},
        "status": {
            "phase": "Running",
            "conditions": [*conditions, *kubelet, scheduled],
            "containerStatuses": [status],
        },
    }


def doomed(reason: str) -> Json:
    return pod(condition("DisruptionTarget", "True", reason))


def gpus(*health: str, name: str = "nvidia.com/gpu") -> Json:
    """Of each device in turn, as the kubelet has it from the device plugin."""
    devices = [{"resourceID": f"GPU-{place}", "health": word} for place, word in enumerate(health)]
    return pod(allocatedResourcesStatus=[{"name": name, "resources": devices}])


PODS: dict[str, Json] = {
    "pod-preempted": doomed("PreemptionByScheduler"),
    "pod-evicted": doomed("EvictionByEvictionAPI"),
    "pod-untolerated-taint": doomed("DeletionByTaintManager"),
    "pod-garbage": doomed("DeletionByPodGC"),
    "device-unhealthy": gpus("Healthy", "Unhealthy"),
    "device-unknown": gpus("Healthy", "Unknown"),
}
CAUSES = {
    "pod-preempted": "the scheduler takes the place of digits-ab12-0 for a pod of higher priority",
    "pod-evicted": "somebody evicts digits-ab12-0",
    "pod-untolerated-taint": "digits-ab12-0 does not tolerate a taint of its node",
    "pod-garbage": "the node of digits-ab12-0 is gone for good",
    "node-deletion": "node n1 is being deleted",
    "cluster-autoscaler": "cluster-autoscaler removes node n1",
    "karpenter": "Karpenter removes node n1",
    "aws-spot-interruption": "AWS takes the spot instance of node n1",
    "aws-rebalance-recommendation": "AWS is likely to take the spot instance of node n1",
    "aws-scheduled-maintenance": "AWS has scheduled maintenance of node n1",
    "aws-asg-termination": "an Auto Scaling group of AWS removes node n1",
    "gke-impending-termination": "Google takes node n1",
    "aks-node-remediation": "AKS drains node n1",
    "aks-filesystem": "node n1 has the condition FilesystemCorruptionProblem=True",
    "aks-kubelet": "node n1 has the condition KubeletProblem=True",
    "aks-container-runtime": "node n1 has the condition ContainerRuntimeProblem=True",
    "aks-nvlink": "node n1 has the condition NVLinkStatusInactive=True",
    "aks-infiniband": "node n1 has the condition IBLinkFlapping=True",
    "aks-gpu-throttling": "node n1 has the condition GPUClockThrottling=True",
    "npd-readonly-filesystem": "node n1 has the condition ReadonlyFilesystem=True",
    "npd-frequent-kubelet-restart": "node n1 has the condition FrequentKubeletRestart=True",
    "npd-frequent-runtime-restart": "node n1 has the condition FrequentContainerdRestart=True",
    "npd-kubelet-unhealthy": "node n1 has the condition KubeletUnhealthy=True",
    "npd-runtime-unhealthy": "node n1 has the condition ContainerRuntimeUnhealthy=True",
    "npd-kernel-deadlock": "node n1 has the condition KernelDeadlock=True",
    "npd-xfs-shutdown": "node n1 has the condition XfsShutdown=True",
    "npd-net-device": "node n1 has the condition FrequentUnregisterNetDevice=True",
    "nvsentinel-maintenance": "node n1 has the condition CSPMaintenance=True",
    "out-of-service": "node n1 has the taint node.kubernetes.io/out-of-service:NoExecute",
    "medik8s-remediation": "node n1 is about to be rebooted by medik8s",
    "medik8s-drain": "node n1 is put under maintenance",
    "maintenance-planned": "maintenance of node n1 is planned",
    "drain-in-progress": "node n1 is being drained",
    "vacate-annotation": "node n1 has the annotation perdure.dev/vacate",
    "no-execute": "node n1 has the taint example.com/broken:NoExecute",
    "cordon": "node n1 is cordoned",
}
"""Why members leave; on any other of these nodes, and as any other of these pods, they stay."""


def on(raw: Json, here: Job | None = None) -> Job:
    """A job of two members that trains, whose first node has become this one."""
    shown = dict(parse.node(raw))
    return (here or job().running(world=2)).node(shown.pop("name"), **shown).settle()


def seen_as(raw: Json, here: Job | None = None) -> Job:
    """A job of two members that trains, whose first one has become this pod."""
    shown = parse.pod(raw)
    return (here or job().running(world=2)).pod(0, conditions=shown.conditions, devices=shown.devices).settle()


def test_every_row_has_an_object() -> None:
    asked_for = {
        row.name for row in DEFAULT_SIGNALS if row.source is SignalSource.EVICTION
    }  # decide/test_eviction_responses
    by_a_person = {"vacate-job"}  # state/test_vacate_request
    by_members = {"node-stragglers"}  # decide/test_signals, cluster/read/test_observe
    assert set(WRITTEN) | set(PODS) | asked_for | by_a_person | by_members == {row.name for row in DEFAULT_SIGNALS}


@pytest.mark.parametrize("name", WRITTEN)
def test_members_leave_a_node_for_what_its_row_says_and_for_nothing_else(name: str) -> None:
    here = on(WRITTEN[name])
    assert (here.intent.cause if here.intent else None) == CAUSES.get(name)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_row_that_is_off_does_what_it_says_once_a_job_wants_it(name: str) -> None:
    if name == "node-silence":
        return
    wanted = {"signals": {name: "Vacate"}, "replacement_timeout_seconds": 0}
    assert on(WRITTEN[name], job(disruption=wanted).running(world=2)).intent is not None


@pytest.mark.parametrize("name", PODS)
def test_a_member_leaves_for_what_it_shows_itself(name: str) -> None:
    here = seen_as(PODS[name])
    assert (here.intent.cause if here.intent else None) == CAUSES.get(name)


@pytest.mark.parametrize("name", PODS)
def test_a_row_of_pods_that_is_off_does_what_it_says_once_a_job_wants_it(name: str) -> None:
    wanted = {"signals": {name: "Vacate"}, "replacement_timeout_seconds": 0}
    assert seen_as(PODS[name], job(disruption=wanted).running(world=2)).intent is not None


def test_of_a_pod_only_what_some_row_is_about_is_kept() -> None:
    seen = parse.pod(gpus("Healthy", "Healthy"))
    assert (seen.conditions, seen.devices) == ((), ())
    ended = parse.pod(doomed("TerminationByKubelet"))
    assert (ended.conditions, ended.reason) == ((), "TerminationByKubelet")


def test_a_row_for_any_condition_of_pods_does_not_mean_those_of_one_that_is_well() -> None:
    everything = SignalRow(name="any", source=SignalSource.POD_CONDITION, key="*", reaction=Reaction.VACATE)
    seen = parse.pod(doomed("Whatever"), table((everything,)))
    assert [one.type for one in seen.conditions] == ["DisruptionTarget"]


def test_the_devices_of_a_claim_are_read_as_those_of_a_plugin() -> None:
    (device,) = parse.pod(gpus("Unhealthy", name="claim:gpu/one")).devices
    assert (device.resource, device.id, device.health) == ("claim:gpu/one", "GPU-0", "Unhealthy")


def test_a_node_that_announces_nothing_is_kept_without_its_conditions_labels_and_annotations() -> None:
    assert parse.node(node()) == NodeView(name="n1")
    assert on(node()).intent is None


@pytest.mark.parametrize(
    "kind", [row.key for row in DEFAULT_SIGNALS if row.source is SignalSource.CONDITION and "*" not in row.key]
)
def test_a_condition_that_is_unknown_announces_nothing(kind: str) -> None:
    assert parse.node(node(conditions=(condition(kind, "Unknown", "NodeStatusUnknown"),))).conditions == ()


def test_no_two_rows_have_one_name_and_every_source_without_a_key_has_one_row() -> None:
    assert len({row.name for row in DEFAULT_SIGNALS}) == len(DEFAULT_SIGNALS)
    keyless = [row.source for row in DEFAULT_SIGNALS if not row.key]
    built_in = [
        SignalSource.CORDON,
        SignalSource.NODE_DELETION,
        SignalSource.SILENCE,
        SignalSource.EVICTION,
        SignalSource.STRAGGLERS,
        SignalSource.JOB,
    ]
    assert sorted(keyless) == sorted(built_in)
    assert all(re.fullmatch(r"[a-z0-9-]+", row.name) for row in DEFAULT_SIGNALS)


@pytest.mark.parametrize("name", [name for name in WRITTEN if name != "node-silence"])
def test_the_command_line_names_the_row_where_it_is_in_force(name: str) -> None:
    (row,) = (row for row in DEFAULT_SIGNALS if row.name == name)
    shown = [one.name for one, _ in rows_shown(SHIPPED_TABLE, parse.node(WRITTEN[name]))]
    assert (name in shown) is row.enabled
