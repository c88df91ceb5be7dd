"""What is left to do for a job that is Completed or Failed: nothing, until its time to live is over.

Pods stay for `kubectl logs`; those that still run have no work any more.
"""

from __future__ import annotations

from typing import Final

from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.decide.facts import over, own
from perdure_operator.decide.turn import Turn, finished_at, holds, later
from perdure_operator.state.plan import DeleteBudget, DeleteJob, DeletePod

MARGIN_SECONDS: Final = 30


def fail(turn: Turn, reason: Reason, message: str) -> Turn:
    """Give the job up, for good."""
    turn = turn.update(plan=None, intent=None, members=(), endings=())
    return turn.condition(ConditionType.FAILED, True, reason, message).tell(reason, message, warning=True)


def keep_finished(turn: Turn) -> Turn:
    """Remaining processes end, the budget goes when nothing needs it, the job goes when its time to live is over."""
    since = finished_at(turn.status)
    if since is None:
        return turn
    alive = [pod for pod in own(turn.snapshot).values() if not over(pod)]
    turn = _end_leftovers(turn)
    if turn.snapshot.budget and not alive:
        turn = turn.act(DeleteBudget(uid=turn.snapshot.budget.uid)).because("no member left to protect")
    ttl = turn.snapshot.spec.ttl_seconds_after_finished
    if ttl is not None and not turn.snapshot.deleting:
        turn = turn.wake(later(since, ttl))
        if turn.now >= later(since, ttl):
            turn = turn.act(DeleteJob(uid=turn.snapshot.uid)).because("ttlSecondsAfterFinished is over")
    return turn.stop()


def _end_leftovers(turn: Turn) -> Turn:
    """Other ranks of a completed run may still be on their way out; after a failure nobody is."""
    since = finished_at(turn.status)
    if since is None:
        return turn
    patience = 0
    if holds(turn.status, ConditionType.COMPLETED):
        patience = turn.snapshot.spec.disruption.exit_timeout_seconds + MARGIN_SECONDS
    left = [pod for pod in own(turn.snapshot).values() if not over(pod) and not pod.deleting]
    if turn.now < later(since, patience):
        return turn.wake(later(since, patience)) if left else turn
    return turn.act(*(DeletePod(name=pod.name, uid=pod.uid) for pod in left))
