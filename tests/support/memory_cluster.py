"""A cluster in memory that keeps the rules the operator relies on: uids, resourceVersions, preconditions, grace.

Verified: `contract_cases` run against this one (tests/unit/operator) and against a real kube-apiserver (tests/api).
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from perdure_operator.cluster.protocol import (
    EVENTS,
    PODS,
    REVISIONS,
    AlreadyExists,
    Conflict,
    Invalid,
    Json,
    NotFound,
    OnChange,
    Operation,
    Resource,
)

CREATED = "2026-01-01T00:00:00Z"


class MemoryCluster:
    """A ClusterApi without a cluster. `watch` gets every change, as a watch would tell it."""

    def __init__(self) -> None:
        self._objects: dict[tuple[Resource, str, str], Json] = {}
        self._version = itertools.count(1)
        self.watch: Callable[[str, Resource, Json], object] = _nobody
        self.page = 2
        self.served: set[Resource] = {PODS}
        self.writes: list[str] = []
        self.time: Callable[[], datetime] = lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        self._followers: list[tuple[tuple[Resource, str, str], asyncio.Queue[Json | None]]] = []

    def server_time(self) -> datetime:
        return self.time()

    async def serves(self, resource: Resource) -> bool:
        return resource in self.served

    async def list(self, resource: Resource, namespace: str | None = None, *, selector: str = "") -> list[Json]:
        return [
            copy.deepcopy(raw)
            for (kind, where, _), raw in sorted(self._objects.items(), key=lambda one: one[0][1:])
            if kind == resource and namespace in (None, where) and _selected(raw, selector)
        ]

    async def pages(
        self, resource: Resource, namespace: str | None = None, *, selector: str = ""
    ) -> AsyncIterator[Sequence[Json]]:
        items = await self.list(resource, namespace, selector=selector)
        for first in range(0, len(items), self.page):
            yield items[first : first + self.page]

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        return copy.deepcopy(self._stored(resource, namespace or "", name))

    async def follow(
        self, resource: Resource, namespace: str, name: str, *, version: str, seconds: float, on_change: OnChange
    ) -> None:
        key, states = (resource, namespace, name), asyncio.Queue[Json | None]()
        now = self._objects.get(key)
        if now is None or now["metadata"]["resourceVersion"] != version:
            states.put_nowait(copy.deepcopy(now))
        self._followers.append((key, states))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    on_change(await states.get())

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        raw = copy.deepcopy(body)
        key = (resource, namespace if resource.namespaced else "", raw["metadata"]["name"])
        if key in self._objects:
            raise AlreadyExists(f"{resource.plural} {key[2]!r} already exists", status=409, reason="AlreadyExists")
        raw["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": CREATED, "generation": 1}
        raw["metadata"]["namespace"] = key[1]
        if resource == PODS:
            raw["status"] = {"phase": "Pending"}
        if dry_run:
            return raw
        self._note("create", resource, key[2])
        return self._store("ADDED", key, raw)

    async def patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> Json:
        raw = copy.deepcopy(self._stored(resource, namespace, name))
        for operation in operations:
            _apply(raw, operation)
        self._note("patch", resource, name)
        return self._store("MODIFIED", (resource, namespace, name), raw)

    async def patch_status(
        self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]
    ) -> Json:
        stored = self._stored(resource, namespace, name)
        raw = copy.deepcopy(stored)
        for operation in operations:
            _apply(raw, operation)
        self._note("patch status", resource, name)
        return self._store("MODIFIED", (resource, namespace, name), copy.deepcopy(stored) | {"status": raw["status"]})

    async def replace(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        stored = self._stored(resource, namespace, name)
        _require_version(stored, body)
        if resource == REVISIONS and body.get("data") != stored.get("data"):
            raise Invalid(f"{name!r}: data: field is immutable", status=422, reason="Invalid")
        self._note("replace", resource, name)
        raw = copy.deepcopy(body) | {"metadata": copy.deepcopy(stored["metadata"])}
        return self._store("MODIFIED", (resource, namespace, name), raw)

    async def replace_status(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        stored = self._stored(resource, namespace, name)
        _require_version(stored, body)
        self._note("status", resource, name)
        raw = copy.deepcopy(stored) | {"status": copy.deepcopy(body["status"])}
        return self._store("MODIFIED", (resource, namespace, name), raw)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, version: str = "", grace: int | None = None
    ) -> None:
        stored = self._stored(resource, namespace, name)
        if stored["metadata"]["uid"] != uid or version not in ("", stored["metadata"]["resourceVersion"]):
            raise Conflict(f"{name!r} is not {uid} in version {version}", status=409, reason="Conflict")
        self._note("delete", resource, name)
        if resource == PODS and _needs_grace(stored):
            raw = copy.deepcopy(stored)
            raw["metadata"]["deletionTimestamp"] = CREATED
            own = raw["spec"].get("terminationGracePeriodSeconds", 30)
            raw["metadata"]["deletionGracePeriodSeconds"] = own if grace is None else grace
            self._store("MODIFIED", (resource, namespace, name), raw)
            return
        self.remove(resource, namespace, name)

    # What controllers, kubelets and users do.

    def remove(self, resource: Resource, namespace: str, name: str) -> None:
        """The object is gone."""
        raw = self._objects.pop((resource, namespace, name))
        raw["metadata"]["resourceVersion"] = str(next(self._version))
        self._tell("DELETED", (resource, namespace, name), raw)

    def change(self, resource: Resource, namespace: str, name: str, change: Callable[[Json], Any]) -> None:
        """Another client changes the object."""
        raw = copy.deepcopy(self._stored(resource, namespace, name))
        before = copy.deepcopy(raw.get("spec"))
        change(raw)
        if raw.get("spec") != before:
            raw["metadata"]["generation"] += 1
        self._store("MODIFIED", (resource, namespace, name), raw)

    def restore(self, resource: Resource, raw: Json) -> None:
        """The store has been put back to a time when the object was as `raw` says; no watch tells."""
        self._objects[(resource, raw["metadata"]["namespace"], raw["metadata"]["name"])] = copy.deepcopy(raw)

    def _stored(self, resource: Resource, namespace: str, name: str) -> Json:
        key = (resource, namespace if resource.namespaced else "", name)
        if key not in self._objects:
            raise NotFound(f"{resource.plural} {name!r} not found", status=404, reason="NotFound")
        return self._objects[key]

    def _store(self, kind: str, key: tuple[Resource, str, str], raw: Json) -> Json:
        raw["metadata"]["resourceVersion"] = str(next(self._version))
        self._objects[key] = raw
        self._tell(kind, key, raw)
        return copy.deepcopy(raw)

    def _tell(self, kind: str, key: tuple[Resource, str, str], raw: Json) -> None:
        self.watch(kind, key[0], copy.deepcopy(raw))
        for followed, states in self._followers:
            if followed == key:
                states.put_nowait(None if kind == "DELETED" else copy.deepcopy(raw))

    def _note(self, verb: str, resource: Resource, name: str) -> None:
        if resource != EVENTS:
            self.writes.append(f"{verb} {resource.plural} {name}")


def _nobody(_kind: str, _resource: Resource, _raw: Json) -> None:
    """Does not watch."""


def _needs_grace(pod: Json) -> bool:
    bound = bool((pod.get("spec") or {}).get("nodeName"))
    return bound and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def _require_version(stored: Json, body: Json) -> None:
    wanted, there = body["metadata"], stored["metadata"]
    if wanted.get("resourceVersion") != there["resourceVersion"] or wanted.get("uid", there["uid"]) != there["uid"]:
        raise Conflict("the object has been modified", status=409, reason="Conflict")


def _selected(raw: Json, selector: str) -> bool:
    labels = raw["metadata"].get("labels") or {}
    terms = [term.partition("=") for term in selector.split(",") if term]
    return all(key in labels and (not equals or labels[key] == value) for key, equals, value in terms)


def _apply(raw: Json, operation: Operation) -> None:
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    target: Any = raw
    for part in parents:
        if isinstance(target, list):
            target = target[int(part)] if int(part) < len(target) else None
        else:
            target = target.get(part) if isinstance(target, dict) else None
    if not isinstance(target, dict) or (operation["op"] != "add" and last not in target):
        raise Conflict(f"path {operation['path']} does not exist", status=422, reason="Invalid")
    if operation["op"] == "test":
        if target[last] != operation["value"]:
            raise Conflict(f"testing value {operation['path']} failed", status=422, reason="Invalid")
        return
    if operation["op"] == "remove":
        del target[last]
        return
    target[last] = copy.deepcopy(operation["value"])
