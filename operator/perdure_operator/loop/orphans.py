"""Deletes budgets and kept templates that outlive their job, as after `kubectl delete --cascade=orphan`.

An orphaned budget would block drains forever, and an orphaned template would never go. An object has to match the
operator's own in every respect, because users may copy labels. Called by `leader` after each resync and by `worker`
when a job is gone. Deletions go through `act`, as every write does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from perdure.wire import LABEL_JOB
from perdure_operator.api import names
from perdure_operator.api.names import LABEL_UID
from perdure_operator.cluster.protocol import (
    BUDGETS,
    JOBS,
    REVISIONS,
    ApiError,
    ClusterApi,
    NotFound,
    Resource,
    Unavailable,
)
from perdure_operator.cluster.read import parse
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.records import BudgetRecord, Key, RevisionRecord
from perdure_operator.cluster.write.act import Actor

logger = logging.getLogger(__name__)

Leftover = BudgetRecord | RevisionRecord


def is_orphan(cache: Cache, one: Leftover) -> bool:
    """Whether it is one of ours, has no owner, and its job is gone."""
    uid, job = one.labels.get(LABEL_UID, ""), one.labels.get(LABEL_JOB, "")
    return bool(uid and job) and _is_ours(one, job, uid) and not one.owner and cache.key_of_job(uid) is None


def _is_ours(one: Leftover, job: str, uid: str) -> bool:
    """Whether its name, and a budget's selector, are the operator's: no other object has them by chance."""
    if isinstance(one, BudgetRecord):
        return one.key[1] == names.budget(job, uid) and one.selects_uid == uid
    return one.key[1].startswith(names.kept_template(job, uid, ""))


class Orphans:
    """Deletes orphans."""

    def __init__(self, api: ClusterApi, cache: Cache, actor: Actor) -> None:
        self._api = api
        self._cache = cache
        self._actor = actor

    async def sweep(self, job: Key | None = None) -> None:
        """Delete orphans of one job's name, or all. Best effort: the next resync sees them again.

        The rest waits for that too once the API server does not answer, or asks to be left alone.
        """
        for resource, one in list(self._orphans_of(job)):
            try:
                await self._remove(resource, one)
            except ApiError as error:
                words = "%s %s: its job is gone, and it could not be deleted now: %s"
                logger.warning(words, resource.plural, "/".join(one.key), error)
                if isinstance(error, Unavailable):
                    return

    def _orphans_of(self, job: Key | None) -> Iterator[tuple[Resource, Leftover]]:
        cache = self._cache
        budgets = cache.budgets() if job is None else cache.budgets_named(job)
        revisions = cache.revisions() if job is None else cache.revisions_named(job)
        yield from ((BUDGETS, one) for one in budgets if is_orphan(cache, one))
        yield from ((REVISIONS, one) for one in revisions if is_orphan(cache, one))

    async def _remove(self, resource: Resource, one: Leftover) -> None:
        if await self._job_exists(one.key[0], one.labels[LABEL_JOB], one.labels[LABEL_UID]):
            return
        if await self._actor.remove(resource, one.key, uid=one.uid, version=str(one.version)):
            logger.info("%s %s: its job is gone and it has no owner: deleted", resource.plural, "/".join(one.key))

    async def _job_exists(self, namespace: str, job: str, uid: str) -> bool:
        """Whether the job exists, read live: the cache may be stale, and a budget must stay while its members train."""
        try:
            return parse.uid(await self._api.get(JOBS, namespace, job)) == uid
        except NotFound:
            return False
