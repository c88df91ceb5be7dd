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
from perdure_operator.api.signals import SignalRow
from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.api.status import TrainingJobStatus


class Taint(Model):
    """A node's taint."""

    key: str
    value: str = ""
    effect: str
    added: datetime | None = None
    """When it was added, where that is told."""


class _Told(Model):
    """A condition that some row of the signal table is about."""

    type: str
    status: str
    reason: str = ""
    since: datetime | None = None
    """When `status` changed last."""


class NodeCondition(_Told):
    """A node's."""


class PodCondition(_Told):
    """A pod's."""


class Device(Model):
    """A device that a container has, in a health that some row of the signal table is about."""

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
    """A node under one of the job's pods, or one that a pod names and a live LIST does not have."""

    name: str
    exists: bool = True
    cordoned: bool = False
    deleting: bool = False
    ready: bool = True
    unready_since: datetime | None = None
    """Since when its condition Ready is what it is, where that is not True; by the clock of whoever has written it."""
    zone: str = ""
    """The label topology.kubernetes.io/zone, "" where there is none."""
    taints: tuple[Taint, ...] = ()
    conditions: tuple[NodeCondition, ...] = ()
    """Those alone that some row of the signal table matches, as labels and annotations."""
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    claim: str = ""
    """The NodeClaim to which it belongs, where Karpenter has made it."""
    claim_ends: datetime | None = None
    """When that is terminated whatever runs there; None where nobody has set a time, or it was not read."""


class Zone(Model):
    """How the nodes of one zone are, whoever runs on them."""

    name: str = ""
    ready: int = 0
    not_ready: int = 0


class Terminated(Model):
    """How container 0 ended, or the init container that has ended the pod before it."""

    exit_code: int
    reason: str = ""
    """OOMKilled, Error, Completed, StartError, ContainerCannotRun ..."""
    message: str = ""
    """The termination message: an outcome, or whatever else the container left."""
    finished_at: datetime | None = None
    """When it ended, by the kubelet's clock; whole seconds."""


class PodView(Model):
    """One pod with the job's label, whoever owns it."""

    name: str
    uid: str
    resource_version: str = ""
    owner_uid: str = ""
    """uid of the controlling TrainingJob; "" for a pod without a controller."""
    role: str = ""
    labelled: bool = True
    """False where somebody has removed a label by which the job's pods are watched and protected."""
    has_labels: bool = True
    """False where somebody has removed every label, so that the pod has no map of them."""
    has_annotations: bool = True
    """As `has_labels`."""
    assignment: str = ""
    """The annotation's text, "" where there is none."""
    node: str = ""
    ip: str = ""
    phase: str = "Pending"
    ready: bool = False
    ready_since: datetime | None = None
    """Since when it is Ready, by the kubelet's clock; whole seconds."""
    deleting: bool = False
    deletion_deadline: datetime | None = None
    """metadata.deletionTimestamp: the moment the grace ends."""
    grace: int = DEFAULT_GRACE_SECONDS
    """spec.terminationGracePeriodSeconds: what it gets once it is deleted."""
    waiting_reason: str = ""
    """Of the first container, in the order in which they start, that waits for what may never come, or has ended beside
    container 0: ErrImagePull, CreateContainerConfigError, RunContainerError, CrashLoopBackOff, Error ..."""
    waiting_message: str = ""
    waiting_container: str = ""
    """Its name, "" for container 0."""
    initializing: str = ""
    """The init container that is at work."""
    pulling: bool = False
    """Whether its node has set it up, with volumes and a network, and the next container is not created yet: as a rule
    its image is being pulled."""
    terminated: Terminated | None = None
    init_failed: str = ""
    """The init container of whose end `terminated` tells, "" where it is container 0's."""
    others_run: bool = False
    """Whether a container beside container 0, which has ended, has not; init containers are the kubelet's to end."""
    unschedulable: str = ""
    """The scheduler's message while the pod cannot be placed."""
    evicted: bool = False
    """status.reason Evicted, or a DisruptionTarget condition that is True."""
    tolerations: tuple[Toleration, ...] = ()
    priority: int = 0
    """As admission has filled it in."""
    priority_class: str = ""
    preemption_policy: str = ""
    """Never, or PreemptLowerPriority, which is meant where it is absent."""
    template_hash: str = ""
    """Hash of the pod template it was created from, "" where unknown: a standby of an older one is replaced."""
    root: str = ""
    """Where it writes to: the same text is the same place, "" is unknown."""
    conditions: tuple[PodCondition, ...] = ()
    """Those alone that some row of the signal table matches."""
    devices: tuple[Device, ...] = ()
    """Those alone that some row of the signal table matches."""
    nudge: str = ""
    """Of the annotation that is touched for its kubelet, "" where it never was."""
    marks: dict[str, str] = Field(default_factory=dict)
    """Its annotations that autoscalers of nodes read, and the operator's own that says who has made them."""
    gone: bool = False
    """The watch said DELETED (or a live LIST no longer has it); the rest is its last known state."""


