"""kopf's events fill the cache and mark jobs as due. Nothing else happens here, and nothing is ever written.

Only `on.event` is used: kopf's other handlers leave annotations or finalizers on users' objects, its indexes are
quadratic at start. Pods are filtered by the API server. Called by `operator`.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import kopf

from perdure.contract import LABEL_JOB
from perdure_operator.cluster.protocol import BUDGETS, JOBS, NODES, PODS, Json, Resource
from perdure_operator.cluster.read import parse
from perdure_operator.cluster.read.cache import Cache, Key, job_of, key_of
from perdure_operator.loop.queue import Queue

SELECTOR_KEY: Final = ("v1", "pods")
"""The documented string form 'v1/pods' silently selects nothing in kopf 1.45.2."""

logger = logging.getLogger(__name__)


class Watch:
    """Takes in watch events."""

    def __init__(self, cache: Cache, queue: Queue) -> None:
        self._cache = cache
        self._queue = queue

    def take_in(self, resource: Resource, kind: str | None, raw: Json) -> None:
        """One event: `kind` is ADDED, MODIFIED, DELETED, or None for an object of an initial list."""
        before = self._cache.get(resource, key_of(raw))
        if kind == "DELETED":
            self._cache.delete(resource, raw)
        elif not self._cache.apply(resource, raw):
            return  # we knew: an answer to our own write, or an event that was overtaken
        for job in self._concerned(resource, before, raw, deleted=kind == "DELETED"):
            self._queue.add(job)

    def _concerned(self, resource: Resource, before: Json | None, raw: Json, *, deleted: bool) -> set[Key]:
        if resource == JOBS:
            return {key_of(raw)} | self._sharing_root(before, raw, deleted=deleted)
        if resource == PODS:
            job = job_of(raw)
            return {job} if job else set()
        if resource == NODES:
            # Nodes report every few minutes: only what a decision can depend on makes a job due.
            same = before is not None and not deleted and parse.node(before) == parse.node(raw)
            return set() if same else self._cache.jobs_on(parse.meta(raw)["name"])
        same = before is not None and not deleted and _generation(before) == _generation(raw)
        namespace = key_of(raw)[0]
        return set() if same else {job for job in self._cache.known(JOBS) if job[0] == namespace}

    def _sharing_root(self, before: Json | None, raw: Json, *, deleted: bool) -> set[Key]:
        """Jobs that may wait for this one to be finished or deleted, now that it is."""
        if before is None or not parse.job_is_live(before) or (parse.job_is_live(raw) and not deleted):
            return set()
        return {key_of(other) for other in self._cache.all(JOBS) if parse.job_uri(other) == parse.job_uri(raw)}


def register(registry: kopf.OperatorRegistry, watch: Watch) -> None:
    """Subscribe to jobs, their pods, nodes and budgets."""
    for resource in (JOBS, PODS, NODES, BUDGETS):
        _subscribe(registry, watch, resource)


def _subscribe(registry: kopf.OperatorRegistry, watch: Watch, resource: Resource) -> None:
    async def on_event(event: Any, **_: Any) -> None:
        try:
            watch.take_in(resource, event["type"], event["object"])
        except Exception:
            logger.exception(
                "%s %s: an event cannot be read, ignored", resource.plural, "/".join(key_of(event["object"]))
            )

    kopf.on.event(
        group=resource.group,
        version=resource.version,
        plural=resource.plural,
        id=f"watch-{resource.plural}",
        registry=registry,
    )(on_event)


def settings() -> kopf.OperatorSettings:
    """kopf as a source of events and nothing else."""
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    chosen.scanning.disabled = True
    chosen.peering.standalone = True
    chosen.watching.label_selectors[SELECTOR_KEY] = LABEL_JOB
    chosen.watching.chunk_size = 500
    chosen.watching.reconnect_backoff = 1.0  # between a watch that failed and the next LIST
    chosen.persistence.finalizer = "perdure.dev/never-set"  # kopf removes its own wherever it has no use for it
    chosen.persistence.diffbase_storage = _NoDiffs()
    chosen.networking.request_timeout = 30.0
    chosen.networking.connect_timeout = 10.0
    return chosen


class _NoDiffs(kopf.DiffBaseStorage):  # type: ignore[misc]  # kopf is not typed for us
    """kopf's own copies every object at every event, and parses an annotation that anybody may have set."""

    def build(self, **_: Any) -> Any:
        """Nothing."""
        return {}

    def fetch(self, **_: Any) -> None:
        """Nothing."""

    def store(self, **_: Any) -> None:
        """Nowhere."""


def _generation(raw: Json) -> Any:
    return parse.meta(raw).get("generation")
