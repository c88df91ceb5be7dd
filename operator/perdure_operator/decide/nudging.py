"""New members that may not have seen what they were told: another annotation is touched, so that they are synced.

A kubelet renews the file that shows an assignment when it syncs the pod. An update that comes while it does, as it does
when the pod has just become Ready, may be left for its periodic sync, 60 to 90 s later (kubernetes#29633, #59813,
#59873). Nobody tells that a file is old: who was told within seconds of being Ready is touched 2, 4 and 8 s later, and
8 s after that, unless by then the effect has shown.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from perdure.contract import ANNOTATION_ASSIGNMENT
from perdure_operator.api.names import ANNOTATION_NUDGE
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import RunPlan
from perdure_operator.decide.assignments import run_told
from perdure_operator.decide.draft import Draft, later
from perdure_operator.decide.facts import listed, own, terminated
from perdure_operator.state.decision import Assign, DeletePod, Mark
from perdure_operator.state.snapshot import PodView

AFTER_SECONDS: Final = (2, 4, 8, 16)
"""Since the plan."""
UNSEEN: Final = 2
"""So often where nothing would show that it has helped: at a start, until somebody ends."""
BUSY: Final = timedelta(seconds=10)
"""So long after its readiness a pod may still be synced for it: kubelets tell whole seconds, by their own clocks."""
TOLD_FROM: Final = 3
"""The touch from which on people are told: those before it most often only meet a script that starts."""


def nudge(draft: Draft) -> Draft:
    """Touch the new members of the newest plan that may have missed it."""
    plan = draft.newest_plan
    if draft.current is None or plan is None or plan.assigned_time is None:
        return draft
    since, previous = plan.assigned_time, draft.status.previous
    shows = plan is not draft.current.plan or bool(previous and previous.members)
    if draft.status.opened >= plan.run:
        return draft  # somebody has told that all of them have begun
    times = AFTER_SECONDS if shows else AFTER_SECONDS[:UNSEEN]
    fresh = _fresh(draft, plan)
    if not fresh or draft.now > later(since, times[-1]) + BUSY:
        return draft
    for seconds in times:
        draft = draft.wake(later(since, seconds))
    count = sum(draft.now >= later(since, seconds) for seconds in times)
    text = f"{plan.run}-{count}"
    due = [pod for pod in fresh if count and pod.nudge != text]
    if not due:
        return draft
    seconds = times[count - 1]
    why = f"it was told {seconds} s ago, right after it was Ready: its kubelet is to sync it again"
    draft = draft.act(why, *(_touch(pod, text) for pod in due))
    if count < TOLD_FROM:
        return draft
    words = f"told of run {plan.run} {seconds} s ago, and no effect shows: touched for its kubelet: {listed(due)}"
    return draft.tell(Reason.ASSIGNMENT_NUDGED, words)


def _touch(pod: PodView, text: str) -> Mark:
    """It is meant for this very assignment."""
    told = {ANNOTATION_ASSIGNMENT: pod.assignment}
    old = told | ({ANNOTATION_NUDGE: pod.nudge} if pod.nudge else {})
    return Mark(name=pod.name, uid=pod.uid, old=old, new=told | {ANNOTATION_NUDGE: text})


def _fresh(draft: Draft, plan: RunPlan) -> list[PodView]:
    """Members that had just become Ready; whom a write of this round tells, or deletes, is synced by that."""
    pods, since = own(draft.snapshot), plan.assigned_time
    busy = {action.uid for action in draft.actions if isinstance(action, Assign | DeletePod)}
    here = [pods[one.name] for one in plan.members if one.name in pods and pods[one.name].uid == one.uid]
    told = [pod for pod in here if pod.uid not in busy and run_told(pod.assignment) == plan.run]
    alive = [pod for pod in told if pod.ready and not pod.deleting and not terminated(pod)]
    return [pod for pod in alive if since and pod.ready_since and since - BUSY <= pod.ready_since]
