"""Builds the objects that the operator creates beside pods: budgets, kept templates, events. Pure. Called by `act`."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from perdure.wire.truncation import fitting
from perdure_operator.api import names
from perdure_operator.cluster.member import owner
from perdure_operator.cluster.protocol import BUDGETS, EVENTS, JOBS, REVISIONS, Json
from perdure_operator.state.decision import JobEvent
from perdure_operator.state.snapshot import Snapshot

NOTE_BYTES: Final = 1000
"""The longest note; Kubernetes allows 1,024 bytes."""

_CONTROLLER: Final = "perdure.dev/operator"


def budget(job: Snapshot, min_available: int) -> Json:
    """The job's PodDisruptionBudget: members count, standbys do not."""
    labels = names.labels(job.name, job.uid)
    return {
        "apiVersion": BUDGETS.api_version,
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": names.budget(job.name, job.uid),
            "namespace": job.namespace,
            "labels": labels,
            "ownerReferences": [owner(job)],
        },
        "spec": {
            "minAvailable": min_available,
            "selector": names.members_selector(job.name, job.uid),
            "unhealthyPodEvictionPolicy": names.EVICTION_POLICY,
        },
    }


def revision(job: Snapshot, name: str) -> Json:
    """A ControllerRevision with the job's current template. Its data is immutable."""
    return {
        "apiVersion": REVISIONS.api_version,
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": names.labels(job.name, job.uid),
            "ownerReferences": [owner(job)],
        },
        "revision": job.generation,
        "data": {"template": job.spec.template},
    }


def event(job: Snapshot, said: JobEvent, *, now: datetime, instance: str, number: str) -> Json:
    """An Event about the job; `number` makes its name unique."""
    return {
        "apiVersion": EVENTS.api_version,
        "kind": "Event",
        "metadata": {"name": f"{job.name}.{number}", "namespace": job.namespace},
        "eventTime": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "type": said.type,
        "reason": said.reason,
        "note": fitting(said.message, NOTE_BYTES),
        "action": "Reconcile",
        "reportingController": _CONTROLLER,
        "reportingInstance": instance[:128],
        "regarding": {
            "apiVersion": JOBS.api_version,
            "kind": "TrainingJob",
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        },
    }
