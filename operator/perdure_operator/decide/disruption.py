"""Decides that the running run has to end: why, when it is told, and how long its members may take to save.

Nodes and sizes get a quiet second in which more signals are collected and a signal may be withdrawn. From `leave` on
the move is finished first. Everything urgent is told at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from perdure.contract import ExitKind
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import Disruption, Intent, MemberOutcome, RunPlan
from perdure_operator.decide.draft import Draft, clock, later
from perdure_operator.decide.facts import awaited, listed, next_run
from perdure_operator.decide.signals import leaving_nodes

QUIET: Final = timedelta(seconds=1)
"""So long nothing new may be heard before members are asked to leave."""
QUIET_AT_MOST: Final = timedelta(seconds=5)
MARGIN_SECONDS: Final = 30
"""What members get on top of their time to save before they are deleted."""
CAUSE_LENGTH: Final = 500


@dataclass(frozen=True)
class Found:
    """A reason for the run to end."""

    disruption: Disruption
    cause: str
    nodes: tuple[str, ...] = ()
    urgent: bool = True


def disrupt(draft: Draft) -> Draft:
    """Make, extend, withdraw or seal the intent."""
    status = draft.status
    if status.plan is None or (status.intent and status.intent.leave):
        return draft
    for look in (_lost, _deleted, _expired, _suspended, _nodes_leaving, _resized):
        found = look(draft, status.plan)
        if found:
            return _seal(draft, status.plan, found) if found.urgent else _quiet(draft, status.plan, found)
    return _withdraw(draft)


def told_its_end(plan: RunPlan, endings: tuple[MemberOutcome, ...]) -> bool:
    """Whether the log shows how the run ended: by its final commit, or by rank 0 that closed it."""
    first = plan.members[0].name if plan.members else ""
    for ending in endings:
        if ending.run == plan.run and ending.outcome in (ExitKind.CHECKPOINTED, ExitKind.COMPLETED):
            return True
        if ending.name == first and ending.outcome == ExitKind.STOPPED:
            return True
    return False


def _lost(draft: Draft, plan: RunPlan) -> Found | None:
    endings = draft.status.endings
    if not endings:
        return None
    if told_its_end(plan, endings):
        return Found(Disruption.MEMBER_DELETED, f"{endings[0].name} has saved and left")
    what = endings[0].outcome or endings[0].error_name or "no outcome"
    return Found(Disruption.MEMBER_LOST, f"{endings[0].name} ended: {what}")


def _deleted(draft: Draft, plan: RunPlan) -> Found | None:
    deleted = [pod for pod in awaited(draft, plan) if pod.deleting]
    return Found(Disruption.MEMBER_DELETED, f"deleted: {listed(deleted)}") if deleted else None


def _expired(draft: Draft, plan: RunPlan) -> Found | None:  # noqa: ARG001 (one signature for all)
    seconds, start = draft.snapshot.spec.active_deadline_seconds, draft.status.start_time
    if seconds is None or start is None or draft.now < later(start, seconds):
        return None
    return Found(Disruption.STOP, f"activeDeadlineSeconds ({seconds}) is over")


def _suspended(draft: Draft, plan: RunPlan) -> Found | None:  # noqa: ARG001
    return Found(Disruption.SUSPEND, "spec.suspend is true") if draft.snapshot.spec.suspend else None


def _nodes_leaving(draft: Draft, plan: RunPlan) -> Found | None:
    causes = leaving_nodes(draft.snapshot, awaited(draft, plan))
    if not causes:
        return None
    cause = "; ".join(causes.values())[:CAUSE_LENGTH]
    return Found(Disruption.NODE_LEAVING, cause, nodes=tuple(causes), urgent=False)


def _resized(draft: Draft, plan: RunPlan) -> Found | None:
    spec = draft.snapshot.spec
    if len(plan.members) == spec.replicas and plan.world == spec.replicas * spec.processes_per_replica:
        return None
    if draft.snapshot.deleting:
        return None  # no run of another size could follow
    cause = f"{spec.replicas} replicas of {spec.processes_per_replica} processes are wanted"
    return Found(Disruption.SIZE_CHANGE, cause, urgent=False)


def _quiet(draft: Draft, plan: RunPlan, found: Found) -> Draft:
    old = draft.status.intent
    since, newest = (old.since, old.newest or old.since) if old else (draft.now, draft.now)
    if old and set(found.nodes) - set(old.nodes):
        newest = draft.now
    due = min(newest + QUIET, since + QUIET_AT_MOST)
    if draft.now >= due:
        return _seal(draft, plan, found)
    intent = Intent(
        run=next_run(draft.status),
        disruption=found.disruption,
        cause=found.cause,
        nodes=found.nodes,
        since=since,
        newest=newest,
    )
    if old is None:
        draft = draft.tell(Reason(found.disruption), found.cause)
    return draft.update(intent=intent).wake(due).because(f"quiet until {clock(due)}: more nodes may follow")


def _seal(draft: Draft, plan: RunPlan, found: Found) -> Draft:
    """From here on the move is finished first, whatever becomes of the signal."""
    old, status = draft.status.intent, draft.status
    seconds, lost = draft.snapshot.spec.disruption.exit_timeout_seconds, status.lost
    if found.disruption is Disruption.MEMBER_LOST:
        seconds, lost = 0, remember(lost, plan.run)  # nothing can be saved together any more
    intent = Intent(
        run=next_run(status),
        disruption=found.disruption,
        cause=found.cause,
        nodes=found.nodes,
        since=old.since if old else draft.now,
        newest=old.newest if old else None,
        leave=True,
        seconds=seconds,
        lost=lost,
        deadline=later(draft.now, seconds + MARGIN_SECONDS),
    )
    if old is None or old.disruption is not found.disruption:
        draft = draft.tell(Reason(found.disruption), found.cause)
    return draft.update(intent=intent, run=intent.run).because(f"run {plan.run} ends: {found.cause}")


def remember(lost: tuple[int, ...], run: int) -> tuple[int, ...]:
    """The newest 32 lost runs with this one."""
    return tuple(sorted({*lost, run}))[-32:]


def _withdraw(draft: Draft) -> Draft:
    intent = draft.status.intent
    if intent is None:
        return draft
    return draft.update(intent=None).tell(
        Reason.WITHDRAWN, f"no longer true: {intent.cause}; nobody was asked to leave"
    )
