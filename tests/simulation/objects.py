"""Raw Kubernetes objects: copying, selecting, patching, and the few questions that every part of the world asks.

Written from Kubernetes' own rules, without the operator's reading of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

Json = dict[str, Any]
Key = tuple[str, str]
"""namespace, name; "" as the namespace of an object without one."""

JOBS: Final = "trainingjobs"
PODS: Final = "pods"
NODES: Final = "nodes"
BUDGETS: Final = "poddisruptionbudgets"
REVISIONS: Final = "controllerrevisions"
EVENTS: Final = "events"
LEASES: Final = "leases"
REQUESTS: Final = "evictionrequests"
EVICTIONS: Final = "evictions"
OF_EVICTION: Final = frozenset({REQUESTS, EVICTIONS})
"""Served only where a feature gate is on."""
KINDS: Final = (JOBS, PODS, NODES, BUDGETS, REVISIONS, EVENTS, LEASES, REQUESTS, EVICTIONS)
NOT_NAMESPACED: Final = frozenset({NODES})
WITH_STATUS: Final = frozenset({JOBS, PODS, NODES, BUDGETS, REQUESTS, EVICTIONS})
"""Kinds with a status subresource: a write to the one does not touch the other."""

EPOCH: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

ORPHAN: Final = "orphan"
FOREGROUND: Final = "foregroundDeletion"

GRACELESS: Final = ("Succeeded", "Failed")
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
NOT_READY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE: Final = "node.kubernetes.io/unreachable"

_NESTED: Final = frozenset((dict, list))


class Refused(Exception):
    """The API server's answer is an error."""

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        """The header, in seconds."""


class FailedPatch(Refused):
    """A test or a path of a JSON patch does not hold. Unlike for an invalid object, the answer names nothing."""

    def __init__(self, message: str) -> None:
        super().__init__(422, "Invalid", f"the server rejected our request: {message}")


def clone(value: Any) -> Any:
    """A deep copy of JSON: many times faster than copy.deepcopy."""
    kind = type(value)
    if kind is dict:
        return {key: clone(one) if type(one) in _NESTED else one for key, one in value.items()}
    if kind is list:
        return [clone(one) if type(one) in _NESTED else one for one in value]
    return value


def stamp(seconds: float) -> str:
    """A metav1.Time: whole seconds."""
    return _stamp(int(seconds))


