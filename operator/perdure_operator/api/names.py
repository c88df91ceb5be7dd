"""All names of objects, labels and annotations that the operator creates. Nothing else builds such names.

Called by `decide` (who is who) and `cluster.write` (what is created). The labels that an agent reads too are in
`perdure.wire`.
"""

from __future__ import annotations

from typing import Final

from perdure.wire import LABEL_JOB, LABEL_ROLE, Role

LABEL_UID: Final = "perdure.dev/job-uid"
"""Tells a job's pods from those of its predecessor of the same name: a pod under two budgets cannot be evicted."""

ANNOTATION_TEMPLATE: Final = "perdure.dev/template-hash"
"""Hash of the spec that a pod was made from. The operator replaces standbys with an older hash."""

ANNOTATION_AUTOSCALER: Final = "perdure.dev/autoscaler"
"""The value of disruption.autoscaler that a pod's marks follow; absent if the operator set none."""

ANNOTATION_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
"""The container that kubectl uses by default for logs and shells. Without it that is a mesh's proxy, if one is
first."""

ANNOTATION_NUDGE: Final = "perdure.dev/nudge"
"""Its value means nothing. A change makes the kubelet sync the pod, and with it the assignment's file."""

ASSIGNMENT_VOLUME: Final = "perdure-assignment"
"""The volume that the operator adds to each member."""

CREDENTIALS_VOLUME: Final = "perdure-s3"
"""The volume with the Secret's keys, added if checkpoint.s3.credentialsSecret is set."""

ORIGIN_CREDENTIALS_VOLUME: Final = "perdure-from-s3"
"""The same for the root that the job begins from, added if checkpoint.from.s3.credentialsSecret is set."""

REPORT_VOLUME: Final = "perdure-report"
"""The volume with the token by which a member's reports are known, where the operator takes any."""

EVICTION_POLICY: Final = "AlwaysAllow"
"""A budget's policy for unhealthy pods: a member that is not Ready does not train, so its eviction loses nothing."""

RESPONDER: Final = "perdure.dev/operator"
"""The operator's name as an eviction responder, on clusters that serve Evictions as objects."""

RESPONDER_PRIORITY: Final = 10_000
"""The priority that Kubernetes recommends to a pod's managing controller, so that others can come before or after."""

_AUDIENCE: Final = "perdure.dev/reports"
_UID_CHARACTERS: Final = 4
_NUMBER_DIGITS: Final = 9
"""No job ever has more members than that many digits can count."""


def base(job: str, uid: str) -> str:
    """The prefix of a job's member names, and the name of its budget.

    Four characters of the uid keep a job's objects apart from those of an earlier job of the same name.
    """
    return f"{job}-{uid[:_UID_CHARACTERS]}"


def member(job: str, uid: str, number: int) -> str:
    """The name of the member with this number."""
    return f"{base(job, uid)}-{number}"


def member_number(name: str) -> int:
    """The number in a member's name; -1 if there is none."""
    number = name.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) <= _NUMBER_DIGITS else -1


def is_member(name: str, job: str, uid: str) -> bool:
    """Whether a member of the job with this uid can have this name."""
    return name == member(job, uid, member_number(name))


def is_member_of_any(name: str, job: str) -> bool:
    """Whether a member of any job of this name, now or earlier, can have this name."""
    uid = name.removeprefix(f"{job}-").partition("-")[0]
    return len(uid) == _UID_CHARACTERS and is_member(name, job, uid)


def budget(job: str, uid: str) -> str:
    """The name of the job's PodDisruptionBudget. Its part of the uid keeps it apart from those of later jobs."""
    return base(job, uid)


def kept_template(job: str, uid: str, checked: str) -> str:
    """The name of the ControllerRevision that keeps the template whose pod, with hash `checked`, passed the dry run."""
    return f"{base(job, uid)}-{checked}"


def labels(job: str, uid: str) -> dict[str, str]:
    """The labels of every object of the job."""
    return {LABEL_JOB: job, LABEL_UID: uid}


def members_selector(job: str, uid: str) -> dict[str, dict[str, str]]:
    """Selects the job's members: no standbys, no former members, none of a predecessor."""
    return {"matchLabels": {**labels(job, uid), LABEL_ROLE: Role.MEMBER.value}}


def dry_run(job: str, uid: str) -> str:
    """The name of the pod that is only created in a dry run, to try the template."""
    return f"{base(job, uid)}-dry-run"


def report_audience(namespace: str, uid: str) -> str:
    """The audience of the tokens by which the members of one job report: the API server takes them for nothing else."""
    return f"{_AUDIENCE}/{namespace}/{uid}"


def job_of_audience(audience: str) -> tuple[str, str]:
    """Namespace and uid of the job whose audience this is; two empty texts if it is no job's."""
    prefix, _, uid = audience.rpartition("/")
    ours, _, namespace = prefix.rpartition("/")
    return (namespace, uid) if ours == _AUDIENCE else ("", "")
