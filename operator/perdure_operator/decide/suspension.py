"""Between two runs: a job whose time is over fails; a suspended one, or one being deleted, keeps no members."""

from __future__ import annotations

from perdure_operator.api.reasons import Reason
from perdure_operator.decide.draft import Draft, finished_at, later
from perdure_operator.decide.finished import fail


def release(draft: Draft) -> Draft:
    """A finalizer may keep a deleted job for long; what runs goes on until it has to leave, nothing new begins."""
    if not draft.snapshot.deleting or draft.status.plan is not None or finished_at(draft.status):
        return draft
    message = "the job is being deleted and a finalizer still keeps it; no member exists and none is created"
    return draft.update(members=()).wait(Reason.BEING_DELETED, message)


def expire(draft: Draft) -> Draft:
    """activeDeadlineSeconds counts from the first members on; suspending starts it anew, as for a Kubernetes Job."""
    seconds, start = draft.snapshot.spec.active_deadline_seconds, draft.status.start_time
    if seconds is None or start is None or finished_at(draft.status):
        return draft
    end = later(start, seconds)
    if draft.now < end or draft.status.plan is not None:
        return draft.wake(end)
    return fail(draft, Reason.DEADLINE_EXCEEDED, f"not completed within activeDeadlineSeconds ({seconds})")


def suspend(draft: Draft) -> Draft:
    """Standbys are released; the intent keeps the next run's number."""
    if draft.status.plan is not None or not draft.snapshot.spec.suspend:
        return draft
    return draft.update(members=(), start_time=None).wait(
        Reason.SUSPENDED, "spec.suspend is true; no member exists until it is false"
    )
