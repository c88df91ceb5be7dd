"""The newest raw object that the watch, a LIST or an answer to our own write has told, by kind, namespace and name.

Fed by `loop.watch` (events) and `observe` (LISTs), read by `observe`. What arrives late must not undo what is newer:
resourceVersions of one kind are compared as numbers, and a uid that was seen deleted stays deleted. Of a deleted pod of
ours the last state is kept, because an autoscaler may delete a finished pod within seconds and its outcome with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from perdure.contract import LABEL_JOB
from perdure_operator.cluster.protocol import JOBS, PODS, Json, Resource
from perdure_operator.cluster.read import parse

Key = tuple[str, str]
"""namespace, name; the namespace of a node is ""."""

GONE_KEPT: Final = 3_000
"""Last states of deleted pods: a replica that does not lead never says which of them status has recorded."""

_DELETED_UIDS_KEPT: Final = 10_000
"""Against events and LISTs that overtake each other by seconds, not for ever."""

_V = TypeVar("_V")


def key_of(raw: Json) -> Key:
    """Namespace and name of an object."""
    metadata = parse.meta(raw)
    return metadata.get("namespace") or "", metadata["name"]


def job_of(raw: Json) -> Key | None:
    """The job a pod belongs to by its label."""
    labels = parse.meta(raw).get("labels") or {}
    namespace, _ = key_of(raw)
    return (namespace, labels[LABEL_JOB]) if LABEL_JOB in labels else None


class Cache:
    """Not thread-safe: lives in the operator's event loop."""

    def __init__(self) -> None:
        self._objects: dict[Resource, dict[Key, Json]] = defaultdict(dict)
        self._gone: dict[str, Json] = {}
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
        return [raw for raw in self._gone.values() if job_of(raw) == job]

    def apply(self, resource: Resource, raw: Json, *, before: Json | None = None) -> bool:
        """Take in an object that exists; False where something newer is known already.

        `before` is what was known when a live read began: if that is still the newest, the read is right whatever its
        version, for a restore of etcd turns versions back.
        """
        key, uid = key_of(raw), parse.uid(raw)
        known = self._objects[resource].get(key)
        if uid in self._deleted or (known is not None and not _follows(raw, known, before)):
            return False
        if known is not None and parse.uid(known) != uid:
            self.delete(resource, known)
        self._objects[resource][key] = _read_part(raw)
        return True

    def delete(self, resource: Resource, raw: Json) -> None:
        """Take in that an object is gone; `raw` is its last state as far as the caller knows."""
        key, uid = key_of(raw), parse.uid(raw)
        known = self._objects[resource].get(key)
        _remember(self._deleted, uid, None, most=_DELETED_UIDS_KEPT)
        if known is not None and parse.uid(known) == uid:
            del self._objects[resource][key]
            raw = max(raw, known, key=_version)
        if resource == JOBS:
            self._gone = {pod: last for pod, last in self._gone.items() if parse.controller(last) != uid}
        if resource == PODS and job_of(raw) is not None and parse.controller(raw) not in self._deleted:
            newest = max(_read_part(raw), self._gone.get(uid, raw), key=_version)
            _remember(self._gone, uid, newest, most=GONE_KEPT)

    def replace(self, resource: Resource, items: Iterable[Json], known: Mapping[Key, Json]) -> None:
        """Take in a live LIST. `known` are the objects it would have to show, as they were *before* it was asked."""
        shown = set()
        for raw in items:
            self.apply(resource, raw, before=known.get(key_of(raw)))
            shown.add(parse.uid(raw))
        for key, old in known.items():
            missing, uid = self._objects[resource].get(key), parse.uid(old)
            if missing is not None and parse.uid(missing) == uid and uid not in shown:
                self.delete(resource, missing)

    def known(self, resource: Resource) -> dict[Key, Json]:
        """All known objects of a kind, as they are now."""
        return dict(self._objects[resource])

    def forget_gone(self, job: Key, keep: Iterable[str]) -> None:
        """Status has recorded the other pods: only names in `keep` are still of interest."""
        names = set(keep)
        for uid, raw in list(self._gone.items()):
            if job_of(raw) == job and key_of(raw)[1] not in names:
                del self._gone[uid]

    def jobs_on(self, node: str) -> set[Key]:
        """Jobs that have a pod on the node."""
        found = set()
        for raw in self._objects[PODS].values():
            job = job_of(raw)
            if job is not None and (raw.get("spec") or {}).get("nodeName") == node:
                found.add(job)
        return found


def _remember(memory: dict[str, _V], uid: str, value: _V, *, most: int) -> None:
    """The oldest gives way."""
    memory[uid] = value
    while len(memory) > most:
        del memory[next(iter(memory))]


def _follows(raw: Json, known: Json, before: Json | None) -> bool:
    """Whether `raw` replaces `known`; versions of one object tell, but a live read that nothing overtook is right."""
    undisturbed = known is before and parse.uid(known) == parse.uid(raw)
    return _version(raw) > _version(known) or (undisturbed and _version(raw) < _version(known))


def _read_part(raw: Json) -> Json:
    """Without the two fields that are most of a pod's or a node's size and that nobody here reads."""
    metadata, status = parse.meta(raw), raw.get("status") or {}
    slim = {"metadata": {name: value for name, value in metadata.items() if name != "managedFields"}}
    if "images" in status:
        slim["status"] = {name: value for name, value in status.items() if name != "images"}
    return raw | slim


def _version(raw: Json) -> int:
    """resourceVersions are comparable numbers within one kind (documented since Kubernetes 1.35)."""
    text = str(parse.meta(raw).get("resourceVersion", ""))
    return int(text) if text.isdigit() else 0