class EvictionView(Model):
    """An Eviction of one of the job's pods, as far as the operator is one of those that answer it."""

    name: str
    uid: str
    pod: str
    """The pod's uid."""
    place: int
    """Where in status.responders the operator's own answer belongs."""
    state: str
    """The operator's turn: Inactive, Active, Interrupted, Canceled or Completed."""
    over: bool = False
    """The pod was evicted, or nobody goes on trying."""
    requesters: tuple[str, ...] = ()
    """Who wants it; those who have withdrawn are left out."""
    withdrawn: bool = False
    """Whether all of them have."""
    started: datetime | None = None
    """Since when it is the operator's turn."""
    heartbeat: datetime | None = None
    """When the operator answered last."""
    expected: datetime | None = None
    """When it has said that the pod will have ended."""
    completed: datetime | None = None
    """When it has said that it is done."""
    message: str = ""
    """What it has said."""
    tried: datetime | None = None
    """The heartbeat of this process's newest answer, also of one that was refused."""


class Budget(Model):
    """The job's PodDisruptionBudget."""

    min_available: int
    """-1 where it is not an integer any more."""
    uid: str
    resource_version: str = ""
    altered: str = ""
    """What somebody has changed in it, beside minAvailable; "" where it is as we made it."""


class TemplateVerdict(StrEnum):
    """What the server-side dry run said of the pod template."""

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
    """A template that passed a dry run, as it is stored beside the job."""

    name: str
    """Of its ControllerRevision; see `names.kept_template`."""
    uid: str
    hash: str = ""
    """Of the pod that it would make now; "" where it was not read, as nobody needs it."""
    template: dict[str, Any] = Field(default_factory=dict)


class RefusalKind(StrEnum):
    """Why an object could not be created, or could not be changed."""

    REFUSED = "Refused"  # a quota or admission
    NAME_TAKEN = "NameTaken"  # somebody else's object has the name: it is burnt
    PATCH_REFUSED = "PatchRefused"  # the pod, or the budget, exists; admission or RBAC does not let it be changed


class Refusal(Model):
    """The API server's answer to the newest creation, or change, by this process that failed."""

    pod: str
    """The name of the pod, or of the job's budget, or of the ControllerRevision that was to keep its template."""
    kind: RefusalKind = RefusalKind.REFUSED
    message: str
    until: datetime | None = None
    """When it is no longer taken for what the API server would say; None: the write is made again all the time."""


class Snapshot(Model):
    """Everything one decision is made from."""

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
    unknown_fields: tuple[str, ...] = ()
    """Paths below spec that this operator does not know, or cannot read, and ignores."""
    status: TrainingJobStatus = TrainingJobStatus()
    pods: tuple[PodView, ...] = ()
    """Pods with the job's label: this uid's and predecessors'."""
    pods_complete: bool
    """True when `pods` comes from a live LIST; otherwise absence means nothing and the plan may only wait."""
    nodes: tuple[NodeView, ...] = ()
    zones: tuple[Zone, ...] = ()
    """All zones of the cluster; empty where they have not been counted."""
    nodes_complete: bool
    """True once a live LIST of nodes has been made: a node missing before that is unknown, not deleted."""
    signals: tuple[SignalRow, ...] = ()
    """The rows of the signal table that the operator's configuration has changed or added."""
    evictions: tuple[EvictionView, ...] = ()
    responds: bool = False
    """Whether new pods are to name the operator as one that answers their Evictions."""
    budget: Budget | None = None
    foreign_budgets: tuple[str, ...] = ()
    """Names of other PodDisruptionBudgets whose selector matches our pods."""
    same_uri: tuple[str, ...] = ()
    """Jobs that write to the same root and have a better claim to it: namespace/name, or that one is elsewhere."""
    younger_gangs: int = 0
    """How many jobs that were created later hold nodes in vain before they begin, or have just let go of them."""
    foreign_pods: tuple[str, ...] = ()
    """Names of pods that the job's budget counts as members and that the job does not own."""
    template_hash: str = ""
    template_check: TemplateCheck = TemplateCheck()
    kept: tuple[KeptTemplate, ...] = ()
    """Templates that are kept for the job; which one counts says status."""
    refusals: tuple[Refusal, ...] = ()
    allotted: tuple[str, ...] = ()
    """Names in status that this process has written there: no other can have created their pods."""
    created: tuple[str, ...] = ()
    """Names in status whose pod this process has created, or may have: without a pod here, such a name is burnt."""
