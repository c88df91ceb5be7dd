"""Every name of an object, label or annotation that the operator gives: built here, once, and nowhere else.

Called by `decide` (who is who) and `cluster.write` (what is created). The labels that an agent reads too are in
`perdure.wire`.
"""

from __future__ import annotations

from typing import Final

from perdure.wire import LABEL_JOB, LABEL_ROLE, Role

LABEL_UID: Final = "perdure.dev/job-uid"
"""Tells a job's pods from those of its predecessor of the same name: a pod under two budgets cannot be evicted."""

ANNOTATION_TEMPLATE: Final = "perdure.dev/template-hash"
"""Hash of the spec a pod was made from: a standby of an older one is replaced."""

ANNOTATION_AUTOSCALER: Final = "perdure.dev/autoscaler"
"""The value of disruption.autoscaler that a pod's marks were made for; absent where the operator has made none."""

ANNOTATION_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
"""Whose log and shell kubectl takes where nobody says: else the proxy's, where a mesh has put its own first."""

ANNOTATION_NUDGE: Final = "perdure.dev/nudge"
"""Means nothing: it is changed so that a pod's kubelet syncs it, and with it the file of its assignment."""

ASSIGNMENT_VOLUME: Final = "perdure-assignment"
"""The volume that the operator adds to each member."""

CREDENTIALS_VOLUME: Final = "perdure-s3"
"""The volume that it adds where checkpoint.s3.credentialsSecret is set: the Secret's keys."""

EVICTION_POLICY: Final = "AlwaysAllow"
"""Of a budget: a member that is not Ready does not train, so nothing is lost with it."""

RESPONDER: Final = "perdure.dev/operator"
"""By which the operator answers for its pods where Kubernetes has Evictions as objects."""

RESPONDER_PRIORITY: Final = 10_000
"""What Kubernetes tells a pod's managing controller to take: others may come before it or after."""

_UID_CHARACTERS: Final = 4
_NUMBER_DIGITS: Final = 9
"""More members than that no job has ever had."""


def base(job: str, uid: str) -> str:
    """What the names of a job's members begin with; its budget has this very name.

    Four characters of the uid keep a job's objects apart from those of an earlier job of the same name.
    """
    return f"{job}-{uid[:_UID_CHARACTERS]}"


def member(job: str, uid: str, number: int) -> str:
    """The name of the member with this number."""
    return f"{base(job, uid)}-{number}"


def member_number(name: str) -> int:
    """The number in a member's name, -1 where there is none."""
    number = name.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) <= _NUMBER_DIGITS else -1


def is_member(name: str, job: str, uid: str) -> bool:
    """Whether the job with this uid gives a member this name."""
    return name == member(job, uid, member_number(name))


def is_member_of_any(name: str, job: str) -> bool:
    """Whether some job of this name, there now or before, would give a member this name."""
    uid = name.removeprefix(f"{job}-").partition("-")[0]
    return len(uid) == _UID_CHARACTERS and is_member(name, job, uid)


def budget(job: str, uid: str) -> str:
    """The job's PodDisruptionBudget: like a member without its number, so that no successor's can have it."""
    return base(job, uid)


def kept_template(job: str, uid: str, checked: str) -> str:
    """The ControllerRevision that keeps the template of which a dry run of the pod with hash `checked` was good."""
    return f"{base(job, uid)}-{checked}"


def labels(job: str, uid: str) -> dict[str, str]:
    """Of each object of the job."""
    return {LABEL_JOB: job, LABEL_UID: uid}


def members_selector(job: str, uid: str) -> dict[str, dict[str, str]]:
    """Selects the job's members: no standby, no former, and nobody of a predecessor."""
    return {"matchLabels": {**labels(job, uid), LABEL_ROLE: Role.MEMBER.value}}


def dry_run(job: str, uid: str) -> str:
    """The pod that is created in a dry run only, to try the template."""
    return f"{base(job, uid)}-dry-run"
