"""A run has to end before its work is done: why, when its members are asked to save and leave, how long they may take.

Nodes and sizes get a quiet second in which more signals are collected and a signal may be withdrawn. From `leave` on
the move is finished first, whatever becomes of the signal. What is urgent is told at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Final

from perdure.contract import ExitKind, Role
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import CurrentRun, Disruption, Intent, MemberOutcome, NextRun, Unready
from perdure_operator.decide.assignments import leave
from perdure_operator.decide.draft import Draft, clock, later, next_run
from perdure_operator.decide.exit_problems import (
    LATE_MARGIN_SECONDS,
    await_deleted,
    await_told,
    cannot_be_asked,
    patience_ends,
)
from perdure_operator.decide.facts import (
    CAUSE_LENGTH,
    add_lost_run,
    deadline,
    ended_in_log,
    given_up_at,
    in_outage,
    listed,
    node_of,
    order_of_death,
    size_of,
    still_running,
    terminated,
    unexpected,
    wanted_size,
)
from perdure_operator.decide.placement import grace_of
from perdure_operator.decide.signals import Signal, signal_of_deletion, signals_of_nodes
from perdure_operator.state.decision import Assign, DeletePod
from perdure_operator.state.snapshot import NodeView, PodView

QUIET: Final = timedelta(seconds=1)
"""So long nothing new may be heard before members are asked to leave."""
OUTAGE_LOOK_SECONDS: Final = 10
"""So often a job looks whether an outage is over: that other nodes come back is no event of its own."""
QUIET_AT_MOST: Final = timedelta(seconds=5)
GRACE_MARGIN_SECONDS: Final = 5
"""A deleted pod's save has to end this long before its grace does."""
PATIENCE_SECONDS: Final = 30
"""After a member was lost a commit may still be on its way, but no new save can end."""


@dataclass(frozen=True)
class Found:
    """A reason for the run to end."""

    disruption: Disruption
    cause: str
    nodes: tuple[str, ...] = ()
    urgent: bool = True


def track_unready_nodes(draft: Draft) -> Draft:
    """Since when each node under a pod is unreachable: from the first sight of Ready != True until it is Ready again.

    A node object that is gone counts as well, because nobody can say whether its machine still runs.
    """
    occupied = {pod.node for pod in draft.snapshot.pods if pod.node and not terminated(pod)}
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
    """The time of a mass outage says nothing about this node: it counts anew when the outage is over."""
    outage = in_outage(draft.snapshot, node)
    old = next((one for one in draft.status.unready if one.node == node.name), None)
    if old is None or (old.outage and not outage):
        return Unready(node=node.name, since=draft.now, outage=outage)
    return old.model_copy(update={"outage": outage})


def _give_up_one(draft: Draft) -> Draft:
    """In an outage no more than one node a round: when that was is remembered, and the next one counts from it."""
    rows = draft.status.unready
    due = ((at, one.node) for one in rows if one.outage and not one.given_up and (at := given_up_at(draft, one.node)))
    at, name = min(due, default=(None, ""))
    if at is None or at > draft.now:
        return draft
    marked = (one.model_copy(update={"given_up": draft.now}) if one.node == name else one for one in rows)
    return draft.update(unready=tuple(marked), given_up=draft.now)


def disrupt(draft: Draft) -> Draft:
    """See the first reason for the run to end."""
    if draft.current is None:
        return draft
    found = _reason_to_end(draft, draft.current)
    if found is None:
        return draft
    if found.urgent:
        return _commit_to_leave(draft, draft.current, found)
    intent = Intent(
        disruption=found.disruption, cause=found.cause, nodes=found.nodes, since=draft.now, newest=draft.now
    )
    return draft.update_current(intent=intent).tell(Reason(found.disruption), found.cause)


def debounce(draft: Draft) -> Draft:
    """Collect more signals in the quiet second; withdraw the intent where none is left."""
    intent = draft.intent
    if draft.current is None or intent is None:
        return draft
    found = _reason_to_end(draft, draft.current)
    if found is None:
        words = f"no longer true: {intent.cause}; nobody was asked to leave"
        return draft.update_current(intent=None).tell(Reason.WITHDRAWN, words)
    newest = draft.now if set(found.nodes) - set(intent.nodes) else (intent.newest or intent.since)
    due = min(newest + QUIET, intent.since + QUIET_AT_MOST)
    if found.urgent or draft.now >= due:
        return _commit_to_leave(draft, draft.current, found)
    seen = {"disruption": found.disruption, "cause": found.cause, "nodes": found.nodes, "newest": newest}
    draft = draft.update_current(intent=intent.model_copy(update=seen)).wake(due)
    return draft.because(f"quiet until {clock(due)}: more nodes may follow")


