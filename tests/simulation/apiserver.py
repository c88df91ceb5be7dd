"""The simulated API server: what it stores, the rules of change, and its events to each watch.

Everything here happens at one moment; networks, delays and faults belong to the clients and the watches. Stored objects
are never changed in place, so a reader may keep them. It passes the contract cases that a real kube-apiserver passes.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.simulation import eviction_rules
from tests.simulation.admission import Policy, defaulted, validate
from tests.simulation.answers import compact
from tests.simulation.objects import (
    JOBS,
    KINDS,
    NOT_NAMESPACED,
    OF_EVICTION,
    PODS,
    REVISIONS,
    WITH_STATUS,
    Json,
    Key,
    Refused,
    clone,
    key_of,
    node_of,
    patched,
    selected,
    stamp,
    terminal,
    terminating,
)

_KEPT: Final = 3000
"""Changes that a watch may still ask for; older ones are 410."""
_TEXTS: Final = 1000
"""States whose JSON is kept."""


@dataclass(frozen=True)
class Change:
    """One stored change."""

    version: int
    event: str
    """ADDED, MODIFIED or DELETED."""
    kind: str
    raw: Json
    old: Json | None
    by: str
    """Its writer: for checks and the trace."""


class ApiServer:
    """Kubernetes' storage and its rules."""

    def __init__(self, now: Callable[[], float], rng: random.Random) -> None:
        self._now = now
        self._rng = rng
        self._objects: dict[str, dict[Key, Json]] = defaultdict(dict)
        self._versions = itertools.count(1000)
        self.version = 1000
        self.changes: deque[Change] = deque(maxlen=_KEPT)
        self._observers: dict[str, list[Callable[[Change], object]]] = {kind: [] for kind in KINDS}
        self._texts: dict[str, tuple[Json, str]] = {}
        self._by_node: dict[str, list[Json]] = {}
        """The pods of each node, until one changes."""
        self.policy = Policy()
        self.evictions = False
        """The feature gate EvictionRequestAPI."""

    def serves(self, kind: str) -> bool:
        """What discovery says."""
        return kind in KINDS and (self.evictions or kind not in OF_EVICTION)

    def observe(self, observer: Callable[[Change], object], *kinds: str) -> None:
        """Call it after each change of an object of these kinds; of any where none is named."""
        for kind in kinds or KINDS:
            self._observers[kind].append(observer)

    def ignore(self, observer: Callable[[Change], object]) -> None:
        """Call it no more."""
        for observers in self._observers.values():
            if observer in observers:
                observers.remove(observer)

    # reading

    def find(self, kind: str, namespace: str, name: str) -> Json | None:
        return self._objects[kind].get((_scope(kind, namespace), name))

    def get(self, kind: str, namespace: str, name: str) -> Json:
        raw = self.find(kind, namespace, name)
        if raw is None:
            raise Refused(404, "NotFound", f'{kind} "{name}" not found')
        return raw

    def all(self, kind: str, namespace: str | None = None, selector: str = "") -> list[Json]:
        items = sorted(self._objects[kind].items())
        return [
            raw for (where, _), raw in items if namespace in (None, where) and (not selector or selected(raw, selector))
        ]

    def each(self, kind: str) -> list[Json]:
        """In no order, fast."""
        return list(self._objects[kind].values())

    def pods_on(self, node: str) -> list[Json]:
        """As of `each`: many ask between two changes."""
        if not self._by_node:
            for pod in self._objects[PODS].values():
                self._by_node.setdefault(node_of(pod), []).append(pod)
        return list(self._by_node.get(node, ()))

    def text(self, raw: Json) -> str:
        """Its JSON: clients read a state again and again."""
        version = str(raw["metadata"].get("resourceVersion", ""))
        known = self._texts.get(version)
        if known is not None and known[0] is raw:
            return known[1]
        text = compact(raw)
        if len(self._texts) >= _TEXTS:
            self._texts.clear()
        self._texts[version] = raw, text
        return text

    # writing

    def create(self, kind: str, namespace: str, body: Json, *, by: str, dry_run: bool = False) -> Json:
        raw: Json = clone(body)
        scope = _scope(kind, namespace)
        metadata = raw["metadata"]
        key = (scope, str(metadata.get("name", "")))
        if scope:
            metadata["namespace"] = scope
        if kind == PODS and not self.evictions:
            raw["spec"].pop("evictionResponders", None)
        validate(kind, raw)
        eviction_rules.validate(kind, raw, None)
        self.policy.mutate(kind, raw)
        self.policy.admit_create(kind, raw, self.all(kind, scope), dry_run=dry_run)
        if key in self._objects[kind]:
            raise Refused(409, "AlreadyExists", f'{kind} "{key[1]}" already exists')
        metadata |= {"uid": self._uid(), "creationTimestamp": stamp(self._now()), "generation": 1}
        metadata.pop("deletionTimestamp", None)
        raw = defaulted(kind, raw)
        if kind == JOBS:
            raw.pop("status", None)
        if dry_run:
            return raw
        return self._store("ADDED", kind, key, raw, None, by)

    def patch(self, kind: str, namespace: str, name: str, operations: Sequence[Mapping[str, Any]], *, by: str) -> Json:
        old = self.get(kind, namespace, name)
        new = patched(old, operations)
        self.policy.admit_update(kind)
        return self._update(kind, old, new, by)

    def patch_status(
        self, kind: str, namespace: str, name: str, operations: Sequence[Mapping[str, Any]], *, by: str
    ) -> Json:
        old = self.get(kind, namespace, name)
        new = old | {"status": patched(old, operations).get("status") or {}}
        return self._store_status(kind, old, new, by)

    def replace(self, kind: str, namespace: str, name: str, body: Json, *, by: str) -> Json:
        old = self.get(kind, namespace, name)
        _require(old, body, kind)
        return self._update(kind, old, clone(body), by)

    def replace_status(self, kind: str, namespace: str, name: str, body: Json, *, by: str) -> Json:
        old = self.get(kind, namespace, name)
        _require(old, body, kind)
        self.policy.admit_status(kind)
        new = old | {"status": clone(body.get("status") or {})}
        return self._store_status(kind, old, new, by)

    def change(self, kind: str, namespace: str, name: str, how: Callable[[Json], object], *, by: str) -> Json:
        """Read, change and write as a client that retries conflicts; spec and metadata."""
        old = self.get(kind, namespace, name)
        new: Json = clone(old)
        how(new)
        return self._update(kind, old, new, by)

    def change_status(self, kind: str, namespace: str, name: str, how: Callable[[Json], object], *, by: str) -> Json:
        """The same through the status subresource."""
        old = self.get(kind, namespace, name)
        new: Json = old | {"status": clone(old.get("status") or {})}  # the rest is only read
        how(new)
        return self._store_status(kind, old, old | {"status": new.get("status") or {}}, by)

    def bind(self, namespace: str, name: str, node: str) -> None:
        """The scheduler's decision."""
        old = self.get(PODS, namespace, name)
        if node_of(old) or terminating(old):
            raise Refused(409, "Conflict", f"pod {name} is already assigned or being deleted")
        new = old | {"spec": old["spec"] | {"nodeName": node}}
        self._store("MODIFIED", PODS, key_of(old), new, old, "scheduler")

    def delete(
        self,
        kind: str,
        namespace: str,
        name: str,
        *,
        by: str,
        uid: str | None = None,
        version: str | None = None,
        grace: int | None = None,
        finalizer: str = "",
    ) -> None:
        """The propagation policy adds `finalizer`: ORPHAN or FOREGROUND."""
        old = self.get(kind, namespace, name)
        metadata = old["metadata"]
        if uid is not None and metadata["uid"] != uid:
            raise Refused(
                409, "Conflict", f"Precondition failed: UID in precondition: {uid}, UID in object meta: other"
            )
        if version is not None and metadata["resourceVersion"] != version:
            raise Refused(409, "Conflict", f"Precondition failed: ResourceVersion in precondition: {version}")
        self.policy.admit_delete(kind, by)
        new: Json = old | {"metadata": clone(metadata)}
        if finalizer and finalizer not in (new["metadata"].get("finalizers") or ()):
            new["metadata"]["finalizers"] = [*(new["metadata"].get("finalizers") or ()), finalizer]
        seconds = self._grace(kind, old, grace)
        if seconds == 0 and not new["metadata"].get("finalizers"):
            self._remove(kind, old, by)
            return
        if terminating(old) and (kind != PODS or seconds >= metadata.get("deletionGracePeriodSeconds", 0)):
            return
        new["metadata"]["deletionTimestamp"] = stamp(self._now() + seconds)
        new["metadata"]["deletionGracePeriodSeconds"] = seconds
        if kind != PODS:
            new["metadata"]["generation"] = int(metadata.get("generation", 1)) + 1
        self._store("MODIFIED", kind, key_of(old), new, old, by)

    def finish_delete(self, kind: str, raw: Json, *, by: str) -> None:
        """What kubelet and pod GC do last: a delete without grace of that very object."""
        there = self.find(kind, *key_of(raw))
        if there is not None and there["metadata"]["uid"] == raw["metadata"]["uid"]:
            self.delete(kind, *key_of(raw), by=by, grace=0)

    # inside

    def _update(self, kind: str, old: Json, new: Json, by: str) -> Json:
        metadata, before = new["metadata"], old["metadata"]
        for fixed in ("uid", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds"):
            metadata.pop(fixed, None)
            if fixed in before:
                metadata[fixed] = before[fixed]
        if kind in WITH_STATUS:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        if new.get("spec") != old.get("spec"):
            metadata["generation"] = int(before.get("generation", 1)) + 1
        validate(kind, new)
        eviction_rules.validate(kind, new, old)
        if kind == REVISIONS and new.get("data") != old.get("data"):
            raise Refused(422, "Invalid", "data: field is immutable")
        if terminating(old) and not metadata.get("finalizers") and not before.get("deletionGracePeriodSeconds"):
            self._remove(kind, new, by)
            return new
        return self._store_if_new("MODIFIED", kind, old, new, by)

    def _store_status(self, kind: str, old: Json, new: Json, by: str) -> Json:
        eviction_rules.validate_status(kind, old, new, self._now())
        return self._store_if_new("MODIFIED", kind, old, new, by)

    def _store_if_new(self, event: str, kind: str, old: Json, new: Json, by: str) -> Json:
        """A write that changes nothing is no write: no new version, no event."""
        new["metadata"] = dict(new["metadata"]) | {"resourceVersion": old["metadata"]["resourceVersion"]}
        if new == old:
            return old
        return self._store(event, kind, key_of(old), new, old, by)

    def _store(  # noqa: PLR0917
        self, event: str, kind: str, key: Key, raw: Json, old: Json | None, by: str
    ) -> Json:
        self.version = next(self._versions) + 1
        raw["metadata"] = dict(raw["metadata"]) | {"resourceVersion": str(self.version)}
        self._objects[kind][key] = raw
        self._forget(kind)
        self._tell(Change(self.version, event, kind, raw, old, by))
        return raw

    def _remove(self, kind: str, old: Json, by: str) -> None:
        self.version = next(self._versions) + 1
        gone = old | {"metadata": old["metadata"] | {"resourceVersion": str(self.version)}}
        del self._objects[kind][key_of(old)]
        self._forget(kind)
        self._tell(Change(self.version, "DELETED", kind, gone, old, by))

    def _forget(self, kind: str) -> None:
        if kind == PODS:
            self._by_node.clear()

    def _tell(self, change: Change) -> None:
        self.changes.append(change)
        for observer in self._observers[change.kind]:
            observer(change)

    def _grace(self, kind: str, raw: Json, asked: int | None) -> int:
        if kind != PODS or not node_of(raw) or terminal(raw):
            return 0
        if asked is not None:
            return asked
        if terminating(raw):
            return int(raw["metadata"]["deletionGracePeriodSeconds"])
        return int(raw["spec"]["terminationGracePeriodSeconds"])

    def _uid(self) -> str:
        digits = f"{self._rng.getrandbits(128):032x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _scope(kind: str, namespace: str | None) -> str:
    return "" if kind in NOT_NAMESPACED else namespace or ""


def _require(old: Json, body: Json, kind: str) -> None:
    asked, there = body["metadata"], old["metadata"]
    if asked.get("uid", there["uid"]) != there["uid"]:
        raise Refused(409, "Conflict", f"Operation cannot be fulfilled on {kind}: UID does not match")
    if asked.get("resourceVersion", there["resourceVersion"]) != there["resourceVersion"]:
        raise Refused(409, "Conflict", f"Operation cannot be fulfilled on {kind}: the object has been modified")
