"""What ends a job or keeps it from going on (a deadline, a suspension, a deletion), and what is left to do then."""

from __future__ import annotations

from typing import Final

from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.decide.draft import Draft, later
from perdure_operator.decide.facts import deadline, lingers, own, terminated
from perdure_operator.decide.placement import grace_of, idle
from perdure_operator.state.decision import DeleteBudget, DeleteJob, DeletePod

LEFTOVER_MARGIN_SECONDS: Final = 30
"""What ranks of a completed run get on top of their time to save before they are deleted."""


def watch_deadline(draft: Draft) -> Draft:
    """Look again when activeDeadlineSeconds is over, whatever the job does then."""
    end = deadline(draft)
    return draft.wake(end) if end and not draft.status.finished_at else draft


def release(draft: Draft) -> Draft:
    """A finalizer may keep a deleted job for long; what runs goes on until it has to leave, nothing new begins."""
    if not draft.snapshot.deleting:
        return draft
    message = "the job is being deleted and a finalizer still keeps it: no member exists and none is created"
    return _without_members(draft).block(Reason.BEING_DELETED, message)


def expire(draft: Draft) -> Draft:
    """activeDeadlineSeconds counts from the first members on; suspending starts it anew, as for a Kubernetes Job."""
    if not _is_over(draft):
        return draft
    message = f"not completed within activeDeadlineSeconds ({draft.snapshot.spec.active_deadline_seconds})"
    return draft.finish(ConditionType.FAILED, Reason.DEADLINE_EXCEEDED, message)


def _is_over(draft: Draft) -> bool:
    """Whether activeDeadlineSeconds has passed."""
    end = deadline(draft)
    return end is not None and draft.now >= end


def suspend(draft: Draft) -> Draft:
    """Standbys are released; the next run keeps its number."""
    if not draft.snapshot.spec.suspend:
        return draft
    message = "spec.suspend is true: no member exists"
    return _without_members(draft).update(start_time=None).block(Reason.SUSPENDED, message)


def release_successors(draft: Draft) -> Draft:
    """While members leave a job that has no next run at once, whoever was to follow them goes, and nobody is made."""
    if draft.snapshot.spec.suspend or draft.snapshot.deleting or _is_over(draft):
        return _without_members(draft).but(blocked=True)
    return draft


def keep_finished(draft: Draft) -> Draft:
    """Remaining processes end, the budget goes when nothing needs it, the job goes when its time to live is over.

    Pods stay for `kubectl logs`.
    """
    since = draft.status.finished_at
    if since is None:
        return draft
    alive = [pod for pod in own(draft.snapshot).values() if not terminated(pod)]
    draft = _end_sidecars(_end_leftovers(draft))
    if draft.snapshot.budget and not alive:
        draft = draft.act("no member is left to protect", DeleteBudget(uid=draft.snapshot.budget.uid))
    ttl = draft.snapshot.spec.ttl_seconds_after_finished
    if ttl is None or draft.snapshot.deleting:
        return draft
    if draft.now >= later(since, ttl):
        return draft.act("ttlSecondsAfterFinished is over", DeleteJob(uid=draft.snapshot.uid))
    return draft.wake(later(since, ttl))


def _end_leftovers(draft: Draft) -> Draft:
    """Other ranks of a completed run may still be on their way out; after a failure nobody is."""
    since = draft.status.finished_at
    if since is None:
        return draft
    patience = 0
    if draft.status.holds(ConditionType.COMPLETED):
        patience = draft.snapshot.spec.disruption.exit_timeout_seconds + LEFTOVER_MARGIN_SECONDS
    left = [pod for pod in own(draft.snapshot).values() if not terminated(pod) and not pod.deleting]
    late = draft.now >= later(since, patience)
    ended = [pod for pod in left if late or idle(pod)]
    draft = draft.act(
        "the job is finished", *(DeletePod(name=pod.name, uid=pod.uid, grace=grace_of(pod)) for pod in ended)
    )
    return draft if late or not left else draft.wake(later(since, patience))


def _end_sidecars(draft: Draft) -> Draft:
    """A sidecar that is no init container outlives container 0, and would keep the pod's devices for ever."""
    kept = [pod for pod in own(draft.snapshot).values() if lingers(pod) and not pod.deleting]
    return draft.act("only sidecars still run", *(DeletePod(name=pod.name, uid=pod.uid) for pod in kept))


def _without_members(draft: Draft) -> Draft:
    return draft.allot(()) if draft.next_members else draft
