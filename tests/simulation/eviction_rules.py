"""The rules of an API server with the feature gate EvictionRequestAPI: by `k8s.io/api/lifecycle/v1alpha1` of 1.37.

A pod's responders are fixed. An EvictionRequest may be withdrawn, and does not change otherwise. In an Eviction's
status the controller's part only moves on; each responder's entry is its own, while it is its turn, and describes the
present.
"""

from __future__ import annotations

from typing import Final

from tests.simulation.objects import EVICTIONS, PODS, REQUESTS, Json, Refused, seconds_of

EVICTOR: Final = "imperative-eviction.k8s.io/evictor"
EVICTOR_PRIORITY: Final = 100
RESPONDERS_AT_MOST: Final = 10
LEAST_PRIORITY: Final = 1000
"""Lower ones are Kubernetes' own."""
SKEW_SECONDS: Final = 30.0
FINAL: Final = ("Completed", "Interrupted", "Canceled")
_TURNS: Final = {"Inactive": ("Inactive", "Active"), "Active": ("Active", *FINAL)}
_TIMES: Final = ("startTime", "heartbeatTime", "completionTime")


def validate(kind: str, raw: Json, old: Json | None) -> None:
    """Raises Refused for an object that is made or changed."""
    spec, before = raw.get("spec") or {}, (old or {}).get("spec") or {}
    if kind == PODS:
        _validate_responders(spec)
        if old is not None and spec.get("evictionResponders") != before.get("evictionResponders"):
            raise Refused(422, "Invalid", "spec: Forbidden: pod updates may not change evictionResponders")
    elif kind in (REQUESTS, EVICTIONS):
        target = (spec.get("target") or {}).get("pod") or {}
        if not target.get("name") or not target.get("uid"):
            raise Refused(422, "Invalid", "spec.target.pod: name and uid are required")
        if old is not None and {**spec, "intent": ""} != {**before, "intent": ""}:
            raise Refused(422, "Invalid", "spec: Invalid value: field is immutable")


def _validate_responders(spec: Json) -> None:
    named = spec.get("evictionResponders") or []
    where = "spec.evictionResponders"
    if named and spec.get("schedulingGroup"):
        raise Refused(422, "Invalid", f"{where}: Forbidden: may not be set with schedulingGroup")
    if len(named) > RESPONDERS_AT_MOST:
        raise Refused(422, "Invalid", f"{where}: Too many: {len(named)}: must have at most {RESPONDERS_AT_MOST} items")
    if len({one["name"] for one in named}) < len(named):
        raise Refused(422, "Invalid", f"{where}: Duplicate value")
    if any(int(one["priority"]) < LEAST_PRIORITY for one in named):
        raise Refused(422, "Invalid", f"{where}.priority: priorities 0-999 are reserved")


def validate_status(kind: str, old: Json, new: Json, now: float) -> None:
    """Raises Refused for a status that is written."""
    if kind != EVICTIONS:
        return
    before, after = old.get("status") or {}, new.get("status") or {}
    turns, was = _turns(after), _turns(before)
    answers, said = _by_name(after, "responders"), _by_name(before, "responders")
    if (was and turns.keys() != was.keys()) or answers.keys() != turns.keys():
        raise Refused(422, "Invalid", "status.targetResponders: must preserve the same keys, and have responders")
    for name, state in turns.items():
        if state not in _TURNS.get(was.get(name, "Inactive"), (was.get(name),)):
            raise Refused(422, "Invalid", f"status.targetResponders: {name} may not become {state}")
        if state != "Active" and was.get(name) != "Active" and name in said and answers[name] != said[name]:
            raise Refused(422, "Invalid", f"status.responders: {name}: field is immutable")
        _validate_answer(said.get(name) or {}, answers[name], now)
    for kind_of in ("TargetEvicted", "Failed"):
        if _is_true(before, kind_of) and not _is_true(after, kind_of):
            raise Refused(422, "Invalid", f"status.conditions: {kind_of} condition status cannot be reverted")


def _validate_answer(old: Json, new: Json, now: float) -> None:
    """One responder's entry."""
    where, started = f"status.responders[{new['name']}]", new.get("startTime")
    for name in _TIMES:
        if old.get(name) and not new.get(name):
            raise Refused(422, "Invalid", f"{where}.{name}: Required value: is required once set")
        if not new.get(name) or new[name] == old.get(name):
            continue
        at = seconds_of(new[name])
        if abs(at - now) > SKEW_SECONDS:
            raise Refused(422, "Invalid", f"{where}.{name}: Invalid value: must be set to the present time")
        if not started or at < seconds_of(started):
            raise Refused(422, "Invalid", f"{where}.{name}: Invalid value: must occur after startTime")
        if old.get(name) and (name != "heartbeatTime" or at < seconds_of(old[name])):
            raise Refused(422, "Invalid", f"{where}.{name}: Invalid value: cannot be changed, or decreased")
    expected = new.get("expectedCompletionTime")
    if expected and expected != old.get("expectedCompletionTime") and seconds_of(expected) < now - SKEW_SECONDS:
        raise Refused(422, "Invalid", f"{where}.expectedCompletionTime: Invalid value: cannot be set to the past time")


def _turns(status: Json) -> dict[str, str]:
    return {one["name"]: one["state"] for one in status.get("targetResponders") or ()}


def _by_name(status: Json, field: str) -> dict[str, Json]:
    return {one["name"]: one for one in status.get(field) or ()}


def _is_true(status: Json, kind: str) -> bool:
    return any(one["type"] == kind and one["status"] == "True" for one in status.get("conditions") or ())
