"""What has to be true before members may be created. Each gate names what is awaited; members that exist stay."""

from __future__ import annotations

from typing import Final

from perdure_operator.api.reasons import Reason
from perdure_operator.decide.blame import backoff_until
from perdure_operator.decide.draft import Draft, clock, later
from perdure_operator.decide.facts import listed, node_lost, terminated
from perdure_operator.state.decision import DeletePod

RECHECK_SECONDS: Final = 10
LOOK_FOR_LOG_SECONDS: Final = 600
"""A restored bucket is noticed by itself, and an unattended job makes few pods in vain."""


def wait_for_predecessor(draft: Draft) -> Draft:
    """Pods of an earlier job of this name must not train any more; ownerless ones, left by an orphaning delete, go."""
    if draft.snapshot.deleting:
        return draft
    foreign = [pod for pod in draft.snapshot.pods if pod.owner_uid != draft.snapshot.uid and not pod.gone]
    orphans = [pod for pod in foreign if not pod.owner_uid and not pod.deleting]
    why = "it was left behind by an earlier job of this name"
    draft = draft.act(why, *(DeletePod(name=pod.name, uid=pod.uid) for pod in orphans))
    alive = [pod for pod in foreign if not terminated(pod) and not node_lost(draft, pod)]
    if not alive:
        return draft
    message = f"waiting for pods of an earlier job of this name to end: {listed(alive)}"
    return draft.block(Reason.WAITING_FOR_PREDECESSOR, message)


def keep_root_to_one_job(draft: Draft) -> Draft:
    """Two live jobs would fence each other: the younger one waits."""
    others = draft.snapshot.same_uri
    if draft.blocked or not others:
        return draft
    uri = draft.snapshot.spec.checkpoint.uri
    message = f"{', '.join(others[:3])}, older and live, has the same checkpoint.uri {uri}"
    # The other's end is its own event, not this job's, and none at all where the cache has learned of it otherwise.
    return draft.block(Reason.SHARED_ROOT, message, later(draft.now, RECHECK_SECONDS))


def keep_log(draft: Draft) -> Draft:
    """A job whose log lost commits never trains again in silence from an earlier step: somebody must say so."""
    lost, status = draft.status.log_lost, draft.status
    if lost is None:
        return draft
    if draft.snapshot.spec.checkpoint.resume_anyway:
        given_up = max((status.step or 0) - lost.found_step, 0)
        words = (
            f"checkpoint.resumeAnyway: going on from step {lost.found_step}; {given_up} committed steps are given up"
        )
        draft = draft.tell(Reason.LOG_LOST, words, warning=True)
        return draft.update(log_lost=None, commit_seq=0, step=None, steps_lost=status.steps_lost + given_up)
    again = later(lost.time, LOOK_FOR_LOG_SECONDS)
    if draft.now >= again or draft.snapshot.generation != lost.generation:
        return draft.update(log_lost=None)
    message = f"{lost.message}\nThe next members look for it at {clock(again)}"
    return draft.block(Reason.LOG_LOST, message, again)


def back_off(draft: Draft) -> Draft:
    """After a failure the next members are created a little later."""
    until = backoff_until(draft.status.failures)
    if until is None or draft.now >= until:
        return draft
    failures = draft.status.failures
    counted = f"{failures.code} of code, {failures.infrastructure} of infrastructure"
    message = f"the next members are created at {clock(until)}; failures so far: {counted}"
    return draft.block(Reason.BACKOFF, message, until)
