"""What `decide` returns: the next status as a whole, then cluster writes, then events, and when to look again.

`cluster.act` carries it out in that order; a failed write stops only those that depend on it. Every action names its
object with a uid or resourceVersion precondition, so that a repeated or late write does no harm.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from perdure_operator.api.model import Model
from perdure_operator.api.status import TrainingJobStatus


class ClusterWrite(Model):
    """A write and its origin: `explain` can say why a pod was deleted."""

    policy: str = ""
    """The policy of `decide` that wants it."""
    why: str = ""
    """The reason of the write, in words."""


class CheckTemplate(ClusterWrite):
    """Server-side dry run of the pod template; the answer is in the next snapshot."""

    kind: Literal["CheckTemplate"] = "CheckTemplate"


class KeepTemplate(ClusterWrite):
    """Store spec.template as it is now in a ControllerRevision of this name; if ours exists, that is success."""

    kind: Literal["KeepTemplate"] = "KeepTemplate"
    name: str


class DropTemplate(ClusterWrite):
    """Delete a ControllerRevision, with a uid precondition."""

    kind: Literal["DropTemplate"] = "DropTemplate"
    name: str
    uid: str


class SetBudget(ClusterWrite):
    """Create the job's PodDisruptionBudget or change its minAvailable; `uid` None means it does not exist yet."""

    kind: Literal["SetBudget"] = "SetBudget"
    min_available: int
    uid: str | None = None
    resource_version: str = ""


class DeleteBudget(ClusterWrite):
    """Delete the job's PodDisruptionBudget."""

    kind: Literal["DeleteBudget"] = "DeleteBudget"
    uid: str


class CreatePod(ClusterWrite):
    """Create a member as a standby; AlreadyExists with our owner uid is success."""

    kind: Literal["CreatePod"] = "CreatePod"
    name: str
    apart: bool = False
    """Not on a node that has a former of the job, because no taint keeps pods off it."""
    away_from_members: bool = False
    """Preferably on a node without a member of the job, because it would be lost with that one."""
    avoid: tuple[str, ...] = ()
    """Preferably on none of these nodes, where its predecessors failed."""
    kept: str = ""
    """The stored template that it is made from; "" if it is made from spec.template as it is now."""
    priority_class: str = ""
    """Replaces the template's priority class; "" keeps it."""


class Assign(ClusterWrite):
    """One JSON patch: test uid, test the old annotation, set annotation and role label."""

    kind: Literal["Assign"] = "Assign"
    name: str
    uid: str
    role: str
    old: str
    """The annotation text that must still be there."""
    new: str


class Mark(ClusterWrite):
    """Give a pod other annotations, for node autoscalers or for its kubelet, with a uid precondition."""

    kind: Literal["Mark"] = "Mark"
    name: str
    uid: str
    old: dict[str, str]
    """Its present annotations, which must still be unchanged."""
    new: dict[str, str]
    """Exactly the annotations that it should have."""


class Answer(ClusterWrite):
    """Report progress in an Eviction's status; tests its uid, and that the entry is the operator's own."""

    kind: Literal["Answer"] = "Answer"
    name: str
    uid: str
    place: int
    heartbeat: datetime
    expected: datetime | None = None
    completed: datetime | None = None
    message: str


class DeletePod(ClusterWrite):
    """Delete with a uid precondition, never forced."""

    kind: Literal["DeletePod"] = "DeletePod"
    name: str
    uid: str
    grace: int | None = None
    """Its grace in seconds; None: the pod's own."""


class DeleteJob(ClusterWrite):
    """Delete the TrainingJob itself (ttlSecondsAfterFinished), with a uid precondition."""

    kind: Literal["DeleteJob"] = "DeleteJob"
    uid: str


Action = Annotated[
    CheckTemplate
    | KeepTemplate
    | DropTemplate
    | SetBudget
    | DeleteBudget
    | CreatePod
    | Assign
    | Mark
    | Answer
    | DeletePod
    | DeleteJob,
    Field(discriminator="kind"),
]


class JobEvent(Model):
    """A Kubernetes Event about the job, sent after the writes."""

    type: Literal["Normal", "Warning"] = "Normal"
    reason: str
    message: str


class Decision(Model):
    """One round's work. Nothing to do and nothing to wait for: `Decision()`."""

    status: TrainingJobStatus | None = None
    """The next status; None if it is unchanged."""
    actions: tuple[Action, ...] = ()
    events: tuple[JobEvent, ...] = ()
    requeue_after: float | None = None
    """Seconds until this job must be looked at again even if nothing happens."""
    reasons: tuple[str, ...] = ()
    """Why, one sentence per policy: what `explain` prints."""
