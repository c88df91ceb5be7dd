"""What `decide` returns: the next status as a whole, then cluster writes, then events, and when to look again.

`cluster.act` carries it out in that order, and what fails holds up only what rests on it. Every action names its object
with a uid or resourceVersion precondition, so that doing it twice, or late, does no harm.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from perdure_operator.api.model import Model
from perdure_operator.api.status import TrainingJobStatus


class Step(Model):
    """A write, and where it comes from: `explain` can say why a pod was deleted."""

    policy: str = ""
    """The policy of `decide` that wants it."""
    why: str = ""
    """Its reason, in words."""


class CheckTemplate(Step):
    """Server-side dry run of the pod template; the answer is in the next snapshot."""

    kind: Literal["CheckTemplate"] = "CheckTemplate"


class KeepTemplate(Step):
    """Store spec.template as it is now in a ControllerRevision of this name; one of ours that is there is success."""

    kind: Literal["KeepTemplate"] = "KeepTemplate"
    name: str


class DropTemplate(Step):
    """Delete a ControllerRevision, with a uid precondition."""

    kind: Literal["DropTemplate"] = "DropTemplate"
    name: str
    uid: str


class SetBudget(Step):
    """Create the job's PodDisruptionBudget or change its minAvailable; `uid` None means it does not exist yet."""

    kind: Literal["SetBudget"] = "SetBudget"
    min_available: int
    uid: str | None = None
    resource_version: str = ""


class DeleteBudget(Step):
    """Delete the job's PodDisruptionBudget."""

    kind: Literal["DeleteBudget"] = "DeleteBudget"
    uid: str


class CreatePod(Step):
    """Create a member as a standby; AlreadyExists with our owner uid is success."""

    kind: Literal["CreatePod"] = "CreatePod"
    name: str
    apart: bool = False
    """On no node that has a former of the job: no taint keeps pods off it."""
    beside: bool = False
    """Rather on a node without a member of the job: it would be lost with that one."""
    avoid: tuple[str, ...] = ()
    """Rather on none of these nodes: those before it have failed there."""
    kept: str = ""
    """The kept template that it is made from; "" where it is made from spec.template as it is now."""
    priority_class: str = ""
    """Instead of that of the template; "" where it has that."""


class Assign(Step):
    """One JSON patch: test uid, test the old annotation, set annotation and role label."""

    kind: Literal["Assign"] = "Assign"
    name: str
    uid: str
    role: str
    old: str
    """The annotation text that must still be there."""
    new: str


class Mark(Step):
    """Give a pod other annotations for autoscalers of nodes, or for its kubelet, with a uid precondition."""

    kind: Literal["Mark"] = "Mark"
    name: str
    uid: str
    old: dict[str, str]
    """Those that it has, and that must still be as they are."""
    new: dict[str, str]
    """Those that it is to have, and no others."""


class Answer(Step):
    """Say in the status of an Eviction how far it is; tests its uid and that the place is the operator's own."""

    kind: Literal["Answer"] = "Answer"
    name: str
    uid: str
    place: int
    heartbeat: datetime
    expected: datetime | None = None
    completed: datetime | None = None
    message: str


class DeletePod(Step):
    """Delete with a uid precondition, never forced."""

    kind: Literal["DeletePod"] = "DeletePod"
    name: str
    uid: str
    grace: int | None = None
    """Seconds it gets to end; None: what the pod itself says."""


class DeleteJob(Step):
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


class Event(Model):
    """A Kubernetes Event about the job, sent after the writes."""

    type: Literal["Normal", "Warning"] = "Normal"
    reason: str
    message: str


class Decision(Model):
    """One round's work. Nothing to do and nothing to wait for: `Decision()`."""

    status: TrainingJobStatus | None = None
    """The next status, None where it stays as it is."""
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None
    """Seconds until this job must be looked at again even if nothing happens."""
    reasons: tuple[str, ...] = ()
    """Why, one sentence a policy: what `explain` prints."""
