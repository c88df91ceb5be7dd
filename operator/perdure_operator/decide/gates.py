"""What has to be true before members may be created.

The job is not suspended, deleted or over its deadline; no other job uses its root; its log is whole; the pause after a
failure is over. Each gate names what the job waits for. Members that exist stay, unless only a person can end the wait.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.status import RootProblem
from perdure_operator.decide.blame import backoff_until
from perdure_operator.decide.draft import Draft, clock, doubled_seconds, later
from perdure_operator.decide.facts import (
    EDIT_SECONDS,
    deadline,
    given_up_at,
    listed,
    node_lost,
    of_earlier_jobs,
    terminated,
)
from perdure_operator.decide.placement import grace_of
from perdure_operator.decide.waiting import look_after, past_their_grace, stuck_at
from perdure_operator.state.decision import DeletePod
from perdure_operator.state.snapshot import PodView

RECHECK_SECONDS: Final = 10
LOOK_FOR_LOG_SECONDS: Final = 600
"""The job notices a restored bucket without an edit, and while unattended creates few useless pods."""
TRY_STORE_SECONDS: Final = 30
"""The pause after a first refusal, doubled each further time: new buckets and rights take a while to spread."""


def watch_deadline(draft: Draft) -> Draft:
    """Look at the job when activeDeadlineSeconds is over, whatever it does then."""
    end = deadline(draft)
    return draft.wake(end) if end and not draft.status.finished_at else draft


def release(draft: Draft) -> Draft:
    """Begin nothing new for a deleted job, which a finalizer may keep for long; its run goes on until it has to end."""
    if not draft.snapshot.deleting:
        return draft
    message = "the job is being deleted and a finalizer still keeps it: no member exists and none is created"
    return _without_members(draft).block(Reason.BEING_DELETED, message)


def release_successors(draft: Draft) -> Draft:
    """Release the next run's members, and create none, while members leave a job that begins no run after them."""
    if draft.snapshot.spec.suspend or draft.snapshot.deleting or _is_over(draft):
        return _without_members(draft).but(blocked=True)
    return draft


def suspend(draft: Draft) -> Draft:
    """Release the standbys of a suspended job; the next run keeps its number."""
    if not draft.snapshot.spec.suspend:
        return draft
    message = "spec.suspend is true: no member exists"
    return _without_members(draft).update(start_time=None).block(Reason.SUSPENDED, message)


def expire(draft: Draft) -> Draft:
    """Fail the job when activeDeadlineSeconds is over. A suspension resets it, as for a Kubernetes Job."""
    if not _is_over(draft):
        return draft
    message = f"not completed within activeDeadlineSeconds ({draft.snapshot.spec.active_deadline_seconds})"
    return draft.finish(ConditionType.FAILED, Reason.DEADLINE_EXCEEDED, message)


def _is_over(draft: Draft) -> bool:
    """Whether activeDeadlineSeconds has passed."""
    end = deadline(draft)
    return end is not None and draft.now >= end


def _without_members(draft: Draft) -> Draft:
    return draft.allot(()) if draft.next_members else draft


def wait_for_predecessor(draft: Draft) -> Draft:
    """Wait until no pod of an earlier job of this name may train; delete ownerless ones of an orphaning delete."""
    if draft.snapshot.deleting:
        return draft
    earlier = of_earlier_jobs(draft.snapshot)
    orphans = [pod for pod in earlier if not pod.owner_uid and not pod.deleting]
    why = "it was left behind by an earlier job of this name"
    draft = draft.act(why, *(DeletePod(name=pod.name, uid=pod.uid, grace=grace_of(pod)) for pod in orphans))
    alive = [pod for pod in earlier if not terminated(pod) and not node_lost(draft, pod)]
    return _await_predecessor(draft, alive) if alive else draft


