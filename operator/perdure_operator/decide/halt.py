"""Between two runs: a job whose time is over fails; a suspended one, or one being deleted, keeps no members."""

from __future__ import annotations

from perdure_operator.api.reasons import Reason
from perdure_operator.decide.finished import fail
from perdure_operator.decide.turn import Turn, finished_at, later


def release(turn: Turn) -> Turn:
    """A finalizer may keep a deleted job for long; what runs goes on until it has to leave, nothing new begins."""
    if not turn.snapshot.deleting or turn.status.plan is not None or finished_at(turn.status):
        return turn
    message = "the job is being deleted and a finalizer still keeps it; no member exists and none is created"
    return turn.update(members=()).wait(Reason.BEING_DELETED, message)


def expire(turn: Turn) -> Turn:
    """activeDeadlineSeconds counts from the first members on; suspending starts it anew, as for a Kubernetes Job."""
    seconds, start = turn.snapshot.spec.active_deadline_seconds, turn.status.start_time
    if seconds is None or start is None or finished_at(turn.status):
        return turn
    end = later(start, seconds)
    if turn.now < end or turn.status.plan is not None:
        return turn.wake(end)
    return fail(turn, Reason.DEADLINE_EXCEEDED, f"not completed within activeDeadlineSeconds ({seconds})")


def suspend(turn: Turn) -> Turn:
    """Standbys are released; the intent keeps the next run's number."""
    if turn.status.plan is not None or not turn.snapshot.spec.suspend:
        return turn
    return turn.update(members=(), start_time=None).wait(
        Reason.SUSPENDED, "spec.suspend is true; no member exists until it is false"
    )
