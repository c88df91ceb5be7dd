"""The newest raw object that the watch, a LIST or an answer to our own write has told, by kind, namespace and name.

Fed by `loop.watch` (events) and `observe` (LISTs), read by `observe`. What arrives late must not undo what is newer:
resourceVersions of one kind are compared as numbers, and a uid that was seen deleted stays deleted. Of a deleted pod of
ours the last state is kept, because an autoscaler may delete a finished pod within seconds and its outcome with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from perdure.contract import LABEL_JOB
from perdure_operator.cluster import views
from perdure_operator.cluster.protocol import PODS, Json, Resource

Key = tuple[str, str]
"""namespace, name; the namespace of a node is ""."""

_DELETED_UIDS_KEPT: Final = 10_000
"""Against events and LISTs that overtake each other by seconds, not for ever."""


def key_of(raw: Json) -> Key:
    """Namespace and name of an object."""
    metadata = views.meta(raw)
    return metadata.get("namespace") or "", metadata["name"]


def job_of(raw: Json) -> Key | None:
    """The job a pod belongs to by its label."""
    labels = views.meta(raw).get("labels") or {}
    namespace, _ = key_of(raw)
    return (namespace, labels[LABEL_JOB]) if LABEL_JOB in labels else None


class Cache:
    """Not thread-safe: lives in the operator's event loop."""

    def __init__(self) -> None:
        self._objects: dict[Resource, dict[Key, Json]] = defaultdict(dict)
        self._gone: dict[Key, dict[str, Json]] = defaultdict(dict)
        self._deleted: dict[str, None] = {}

    def get(self, resource: Resource, key: Key) -> Json | None:
        """The newest object with that key."""
        return self._objects[resource].get(key)

    def all(self, resource: Resource, namespace: str | None = None) -> Iterator[Json]:
        """Every object of a kind, in one namespace or everywhere."""
        for key, raw in self._objects[resource].items():
            if namespace is None or key[0] == namespace:
                yield raw

    def pods(self, job: Key) -> list[Json]:
        """The pods with the job's label, whoever owns them."""
        return [raw for raw in self._objects[PODS].values() if job_of(raw) == job]

    def gone(self, job: Key) -> list[Json]:
        """Last states of deleted pods that are still remembered."""
        return list(self._gone[job].values()) if job in self._gone else []

    def apply(self, resource: Resource, raw: Json) -> bool:
        """Take in an object that exists; False where something newer is known already."""
        key, uid = key_of(raw), views.uid(raw)
        known = self._objects[resource].get(key)
        if uid in self._deleted or (known is not None and _version(raw) <= _version(known)):
            return False
        if known is not None and views.uid(known) != uid:
            self.delete(resource, known)
        self._objects[resource][key] = raw
        return True

    def delete(self, resource: Resource, raw: Json) -> None:
        """Take in that an object is gone; `raw` is its last state as far as the caller knows."""
        key, uid = key_of(raw), views.uid(raw)
        known = self._objects[resource].get(key)
        self._remember_deleted(uid)
        if known is not None and views.uid(known) == uid:
            del self._objects[resource][key]
            raw = max(raw, known, key=_version)
        job = job_of(raw) if resource == PODS else None
        if job is not None:
            earlier = self._gone[job].get(uid, raw)
            self._gone[job][uid] = max(raw, earlier, key=_version)

    def replace(self, resource: Resource, items: Iterable[Json], known: Mapping[Key, str]) -> None:
        """Take in a live LIST. `known` are the uids it would have had to show, as they were *before* it was asked."""
        shown = set()
        for raw in items:
            self.apply(resource, raw)
            shown.add(views.uid(raw))
        for key, uid in known.items():
            missing = self._objects[resource].get(key)
            if missing is not None and views.uid(missing) == uid and uid not in shown:
                self.delete(resource, missing)

    def known(self, resource: Resource) -> dict[Key, str]:
        """The uids of all known objects of a kind."""
        return {key: views.uid(raw) for key, raw in self._objects[resource].items()}

    def forget_gone(self, job: Key, keep: Iterable[str]) -> None:
        """Status has recorded the other pods: only names in `keep` are still of interest."""
        names = set(keep)
        for uid, raw in list(self._gone.get(job, {}).items()):
            if key_of(raw)[1] not in names:
                del self._gone[job][uid]
        if not self._gone.get(job):
            self._gone.pop(job, None)

    def jobs_on(self, node: str) -> set[Key]:
        """Jobs that have a pod on the node."""
        found = set()
        for raw in self._objects[PODS].values():
            job = job_of(raw)
            if job is not None and (raw.get("spec") or {}).get("nodeName") == node:
                found.add(job)
        return found

    def _remember_deleted(self, uid: str) -> None:
        self._deleted[uid] = None
        while len(self._deleted) > _DELETED_UIDS_KEPT:
            del self._deleted[next(iter(self._deleted))]


def _version(raw: Json) -> int:
    """resourceVersions are comparable numbers within one kind (documented since Kubernetes 1.35)."""
    text = str(views.meta(raw).get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0
