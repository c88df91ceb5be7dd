"""Members leave: when the job asks them to save and leave, how long they may take, and when late ones are deleted.

A signal of a node or a wish for another size gets a quiet second, in which more signals are collected and one may be
withdrawn. Urgent reasons get none. Once members are asked to leave (`leave`) the move is completed, even if the signal
is withdrawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from math import ceil
from typing import Final

from perdure.wire import ExitKind, Role
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import CurrentRun, Disruption, Intent, MemberOutcome, RunPlan, Unready, Vacating
from perdure_operator.decide.assignments import leave, leave_with, run_named
from perdure_operator.decide.disruptions import EndReason, quiet_for, reason_to_end, withdrawn
from perdure_operator.decide.draft import Draft, clock, later
from perdure_operator.decide.facts import (
    LATE_MARGIN_SECONDS,
    ended_in_log,
    given_up_at,
    in_outage,
    leavers,
    listed,
    of_earlier_jobs,
    own,
    still_running,
    template_can_be_used,
    terminated,
)
from perdure_operator.decide.intents import start_move
from perdure_operator.decide.placement import grace_of
from perdure_operator.decide.plans import GRACE_MARGIN_SECONDS, request
from perdure_operator.decide.signals import deadlines_ahead, signals_of_deletions
from perdure_operator.decide.sizing import size_of, wanted_size
from perdure_operator.decide.waiting import await_deleted, await_leavers, await_refused, cannot_be_asked, patience_ends
from perdure_operator.state.decision import Assign, DeletePod
from perdure_operator.state.snapshot import NodeView, PodView
from perdure_operator.state.vacate_request import moves_all

QUIET: Final = timedelta(seconds=1)
"""How long no new signal may come before members are asked to leave."""
OUTAGE_LOOK_SECONDS: Final = 10
"""How often a job checks whether an outage is over: it gets no event when other nodes come back."""
QUIET_AT_MOST: Final = timedelta(seconds=5)
PATIENCE_SECONDS: Final = 30
"""After a member was lost a commit may still be on its way, but no new save can end."""

_WITHDRAWAL: Final = "the reason may be withdrawn"
_MAY_FOLLOW: Final[Mapping[Disruption, str]] = {
    Disruption.NODE_LEAVING: "more nodes may follow",
    Disruption.SIZE_CHANGE: "the wanted size may change again",
}
"""What the quiet second is for."""


def note_vacate(draft: Draft) -> Draft:
    """Note which members the annotation perdure.dev/vacate asks to leave while its value is `true`.

    That is every member that exists when the annotation is first seen: members made since are to stay. Its other values
    name pods, which leave, and nodes, on which no member stays as long as they are named: `signals` reads those.
    """
    if draft.status.finished_at:
        return draft
    if not moves_all(draft.snapshot.vacate):
        return draft.update(vacate=None)
    return draft if draft.status.vacate else draft.update(vacate=Vacating(below=draft.status.next_member))


def track_unready_nodes(draft: Draft) -> Draft:
    """Note since when each node under a pod is unreachable: from the first sight of Ready != True until it is Ready.

    A node object that is gone counts as well, as its machine may still run. Nodes of foreign pods do not count.
    """
    pods = (*own(draft.snapshot).values(), *of_earlier_jobs(draft.snapshot))
    occupied = {pod.node for pod in pods if pod.node and not terminated(pod)}
    sick = sorted(
        (node for node in draft.snapshot.nodes if node.name in occupied and not (node.exists and node.ready)),
        key=lambda node: node.name,
    )
    draft = _give_up_one(draft.update(unready=tuple(_unready(draft, node) for node in sick)))
    for node in sick:
        at = given_up_at(draft, node.name)
        draft = draft.wake(at) if at else draft
    outage = any(one.outage for one in draft.status.unready)
    return draft.wake(later(draft.now, OUTAGE_LOOK_SECONDS)) if outage else draft


def _unready(draft: Draft, node: NodeView) -> Unready:
    """The time of a mass outage says nothing about this node: when the outage is over, the time starts again.

    It also starts again if the node recovered while no operator ran, and is unreachable once more.
    """
    outage = in_outage(draft.snapshot, node)
    old = next((one for one in draft.status.unready if one.node == node.name), None)
    if old is None or (old.outage and not outage):
        return Unready(node=node.name, since=draft.now, outage=outage)
    again = node.unready_since if node.unready_since and node.unready_since <= draft.now else old.since
    since = old.since if old.given_up else max(old.since, again)
    return old.model_copy(update={"outage": outage, "since": since})


def _give_up_one(draft: Draft) -> Draft:
    """Give up at most one node a round in an outage, and note the time: the next one counts from it."""
    rows = draft.status.unready
    due = ((at, one.node) for one in rows if one.outage and not one.given_up and (at := given_up_at(draft, one.node)))
    at, name = min(due, default=(None, ""))
    if at is None or at > draft.now:
        return draft
    marked = (one.model_copy(update={"given_up": draft.now}) if one.node == name else one for one in rows)
    return draft.update(unready=tuple(marked), given_up=draft.now)


def detect_disruption(draft: Draft) -> Draft:
    """Find the first reason for the run to end, and begin a move or the quiet second."""
    if draft.current is None:
        return draft
    found = reason_to_end(draft, draft.current)
    if found is None or _cannot_be_followed(draft, draft.current, found):
        return draft
    if found.urgent:
        return start_move(draft, draft.current, found)
    intent = Intent(
        disruption=found.disruption, cause=found.cause, nodes=found.nodes, since=draft.now, newest=draft.now
    )
    return draft.update_current(intent=intent).tell(Reason(found.disruption), found.cause)


def _cannot_be_followed(draft: Draft, current: CurrentRun, found: EndReason) -> bool:
    """Whether all members would be new, for a requested size, and none can be created."""
    if found.disruption is not Disruption.SIZE_CHANGE or size_of(current.plan).each == wanted_size(draft.snapshot).each:
        return False
    return not template_can_be_used(draft)


def debounce(draft: Draft) -> Draft:
    """Collect more signals in the quiet second; withdraw the intent if none is left."""
    intent = draft.intent
    if draft.current is None or intent is None:
        return draft
    found = reason_to_end(draft, draft.current)
    if found is None:
        words = f"no longer true: {intent.cause}; no member was asked to leave"
        return withdrawn(draft, intent, intent.nodes).update_current(intent=None).tell(Reason.WITHDRAWN, words)
    if _cannot_be_followed(draft, draft.current, found):
        return draft.update_current(intent=None)
    newest = draft.now if set(found.nodes) - set(intent.nodes) else (intent.newest or intent.since)
    due = min(newest + QUIET, intent.since + QUIET_AT_MOST)
    if found.disruption is Disruption.NODE_LEAVING:
        due = max(due, intent.since + quiet_for(draft, found.nodes))
    if found.urgent or draft.now >= due:
        return start_move(draft, draft.current, found)
    seen = {"disruption": found.disruption, "cause": found.cause, "nodes": found.nodes, "newest": newest}
    draft = draft.update_current(intent=intent.model_copy(update=seen)).wake(due)
    return draft.because(f"waiting until {clock(due)} before acting: {_MAY_FOLLOW.get(found.disruption, _WITHDRAWAL)}")


def wait_for_exits(draft: Draft) -> Draft:
    """Wait for members until their deadline, then delete those that are late."""
    if draft.current is None or draft.intent is None:
        return draft
    draft, intent = _shorten(draft, draft.current, draft.intent)
    pods = still_running(draft)
    if not pods:
        return draft
    deadline = intent.deadline or draft.now
    if draft.now >= deadline:
        return _delete_late(draft, pods)
    saved = later(deadline, -LATE_MARGIN_SECONDS)
    not_asked = _not_asked_yet(draft, intent)
    draft = draft.wake(deadline).wake(patience_ends(intent, draft.now) if not_asked else saved)
    draft = await_refused(draft, not_asked, "asked to leave")
    if intent.disruption in (Disruption.MEMBER_LOST, Disruption.NODE_FAULT):
        message = f"{intent.cause}; waiting for {listed(pods)} to stop until {clock(deadline)}"
        return draft.wait(Reason.STOPPING, message)
    if draft.now >= saved:
        late = f"the time for the exit save is over for {listed(pods)}: late members are deleted at {clock(deadline)}"
        return draft.wait(Reason.EXIT_SAVE, late)
    return draft.wait(Reason.EXIT_SAVE, f"waiting for the exit save of {listed(pods)} until {clock(saved)}")


def name_leavers(draft: Draft) -> Draft:
    """Show people which leavers the run waits for: one that goes on in place trains only after they have saved."""
    previous = draft.status.previous
    if previous is None or not leavers(draft) or draft.current is None or draft.current.plan.handover:
        return draft
    return await_leavers(draft, previous)


def ask_to_leave(draft: Draft) -> Draft:
    """Ask all members of a run that ends to save and leave.

    Level-triggered: a member that does not show the request yet is asked again, until the deadline. A terminating pod
    gets no updates any more: SIGTERM is its request. SIGTERM also asks a pod whose changes admission refuses.
    """
    intent, upcoming = draft.intent, draft.status.next
    if intent is None or not intent.leave or upcoming is None or draft.now >= (intent.deadline or draft.now):
        return draft
    not_asked, text = _not_asked_yet(draft, intent), leave(upcoming.run, intent)
    unasked = [
        pod for pod in not_asked if run_named(pod.assignment) < upcoming.run
    ]  # the others only have less time now
    deleted = cannot_be_asked(draft, intent, unasked)
    requests = [_request(pod, text) for pod in not_asked if pod not in deleted]
    draft = draft.act(f"asked to save and leave: {intent.cause}", *requests)
    why = f"asked by SIGTERM, for its assignment cannot be changed: {intent.cause}"
    return draft.act(why, *(_deletion(pod) for pod in deleted))


def tell_leavers(draft: Draft) -> Draft:
    """Ask the leavers of the newest plan to save and leave with it, and delete those that are late."""
    plan, pods, intent = _leaving_members(draft)
    if intent is None:
        return draft
    deadline = intent.deadline or draft.now
    if draft.now >= deadline:
        late = [pod for pod in pods if not pod.deleting]
        return draft.act("its time to save is over", *(_deletion(pod) for pod in late))
    draft = draft.wake(deadline)
    text = _last_word(draft, plan, intent)
    if not text:
        return draft
    not_asked = [pod for pod in pods if not pod.deleting and pod.assignment != text]
    newest = run_named(text) if plan else max(draft.status.lost)
    unasked = [pod for pod in not_asked if run_named(pod.assignment) < newest]  # the others only lack news
    deleted = cannot_be_asked(draft, intent, unasked)
    requests = [_request(pod, text) for pod in not_asked if pod not in deleted]
    draft = draft.act(f"run {run_named(text)} goes on without it: {intent.cause}", *requests)
    why = f"asked by SIGTERM, for its assignment cannot be changed: {intent.cause}"
    draft = draft.act(why, *(_deletion(pod) for pod in deleted))
    return draft.wake(patience_ends(intent, draft.now)) if unasked else draft


def _last_word(draft: Draft, plan: RunPlan | None, intent: Intent) -> str:
    """The text for a leaver; "" if there is nothing new to tell.

    After a fault none may save: the text then carries the number of the run that follows. If the run that took over has
    no member left, leavers may have the only copy of its state: the text names it as lost, so that they commit it.
    """
    if plan:
        return leave(draft.status.run, intent) if intent.disruption is Disruption.NODE_FAULT else leave_with(plan)
    previous, lost = draft.status.previous, draft.status.lost
    if previous is None or all(run <= previous.run for run in lost):
        return ""
    return leave(draft.status.run, intent.model_copy(update={"lost": lost}))


def _leaving_members(draft: Draft) -> tuple[RunPlan | None, list[PodView], Intent | None]:
    """The plan that members leave with, the leavers that have not ended, and how long they may take."""
    upcoming, previous, current = draft.status.next, draft.status.previous, draft.current
    if upcoming and upcoming.plan and draft.intent:
        names = upcoming.plan.leavers
        pods = [pod for pod in still_running(draft) if pod.name in names]
        return upcoming.plan, pods, request(draft.intent, upcoming.plan, draft.now)
    if previous is None:
        return None, [], None
    plan = current.plan if current and current.plan.takes_over == previous.run else None
    return plan, leavers(draft), previous.intent


def _request(pod: PodView, text: str) -> Assign:
    return Assign(name=pod.name, uid=pod.uid, role=pod.role or Role.STANDBY, old=pod.assignment, new=text)


def _deletion(pod: PodView) -> DeletePod:
    return DeletePod(name=pod.name, uid=pod.uid, grace=grace_of(pod))


def _not_asked_yet(draft: Draft, intent: Intent) -> list[PodView]:
    """The members that do not show the request to leave yet."""
    text = leave(draft.status.next.run, intent) if draft.status.next else ""
    return [pod for pod in still_running(draft) if not pod.deleting and pod.assignment != text]


def _shorten(draft: Draft, current: CurrentRun, intent: Intent) -> tuple[Draft, Intent]:
    """Move the deadline to the end of the first member that cannot wait as long: no member can save without the others.

    Members count `seconds` from their first sight of the request, so `seconds` includes the time that has passed.
    """
    ends = [*_ends_of_grace(draft), *_end_of_patience(draft, current)]
    deadline = later(min(ends), LATE_MARGIN_SECONDS) if ends else intent.deadline
    if deadline is None or intent.deadline is None or deadline >= intent.deadline:
        return draft, intent
    cut = ceil((intent.deadline - deadline).total_seconds())
    shorter = intent.model_copy(update={"seconds": max(intent.seconds - cut, 1), "deadline": deadline})
    return draft.update_current(intent=shorter).because(f"the save has to end {cut} s earlier"), shorter


def _ends_of_grace(draft: Draft) -> list[datetime]:
    """Until when members can save that are being deleted, and have only their grace, or whose node has a deadline."""
    seen, running = draft.snapshot, still_running(draft)
    graces = [one.deadline for one in signals_of_deletions(seen, running) if one.deadline]
    deadlines = [*graces, *deadlines_ahead(seen, running)]
    return [max(later(end, -GRACE_MARGIN_SECONDS), later(draft.now, 1)) for end in deadlines]


def _end_of_patience(draft: Draft, current: CurrentRun) -> list[datetime]:
    """Until when the job waits for the others after a member was lost, unless the log has the run's end.

    `lost` never changes within a run's number, so the others cannot be asked to stop at once.
    """
    if ended_in_log(current) or not any(_breaks_the_save(one) for one in current.outcomes):
        return []
    return [later(draft.now, PATIENCE_SECONDS)]


def _breaks_the_save(outcome: MemberOutcome) -> bool:
    return outcome.infrastructure or outcome.outcome in (ExitKind.FAILED, ExitKind.PEER_LOST)


def _delete_late(draft: Draft, pods: list[PodView]) -> Draft:
    late = [pod for pod in pods if not pod.deleting]
    draft = draft.act("its time to save is over", *(_deletion(pod) for pod in late))
    return await_deleted(draft, pods)
