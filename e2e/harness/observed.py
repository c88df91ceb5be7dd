"""A watch's events as conditions to wait for, members, outcomes. Pure.

Each function takes everything seen so far. Those for `Watch.wait` return None for "not yet".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from e2e.harness.watching import Object, Seen

ASSIGNMENT = "perdure.dev/assignment"
ROLE = "perdure.dev/role"
Condition = Callable[[Sequence[Seen]], Object | None]


def newest_job(history: Sequence[Seen]) -> Object | None:
    """The TrainingJob as last seen."""
    return next((seen.object for seen in reversed(history) if seen.kind == "TrainingJob"), None)


def status(history: Sequence[Seen]) -> Mapping[str, Any]:
    """The newest status; empty if there is none yet."""
    job = newest_job(history)
    return dict(job.get("status", {})) if job else {}


def in_phase(*phases: str) -> Condition:
    """The job's status, once it is in one of these phases now."""

    def condition(history: Sequence[Seen]) -> Object | None:
        now = status(history)
        return now if now.get("phase") in phases else None

    return condition


def has_intent(history: Sequence[Seen]) -> Object | None:
    """The newest status, once a status has held an intent to prepare a move, or one that is final."""
    for seen in reversed(history):
        found = intent(seen.object.get("status", {})) if seen.kind == "TrainingJob" else {}
        if found.get("leave") or found.get("prepare"):
            return seen.object
    return None


def intent(status: Object) -> Object:
    """Why the current run has to end; {} if nothing asks it to."""
    return (status.get("current") or {}).get("intent") or {}


def asked_to_leave(history: Sequence[Seen], run: int = 1) -> Object | None:
    """The first pod whose assignment was to leave this run or a newer one."""
    told = ((seen.object, assignment(seen.object)) for seen in history if seen.kind == "Pod")
    return next((pod for pod, given in told if given.get("leave") and given["run"] > run), None)


def has_condition(reason: str) -> Condition:
    """The condition with this reason, once any status held it."""

    def condition(history: Sequence[Seen]) -> Object | None:
        for seen in reversed(history):
            if seen.kind == "TrainingJob":
                for found in seen.object.get("status", {}).get("conditions", []):
                    if found["reason"] == reason:
                        return dict(found)
        return None

    return condition


def says(kind: str, pattern: str) -> Condition:
    """The condition of this type with such a message, once any status held it."""

    def condition(history: Sequence[Seen]) -> Object | None:
        statuses = (seen.object.get("status", {}) for seen in reversed(history) if seen.kind == "TrainingJob")
        found = (one for status in statuses for one in status.get("conditions", []) if one["type"] == kind)
        return next((dict(one) for one in found if re.search(pattern, one["message"])), None)

    return condition


def condition(status: Object, kind: str) -> Object:
    """The condition of this type; {} without one."""
    return next((found for found in status.get("conditions", []) if found["type"] == kind), {})


def training_run(history: Sequence[Seen], at_least: int = 1) -> Object | None:
    """The status, once every member of run `at_least` or a newer one has its rank."""
    now = status(history)
    plan = (now.get("current") or {}).get("plan") or {}
    if plan.get("run", 0) < at_least:
        return None
    ranked = {pod["metadata"]["name"] for pod in pods(history) if assignment(pod).get("run") == plan["run"]}
    return now if {member["name"] for member in plan["members"]} <= ranked else None


def pods(history: Sequence[Seen]) -> list[Object]:
    """The pods that exist, as last seen, oldest first."""
    alive: dict[str, Object] = {}
    for seen in history:
        if seen.kind == "Pod":
            alive.pop(seen.uid, None)
            if seen.type != "DELETED":
                alive[seen.uid] = seen.object
    return sorted(alive.values(), key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))


def is_on(pod: Object, node: str) -> bool:
    """Whether the pod was put on this node."""
    return bool(pod["spec"].get("nodeName") == node)


def ready(pod: Object) -> bool:
    """Whether the pod's Ready condition is True."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def assignment(pod: Object) -> Mapping[str, Any]:
    """The pod's newest assignment."""
    text = pod["metadata"].get("annotations", {}).get(ASSIGNMENT)
    return dict(json.loads(text)) if text else {}


def member_of_rank(history: Sequence[Seen], rank: int) -> Object:
    """The pod that holds this rank in the newest run's plan."""
    plan = status(history)["current"]["plan"]
    uid = next(member["uid"] for member in plan["members"] if member["rank"] == rank)
    return next(pod for pod in pods(history) if pod["metadata"]["uid"] == uid)


def planned_in(history: Sequence[Seen], run: int) -> set[str]:
    """The uids of the pods assigned to this run, which may be over before any status shows it."""
    told = ((seen.uid, assignment(seen.object)) for seen in history if seen.kind == "Pod")
    return {uid for uid, given in told if given.get("run") == run and "rank" in given}


def ranked_in(history: Sequence[Seen], run: int) -> dict[str, int]:
    """By name, the pods ever assigned a rank of this run, and which."""
    told = ((seen.name, assignment(seen.object)) for seen in history if seen.kind == "Pod")
    return {name: int(given["rank"]) for name, given in told if given.get("run") == run and "rank" in given}


def has_warm_spares(history: Sequence[Seen]) -> list[Object] | None:
    """The pods beside the run, once so many of them are Ready as the job asks for."""
    job, now = newest_job(history) or {}, status(history)
    names = (now.get("spares") or {}).get("names") or ()
    asked = ((job.get("spec") or {}).get("elastic") or {}).get("spares", 0)
    warm = [pod for pod in pods(history) if pod["metadata"]["name"] in names and ready(pod)]
    return warm if asked and len(warm) == asked else None


def joined(history: Sequence[Seen], run: int) -> Object | None:
    """A pod that was assigned a rank of this run and had none before, as last seen."""
    before = {name for older in range(run) for name in ranked_in(history, older)}
    names = ranked_in(history, run).keys() - before
    return next((pod for pod in pods(history) if pod["metadata"]["name"] in names), None)


def outcomes(history: Sequence[Seen]) -> list[Mapping[str, Any]]:
    """Every member's outcome, in the order of their ends; a deleted pod is read again."""
    found: dict[str, Mapping[str, Any]] = {}
    for seen in history:
        if seen.kind == "Pod" and seen.uid not in found and (outcome := outcome_of(seen.object)):
            found[seen.uid] = outcome
    return list(found.values())


def outcome_of(pod: Object) -> Mapping[str, Any] | None:
    """The termination message of one of its containers, if it is an outcome."""
    for container in pod.get("status", {}).get("containerStatuses", []):
        message = container.get("state", {}).get("terminated", {}).get("message")
        try:
            body = json.loads(message or "null")
        except ValueError:
            continue
        if isinstance(body, dict) and "outcome" in body:
            return body
    return None


def is_over(pod: Object) -> bool:
    """Whether nothing of the pod runs any more."""
    return outcome_of(pod) is not None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def all_ended(history: Sequence[Seen]) -> list[Object] | None:
    """The pods that exist, once each has left its outcome."""
    found = pods(history)
    return found if found and all(map(outcome_of, found)) else None


def first(history: Sequence[Seen], matches: Callable[[Seen], bool]) -> Seen | None:
    """The first event that matches."""
    return next((seen for seen in history if matches(seen)), None)