def wait_for_exits(draft: Draft) -> Draft:
    """Until the deadline members are waited for; then those that are late are deleted."""
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
    untold = _untold(draft, intent)
    draft = draft.wake(deadline).wake(patience_ends(intent, draft.now) if untold else saved)
    draft = await_told(draft, untold, "to leave")
    if intent.disruption is Disruption.MEMBER_LOST:
        message = f"{intent.cause}; waiting for {listed(pods)} to stop until {clock(deadline)}"
        return draft.wait(Reason.STOPPING, message)
    if draft.now >= saved:
        late = f"the time for the exit save is over for {listed(pods)}: whoever is left is deleted at {clock(deadline)}"
        return draft.wait(Reason.EXIT_SAVE, late)
    return draft.wait(Reason.EXIT_SAVE, f"waiting for the exit save of {listed(pods)} until {clock(saved)}")


def ask_to_leave(draft: Draft) -> Draft:
    """Level-triggered: whoever does not show the request yet is asked again, until the deadline.

    A terminating pod gets no updates any more: its SIGTERM is its request. It is so, too, where admission lets nobody
    change the pod.
    """
    intent, upcoming = draft.intent, draft.status.next
    if intent is None or not intent.leave or upcoming is None or draft.now >= (intent.deadline or draft.now):
        return draft
    untold, text = _untold(draft, intent), leave(upcoming.run, intent)
    deleted = cannot_be_asked(draft, intent, untold)
    requests = [
        Assign(name=pod.name, uid=pod.uid, role=pod.role or Role.STANDBY, old=pod.assignment, new=text)
        for pod in untold
        if pod not in deleted
    ]
    draft = draft.act(f"asked to save and leave: {intent.cause}", *requests)
    why = f"asked by SIGTERM, for its assignment cannot be changed: {intent.cause}"
    return draft.act(why, *(DeletePod(name=pod.name, uid=pod.uid, grace=grace_of(pod)) for pod in deleted))


def _untold(draft: Draft, intent: Intent) -> list[PodView]:
    """Members that do not show the request to leave yet."""
    text = leave(draft.status.next.run, intent) if draft.status.next else ""
    return [pod for pod in still_running(draft) if not pod.deleting and pod.assignment != text]


def _reason_to_end(draft: Draft, current: CurrentRun) -> Found | None:
    for look in (_lost, _deleted, _suspended, _expired, _nodes_leaving, _resized):
        found = look(draft, current)
        if found:
            return found
    return None


def _lost(draft: Draft, current: CurrentRun) -> Found | None:
    first = min(unexpected(draft.snapshot, current), key=order_of_death, default=None)
    if first is None:
        return None
    if ended_in_log(current):
        return Found(Disruption.MEMBER_DELETED, f"{first.name} has saved and left")
    how = " ".join(word for word in (first.outcome, first.error_name) if word)
    return Found(Disruption.MEMBER_LOST, f"{first.name} ended: {how or 'no outcome'}")


def _deleted(draft: Draft, current: CurrentRun) -> Found | None:  # noqa: ARG001
    deleted = [
        signal for pod in still_running(draft) if (signal := signal_of_deletion(pod, node_of(draft.snapshot, pod)))
    ]
    return Found(Disruption.MEMBER_DELETED, f"deleted: {_causes(deleted)}") if deleted else None


def _expired(draft: Draft, current: CurrentRun) -> Found | None:  # noqa: ARG001
    end = deadline(draft)
    if end is None or draft.now < end:
        return None
    return Found(Disruption.STOP, f"activeDeadlineSeconds ({draft.snapshot.spec.active_deadline_seconds}) is over")


def _suspended(draft: Draft, current: CurrentRun) -> Found | None:  # noqa: ARG001
    return Found(Disruption.SUSPEND, "spec.suspend is true") if draft.snapshot.spec.suspend else None


