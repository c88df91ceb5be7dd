"""The signals that Perdure ships: rows of a table that the configuration may change.

If two rows match the same thing, the first counts. A signal ships disabled if neither source nor documents of the tool
that sets it confirm it. Hardware faults, which end a run without a save, ship disabled too: a false alarm on all nodes
stops a job, so enabling them is a person's choice.
"""

from __future__ import annotations

from typing import Final

from perdure_operator.api.signals import Reaction, SignalRow, Source

_TAINTS: Final = "https://kubernetes.io/docs/reference/labels-annotations-taints/"
_NODES: Final = "https://kubernetes.io/docs/concepts/architecture/nodes/"
_AUTOSCALER: Final = "https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/utils/taints/taints.go"
_KARPENTER: Final = "https://karpenter.sh/docs/concepts/disruption/"
_NTH: Final = "https://github.com/aws/aws-node-termination-handler"
_EKS: Final = "https://docs.aws.amazon.com/eks/latest/userguide/node-health.html"
_GKE: Final = "https://cloud.google.com/kubernetes-engine/docs/concepts/handle-disruption-gpu-tpu"
_AKS: Final = "https://learn.microsoft.com/en-us/azure/aks/node-auto-drain"
_AKS_DETECTOR: Final = "https://learn.microsoft.com/en-us/azure/aks/node-problem-detector"
_DETECTOR: Final = "https://github.com/kubernetes/node-problem-detector"
_SENTINEL: Final = "https://github.com/NVIDIA/NVSentinel"
_MEDIK8S: Final = "https://github.com/medik8s"
_LIFECYCLE: Final = "https://github.com/kubernetes/enhancements/issues/5683"
_EVICTION: Final = "https://github.com/kubernetes/enhancements/issues/4563"
_PRESSURE: Final = "https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/"

AUTOSCALER_TAINT: Final = "ToBeDeletedByClusterAutoscaler"
KARPENTER_TAINT: Final = "karpenter.sh/disrupted"
VACATE_ANNOTATION: Final = "perdure.dev/vacate"
NO_EXECUTE: Final = "NoExecute"


def _taint(name: str, key: str, reaction: Reaction = Reaction.VACATE, **more: object) -> SignalRow:
    return SignalRow.model_validate({"name": name, "source": Source.TAINT, "key": key, "reaction": reaction, **more})


def _condition(name: str, key: str, reaction: Reaction = Reaction.VACATE, **more: object) -> SignalRow:
    return SignalRow.model_validate(
        {"name": name, "source": Source.CONDITION, "key": key, "reaction": reaction, **more}
    )


