"""Handmade watch events."""

from __future__ import annotations

import json
from typing import Any

from e2e.harness.watching import Seen


def job(time: float, *, phase: str = "Running", **status: Any) -> Seen:
    """The TrainingJob with this status."""
    body = {"kind": "TrainingJob", "metadata": {"name": "digits", "uid": "j"}, "status": {"phase": phase, **status}}
    return Seen(time, "MODIFIED", body)


def pod(
    time: float,
    name: str,
    *,
    assignment: dict[str, Any] | None = None,
    outcome: dict[str, Any] | str | None = None,
    deleted: bool = False,
) -> Seen:
    """A pod with this assignment, which left `outcome` behind."""
    message = outcome if isinstance(outcome, str) else json.dumps(outcome)
    state = {"terminated": {"exitCode": 0, "message": message}} if outcome else {"running": {}}
    metadata: dict[str, Any] = {"name": name, "uid": f"uid-{name}", "creationTimestamp": "2030-01-01T00:00:00Z"}
    metadata["annotations"] = {"perdure.dev/assignment": json.dumps(assignment)} if assignment else {}
    status = {"containerStatuses": [{"name": "trainer", "state": state}]}
    body = {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1"}, "status": status}
    return Seen(time, "DELETED" if deleted else "MODIFIED", body)


def ranked(run: int, rank: int) -> dict[str, Any]:
    """The assignment of a member that trains."""
    return {"v": 1, "run": run, "lost": [], "rank": rank, "world": 2, "master": "10.0.0.1:29501"}


def leaving(run: int) -> dict[str, Any]:
    """The assignment of a member that must save and go."""
    return {"v": 1, "run": run, "lost": [], "leave": True, "cause": "drain", "seconds": 60}


def ended(run: int, outcome: str = "checkpointed", **fields: Any) -> dict[str, Any]:
    """An outcome."""
    return {"v": 1, "outcome": outcome, "run": run, "rank": 0, "step": 12, "seconds": {}, **fields}