def _nodes_leaving(draft: Draft, current: CurrentRun) -> Found | None:  # noqa: ARG001
    signals = signals_of_nodes(draft.snapshot, still_running(draft))
    if not signals:
        return None
    nodes = tuple(dict.fromkeys(signal.node for signal in signals))
    return Found(Disruption.NODE_LEAVING, _causes(signals, separator="; "), nodes=nodes, urgent=False)


def _resized(draft: Draft, current: CurrentRun) -> Found | None:
    wanted = wanted_size(draft.snapshot)
    if size_of(current.plan) == wanted or draft.snapshot.deleting:  # no run of another size could follow
        return None
    cause = f"{wanted.members} replicas of {draft.snapshot.spec.processes_per_replica} processes are wanted"
    return Found(Disruption.SIZE_CHANGE, cause, urgent=False)


def _causes(signals: list[Signal], separator: str = ", ") -> str:
    return separator.join(dict.fromkeys(signal.cause for signal in signals))[:CAUSE_LENGTH]


def _commit_to_leave(draft: Draft, current: CurrentRun, found: Found) -> Draft:
    """From here on the move is finished first: the next run has its number."""
    old, status = current.intent, draft.status
    seconds, lost = draft.snapshot.spec.disruption.exit_timeout_seconds, status.lost
    if found.disruption is Disruption.MEMBER_LOST:
        seconds, lost = 0, add_lost_run(lost, current.run)  # nothing can be saved together any more
    intent = Intent(
        disruption=found.disruption,
        cause=found.cause,
        nodes=found.nodes,
        since=old.since if old else draft.now,
        newest=old.newest if old else None,
        leave=True,
        seconds=seconds,
        lost=lost,
        deadline=later(draft.now, seconds + LATE_MARGIN_SECONDS),
    )
    upcoming = NextRun(run=next_run(status), disruption=found.disruption, cause=found.cause)
    if old is None or old.disruption is not found.disruption:
        draft = draft.tell(Reason(found.disruption), found.cause)
    draft = draft.update_current(intent=intent).update(next=upcoming, run=upcoming.run)
    return draft.because(f"run {current.run} ends: {found.cause}")


def _shorten(draft: Draft, current: CurrentRun, intent: Intent) -> tuple[Draft, Intent]:
    """Nobody can save without the others: what is left of the time ends with the first who cannot use it.

    Members count `seconds` from their first sight of the request, so the time gone by stays part of it.
    """
    ends = [*_ends_of_grace(draft), *_end_of_patience(draft, current)]
    deadline = later(min(ends), LATE_MARGIN_SECONDS) if ends else intent.deadline
    if deadline is None or intent.deadline is None or deadline >= intent.deadline:
        return draft, intent
    cut = ceil((intent.deadline - deadline).total_seconds())
    shorter = intent.model_copy(update={"seconds": max(intent.seconds - cut, 1), "deadline": deadline})
    return draft.update_current(intent=shorter).because(f"the save has to end {cut} s earlier"), shorter


def _ends_of_grace(draft: Draft) -> list[datetime]:
    """Until when each deleted member can still save: it has only its own grace."""
    signals = [
        signal for pod in still_running(draft) if (signal := signal_of_deletion(pod, node_of(draft.snapshot, pod)))
    ]
    deadlines = [signal.deadline for signal in signals if signal.deadline]
    return [max(later(end, -GRACE_MARGIN_SECONDS), later(draft.now, 1)) for end in deadlines]


def _end_of_patience(draft: Draft, current: CurrentRun) -> list[datetime]:
    """Until when the others are waited for after one was lost, unless the run has told its end.

    `lost` never changes within a run's number, so they cannot be told to stop at once.
    """
    if ended_in_log(current) or not any(_breaks_the_save(one) for one in current.outcomes):
        return []
    return [later(draft.now, PATIENCE_SECONDS)]


def _breaks_the_save(outcome: MemberOutcome) -> bool:
    return outcome.infrastructure or outcome.outcome in (ExitKind.FAILED, ExitKind.PEER_LOST)


def _delete_late(draft: Draft, pods: list[PodView]) -> Draft:
    late = [pod for pod in pods if not pod.deleting]
    draft = draft.act(
        "its time to save is over", *(DeletePod(name=pod.name, uid=pod.uid, grace=grace_of(pod)) for pod in late)
    )
    return await_deleted(draft, pods)
