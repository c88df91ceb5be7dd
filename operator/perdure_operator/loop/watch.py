"""kopf's events fill the cache and mark jobs as due. This module writes nothing.

Only `on.event` is used: kopf's other handlers leave annotations or finalizers on users' objects, its indexes are
quadratic at start. Pods are filtered by the API server. Called by `operator`.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import kopf

from perdure.wire import LABEL_JOB
from perdure_operator.cluster.protocol import BUDGETS, EVICTIONS, JOBS, NODES, PODS, Json, Resource
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.records import key_of, version_of
from perdure_operator.loop.affected_jobs import affected_jobs
from perdure_operator.loop.queue import Queue
from perdure_operator.serving.metrics.counted import Echoes

SELECTOR_KEY: Final = ("v1", "pods")
"""The documented string form 'v1/pods' silently selects nothing in kopf 1.45.2."""

WATCHED: Final = (JOBS, PODS, NODES, BUDGETS)

logger = logging.getLogger(__name__)


class Watch:
    """Handles watch events."""

    def __init__(self, cache: Cache, queue: Queue, echoes: Echoes) -> None:
        self._cache = cache
        self._queue = queue
        self._echoes = echoes

    def take_in(self, resource: Resource, kind: str | None, raw: Json) -> None:
        """Handle one event: `kind` is ADDED, MODIFIED, DELETED, or None for an object of an initial list."""
        change = self._cache.delete(resource, raw) if kind == "DELETED" else self._cache.apply(resource, raw)
        if resource == JOBS:
            self._echoes.showed(key_of(raw), version_of(raw), deleted=kind == "DELETED")
        # None: a later version is known already, perhaps from the answer to our own write.
        if change is not None and self._queue.started:
            for job in sorted(affected_jobs(self._cache, change)):
                self._queue.add(job)

    def listed(self, resource: Resource) -> None:
        """All objects of a kind were listed, and its watch goes on from there."""
        if resource == JOBS:
            self._echoes.begins_anew()

    def take_in_or_log(self, resource: Resource, kind: str | None, raw: Json) -> None:
        """Handle one event and log any exception: one object must not end the watch of all others."""
        try:
            self.take_in(resource, kind, raw)
        except Exception:
            logger.exception(
                "%s %s: its watch event cannot be parsed and is ignored", resource.plural, "/".join(key_of(raw))
            )


def register(registry: kopf.OperatorRegistry, watch: Watch, *, evictions: bool = False) -> None:
    """Subscribe to jobs, their pods, nodes and budgets, and with `evictions` to Evictions."""
    for resource in (*WATCHED, *((EVICTIONS,) if evictions else ())):
        _subscribe(registry, watch, resource)


def _subscribe(registry: kopf.OperatorRegistry, watch: Watch, resource: Resource) -> None:
    async def on_event(event: Any, **_: Any) -> None:
        watch.take_in_or_log(resource, event["type"], event["object"])

    kopf.on.event(
        group=resource.group,
        version=resource.version,
        plural=resource.plural,
        id=f"watch-{resource.plural}",
        registry=registry,
    )(on_event)


def settings() -> kopf.OperatorSettings:
    """Settings that reduce kopf to a source of events."""
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    chosen.scanning.disabled = True
    chosen.peering.standalone = True
    chosen.watching.label_selectors[SELECTOR_KEY] = LABEL_JOB
    chosen.watching.chunk_size = 100
    # A kopf worker keeps its whole object for this long after the last event; longer, and a start holds all pods.
    chosen.queueing.idle_timeout = 0.1
    chosen.watching.reconnect_backoff = 1.0  # between a watch that failed and the next LIST
    # kopf removes its own finalizer from every object that it does not handle.
    chosen.persistence.finalizer = "perdure.dev/never-set"
    chosen.persistence.diffbase_storage = _NoDiffs()
    chosen.networking.request_timeout = 30.0
    chosen.networking.connect_timeout = 10.0
    return chosen


class _NoDiffs(kopf.DiffBaseStorage):  # type: ignore[misc]  # kopf is not typed for us
    """Stores nothing. kopf's own copies every object at every event, and parses an annotation that any user may set."""

    def build(self, **_: Any) -> Any:
        """Build nothing."""
        return {}

    def fetch(self, **_: Any) -> None:
        """Fetch nothing."""

    def store(self, **_: Any) -> None:
        """Store nothing."""
