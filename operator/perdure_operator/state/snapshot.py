"""What `decide` sees of the world: one frozen, self-contained value that can be stored as JSON and explained later.

`cluster.observe` builds it, nothing else. It holds facts, never conclusions.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from perdure.wire import DEFAULT_GRACE_SECONDS
from perdure_operator.api.model import Model
from perdure_operator.api.signal_rows import SignalRow
from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.api.status import TrainingJobStatus


class Taint(Model):
    """A node's taint."""

    key: str
    value: str = ""
    effect: str
    added: datetime | None = None
    """When it was added, if known."""


class _Condition(Model):
    """A condition that some row of the signal table covers."""

    type: str
    status: str
    reason: str = ""
    since: datetime | None = None
    """When `status` changed last."""


class NodeCondition(_Condition):
    """A condition of a node."""


class PodCondition(_Condition):
    """A condition of a pod."""


class Device(Model):
    """A device of a container, in a health state that some row of the signal table covers."""

    resource: str
    """nvidia.com/gpu, or claim:NAME/REQUEST."""
    id: str
    health: str


class Toleration(Model):
    """A pod's toleration; an absent key with operator Exists tolerates everything."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class NodeView(Model):
    """A node under one of the job's pods, or one that a pod names and a live LIST does not contain."""

    name: str
    exists: bool = True
    cordoned: bool = False
    deleting: bool = False
    ready: bool = True
    unready_since: datetime | None = None
    """Since when its condition Ready has been other than True, by the writer's clock."""
    zone: str = ""
    """The label topology.kubernetes.io/zone; "" if absent."""
    taints: tuple[Taint, ...] = ()
    conditions: tuple[NodeCondition, ...] = ()
    """Only those that some row of the signal table matches; the same for labels and annotations."""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    slows_jobs: bool = False
    """Whether members on it hold up jobs of three namespaces or more."""
    claim: str = ""
    """The NodeClaim that it belongs to, if Karpenter made it."""
    claim_ends: datetime | None = None
    """When Karpenter terminates it, even if pods still run there; None if no time is set, or it was not read."""


class Zone(Model):
    """The state of a zone's nodes, whichever pods run on them."""

    name: str = ""
    ready: int = 0
    not_ready: int = 0


class Terminated(Model):
    """How container 0 ended, or the init container that ended the pod before it."""

    exit_code: int
    reason: str = ""
    """OOMKilled, Error, Completed, StartError, ContainerCannotRun ..."""
    message: str = ""
    """The termination message: an outcome, or any other text of the container."""
    finished_at: datetime | None = None
    """When it ended, by the kubelet's clock; whole seconds."""


class PodView(Model):
    """A pod with the job's label, of any owner."""

    name: str
    uid: str
    resource_version: str = ""
    owner_uid: str = ""
    """uid of the controlling TrainingJob; "" for a pod without a controller."""
    role: str = ""
    labelled: bool = True
    """False if a label by which the job's pods are watched and protected was removed."""
    has_labels: bool = True
    """False if every label was removed, so that the pod has no map of them."""
    has_annotations: bool = True
    """False if every annotation was removed, so that the pod has no map of them."""
    assignment: str = ""
    """The annotation's text; "" if absent."""
    node: str = ""
    ip: str = ""
    phase: str = "Pending"
    ready: bool = False
    ready_since: datetime | None = None
    """Since when it is Ready, by the kubelet's clock; whole seconds."""
    unready_since: datetime | None = None
    """Since when it is not Ready, by the kubelet's clock; whole seconds; None if unknown."""
    deleting: bool = False
    deletion_deadline: datetime | None = None
    """metadata.deletionTimestamp: the moment the grace ends."""
    grace: int = DEFAULT_GRACE_SECONDS
    """spec.terminationGracePeriodSeconds: the seconds that a deletion gives the pod."""
    waiting_reason: str = ""
    """The first container, in starting order, that waits for something that may never come, or has ended beside
    container 0: ErrImagePull, CreateContainerConfigError, RunContainerError, CrashLoopBackOff, Error ..."""
    waiting_message: str = ""
    waiting_container: str = ""
    """The name of the container that waits; "" for container 0."""
    initializing: str = ""
    """The init container that is running."""
    pulling: bool = False
    """Whether the node has set the pod up, with volumes and a network, and has not created the next container yet:
    usually it pulls the image."""
    terminated: Terminated | None = None
    init_failed: str = ""
    """The init container that `terminated` describes; "" if it describes container 0."""
    others_run: bool = False
    """Whether a container beside the ended container 0 is still running; the kubelet ends init containers itself."""
    unschedulable: str = ""
    """The scheduler's message while the pod cannot be placed."""
    reason: str = ""
    """Why Kubernetes ends the whole pod, or its kubelet refused it: status.reason (Evicted, OutOfcpu, NodeAffinity,
    Terminated ...), or that of a DisruptionTarget condition that is True (PreemptionByScheduler ...)."""
    message: str = ""
    """What Kubernetes writes beside `reason`."""
    tolerations: tuple[Toleration, ...] = ()
    priority: int = 0
    """The priority that admission filled in."""
    priority_class: str = ""
    preemption_policy: str = ""
    """Never, or PreemptLowerPriority, which is the default."""
    template_hash: str = ""
    """Hash of the pod template it was created from; "" if unknown. A standby with an older one is replaced."""
    root: str = ""
    """Where it writes to: equal texts are the same place; "" is unknown."""
    conditions: tuple[PodCondition, ...] = ()
    """Only those that some row of the signal table matches."""
    devices: tuple[Device, ...] = ()
    """Only those that some row of the signal table matches."""
    nudge: str = ""
    """The annotation that is changed to wake its kubelet; "" if it never was."""
    marks: dict[str, str] = Field(default_factory=dict)
    """Its annotations that node autoscalers read, and the operator's own that records who set them."""
    gone: bool = False
    """The watch said DELETED (or a live LIST no longer has it); the rest is its last known state."""


