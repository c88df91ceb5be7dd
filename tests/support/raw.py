"""A job as the API server stores it, and as a snapshot."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.cluster.protocol import JOBS, Json
from perdure_operator.state.snapshot import Snapshot

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
UID = "3f2a0000-0000-4000-8000-000000000000"


def template(**container: Any) -> Json:
    trainer = {"name": "trainer", "image": "perdure-digits:dev", "command": ["python"], "args": ["train.py"]}
    return {"spec": {"containers": [trainer | container]}}


def job(name: str = "digits", *, replicas: int = 2, **spec: Any) -> Json:
    """As a user writes it."""
    body = {"replicas": replicas, "checkpoint": {"uri": f"s3://bucket/{name}"}, "template": template()}
    body["disruption"] = {"replacementTimeoutSeconds": 0}  # it does not wait for standbys, unless a test says so
    return {
        "apiVersion": JOBS.api_version,
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": body | spec,
    }


def snapshot(**changes: Any) -> Snapshot:
    raw = job()
    known: dict[str, Any] = {
        "now": NOW,
        "namespace": "ns",
        "name": "digits",
        "uid": UID,
        "generation": 1,
        "spec": TrainingJobSpec.model_validate(raw["spec"]),
        "pods_complete": True,
        "nodes_complete": True,
    }
    return Snapshot(**known | changes)
