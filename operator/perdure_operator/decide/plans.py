"""A run's plan: which member has which rank, where they meet, and how long the previous run's members may take to save.

A plan is written once and never edited. The policies that plan a run call this once all its members are Ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import reduce
from math import floor, gcd
from typing import Final

from perdure.wire import WAIT_MARGIN_SECONDS, ExitKind
from perdure_operator.api.status import (
    Assigned,
    CurrentRun,
    Floor,
    HandoverOffer,
    Intent,
    NextRun,
    PreviousRun,
    RunPlan,
    Takeover,
)
from perdure_operator.decide.assignments import fits, run_given
from perdure_operator.decide.draft import Draft, later, next_run
from perdure_operator.decide.facts import LATE_MARGIN_SECONDS, add_lost_run, own, runs_lost_with
from perdure_operator.decide.history import amend, begin
from perdure_operator.decide.signals import deadlines_ahead
from perdure_operator.decide.sizing import largest
from perdure_operator.decide.succession import Succession
from perdure_operator.state.snapshot import PodView

FIRST_PORT: Final = 29500
HANDOVER_PORT: Final = 29600
"""An attempt to hand over has a separate store, not that of the run that it would begin."""
ATTEMPTS: Final = 2
"""How often a move is tried live; then the members save, and go on in their pods."""
PORTS: Final = 100
"""Two runs in a row never use the same port: the older one may still hold it."""
LONGEST_GRACE_SECONDS: Final = 600
"""How long the next run waits for a late member's grace at most."""
GRACE_MARGIN_SECONDS: Final = 5
"""A deleted pod's save has to end this long before its grace does."""


def new_plan(draft: Draft, pods: Sequence[PodView]) -> RunPlan:
    """The plan of a run whose members are all new."""
    return _plan(draft, pods, draft.snapshot.spec.disruption.exit_timeout_seconds)


def plan_in_place(draft: Draft, roles: Succession, lost: bool) -> RunPlan:
    """The plan of a run that goes on in the pods of members that stay; `lost`: the previous run cannot save."""
    current, pods = draft.current, own(draft.snapshot)
    stays = [pods[member.name] for member in roles.stays]
    joins = [pods[name] for name in draft.next_members]
    plan = _plan(draft, _seated(draft, stays, joins), _seconds(draft, roles))
    before = current.run if current else 0
    runs = reduce(add_lost_run, runs_lost_with(draft, current) if lost and current else (), plan.lost)
    leavers = tuple(member.name for member in roles.leaves)
    last = {} if roles.stays or not leavers else {"wait": plan.wait + _longest_end(draft, leavers)}
    came = tuple(member.rank for member in plan.members if member.name in draft.next_members)
    return plan.model_copy(update={"leavers": leavers, "takes_over": before, "joins": came, "lost": runs, **last})


def _longest_end(draft: Draft, leavers: tuple[str, ...]) -> int:
    """How much longer to wait if no member stays: a leaver whose agent hangs ends only with its pod."""
    pods = own(draft.snapshot)
    grace = max(pods[name].grace for name in leavers)
    return LATE_MARGIN_SECONDS + min(max(grace, 0), LONGEST_GRACE_SECONDS)