_KUBERNETES: Final = (
    SignalRow(
        name="node-deletion",
        source=Source.NODE_DELETION,
        reaction=Reaction.VACATE,
        set_by="a cloud's node controller, Karpenter or a person that deletes the Node object",
        warning="none, or until its finalizers are done",
        url=_NODES,
    ),
    SignalRow(
        name="node-silence",
        source=Source.SILENCE,
        reaction=Reaction.GIVE_UP,
        set_by="the node controller, when the kubelet is silent",
        warning="none: it is after the fact",
        url=_NODES,
    ),
    SignalRow(
        name="eviction-request",
        source=Source.EVICTION,
        reaction=Reaction.VACATE,
        set_by="an EvictionRequest for a member (KEP-4563, alpha in Kubernetes 1.37, off by default)",
        warning="as long as the operator answers: see Eviction requests",
        url=_EVICTION,
    ),
    _taint(
        "taint-not-ready",
        "node.kubernetes.io/not-ready",
        Reaction.IGNORE,
        set_by="the node controller, beside the condition Ready",
        warning="none: see node-silence",
        url=_TAINTS,
    ),
    _taint(
        "taint-unreachable",
        "node.kubernetes.io/unreachable",
        Reaction.IGNORE,
        set_by="the node controller, beside the condition Ready",
        warning="none: see node-silence",
        url=_TAINTS,
    ),
)
_AUTOSCALERS: Final = (
    _taint(
        "cluster-autoscaler",
        AUTOSCALER_TAINT,
        says="cluster-autoscaler removes node {node}",
        set_by="cluster-autoscaler, when it removes a node",
        warning="5 s, then it tries evictions for 2 min; then it gives up and removes the taint",
        url=_AUTOSCALER,
    ),
    _taint(
        "cluster-autoscaler-candidate",
        "DeletionCandidateOfClusterAutoscaler",
        Reaction.IGNORE,
        set_by="cluster-autoscaler, on nodes that it may remove",
        warning="up to 10 min, and most often nothing follows",
        url=_AUTOSCALER,
    ),
    _taint(
        "karpenter",
        KARPENTER_TAINT,
        Reaction.VACATE_BY_DEADLINE,
        deadline_in_claim=True,
        says="Karpenter removes node {node}",
        set_by="Karpenter, for drift, consolidation, expiry, an interruption or a deleted NodeClaim",
        warning="as long as a budget blocks; at most the NodePool's terminationGracePeriod; 2 min for spot",
        url=_KARPENTER,
    ),
)
_CLOUDS: Final = (
    _taint(
        "aws-spot-interruption",
        "aws-node-termination-handler/spot-itn",
        Reaction.VACATE_BY_DEADLINE,
        deadline_seconds=120,
        says="AWS takes the spot instance of node {node}",
        set_by="aws-node-termination-handler with tainting switched on",
        warning="2 min",
        url=_NTH,
    ),
    _taint(
        "aws-rebalance-recommendation",
        "aws-node-termination-handler/rebalance-recommendation",
        says="AWS is likely to take the spot instance of node {node}",
        set_by="aws-node-termination-handler with tainting switched on",
        warning="more than 2 min; unknown how long",
        url=_NTH,
    ),
    _taint(
        "aws-scheduled-maintenance",
        "aws-node-termination-handler/scheduled-maintenance",
        says="AWS has scheduled maintenance of node {node}",
        set_by="aws-node-termination-handler with tainting switched on",
        warning="until the maintenance begins",
        url=_NTH,
    ),
    _taint(
        "aws-asg-termination",
        "aws-node-termination-handler/asg-lifecycle-termination",
        says="an Auto Scaling group of AWS removes node {node}",
        set_by="aws-node-termination-handler with tainting switched on",
        warning="the lifecycle hook's time, at most 48 h",
        url=_NTH,
    ),
    _taint(
        "gke-impending-termination",
        "cloud.google.com/impending-node-termination",
        says="Google takes node {node}",
        set_by="GKE, before a node is shut down",
        warning="15 s to 60 min, by the kind of node",
        url=_GKE,
    ),
    SignalRow(
        name="gke-active-maintenance",
        source=Source.LABEL,
        key="cloud.google.com/active-node-maintenance",
        reaction=Reaction.VACATE,
        enabled=False,
        set_by="GKE, while the host of a GPU or TPU node is being maintained",
        warning="said to be up to 60 min",
        url=_GKE,
    ),
    SignalRow(
        name="gke-scheduled-maintenance",
        source=Source.LABEL,
        key="cloud.google.com/scheduled-maintenance-time",
        reaction=Reaction.VACATE_BY_DEADLINE,
        deadline_in_value=True,
        enabled=False,
        set_by="GKE, when maintenance of the host of a GPU or TPU node is scheduled; the value is its time",
        warning="days: members would leave as soon as the label is there",
        url=_GKE,
    ),
    SignalRow(
        name="gke-maintenance-ahead",
        source=Source.LABEL,
        key="cloud.google.com/scheduled-maintenance-time",
        reaction=Reaction.AVOID,
        set_by="GKE, the same label, where the row above is off",
        warning="days",
        url=_GKE,
    ),
    _taint(
        "aks-node-remediation",
        "remediator.kubernetes.azure.com/unschedulable",
        says="AKS drains node {node}",
        set_by="AKS node auto-drain, beside a cordon",
        warning="at least 30 s for spot",
        url=_AKS,
    ),
    _condition(
        "aks-scheduled-event",
        "VMEventScheduled",
        enabled=False,
        set_by="the node problem detector of AKS; also for a freeze of seconds, after which the node goes on",
        warning="30 s to 15 min, by the kind of event",
        url=_AKS,
    ),
)
_AKS_ROWS: Final = tuple(
    _condition(
        name,
        key,
        reaction,
        enabled=reaction is not Reaction.FAULT,
        set_by="the node problem detector of AKS" + (", on nodes with GPUs" if gpus else ""),
        warning="none: it is after the fact",
        url=_AKS_DETECTOR,
    )
    for name, key, reaction, gpus in (
        ("aks-filesystem", "FilesystemCorruptionProblem", Reaction.VACATE_IF_ROOM, False),
        ("aks-kubelet", "KubeletProblem", Reaction.VACATE_IF_ROOM, False),
        ("aks-container-runtime", "ContainerRuntimeProblem", Reaction.VACATE_IF_ROOM, False),
        ("aks-gpu-missing", "GPUMissing", Reaction.FAULT, True),
        ("aks-gpu-xid", "XIDErrors", Reaction.FAULT, True),
        ("aks-nvlink", "NVLinkStatusInactive", Reaction.VACATE_IF_ROOM, True),
        ("aks-infiniband", "IBLinkFlapping", Reaction.VACATE_IF_ROOM, True),
        ("aks-gpu-throttling", "GPUClockThrottling", Reaction.VACATE_IF_ROOM, True),
    )
)
_EKS_XIDS: Final = (46, 48, 54, 62, 63, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 142, 143, 151, 155, 156, 158)
"""Errors of the NVIDIA driver after which EKS replaces or reboots a node; for others it only makes an Event."""
_EKS_XID: Final = _condition(
    "eks-nvidia-xid",
    "AcceleratedHardwareReady",
    Reaction.FAULT,
    value="False",
    reasons=tuple(f"NvidiaXID{number}Error" for number in _EKS_XIDS),
    enabled=False,
    set_by="the EKS node monitoring agent, for errors of the NVIDIA driver; before the row of all such conditions",
    warning="10 min with node repair",
    url=_EKS,
)
_EKS_ROWS: Final = tuple(
    _condition(
        name,
        key,
        reaction,
        value="False",
        enabled=False,
        set_by="the EKS node monitoring agent (False is bad)",
        warning=warning,
        url=_EKS,
    )
    for name, key, reaction, warning in (
        ("eks-accelerated-hardware", "AcceleratedHardwareReady", Reaction.FAULT, "10 min with node repair"),
        ("eks-kernel", "KernelReady", Reaction.VACATE_IF_ROOM, "30 min with node repair"),
        ("eks-networking", "NetworkingReady", Reaction.VACATE_IF_ROOM, "30 min with node repair"),
        ("eks-storage", "StorageReady", Reaction.VACATE_IF_ROOM, "30 min with node repair"),
        ("eks-container-runtime", "ContainerRuntimeReady", Reaction.VACATE_IF_ROOM, "30 min with node repair"),
    )
)
_DETECTOR_ROWS: Final = tuple(
    _condition(
        name,
        key,
        reaction,
        enabled=reaction is not Reaction.FAULT,
        set_by="node-problem-detector",
        warning="none: it is after the fact",
        url=_DETECTOR,
    )
    for name, key, reaction in (
        ("npd-readonly-filesystem", "ReadonlyFilesystem", Reaction.VACATE_IF_ROOM),
        ("npd-frequent-kubelet-restart", "FrequentKubeletRestart", Reaction.VACATE_IF_ROOM),
        ("npd-frequent-runtime-restart", "FrequentContainerdRestart", Reaction.VACATE_IF_ROOM),
        ("npd-kubelet-unhealthy", "KubeletUnhealthy", Reaction.VACATE_IF_ROOM),
        ("npd-runtime-unhealthy", "ContainerRuntimeUnhealthy", Reaction.VACATE_IF_ROOM),
        ("npd-kernel-deadlock", "KernelDeadlock", Reaction.VACATE_IF_ROOM),
        ("npd-xfs-shutdown", "XfsShutdown", Reaction.VACATE_IF_ROOM),
        ("npd-net-device", "FrequentUnregisterNetDevice", Reaction.VACATE_IF_ROOM),
        ("npd-cper-hardware-error", "CperHardwareErrorFatal", Reaction.FAULT),
    )
)
_SENTINEL_ROWS: Final = tuple(
    _condition(
        name,
        key,
        reaction,
        enabled=reaction is not Reaction.FAULT,
        set_by="NVIDIA NVSentinel, for what is fatal; as a rule it cordons the node too",
        warning=warning,
        url=_SENTINEL,
    )
    for name, key, reaction, warning in (
        ("nvsentinel-maintenance", "CSPMaintenance", Reaction.VACATE, "until the cloud's maintenance begins"),
        ("nvsentinel-gpu", "Gpu*Watch", Reaction.FAULT, "none: it is after the fact"),
        ("nvsentinel-xid", "SysLogsXIDError", Reaction.FAULT, "none: it is after the fact"),
        ("nvsentinel-gpu-gone", "SysLogsGPUFallenOff", Reaction.FAULT, "none: it is after the fact"),
        ("nvsentinel-nvswitch", "NVSwitch*", Reaction.FAULT, "none: it is after the fact"),
    )
)
_OTHERS: Final = (
    _taint(
        "out-of-service",
        "node.kubernetes.io/out-of-service",
        unless_tolerated=True,
        set_by="a person or a remediation tool, once the node is known to be down",
        warning="none: its pods are deleted without a grace period",
        url=_TAINTS,
    ),
    _taint(
        "medik8s-remediation",
        "remediation.medik8s.io/self-node-remediation",
        unless_tolerated=True,
        says="node {node} is about to be rebooted by medik8s",
        set_by="self node remediation of medik8s, before it reboots the node",
        warning="seconds",
        url=_MEDIK8S,
    ),
    _taint(
        "medik8s-drain",
        "medik8s.io/drain",
        says="node {node} is put under maintenance",
        set_by="the node maintenance operator of medik8s, beside a cordon",
        warning="as long as a budget blocks",
        url=_MEDIK8S,
    ),
    _taint(
        "node-readiness",
        "readiness.k8s.io/*",
        Reaction.AVOID,
        effect="NoSchedule",
        set_by="node-readiness-controller: no new pods; present ones may stay",
        warning="none",
        url="https://github.com/kubernetes-sigs/node-readiness-controller",
    ),
    _condition(
        "maintenance-planned",
        "MaintenancePlanned",
        Reaction.VACATE_IF_ROOM,
        says="maintenance of node {node} is planned",
        set_by="an administrator (KEP-5683, alpha in Kubernetes 1.37)",
        warning="until the drain begins",
        url=_LIFECYCLE,
    ),
    _condition(
        "drain-in-progress",
        "DrainInProgress",
        says="node {node} is being drained",
        set_by="the tool that drains the node (KEP-5683, alpha in Kubernetes 1.37)",
        warning="as long as a budget blocks",
        url=_LIFECYCLE,
    ),
    _condition(
        "maintenance-in-progress",
        "MaintenanceInProgress",
        enabled=False,
        set_by="an administrator (KEP-5683, alpha in Kubernetes 1.37)",
        warning="none",
        url=_LIFECYCLE,
    ),
    _condition(
        "graceful-node-shutdown",
        "GracefulNodeShutdownInProgress",
        enabled=False,
        set_by="the kubelet (KEP-5683, alpha in Kubernetes 1.37); it ends the pods itself",
        warning="the kubelet's shutdownGracePeriod",
        url=_LIFECYCLE,
    ),
    SignalRow(
        name="vacate-annotation",
        source=Source.ANNOTATION,
        key=VACATE_ANNOTATION,
        value="true",
        reaction=Reaction.VACATE,
        says=f"node {{node}} has the annotation {VACATE_ANNOTATION}",
        set_by=f"a person: kubectl annotate node NAME {VACATE_ANNOTATION}=true",
        warning="as long as that person waits",
        url="https://kubernetes.io/docs/reference/kubectl/generated/kubectl_annotate/",
    ),
)
_JOB: Final = SignalRow(
    name="vacate-job",
    source=Source.JOB,
    reaction=Reaction.VACATE,
    set_by=f"a user of the job: kubectl annotate trainingjob NAME {VACATE_ANNOTATION}=NODE,POD or =true",
    warning="as long as that person waits",
    url="https://kubernetes.io/docs/reference/kubectl/generated/kubectl_annotate/",
)
_PODS: Final = tuple(
    SignalRow(
        name=name,
        source=Source.POD_CONDITION,
        key="DisruptionTarget",
        reasons=(reason,),
        reaction=Reaction.VACATE,
        says=says,
        set_by=set_by,
        warning="none: the pod is about to be deleted and has its grace period",
        url="https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions",
    )
    for name, reason, says, set_by in (
        (
            "pod-preempted",
            "PreemptionByScheduler",
            "the scheduler takes the place of {pod} for a pod of higher priority",
            "kube-scheduler, before it deletes the pod",
        ),
        (
            "pod-evicted",
            "EvictionByEvictionAPI",
            "somebody evicts {pod}",
            "the API server, once it has allowed an eviction",
        ),
        (
            "pod-untolerated-taint",
            "DeletionByTaintManager",
            "{pod} does not tolerate a taint of its node",
            "the controller that carries out NoExecute taints",
        ),
        (
            "pod-garbage",
            "DeletionByPodGC",
            "the node of {pod} is gone for good",
            "the pod garbage collector, when the Node object is gone or out of service",
        ),
    )
)
_DEVICES: Final = tuple(
    SignalRow(
        name=name,
        source=Source.DEVICE,
        key="*",
        value=health,
        reaction=reaction,
        enabled=reaction is not Reaction.FAULT,
        set_by=set_by,
        warning="none: it is after the fact",
        url="https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/"
        "#device-plugin-and-unhealthy-devices",
    )
    for name, health, reaction, set_by in (
        (
            "device-unhealthy",
            "Unhealthy",
            Reaction.FAULT,
            "the kubelet, as the device plugin or DRA driver reports (KEP-4680)",
        ),
        (
            "device-unknown",
            "Unknown",
            Reaction.IGNORE,
            "the kubelet, when the device plugin or DRA driver is silent: the device itself may work",
        ),
    )
)
_PRESSURES: Final = tuple(
    _condition(
        name,
        key,
        Reaction.CHECKPOINT_NOW,
        set_by="the kubelet; it evicts pods by itself, Guaranteed ones last",
        warning="none, or eviction-soft-grace-period",
        url=_PRESSURE,
    )
    for name, key in (
        ("memory-pressure", "MemoryPressure"),
        ("disk-pressure", "DiskPressure"),
        ("pid-pressure", "PIDPressure"),
    )
)
_LAST: Final = (
    _taint(
        "no-execute",
        "*",
        effect=NO_EXECUTE,
        unless_tolerated=True,
        set_by="an administrator or a controller: every NoExecute taint without a row of its own",
        warning="none: pods without a toleration are deleted and have their grace period",
        url=_TAINTS,
    ),
    SignalRow(
        name="cordon",
        source=Source.CORDON,
        reaction=Reaction.VACATE,
        says="node {node} is cordoned",
        set_by="kubectl cordon and drain, and most tools that drain",
        warning="as long as a budget blocks",
        url="https://kubernetes.io/docs/tasks/administer-cluster/safely-drain-node/",
    ),
)

DEFAULT_SIGNALS: Final = (
    *_KUBERNETES,
    *_AUTOSCALERS,
    *_CLOUDS,
    *_AKS_ROWS,
    _EKS_XID,
    *_EKS_ROWS,
    *_DETECTOR_ROWS,
    *_SENTINEL_ROWS,
    *_OTHERS,
    _JOB,
    *_PODS,
    *_DEVICES,
    *_PRESSURES,
    *_LAST,
)