def _await_predecessor(draft: Draft, alive: list[PodView]) -> Draft:
    """Wait without a time limit: two jobs that train at once on one root are worse than one that does not begin.

    A pod that cannot end on its own is named, with what a person has to do.
    """
    dark = {one.node for one in draft.status.unready}
    if stuck := past_their_grace(draft, [pod for pod in alive if pod.node not in dark]):
        return draft.block(Reason.MEMBER_STUCK, f"of an earlier job of this name: {look_after(draft, stuck)}")
    known = {pod.name: given_up_at(draft, pod.node) if pod.node in dark else stuck_at(pod) for pod in alive}
    ends = [at for at in known.values() if at]
    for at in ends:
        draft = draft.wake(at)
    if open_ended := [pod for pod in alive if known[pod.name] is None]:
        look = f"kubectl describe pod -n {draft.snapshot.namespace} {open_ended[0].name}"
        limit = f"no time limit: nothing ends {listed(open_ended)} at a known time: look with {look}"
    else:
        limit = f"known at {clock(max(ends))}"
    message = f"waiting for pods of an earlier job of this name to end: {listed(alive)}; {limit}"
    return draft.block(Reason.WAITING_FOR_PREDECESSOR, message)


def keep_root_to_one_job(draft: Draft) -> Draft:
    """Two live jobs would fence each other: the younger one waits."""
    others = draft.snapshot.same_uri
    if draft.blocked or not others:
        return draft
    uri = draft.snapshot.spec.checkpoint.uri
    message = f"{', '.join(others[:3])}, older and live, has the same checkpoint.uri {uri}"
    # The end of the other job is no event of this one.
    return draft.block(Reason.SHARED_ROOT, message, later(draft.now, RECHECK_SECONDS))


def keep_log(draft: Draft) -> Draft:
    """Wait for a person if the log lost commits: the job never goes back to an earlier step without a warning."""
    lost, status = draft.status.log_lost, draft.status
    if lost is None:
        return draft
    if draft.snapshot.spec.checkpoint.resume_anyway:
        given_up = max((status.step or 0) - lost.found_step, 0)
        words = (
            f"checkpoint.resumeAnyway: going on from step {lost.found_step}; {given_up} committed steps are given up"
        )
        draft = draft.tell(Reason.LOG_LOST, words, warning=True)
        known = {"commit_seq": 0, "step": None, "steps_lost": status.steps_lost + given_up}
        return draft.update(log_lost=None, log_looks=0, **known)
    edited = draft.snapshot.generation != lost.generation
    again = later(lost.time, LOOK_FOR_LOG_SECONDS)
    if edited:  # it may be the remedy, as in `_root_tried_at`
        again = later(lost.time, EDIT_SECONDS if status.log_looks else 0)
    if draft.now >= again:
        return draft.update(log_lost=None, log_looks=status.log_looks + 1)
    message = f"{lost.message}\nThe next members look for it at {clock(again)}"
    return _without_standbys(draft).block(Reason.LOG_LOST, message, again)


def wait_for_root(draft: Draft) -> Draft:
    """Wait while the store refuses, or checkpoints are damaged: only a person ends that, and failures gain nothing."""
    problem = draft.status.root_problem
    if problem is None:
        return draft
    again = _root_tried_at(problem, edited=draft.snapshot.generation != problem.generation)
    if draft.now >= again:
        return draft
    reason = Reason.CHECKPOINTS_DAMAGED if problem.damaged else Reason.STORAGE_REFUSED
    message = f"{problem.message}\nThe next members try it at {clock(again)}, and soon after an edit of the spec"
    return _without_standbys(draft).block(reason, message, again)


def _without_standbys(draft: Draft) -> Draft:
    """Release the standbys of a job that has no run and waits for a person: others may use their room."""
    return draft.allot(()) if draft.next_members and draft.current is None else draft


def _root_tried_at(problem: RootProblem, *, edited: bool) -> datetime:
    """When the root is tried again: at once after an edit, which may be the remedy, unless an earlier edit was none."""
    if edited:
        return later(problem.time, EDIT_SECONDS if problem.count > 1 else 0)
    first = LOOK_FOR_LOG_SECONDS if problem.damaged else TRY_STORE_SECONDS
    return later(problem.time, doubled_seconds(problem.count, first, LOOK_FOR_LOG_SECONDS))


def back_off(draft: Draft) -> Draft:
    """Create the next members a little later after a failure."""
    until = backoff_until(draft.status.failures)
    if until is None or draft.now >= until:
        return draft
    failures = draft.status.failures
    counted = f"{failures.code} of code, {failures.infrastructure} of infrastructure"
    replaced = draft.status.next.replacements if draft.status.next else None
    last = f"; the last ones: {replaced.cause}" if replaced else ""
    message = f"the next members are created at {clock(until)}; failures so far: {counted}{last}"
    return draft.block(Reason.BACKOFF, message, until)