def live_plan(draft: Draft, roles: Succession) -> RunPlan | None:
    """Like `plan_in_place`, with an offer to take over the living run; None if it does not fit into all assignments."""
    plan, current = plan_in_place(draft, roles, lost=False), draft.current
    if current is None:
        return None
    stays, each = {member.name for member in roles.stays}, plan.world // len(plan.members)
    new = [member for member in plan.members if member.name not in stays]
    offer = HandoverOffer(
        run=current.run,
        world=current.plan.world,
        joins=_ranks(new, each),
        leavers=_ranks(roles.leaves, each),
        master=_address(own(draft.snapshot)[(*roles.stays, *roles.leaves)[0].name], HANDOVER_PORT + plan.run % PORTS),
        limit=max(plan.seconds // 2, 1),
    )
    plan = plan.model_copy(update={"handover": offer})
    return plan if fits(plan) else None


def succeed(
    draft: Draft, current: CurrentRun, plan: RunPlan, intent: Intent, *, why: str = "", unconfirmed: bool = False
) -> Draft:
    """Make the run of this plan the current one; status keeps the previous run until its leavers have ended."""
    go_on = {member.name for member in plan.members}
    ended = {one.name for one in current.outcomes}
    previous = PreviousRun(
        run=current.run,
        first=current.plan.members[0].name,
        members=tuple(member for member in current.plan.members if member.name not in go_on | ended),
        outcomes=tuple(one for one in current.outcomes if one.name not in go_on),
        intent=request(intent, plan, draft.now),
        counted=current.counted,
        replacements=current.replacements,
    )
    row = draft.status.next.replacements if draft.status.next else None
    run = CurrentRun(
        run=plan.run,
        plan=plan,
        outcomes=tuple(one for one in current.outcomes if one.name in go_on),
        replacements=row,
        unconfirmed=unconfirmed,
    )
    draft = begin(draft, plan, current.plan, _way(draft, current, plan), why, disruption=intent.disruption)
    if pauses := [one.pause for one in current.outcomes if one.pause is not None and one.taken_over_by == plan.run]:
        draft = amend(draft, plan.run, pause=max(pauses))
    return draft.update(current=run, previous=previous, next=None, run=plan.run, lost=plan.lost)


def _way(draft: Draft, current: CurrentRun, plan: RunPlan) -> Takeover:
    """How the run of this plan took over, as far as members that have ended report it.

    If there was an earlier attempt, they may have been handed over to that attempt's run.
    """
    if plan.handover is None:
        return Takeover.IN_PLACE
    kinds = {one.outcome for one in current.outcomes if one.run == current.run}
    taken_over = any(one.taken_over_by == plan.run for one in current.outcomes)
    only = not (draft.status.next and draft.status.next.attempted_runs) or draft.status.opened >= plan.run
    if taken_over or (only and ExitKind.HANDED_OVER in kinds):
        return Takeover.LIVE
    return Takeover.IN_PLACE if ExitKind.CHECKPOINTED in kinds else Takeover.UNKNOWN


def request(intent: Intent, plan: RunPlan, now: datetime) -> Intent:
    """The intent for members that leave with the run of this plan."""
    deadline = later(plan.assigned_time or now, plan.seconds + LATE_MARGIN_SECONDS)
    changes = {"prepare": False, "leave": True, "seconds": plan.seconds, "lost": plan.lost, "deadline": deadline}
    return intent.model_copy(update=changes)


def _ranks(members: Sequence[Assigned], each: int) -> tuple[int, ...]:
    return tuple(sorted(rank for member in members for rank in range(member.rank, member.rank + each)))


def _address(pod: PodView, port: int) -> str:
    return f"[{pod.ip}]:{port}" if ":" in pod.ip else f"{pod.ip}:{port}"


def _seated(draft: Draft, stays: list[PodView], joins: list[PodView]) -> list[PodView]:
    """The pods by rank: new members take the places of leavers if the size stays the same. A larger run has them among
    the members that stay, and a smaller one after them."""
    old, size = draft.current.plan.members if draft.current else (), len(stays) + len(joins)
    by_name, new = {pod.name: pod for pod in stays}, iter(joins)
    if size < len(old):
        return [*stays, *joins]
    places = dict(zip(spread(len(old), size, _row(draft, len(old), size)), old, strict=True))
    wanted = (by_name.get(places[place].name) if place in places else None for place in range(size))
    return [pod or next(new) for pod in wanted]


def spread(old: int, size: int, row: int) -> tuple[int, ...]:
    """The places of so many old members in a run of `size`, at least as many.

    A rank of a sharded model holds the part of the state at its own place. So each old member is where the middle of
    its part is now, in the same order: it keeps as much as it can, and all of them send to the new members at once. The
    first stays the first. `row`: so many members in a row stay together; it divides both sizes.
    """
    rows, larger = old // row, size // row
    firsts = [((2 * number + 1) * larger - 1) // (2 * rows) * row if number else 0 for number in range(rows)]
    return tuple(first + place for first in firsts for place in range(row))


def _row(draft: Draft, old: int, size: int) -> int:
    """How many members may belong together, as the shards of one replica do: the job allows only multiples of that."""
    spec = draft.snapshot.spec
    most = spec.elastic.max_replicas if spec.elastic else 0
    return gcd(*(largest(spec, at_most) for at_most in range(most + 1)), old, size)


def _plan(draft: Draft, pods: Sequence[PodView], seconds: int) -> RunPlan:
    status, processes = draft.status, draft.snapshot.spec.processes_per_replica
    upcoming = status.next or NextRun(run=next_run(status))
    given = max((run_given(pod.assignment) for pod in own(draft.snapshot).values()), default=0)
    run = max(upcoming.run, status.opened + 1, given + 1)  # a restored status knows less than the pods
    members = tuple(
        Assigned(name=pod.name, uid=pod.uid, rank=index * processes, node=pod.node) for index, pod in enumerate(pods)
    )
    return RunPlan(
        run=run,
        world=len(pods) * processes,
        master=_address(pods[0], FIRST_PORT + run % PORTS),
        cause=upcoming.cause,
        seconds=seconds,
        wait=seconds + WAIT_MARGIN_SECONDS if status.run else 0,
        lost=reduce(add_lost_run, upcoming.attempted_runs, status.lost),  # a member of each has ended: none can save
        floor=_floor(draft),
        members=members,
        assigned_time=draft.now,
    )


def _seconds(draft: Draft, roles: Succession) -> int:
    """How long members may take to save: until the first leaver has to end, as none can save without the others."""
    pods = own(draft.snapshot)
    seconds: float = draft.snapshot.spec.disruption.exit_timeout_seconds
    going = [pods[member.name] for member in roles.leaves]
    ends = [pod.deletion_deadline for pod in going]
    ends += deadlines_ahead(draft.snapshot, going)
    for end in ends:
        if end:
            seconds = min(seconds, (end - draft.now).total_seconds() - GRACE_MARGIN_SECONDS)
    return max(floor(seconds), 1)


def _floor(draft: Draft) -> Floor | None:
    """The newest known commit; None if there is none, or the user accepts any state (resumeAnyway)."""
    status = draft.status
    if not status.commit_seq or status.step is None or draft.snapshot.spec.checkpoint.resume_anyway:
        return None
    return Floor(seq=status.commit_seq, step=status.step)