class EvictionView(Model):
    """An Eviction of one of the job's pods, if the operator is one of its responders."""

    name: str
    uid: str
    pod: str
    """The pod's uid."""
    place: int
    """The index of the operator's own answer in status.responders."""
    state: str
    """The operator's turn: Inactive, Active, Interrupted, Canceled or Completed."""
    over: bool = False
    """The pod was evicted, or no responder keeps trying."""
    requesters: tuple[str, ...] = ()
    """The requesters, except those that have withdrawn."""
    withdrawn: bool = False
    """Whether all of them have withdrawn."""
    started: datetime | None = None
    """Since when it has been the operator's turn."""
    heartbeat: datetime | None = None
    """When the operator answered last."""
    expected: datetime | None = None
    """The pod's end, as the operator announced it."""
    completed: datetime | None = None
    """When the operator reported completion."""
    message: str = ""
    """The operator's message."""
    tried: datetime | None = None
    """When this process answered last, by its heartbeat, even if that was refused."""


class Budget(Model):
    """The job's PodDisruptionBudget."""

    min_available: int
    """-1 if it is no longer an integer."""
    uid: str
    resource_version: str = ""
    altered: str = ""
    """What was changed in it by others, besides minAvailable; "" if it is as we made it."""


class TemplateVerdict(StrEnum):
    """The result of the pod template's server-side dry run."""

    UNKNOWN = "Unknown"
    GOOD = "Good"
    BAD = "Bad"
    WAIT = "Wait"  # a quota or a webhook: not the template's fault


class TemplateCheck(Model):
    """The newest dry run of this process, for the template with hash `hash`."""

    hash: str = ""
    verdict: TemplateVerdict = TemplateVerdict.UNKNOWN
    message: str = ""
    time: datetime | None = None
    """When it was made; None counts as long ago."""


class KeptTemplate(Model):
    """A template that passed a dry run, as stored beside the job."""

    name: str
    """The name of its ControllerRevision; see `names.kept_template`."""
    uid: str
    hash: str = ""
    """Hash of the pod that it would make now; "" if it was not read, because it is not needed."""
    template: dict[str, Any] = Field(default_factory=dict)


class RefusalKind(StrEnum):
    """Why an object could not be created, changed or deleted."""

    REFUSED = "Refused"  # a quota or admission
    NAME_TAKEN = "NameTaken"  # another owner's object has the name, which is burnt
    PATCH_REFUSED = "PatchRefused"  # the pod, or the budget, exists; admission or RBAC does not let it be changed
    DELETION_REFUSED = "DeletionRefused"  # the object exists; admission or RBAC does not let it be deleted


class Refusal(Model):
    """The API server's answer to this process's newest failed creation, change or deletion."""

    pod: str
    """The name of the pod, of the job's budget, or of the ControllerRevision for its template; or the job's."""
    kind: RefusalKind = RefusalKind.REFUSED
    message: str
    until: datetime | None = None
    """Until when it counts as the API server's answer; None: the write is repeated all the time."""


class Snapshot(Model):
    """The input of one decision."""

    now: datetime
    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str = ""
    deleting: bool = False
    spec: TrainingJobSpec
    vacate: str = ""
    """The job's annotation perdure.dev/vacate."""
    save: str = ""
    """The job's annotation perdure.dev/save."""
    unknown_fields: tuple[str, ...] = ()
    """Paths below spec that this operator does not know, or cannot read, and ignores."""
    status: TrainingJobStatus = TrainingJobStatus()
    pods: tuple[PodView, ...] = ()
    """Pods with the job's label: this uid's and predecessors'."""
    pods_complete: bool
    """True when `pods` comes from a live LIST; otherwise absence means nothing and the plan may only wait."""
    nodes: tuple[NodeView, ...] = ()
    zones: tuple[Zone, ...] = ()
    """All zones of the cluster; empty if they were not counted."""
    nodes_complete: bool
    """True once a live LIST of nodes has been made: a node missing before that is unknown, not deleted."""
    signals: tuple[SignalRow, ...] = ()
    """The rows of the signal table that the operator's configuration changed or added."""
    evictions: tuple[EvictionView, ...] = ()
    responds: bool = False
    """Whether new pods should name the operator as a responder for their Evictions."""
    budget: Budget | None = None
    foreign_budgets: tuple[str, ...] = ()
    """Names of other PodDisruptionBudgets whose selector matches our pods."""
    same_uri: tuple[str, ...] = ()
    """Jobs that write to the same root and have an older claim to it: namespace/name, or that one is elsewhere."""
    younger_gangs: int = 0
    """How many jobs created later hold nodes in vain before they begin, or have just released them."""
    foreign_pods: tuple[str, ...] = ()
    """Names of pods that the job's budget counts as members but the job does not own."""
    template_hash: str = ""
    template_check: TemplateCheck = TemplateCheck()
    kept: tuple[KeptTemplate, ...] = ()
    """Templates stored for the job; status says which one counts."""
    refusals: tuple[Refusal, ...] = ()
    channel_refused: str = ""
    """Why new members get no way to report; "" if they do, or if the operator takes no reports."""
    allotted: tuple[str, ...] = ()
    """Names in status that this process wrote there: no other process can have created their pods."""
    created: tuple[str, ...] = ()
    """Names in status whose pod this process created, or may have: such a name without a pod here is burnt."""
