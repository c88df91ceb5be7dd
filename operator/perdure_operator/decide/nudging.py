"""Members that may not have seen their assignment: the operator touches another annotation, so that they are synced.

A kubelet renews the file that shows an assignment when it syncs the pod. An update that comes while it does may be left
for its periodic sync, 60 to 90 s later (kubernetes#29633, #59813, #59873). A pod is most often being synced when it has
just become Ready; any other change of it has the same effect. Nothing reports that a file is old: a pod that shows no
effect is touched, a few times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from perdure.wire import ANNOTATION_ASSIGNMENT
from perdure_operator.api.names import ANNOTATION_NUDGE
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import RunPlan
from perdure_operator.decide.assignments import run_named
from perdure_operator.decide.draft import Draft, later
from perdure_operator.decide.facts import asked_at, listed, own, still_running, terminated
from perdure_operator.state.decision import Assign, DeletePod, Mark
from perdure_operator.state.snapshot import PodView

FRESH_SECONDS: Final = (1, 2, 4, 8, 16)
"""How long after its assignment a pod is touched that had just become Ready then, or became Ready since."""
AFTER_SECONDS: Final = (4, 16)
"""How long after its assignment any other pod is touched."""
UNSEEN_SECONDS: Final = FRESH_SECONDS[:3]
"""At a start nothing shows that a touch has helped until a member ends: only pods that were just Ready are touched."""
BUSY: Final = timedelta(seconds=10)
"""How long after its readiness a pod may still be in that sync: kubelets report whole seconds, by their own clocks."""
EVENT_FROM: Final = 8
"""From how many seconds on people get an event: before that a script most often just starts slowly."""


@dataclass(frozen=True)
class _Assigned:
    """Pods that got an assignment at the same moment, and show no effect of it."""

    what: str
    """Distinguishes this assignment from all others of the same pod."""
    since: datetime
    pods: tuple[PodView, ...]
    shows: bool
    """Whether anything would show that a pod has seen it."""


def nudge(draft: Draft) -> Draft:
    """Touch pods that may have missed their newest assignment."""
    leaving = _asked_to_leave(draft)
    draft = _touch_all(draft, leaving) if leaving else draft
    planned = _planned(draft)
    if planned is None:
        return draft
    draft = _touch_all(draft, planned)
    touched = [action.name for action in draft.actions if isinstance(action, Mark)]
    fresh = [pod for pod in planned.pods if pod.name in touched and _is_fresh(pod, planned.since)]
    late = [pod for pod in fresh if draft.now >= later(_counts_from(pod, planned.since), EVENT_FROM)]
    if not late:
        return draft
    seconds = int((draft.now - planned.since).total_seconds())
    words = f"{planned.what} was assigned {seconds} s ago, and no effect shows: touched for its kubelet: {listed(late)}"
    return draft.tell(Reason.ASSIGNMENT_NUDGED, words)


def _planned(draft: Draft) -> _Assigned | None:
    """The members of the newest plan, and those that leave with it, until a member reports that the run has begun."""
    plan = draft.newest_plan
    if draft.current is None or plan is None or plan.assigned_time is None or draft.status.opened >= plan.run:
        return None
    previous = draft.status.previous
    shows = plan is not draft.current.plan or bool(previous and previous.members)
    return _Assigned(f"run {plan.run}", plan.assigned_time, _listening(draft, plan.run, _named(draft, plan)), shows)


def _asked_to_leave(draft: Draft) -> _Assigned | None:
    """The members of a run that has to end, until they have ended."""
    intent, upcoming = draft.intent, draft.status.next
    since = asked_at(intent) if intent and intent.leave else None
    if since is None or upcoming is None:
        return None
    return _Assigned(
        f"leaving for run {upcoming.run}", since, _listening(draft, upcoming.run, still_running(draft)), True
    )


def _named(draft: Draft, plan: RunPlan) -> Iterable[PodView]:
    pods = own(draft.snapshot)
    members = [pods[one.name] for one in plan.members if one.name in pods and pods[one.name].uid == one.uid]
    return (*(pod for pod in members if pod.ready), *(pods[name] for name in plan.leavers if name in pods))


def _listening(draft: Draft, run: int, pods: Iterable[PodView]) -> tuple[PodView, ...]:
    """The pods whose assignment is about this run; a pod that this round writes or deletes is synced by that."""
    busy = {action.uid for action in draft.actions if isinstance(action, Assign | DeletePod)}
    alive = [pod for pod in pods if pod.uid not in busy and not pod.deleting and not terminated(pod)]
    return tuple(pod for pod in alive if run_named(pod.assignment) == run)


def _touch_all(draft: Draft, batch: _Assigned) -> Draft:
    due: dict[int, list[Mark]] = {}
    ahead: list[datetime] = []
    for pod in batch.pods:
        since, times = _counts_from(pod, batch.since), _times(pod, batch)
        passed = [seconds for seconds in times if draft.now >= later(since, seconds)]
        ahead += [later(since, seconds) for seconds in times[len(passed) :][:1]]
        text = f"{batch.what}: {passed[-1]} s" if passed else pod.nudge
        if text != pod.nudge and draft.now <= later(since, times[-1]) + BUSY:
            due.setdefault(passed[-1], []).append(_touch(pod, text))
    for seconds, touches in sorted(due.items()):
        why = f"its assignment shows no effect after {seconds} s: its kubelet is to sync it again"
        draft = draft.act(why, *touches)
    return draft.wake(min(ahead)) if ahead else draft


def _times(pod: PodView, batch: _Assigned) -> tuple[int, ...]:
    fresh = _is_fresh(pod, batch.since)
    if not batch.shows:
        return UNSEEN_SECONDS if fresh else ()
    return FRESH_SECONDS if fresh else AFTER_SECONDS


def _counts_from(pod: PodView, since: datetime) -> datetime:
    """From when on a pod is touched: one with an early assignment is next synced as it becomes Ready."""
    return max(since, pod.ready_since) if pod.ready_since else since


def _touch(pod: PodView, text: str) -> Mark:
    """The touch is meant for this very assignment: it is refused if the pod has another by now."""
    assigned = {ANNOTATION_ASSIGNMENT: pod.assignment}
    old = assigned | ({ANNOTATION_NUDGE: pod.nudge} if pod.nudge else {})
    return Mark(name=pod.name, uid=pod.uid, old=old, new=assigned | {ANNOTATION_NUDGE: text})


def _is_fresh(pod: PodView, since: datetime) -> bool:
    return pod.ready_since is not None and since - BUSY <= pod.ready_since
