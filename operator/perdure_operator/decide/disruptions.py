"""Why the run that is on has to end: the first reason that holds, and how long a signal has to last before it counts.

Questions, and what status keeps for their answers. Called by the policies that make an intent of a reason. The more
often a signal was withdrawn in a row, the longer the next one has to last. A signal with a deadline, a fault and a
deletion count at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from perdure.wire import Completion, ExitKind
from perdure_operator.api.status import CurrentRun, Disruption, Intent, MemberOutcome, RunPlan, Withdrawals
from perdure_operator.decide.draft import Draft, later
from perdure_operator.decide.facts import (
    CAUSE_LENGTH,
    LATE_MARGIN_SECONDS,
    deadline,
    ended_in_log,
    leavers,
    order_of_death,
    own,
    still_running,
    unexpected,
)
from perdure_operator.decide.signals import Signal, signals_of_deletions, signals_of_nodes, table_of
from perdure_operator.decide.sizing import ends_for_size, grows_again_at, size_of, wanted_size

FLAPPING: Final = 3
"""This many withdrawals in a row are no coincidence."""
WITHDRAWALS_EXPIRE_SECONDS: Final = 600
"""The count of withdrawals starts over after this long without one."""
LONGEST_QUIET_SECONDS: Final = 60

_DELETED: Final = "deleted: "
_LEFT: Final[Mapping[str, str]] = {
    ExitKind.CHECKPOINTED: "has saved and left",
    ExitKind.HANDED_OVER: "has handed over and left",
    ExitKind.STOPPED: "has left with nothing to save",
}
"""What a member of a run that has ended in the log has done."""


@dataclass(frozen=True)
class EndReason:
    """A reason for the run to end."""

    disruption: Disruption
    cause: str
    nodes: tuple[str, ...] = ()
    urgent: bool = True
    deadline: datetime | None = None
    """When the first of these nodes goes away, if that is known."""
    if_room: bool = False
    """The run goes on until standbys take over, without a time limit."""


def final_reason(draft: Draft, current: CurrentRun) -> EndReason | None:
    """Why the run has to end with no run after it; None if a run could follow at once."""
    return _suspended(draft, current) or _expired(draft, current)


def known_by(draft: Draft, plan: RunPlan) -> datetime:
    """By when a run whose members live has begun, live or in place: its wait for the previous run is over by then."""
    return later(plan.assigned_time or draft.now, plan.seconds + plan.wait + LATE_MARGIN_SECONDS)


def reason_to_end(draft: Draft, current: CurrentRun) -> EndReason | None:
    """The first reason for the run to end, None if it may go on."""
    for look in (_faulty, _lost, _waits_for_the_dead, _deleted, _suspended, _expired, _nodes_leaving, _resized):
        found = look(draft, current)
        if found:
            return found
    return None


def _faulty(draft: Draft, current: CurrentRun) -> EndReason | None:
    """A fault comes before a lost member, which may have died of it: the others would go on from suspect state."""
    if not table_of(draft.snapshot).knows_faults or not still_running(draft):
        return None
    pods = own(draft.snapshot)
    members = [pods[member.name] for member in current.plan.members if member.name in pods]
    members += leavers(draft) if current.unconfirmed else []  # they may still train: their state is taken over
    signals = [signal for signal in signals_of_nodes(draft.snapshot, members) if signal.fault]
    nodes = _nodes(signals)
    return EndReason(Disruption.NODE_FAULT, _causes(signals, separator="; "), nodes=nodes) if signals else None


def _lost(draft: Draft, current: CurrentRun) -> EndReason | None:
    first = min(unexpected(draft.snapshot, current), key=order_of_death, default=None)
    if first is None:
        return None
    how = " ".join(word for word in (first.outcome, first.error_name) if word)
    words = f"ended: {how or 'no outcome'}"
    if ended_in_log(current):
        left = f"{first.name} {_LEFT.get(first.outcome, words)}"
        return EndReason(Disruption.MEMBER_DELETED, _with_why_deleted(current, first, left))
    never = max((one.aborted_run or 0 for one in current.outcomes), default=0)
    offered = f"; run {never} never takes over" if never > current.run else ""
    return EndReason(Disruption.MEMBER_LOST, f"{first.name} {words}{offered}")


def _with_why_deleted(current: CurrentRun, first: MemberOutcome, left: str) -> str:
    """Why this member was deleted, or ended by its kubelet, and how it left: its pod goes, and only this cause
    remembers."""
    known = current.intent.cause if current.intent else ""
    if not known.startswith(_DELETED) or first.name not in known:
        return f"{left}: {first.error_name}" if first.error_name and first.outcome in _LEFT else left
    return known if known.endswith(left) else f"{known}; {left}"


def _waits_for_the_dead(draft: Draft, current: CurrentRun) -> EndReason | None:
    """The previous run was lost after this run's members got their plan: they cannot learn it, and wait for its save.

    No member has reported yet whether this run has begun. So it is no lost run, and a member that trains in it saves.
    """
    plan, status = current.plan, draft.status
    before = plan.takes_over
    if draft.snapshot.spec.completion is not Completion.LOG:
        return None  # without a log no member waits
    if plan.handover and plan.joins:
        return None  # a newcomer ends if the living run goes on without it: one that lives does not wait
    if status.log_lost:
        return None  # the next run to begin finds the same
    if before not in status.lost or before in plan.lost or status.opened >= current.run:
        return None
    if draft.now >= known_by(draft, plan):
        return None
    cause = f"run {before} has ended, no member reports that it was saved, and run {current.run} may wait for its save"
    return EndReason(Disruption.RUN_LOST, cause, urgent=False)


def _deleted(draft: Draft, current: CurrentRun) -> EndReason | None:  # noqa: ARG001
    deleted = signals_of_deletions(draft.snapshot, still_running(draft))
    return EndReason(Disruption.MEMBER_DELETED, f"{_DELETED}{_causes(deleted)}") if deleted else None


def _expired(draft: Draft, current: CurrentRun) -> EndReason | None:  # noqa: ARG001
    end = deadline(draft)
    if end is None or draft.now < end:
        return None
    return EndReason(Disruption.STOP, f"activeDeadlineSeconds ({draft.snapshot.spec.active_deadline_seconds}) is over")


def _suspended(draft: Draft, current: CurrentRun) -> EndReason | None:  # noqa: ARG001
    return EndReason(Disruption.SUSPEND, "spec.suspend is true") if draft.snapshot.spec.suspend else None


def _nodes_leaving(draft: Draft, current: CurrentRun) -> EndReason | None:
    """Signals that wait for room come after a size change that needs none; a job being deleted gets no new members."""
    signals = signals_of_nodes(draft.snapshot, still_running(draft))
    if_room = all(signal.if_room for signal in signals)
    if not signals or (if_room and (draft.snapshot.deleting or ends_for_size(draft, current))):
        return None
    nodes = _nodes(signals)
    first = min((signal.deadline for signal in signals if signal.deadline), default=None)
    cause = _causes(signals, separator="; ")
    return EndReason(
        Disruption.NODE_LEAVING, cause, nodes=nodes, urgent=first is not None, deadline=first, if_room=if_room
    )


def _resized(draft: Draft, current: CurrentRun) -> EndReason | None:
    wanted = wanted_size(draft.snapshot)
    if size_of(current.plan) == wanted or draft.snapshot.deleting:  # no run of another size could follow
        return None
    if grows_again_at(draft, current):
        return None
    processes = draft.snapshot.spec.processes_per_replica
    each = "" if current.plan.world == len(current.plan.members) * processes else f" of {processes} processes"
    cause = f"{wanted.members} members{each} are wanted"
    return EndReason(Disruption.SIZE_CHANGE, cause, urgent=False)


def _nodes(signals: list[Signal]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(signal.node for signal in signals if signal.node))


def _causes(signals: list[Signal], separator: str = ", ") -> str:
    return separator.join(dict.fromkeys(signal.cause for signal in signals))[:CAUSE_LENGTH]


def withdrawn(draft: Draft, intent: Intent, nodes: tuple[str, ...]) -> Draft:
    """Count one more withdrawal, if the intent was to leave these nodes."""
    if intent.disruption is not Disruption.NODE_LEAVING:
        return draft
    series = _series(draft)
    if series and series.nodes and not nodes:
        return draft  # a signal of pods says nothing about these nodes
    series = series if series and bool(series.nodes) == bool(nodes) else None
    nodes = tuple(sorted({*(series.nodes if series else ()), *nodes}))
    return draft.update(
        withdrawals=Withdrawals(count=(series.count if series else 0) + 1, last_time=draft.now, nodes=nodes)
    )


def quiet_for(draft: Draft, nodes: tuple[str, ...]) -> timedelta:
    """How long a signal of these nodes has to last, as earlier ones were withdrawn; zero if there were few."""
    count = _count(draft, nodes)
    seconds = min(2**count, LONGEST_QUIET_SECONDS) if count >= FLAPPING else 0
    return timedelta(seconds=seconds)


def flapping_nodes(draft: Draft, nodes: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes among these whose signals were withdrawn in this series."""
    series = _series(draft)
    return tuple(name for name in nodes if series and name in series.nodes)


def flapping_until(draft: Draft, nodes: tuple[str, ...]) -> datetime | None:
    """Until when signals of these nodes, withdrawn again and again, lead to no new member; None if they do now."""
    series, quiet = draft.status.withdrawals, quiet_for(draft, nodes)
    return series.last_time + quiet if nodes and series and quiet else None


def describe_flapping(draft: Draft, nodes: tuple[str, ...]) -> str:
    """The words for the condition; "" if no signal flaps."""
    count, seconds = _count(draft, nodes), quiet_for(draft, nodes).seconds
    if count < FLAPPING:
        return ""
    return f"signals like it were withdrawn {count} times in a row: it has to last {seconds} s"


def _count(draft: Draft, nodes: tuple[str, ...]) -> int:
    """The series counts for its own nodes alone: a drain of one node does not wait for a loose sensor of another."""
    series = _series(draft)
    alike = series and bool(nodes) == bool(series.nodes) and set(nodes) <= set(series.nodes)
    return series.count if series and alike else 0


def _series(draft: Draft) -> Withdrawals | None:
    """The series that a withdrawal now would extend."""
    series = draft.status.withdrawals
    return series if series and draft.now < later(series.last_time, WITHDRAWALS_EXPIRE_SECONDS) else None
