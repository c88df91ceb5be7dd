"""What is left to do for a job that is Completed or Failed: nothing, until its time to live is over.

Pods stay for `kubectl logs`; those that still run have no work any more.
"""

from __future__ import annotations

from typing import Final

from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.decide.draft import Draft, finished_at, holds, later
from perdure_operator.decide.facts import over, own
from perdure_operator.state.decision import DeleteBudget, DeleteJob, DeletePod

MARGIN_SECONDS: Final = 30


def fail(draft: Draft, reason: Reason, message: str) -> Draft:
    """Give the job up, for good."""
    draft = draft.update(plan=None, intent=None, members=(), endings=())
    return draft.condition(ConditionType.FAILED, True, reason, message).tell(reason, message, warning=True)


def keep_finished(draft: Draft) -> Draft:
    """Remaining processes end, the budget goes when nothing needs it, the job goes when its time to live is over."""
    since = finished_at(draft.status)
    if since is None:
        return draft
    alive = [pod for pod in own(draft.snapshot).values() if not over(pod)]
    draft = _end_leftovers(draft)
    if draft.snapshot.budget and not alive:
        draft = draft.act(DeleteBudget(uid=draft.snapshot.budget.uid)).because("no member left to protect")
    ttl = draft.snapshot.spec.ttl_seconds_after_finished
    if ttl is not None and not draft.snapshot.deleting:
        draft = draft.wake(later(since, ttl))
        if draft.now >= later(since, ttl):
            draft = draft.act(DeleteJob(uid=draft.snapshot.uid)).because("ttlSecondsAfterFinished is over")
    return draft.stop()


def _end_leftovers(draft: Draft) -> Draft:
    """Other ranks of a completed run may still be on their way out; after a failure nobody is."""
    since = finished_at(draft.status)
    if since is None:
        return draft
    patience = 0
    if holds(draft.status, ConditionType.COMPLETED):
        patience = draft.snapshot.spec.disruption.exit_timeout_seconds + MARGIN_SECONDS
    left = [pod for pod in own(draft.snapshot).values() if not over(pod) and not pod.deleting]
    if draft.now < later(since, patience):
        return draft.wake(later(since, patience)) if left else draft
    return draft.act(*(DeletePod(name=pod.name, uid=pod.uid) for pod in left))
