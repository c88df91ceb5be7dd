"""Responses to Evictions that ask for a pod to leave: that it is on its way, until when, and when it is done.

Kubernetes passes an Eviction without an answer for 20 minutes on to others, and wants no answer more often than every
20 seconds. The Eviction itself shows the answers so far: a new leader goes on from there.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from perdure_operator.api.status import Intent
from perdure_operator.decide.draft import Draft, clock, later
from perdure_operator.decide.facts import asked_at, node_lost, own, patience, stands_still
from perdure_operator.decide.plans import request
from perdure_operator.decide.signals import leave_when_evicted
from perdure_operator.state.decision import Answer
from perdure_operator.state.snapshot import EvictionView, PodView

AGAIN_SECONDS: Final = 60
SOONEST_SECONDS: Final = 20
"""How long a new message, or another try after a refused answer, waits."""

_TURN: Final = "Active"


@dataclass(frozen=True)
class _Members:
    """The uids of members by run. A drain asks for hundreds at once, so they are collected once in a round."""

    previous: frozenset[str]
    current: frozenset[str]
    offered: frozenset[str]


def answer(draft: Draft) -> Draft:
    """Answer one Eviction of each of the job's pods, while it is the operator's turn.

    Kubernetes creates no second one for a pod. A user who creates many cannot make the operator write more.
    """
    if not draft.snapshot.evictions:
        return draft
    pods, members = {pod.uid: pod for pod in own(draft.snapshot).values()}, _members(draft)
    turns = defaultdict[str, list[EvictionView]](list)
    for one in draft.snapshot.evictions:
        if one.pod in pods and one.state == _TURN and not one.over:
            turns[one.pod].append(one)
    for uid, of_pod in turns.items():
        first = min(of_pod, key=_first)
        if first.completed is None:
            draft = _answer(draft, first, pods[uid], members)
    return draft


def _members(draft: Draft) -> _Members:
    current, previous, upcoming = draft.current, draft.status.previous, draft.status.next
    plan = upcoming.plan if upcoming else None
    runs = (run.members if run else () for run in (previous, current.plan if current else None, plan))
    return _Members(*(frozenset([member.uid for member in members]) for members in runs))


def _first(eviction: EvictionView) -> tuple[bool, bool, str]:
    """A sort key for several: the one that was answered before comes first."""
    return eviction.withdrawn, not (eviction.heartbeat or eviction.tried), eviction.name


def _answer(draft: Draft, eviction: EvictionView, pod: PodView, members: _Members) -> Draft:
    leaving, done = _leaving(draft, pod, members), _done(draft, pod)
    if eviction.withdrawn and not (leaving or done):
        return draft  # Kubernetes cancels it, and the pod stays
    words, expected = (done, None) if done else _on_its_way(draft, pod, leaving, members)
    due = _due(draft, eviction, words, done=bool(done))
    if due > draft.now:
        return draft.wake(due)
    at = max(one for one in (draft.now.replace(microsecond=0), eviction.started, eviction.heartbeat) if one)
    said = Answer(
        name=eviction.name,
        uid=eviction.uid,
        place=eviction.place,
        heartbeat=at,
        expected=max(expected, at) if expected else None,
        completed=at if done else None,
        message=words,
    )
    return draft.act(words, said).because(f"eviction {eviction.name}: {words}")


def _due(draft: Draft, eviction: EvictionView, words: str, *, done: bool) -> datetime:
    """When to answer next. A time ahead of now is of before the clock was set back, and says nothing."""
    last, tried = (one if one and one <= draft.now else None for one in (eviction.heartbeat, eviction.tried))
    if tried and (last is None or last < tried):  # it was refused, or its result is unknown
        return later(tried, SOONEST_SECONDS)
    if last is None or done:
        return draft.now
    return later(last, SOONEST_SECONDS if words != eviction.message else AGAIN_SECONDS)


def _done(draft: Draft, pod: PodView) -> str:
    """Why the operator does no more for this Eviction, "" if it does."""
    if pod.phase in ("Succeeded", "Failed"):  # Kubernetes sees a deleted pod on its own
        return f"{pod.name} has ended"
    if not leave_when_evicted(draft.snapshot):
        return "the job's members do not leave on request: see its spec.disruption.signals and the operator's signals"
    if node_lost(draft, pod):
        return f"node {pod.node} does not answer, so the operator cannot ask {pod.name}: the job goes on without it"
    return ""


def _leaving(draft: Draft, pod: PodView, members: _Members) -> Intent | None:
    """The intent for which the pod was asked to leave, with its deadline; None if it was not asked."""
    current, previous, upcoming = draft.current, draft.status.previous, draft.status.next
    if previous and pod.uid in members.previous:
        return previous.intent
    if current is None or current.intent is None or pod.uid not in members.current:
        return None
    if upcoming and upcoming.plan and pod.name in upcoming.plan.leavers:
        return request(current.intent, upcoming.plan, draft.now)
    return current.intent if current.intent.leave else None


def _on_its_way(draft: Draft, pod: PodView, leaving: Intent | None, members: _Members) -> tuple[str, datetime | None]:
    """What the pod does, in words, and when it will have ended, if that is known."""
    current, deadline = draft.current, leaving.deadline if leaving else None
    if pod.deleting:
        return f"{pod.name} is being deleted", pod.deletion_deadline
    if leaving and deadline and (asked := asked_at(leaving)):
        ends = later(asked, _needs(draft, leaving.seconds))
        words = f"{pod.name} was asked at {clock(asked)} to save and leave, and is deleted at {clock(deadline)}"
        return words, ends if ends > draft.now else deadline
    if current is None or pod.uid not in members.current:
        return _in_no_run(draft, pod, members), None
    intent, seconds = current.intent, _needs(draft, draft.snapshot.spec.disruption.exit_timeout_seconds)
    if intent is None or not intent.prepare:
        begins = later(draft.now, patience(draft.snapshot, intent.disruption) if intent else 0)
        return f"{pod.name} is about to be replaced", later(begins, seconds)
    meanwhile = "waits, as its run has lost a member," if stands_still(draft) else "trains on"
    moves = f"{pod.name} {meanwhile} while another pod starts that takes its place"
    if intent.ready_by is None:
        return f"{moves}, without a time limit", None
    return f"{moves}, until {clock(intent.ready_by)} at the latest", later(intent.ready_by, seconds)


def _in_no_run(draft: Draft, pod: PodView, members: _Members) -> str:
    plan = draft.status.next.plan if draft.status.next else None
    if draft.status.finished_at:
        return f"the job is finished: {pod.name} is deleted if it does not end by itself"
    if plan and pod.uid in members.offered:
        known = f"once it is known whether run {plan.run} has taken over"
        return f"{pod.name} was offered run {plan.run}: another pod takes its place {known}"
    return f"{pod.name} is in no run, and is deleted"


def _needs(draft: Draft, limit: int) -> float:
    """Expected seconds to save and leave: the last measured time, capped at the limit."""
    measured = draft.status.exit_seconds
    return limit if measured is None else min(measured, limit)
