"""A start: members that cannot train are replaced, and the run is planned once all members, or enough, are up.

Replacements are paced, so they never become a storm. The cause of a useless member (a pod reaper, a node that goes away
without a taint) may hit the next one too: from the second replacement in a row on, a pause precedes new members, and it
doubles. The run's plan ends the series.

A gang without room for all its members releases its nodes, and tries later. Two jobs that hold half of the nodes each
would wait forever. One has to release them, and only one: the youngest goes first, so that the oldest gets its room.
The pauses that follow differ by uid, so that two do not meet again in step. A run that trains never releases its nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from perdure.wire import ExitKind
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import CurrentRun, Disruption, GangRest, NextRun, Replacements, Takeover
from perdure_operator.decide.blame import charge, judge_standbys
from perdure_operator.decide.draft import Draft, Waiting, clock, doubled, later, next_run
from perdure_operator.decide.facts import (
    CAN_WAIT,
    EDIT_SECONDS,
    PULLING_SECONDS,
    gang_pause,
    joined,
    node_of,
    one_more,
    own,
    patience,
    refused,
    terminated,
)
from perdure_operator.decide.history import begin
from perdure_operator.decide.outcomes import end_of
from perdure_operator.decide.placement import agent_missing, can_start, why_unfit
from perdure_operator.decide.plans import new_plan
from perdure_operator.decide.signals import signal_of_node
from perdure_operator.decide.sizing import lasts, most_with, wanted_size
from perdure_operator.decide.standby_pool import give_back
from perdure_operator.decide.succession import succession
from perdure_operator.decide.waiting import await_leavers, await_rescue_commits, not_ready, refusal_reason
from perdure_operator.state.snapshot import PodView

RECHECK_SECONDS: Final = 10
"""What other jobs do is no event of this one."""
MOST_YIELDS: Final = 5
"""How many younger gangs an older one waits for at most: one that can never start must not hold back all others."""

_COSTS_NOTHING: Final = frozenset(
    {ExitKind.CHECKPOINTED, ExitKind.STOPPED, ExitKind.EXIT_TIMEOUT, ExitKind.HANDED_OVER, ExitKind.HANDOVER_FAILED}
)
_ROOMLESS: Final = (Reason.UNSCHEDULABLE, Reason.QUOTA_EXCEEDED)


@dataclass(frozen=True)
class Gang:
    """The members of a run that has not begun."""

    needed: int
    """How many members the run needs to begin."""
    placed: int
    """How many have a node."""
    roomless: int
    """How many have no room, by word of the scheduler or a quota."""

    @property
    def in_vain(self) -> bool:
        """Whether some hold nodes that are of no use until the others find room."""
        return 0 < self.placed < self.needed and self.roomless > 0


def replace_unfit(draft: Draft) -> Draft:
    """Drop the names of members that cannot train; those that ended on their own cost a failure."""
    pods = own(draft.snapshot)
    unfit = {name: why for name in draft.next_members if (why := why_unfit(draft, name, pods.get(name)))}
    if not unfit:
        return draft
    dropped = [pods[name] for name in unfit if name in pods]
    failed = [end_of(pod) for pod in dropped if _ended_by_itself(draft, pod)]
    words = joined([f"{name} {why}" for name, why in unfit.items()])
    draft = draft.tell(Reason.MEMBER_REPLACED, f"new members take the place of those that cannot train: {words}")
    draft = draft.allot(tuple(name for name in draft.next_members if name not in unfit))
    if dropped:  # a name without a pod has cost nothing
        draft = _count(draft, words, [pods[one.name].node for one in failed])
    if draft.current:  # standbys do not count against the current run
        return _with_time_for_others(draft) if any(not terminated(pod) for pod in dropped) else draft
    return charge(draft, judge_standbys(failed)) if failed else draft


def _with_time_for_others(draft: Draft) -> Draft:
    """Standbys that had to leave their nodes, too, are replaced by others, which have the usual time to start.

    Not where a node has a deadline, or a member was lost: no time is added to these. It ends some time after the last
    node was announced under a member.
    """
    intent = draft.intent
    if intent is None or intent.ready_by is None or intent.deadline_seen or intent.disruption not in CAN_WAIT:
        return draft
    usual = later(draft.now, patience(draft.snapshot, intent.disruption))
    until = max(intent.ready_by, min(usual, later(intent.newest or intent.since, PULLING_SECONDS)))
    return draft.update_current(intent=intent.model_copy(update={"ready_by": until}))


def pace(draft: Draft) -> Draft:
    """Pause before new members, once earlier ones had to be replaced again."""
    replaced = draft.status.next.replacements if draft.status.next else None
    if replaced is None or len(draft.next_members) >= succession(draft).joins:
        return draft
    until = _pause_until(replaced)
    if replaced.generation != draft.snapshot.generation:
        until = min(until, later(replaced.last_time, EDIT_SECONDS))
    if draft.now >= until:
        return draft
    message = (
        f"{replaced.count} times in a row members could not train and were replaced: {replaced.cause}; "
        f"the next ones are created at {clock(until)}"
    )
    return draft.block(Reason.REPLACING_MEMBERS, message, until)


def _pause_until(replaced: Replacements) -> datetime:
    """The first replacement is created at once, the second after 1 s, each further one after twice as long."""
    return doubled(replaced.last_time, replaced.count - 1) if replaced.count > 1 else replaced.last_time


def _count(draft: Draft, cause: str, nodes: list[str]) -> Draft:
    upcoming = draft.status.next or NextRun(run=next_run(draft.status))
    series = one_more(draft, upcoming.replacements, cause, nodes)
    return draft.update(next=upcoming.model_copy(update={"replacements": series}))


def _ended_by_itself(draft: Draft, pod: PodView) -> bool:
    if pod.deleting or not terminated(pod) or agent_missing(pod) or (pod.gone and pod.terminated is None):
        return False
    on_its_way = signal_of_node(draft.snapshot, node_of(draft.snapshot, pod), pod)
    return not on_its_way and end_of(pod).outcome not in _COSTS_NOTHING


def promote(draft: Draft) -> Draft:
    """Write the plan once every member is up; until then show what the slowest one waits for."""
    members = draft.next_members
    if draft.blocked or not members:
        return draft
    pods = own(draft.snapshot)
    missing = tuple(name for name in members if name not in pods or not can_start(draft, pods[name]))
    if missing or refused(draft, members):
        return not_ready(draft, missing or members)
    if draft.status.previous:
        return await_leavers(draft, draft.status.previous)
    if (awaiting := await_rescue_commits(draft)) is not draft:
        return awaiting
    if _budget_is_of_another(draft, len(members)):
        return not_ready(draft, members)
    return _begin(draft, [pods[name] for name in members])


def promote_fewer(draft: Draft) -> Draft:
    """Begin a job with `elastic` with the members that are up, once they have been enough for a while."""
    pods = own(draft.snapshot)
    if draft.current or draft.blocked or draft.status.previous:
        return draft
    up = [name for name in draft.next_members if name in pods and can_start(draft, pods[name])]
    size = most_with(draft, len(up))
    if refused(draft, up[:size]) or _budget_is_of_another(draft, size):
        size = 0
    draft, due = lasts(draft, size)
    if not due:
        return draft
    if (awaiting := await_rescue_commits(draft)) is not draft:
        return awaiting
    others = tuple(name for name in draft.next_members if name not in up[:size])
    return _begin(give_back(draft.but(waiting=None), others), [pods[name] for name in up[:size]])


def _budget_is_of_another(draft: Draft, members: int) -> bool:
    """Whether the budget is still that of a smaller run, which ended in this very round; this round raises it."""
    ended, budget = draft.snapshot.status.current is not None, draft.snapshot.budget
    return ended and budget is not None and not budget.altered and 0 <= budget.min_available < members


def _begin(draft: Draft, pods: list[PodView]) -> Draft:
    """Make the run of these pods, all of them new, the current one."""
    plan = new_plan(draft, pods)
    series = draft.status.next.replacements if draft.status.next else None
    upcoming = draft.status.next
    begun = not draft.status.history or (upcoming and upcoming.disruption is Disruption.SUSPEND)
    how = Takeover.START if begun else Takeover.RECREATE
    why, disruption = (upcoming.fallback_reason, upcoming.disruption) if upcoming else ("", None)
    draft = begin(draft, plan, None, how, why, disruption=disruption)
    draft = draft.update(
        current=CurrentRun(run=plan.run, plan=plan, replacements=series),
        next=None,
        run=plan.run,
        lost=plan.lost,
        gang=None,
    )
    return draft.tell(Reason.RUN_PLANNED, f"run {plan.run}: {len(plan.members)} members, {plan.world} processes")


def release_gang(draft: Draft) -> Draft:
    """Release all members once some held useless nodes for startTimeoutSeconds; a younger gang goes first."""
    upcoming, now = draft.status.next, draft.now
    if draft.current or upcoming is None or not upcoming.members:
        return draft
    gang, leaves = _gang(draft), draft.status.previous  # leavers still have the room that these wait for
    since = (upcoming.in_vain_since or now) if gang.in_vain and not leaves else None
    if since != upcoming.in_vain_since:
        draft = draft.update(next=upcoming.model_copy(update={"in_vain_since": since}))
    if since is None:
        return draft
    timeout, younger = draft.snapshot.spec.start_timeout_seconds, draft.snapshot.younger_gangs
    due = gang_released_at(since, timeout, younger)
    if now >= due:
        return _released(draft, gang)
    first = gang_released_at(since, timeout, 0)
    draft = draft.wake(first if now < first else min(due, later(now, RECHECK_SECONDS)))
    if draft.waiting and draft.waiting.reason in _ROOMLESS:
        held = (
            f"{draft.waiting.message}; the nodes that other members hold ({gang.placed}) are released at {clock(due)}"
        )
        draft = draft.but(waiting=Waiting(draft.waiting.reason, held))
    return draft


def rest_of_gang(draft: Draft) -> Draft:
    """Create no member of a gang that has released its nodes, until its pause is over or its spec is edited."""
    gang = draft.status.gang
    if draft.next_members:
        return draft  # the pause was over by another server's clock, and they were created
    if gang is None or gang.generation != draft.snapshot.generation or draft.now >= gang.until:
        return draft
    words = f"all members were deleted because there is no room; the next ones are created at {clock(gang.until)}"
    return draft.block(Reason.GANG_RELEASED, words, gang.until)


def _gang(draft: Draft) -> Gang:
    """The gang of the next run. A member without a pod has no room if a quota refuses it."""
    pods, elastic = own(draft.snapshot), draft.snapshot.spec.elastic
    here = [pods[name] for name in draft.next_members if name in pods and not terminated(pods[name])]
    refusal = refused(draft, draft.next_members)
    unmade = refusal is not None and refusal_reason(refusal.message) is Reason.QUOTA_EXCEEDED
    return Gang(
        needed=elastic.min_replicas if elastic else wanted_size(draft.snapshot).members,
        placed=sum(bool(pod.node) for pod in here),
        roomless=sum(bool(pod.unschedulable) and not pod.node for pod in here) + unmade,
    )


def _released(draft: Draft, gang: Gang) -> Draft:
    snapshot, old = draft.snapshot, draft.status.gang
    attempts = old.attempts + 1 if old and old.generation == snapshot.generation else 1
    until = draft.now + gang_pause(snapshot.uid, attempts, snapshot.spec.start_timeout_seconds)
    rest = GangRest(attempts=attempts, until=until, generation=snapshot.generation)
    held = f": {draft.waiting.message}" if draft.waiting else ""
    words = (
        f"{gang.placed} members held nodes while others found no room for startTimeoutSeconds: all are deleted, "
        f"the next ones are created at {clock(until)}{held}"
    )
    draft = draft.allot(()).update(gang=rest)
    return rest_of_gang(draft.but(waiting=None).tell(Reason.GANG_RELEASED, words, warning=True))


def gang_released_at(since: datetime, timeout: int, younger: int) -> datetime:
    """When a gang that holds useless nodes since then releases them, beside `younger` ones that do too, or just did."""
    return since + timedelta(seconds=timeout * (1 + min(younger, MOST_YIELDS)))
