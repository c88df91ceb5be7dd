"""Which jobs a change affects: exactly those whose decision may differ now. Pure.

Called by `watch` and `leader`.
"""

from __future__ import annotations

from perdure_operator.cluster.protocol import EVICTIONS, JOBS, NODES, PODS
from perdure_operator.cluster.read.cache import Cache, Change
from perdure_operator.cluster.read.records import BudgetRecord, EvictionRecord, JobRecord, Key, NodeRecord, PodRecord


def affected_jobs(cache: Cache, change: Change) -> set[Key]:
    """Keys of the affected jobs. The cache already contains the change."""
    if not change.matters:
        return set()
    known = [record for record in (change.before, change.after) if record is not None]
    if change.resource == JOBS:
        return {record.key for record in known} | _sharing_root(cache, change)
    if change.resource == PODS:
        return {record.job for record in known if isinstance(record, PodRecord) and record.job is not None}
    if change.resource == NODES:
        return {job for record in known for job in cache.jobs_on(record.key[1])} | _in_the_dark(cache, change)
    if change.resource == EVICTIONS:
        named = (cache.job_of(record.pod) for record in known if isinstance(record, EvictionRecord))
        return {job for job in named if job is not None}
    return {job for record in known if isinstance(record, BudgetRecord) for job in _covered(cache, record)}


def _sharing_root(cache: Cache, change: Change) -> set[Key]:
    """Jobs that may wait for this one, if its claim to their root changed."""
    before, after = change.before, change.after
    if not isinstance(before, JobRecord) or _claim(before) == _claim(after):
        return set()
    return {other.key for other in cache.jobs_at(before.root)}


def _in_the_dark(cache: Cache, change: Change) -> set[Key]:
    """Jobs on unready nodes: the number of other Ready nodes decides whether such a node is part of a mass outage."""
    return cache.jobs_with_unready_nodes() if _counted(change.before) != _counted(change.after) else set()


def _counted(node: object) -> object:
    return (node.view.zone, node.view.ready) if isinstance(node, NodeRecord) else None


def _claim(job: object) -> object:
    return (job.root, job.holds_root, job.claim) if isinstance(job, JobRecord) else None


def _covered(cache: Cache, budget: BudgetRecord) -> set[Key]:
    """The budget's own job, and the jobs whose pods it may select."""
    owner = cache.key_of_job(budget.owner)
    if budget.selects_uid:
        selected = cache.key_of_job(budget.selects_uid)
        return {key for key in (owner, selected) if key is not None}
    everybody = cache.jobs_in(budget.key[0])
    covered = {job for job in everybody if any(budget.selects(pod.labels) for pod in cache.pods(job))}
    return covered | ({owner} if owner is not None else set())
