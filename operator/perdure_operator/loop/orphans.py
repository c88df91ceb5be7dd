"""Budgets that have outlived their job: `kubectl delete --cascade=orphan` takes the owner away and leaves the rest.

Nobody would ever let a drain pass such a budget. Everything about it has to be as the operator makes it, for a user may
have copied labels. Called by `leader` after each resync and by `worker` when a job is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from perdure.contract import LABEL_JOB
from perdure_operator.api import names
from perdure_operator.api.names import LABEL_UID
from perdure_operator.cluster.protocol import BUDGETS, JOBS, ApiError, ClusterApi, NotFound
from perdure_operator.cluster.read import parse
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.records import BudgetRecord, Key

logger = logging.getLogger(__name__)


def is_orphan(cache: Cache, budget: BudgetRecord) -> bool:
    """Whether it is one of ours without an owner, and its job is gone."""
    uid, job = budget.labels.get(LABEL_UID, ""), budget.labels.get(LABEL_JOB, "")
    ours = bool(uid and job) and budget.key[1] == names.budget(job, uid) and budget.selects_uid == uid
    return ours and not budget.owner and cache.key_of_job(uid) is None


class Orphans:
    """Deletes them."""

    def __init__(self, api: ClusterApi, cache: Cache) -> None:
        self._api = api
        self._cache = cache

    async def sweep(self, job: Key | None = None) -> None:
        """Those of one job's name, or all; best effort, for the next resync sees them again."""
        budgets: Iterable[BudgetRecord] = self._cache.budgets() if job is None else self._cache.budgets_named(job)
        for budget in [one for one in budgets if is_orphan(self._cache, one)]:
            try:
                await self._release(budget)
            except ApiError as error:
                logger.warning("poddisruptionbudget %s: not deleted: %s", "/".join(budget.key), error)

    async def _release(self, budget: BudgetRecord) -> None:
        namespace, name = budget.key
        if await self._lives(namespace, budget.labels[LABEL_JOB], budget.labels[LABEL_UID]):
            return
        try:
            await self._api.delete(BUDGETS, namespace, name, uid=budget.uid, version=str(budget.version))
        except NotFound:
            return
        logger.info("poddisruptionbudget %s/%s: its job is gone and nobody owns it: deleted", namespace, name)

    async def _lives(self, namespace: str, job: str, uid: str) -> bool:
        """The cache may be behind; a budget must not go while its members train."""
        try:
            return parse.uid(await self._api.get(JOBS, namespace, job)) == uid
        except NotFound:
            return False