@lru_cache(maxsize=4096)
def _stamp(second: int) -> str:
    """Each history asks for the same ones."""
    return (EPOCH + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache(maxsize=4096)
def seconds_of(text: str) -> float:
    """Virtual seconds of an RFC 3339 time."""
    return (datetime.fromisoformat(text) - EPOCH).total_seconds()


def key_of(raw: Json) -> Key:
    metadata = raw["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


def uid_of(raw: Json) -> str:
    return str(raw["metadata"]["uid"])


def owner_of(raw: Json) -> str:
    """uid of the controller, "" without one."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return next((str(one["uid"]) for one in owners if one.get("controller")), "")


def labels_of(raw: Json) -> Mapping[str, str]:
    return raw["metadata"].get("labels") or {}


def node_of(raw: Json) -> str:
    return (raw.get("spec") or {}).get("nodeName") or ""


def trainer_of(pod: Json) -> Json:
    """The container that the agent runs in, wherever it stands."""
    containers: list[Json] = pod["spec"]["containers"]
    return next((one for one in containers if (one.get("command") or [""])[0] == "perdure"), containers[0])


def phase_of(raw: Json) -> str:
    return (raw.get("status") or {}).get("phase") or "Pending"


def terminal(pod: Json) -> bool:
    return phase_of(pod) in GRACELESS


def terminating(raw: Json) -> bool:
    return bool(raw["metadata"].get("deletionTimestamp"))


def condition(raw: Json, kind: str) -> Json | None:
    for one in (raw.get("status") or {}).get("conditions") or ():
        if one.get("type") == kind:
            return dict(one)
    return None


def is_ready(raw: Json) -> bool:
    return (condition(raw, "Ready") or {}).get("status") == "True"


def set_condition(raw: Json, kind: str, status: str, at: float, *, reason: str = "", message: str = "") -> None:
    """In place; the transition time moves only with the status."""
    conditions = raw.setdefault("status", {}).setdefault("conditions", [])
    old = next((one for one in conditions if one.get("type") == kind), None)
    new = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": stamp(at)}
    if old is None:
        conditions.append(new)
        return
    if old["status"] == status:
        new["lastTransitionTime"] = old["lastTransitionTime"]
    conditions[conditions.index(old)] = new


def matches(selector: Json | None, labels: Mapping[str, str]) -> bool:
    """A LabelSelector: empty matches everything, absent nothing."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_requirement(one, labels) for one in selector.get("matchExpressions") or ())


def _requirement(one: Json, labels: Mapping[str, str]) -> bool:
    key, values = one["key"], one.get("values") or ()
    tests: Mapping[str, Callable[[], bool]] = {
        "In": lambda: key in labels and labels[key] in values,
        "NotIn": lambda: key not in labels or labels[key] not in values,
        "Exists": lambda: key in labels,
        "DoesNotExist": lambda: key not in labels,
    }
    return tests[one["operator"]]()


def selected(raw: Json, selector: str) -> bool:
    """A selector in a URL: k, k=v, k!=v, !k, joined by commas."""
    labels = labels_of(raw)
    for term in filter(None, selector.split(",")):
        key, unequal, value = term.partition("!=")
        if unequal:
            if labels.get(key) == value:
                return False
            continue
        key, equal, value = term.partition("=")
        if key.startswith("!") and not equal:
            if key[1:] in labels:
                return False
        elif key not in labels or (equal and labels[key] != value.removeprefix("=")):
            return False
    return True


def tolerates(tolerations: Iterable[Json], taint: Json) -> Json | None:
    """The first toleration that covers the taint."""
    for one in tolerations:
        effect, key = one.get("effect") or "", one.get("key") or ""
        if effect and effect != taint.get("effect"):
            continue
        if (one.get("operator") or "Equal") == "Exists":
            if key in ("", taint["key"]):
                return one
        elif key == taint["key"] and (one.get("value") or "") == (taint.get("value") or ""):
            return one
    return None


def patched(raw: Json, operations: Sequence[Mapping[str, Any]]) -> Json:
    """RFC 6902 on a copy; a failing test or path is 422, as the API server says it."""
    new: Json = clone(raw)
    for one in operations:
        _apply(new, one)
    return new


def _apply(root: Json, operation: Mapping[str, Any]) -> None:
    path, op = operation["path"], operation["op"]
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]
    target: Any = root
    for part in parents:
        target = _child(target, part, path)
    if isinstance(target, list):
        _apply_to_list(target, last, operation)
        return
    if not isinstance(target, dict):
        raise FailedPatch(f"{path} does not exist")
    if op != "add" and last not in target:
        raise FailedPatch(f"{op} {path}: path does not exist")
    if op == "test":
        if target[last] != operation["value"]:
            raise FailedPatch(f"testing value {path} failed")
    elif op == "remove":
        del target[last]
    else:
        target[last] = clone(operation["value"])


def _apply_to_list(target: list[Any], last: str, operation: Mapping[str, Any]) -> None:
    op = operation["op"]
    if op == "add" and last == "-":
        target.append(clone(operation["value"]))
        return
    if not last.isdigit() or int(last) >= len(target) + (op == "add"):
        raise FailedPatch(f"{operation['path']}: no such index")
    index = int(last)
    if op == "test":
        if target[index] != operation["value"]:
            raise FailedPatch(f"testing value {operation['path']} failed")
    elif op == "remove":
        del target[index]
    elif op == "add":
        target.insert(index, clone(operation["value"]))
    else:
        target[index] = clone(operation["value"])


def _child(target: Any, part: str, path: str) -> Any:
    if isinstance(target, dict) and part in target:
        return target[part]
    if isinstance(target, list) and part.isdigit() and int(part) < len(target):
        return target[int(part)]
    raise FailedPatch(f"{path} does not exist")
