"""Make before break: standbys start elsewhere while the run trains on; once all are Ready the next run is planned.

Members that stay keep their pods, and their ranks if the size is the same. Until the plan is written the signal may be
withdrawn and others may join it. If standbys are not Ready in time, all members save and leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from perdure.wire import Completion, Env
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import CurrentRun, Disruption, Intent, NextRun, RunPlan
from perdure_operator.decide.assignments import run_named
from perdure_operator.decide.disruptions import (
    EndReason,
    describe_flapping,
    final_reason,
    flapping_nodes,
    flapping_until,
    reason_to_end,
    withdrawn,
)
from perdure_operator.decide.draft import Draft, Waiting, clock, later, next_run
from perdure_operator.decide.facts import (
    joined,
    made_from_another,
    order_of_death,
    own,
    patience,
    refused,
    still_running,
    template_of,
    unexpected,
)
from perdure_operator.decide.failing_members import new_members_fail, spares_the_run
from perdure_operator.decide.intents import fall_back, leave_at_once, limited, may_prepare, ready_by
from perdure_operator.decide.placement import can_start, can_train
from perdure_operator.decide.plans import live_plan, plan_in_place, succeed
from perdure_operator.decide.signals import signals_of_nodes
from perdure_operator.decide.sizing import (
    give_up_growing,
    grows_later,
    growth_seconds,
    lasts,
    most_with,
    size_of,
    wanted_size,
)
from perdure_operator.decide.standby_pool import give_back
from perdure_operator.decide.succession import Succession, keep, state_leaves_until, succession
from perdure_operator.decide.waiting import await_leavers, not_ready, why_ready_no_more
from perdure_operator.state.snapshot import PodView

_TRAINING: Final = frozenset({Disruption.NODE_LEAVING, Disruption.SIZE_CHANGE, Disruption.RUN_LOST})
"""Reasons for which every member trains until the next run is planned, if it trains now."""
_AFTER_OTHERS: Final = frozenset({Disruption.NODE_LEAVING, Disruption.SIZE_CHANGE})
"""Reasons that are found only if there is no other."""
_UNSAVED: Final = frozenset({Disruption.MEMBER_LOST, Disruption.NODE_FAULT})
"""Reasons after which the run cannot save, even if another reason holds too."""
_RENEWED_SECONDS: Final = 10
"""A time for new members that begins again is no shorter: status is written each time."""
_GPUS: Final = ("nvidia.com/", "amd.com/gpu")


def reconsider(draft: Draft) -> Draft:
    """Look at the reasons again: the signal may be withdrawn as long as no member knows of it, or others may join it.

    Once members were offered a run it is not known which run trains: then they become another run in any case.
    """
    current, intent, upcoming = draft.current, draft.intent, draft.status.next
    if current is None or intent is None:
        return draft
    found = reason_to_end(draft, current)
    if final := final_reason(draft, current):
        lost = found is not None and found.disruption in _UNSAVED
        return leave_at_once(draft, current, found if found and lost else final)
    if found is None and upcoming and upcoming.attempts:
        return draft
    if found is None:
        words = f"no longer true: {intent.cause}; no member was asked to leave"
        draft = withdrawn(give_back(draft, draft.next_members), intent, intent.nodes)
        return draft.update_current(intent=None).update(next=None).tell(Reason.WITHDRAWN, words)
    if found.disruption is not intent.disruption:
        draft = draft.tell(Reason(found.disruption), found.cause)
    if not may_prepare(draft, current, found):
        return leave_at_once(draft, current, found)
    if gone := _not_left_any_more(draft, intent, found):
        draft = withdrawn(draft, intent, gone)
    draft = draft.update_current(intent=limited(draft, current, found))
    if upcoming is None:
        return draft
    return draft.update(next=upcoming.model_copy(update={"disruption": found.disruption, "cause": found.cause}))


def _not_left_any_more(draft: Draft, intent: Intent, found: EndReason) -> tuple[str, ...]:
    """The nodes that show no signal any more; unknown, and so none, while a reason holds that outranks theirs."""
    if found.disruption not in _AFTER_OTHERS or set(intent.nodes) <= set(found.nodes):
        return ()
    shown = {signal.node for signal in signals_of_nodes(draft.snapshot, still_running(draft))}
    return tuple(name for name in intent.nodes if name not in shown)


def let_settle(draft: Draft) -> Draft:
    """Hold back a new member for a signal that comes and goes while another one stays.

    At most for half of the time that the other signal leaves, as all members would have to leave when that is over.
    """
    intent = draft.intent
    if intent is None or intent.disruption is not Disruption.NODE_LEAVING or intent.deadline_seen:
        return draft
    nodes = flapping_nodes(draft, intent.nodes)
    until = flapping_until(draft, nodes)
    if until is None:
        return draft
    if intent.ready_by:
        until = min(until, later(intent.ready_by, -patience(draft.snapshot, intent.disruption) / 2))
    roles, pods = succession(draft), own(draft.snapshot)
    waiting = sum(1 for one in roles.leaves if pods[one.name].node in nodes)
    if draft.now >= until or len(draft.next_members) not in range(roles.joins - waiting, roles.joins):
        return draft
    words = f"the next member is made at {clock(until)}: {describe_flapping(draft, nodes)}"
    return draft.block(Reason.REPLACING_MEMBERS, words, until)


def take_over(draft: Draft) -> Draft:
    """Write the next run's plan once its members are Ready on nodes that stay."""
    current, intent = draft.current, draft.intent
    if current is None or intent is None or not intent.prepare or draft.blocked:
        return draft
    roles, pods = succession(draft), own(draft.snapshot)
    names = (*(member.name for member in roles.stays), *draft.next_members)
    early = draft.next_members if _none_trains(draft, current, intent) else ()
    fit = {name: can_start if name in early else can_train for name in names}
    missing = tuple(name for name in names if name not in pods or not fit[name](draft, pods[name]))
    staying = [pods[name] for name in missing if name in pods and name not in draft.next_members]
    if len(staying) == len(missing) and (hidden := why_ready_no_more(draft, staying)):
        return draft.wait(*hidden)
    if missing or refused(draft, names):
        return not_ready(draft, missing or names)
    if intent.not_before and draft.now < intent.not_before:
        words = f"the next run begins at {clock(intent.not_before)}: {intent.cause}"
        return draft.wait(Reason.BACKOFF, words, intent.not_before)
    if draft.status.previous:
        return await_leavers(draft, draft.status.previous)
    if begun := state_leaves_until(draft):
        return draft.wait(Reason.BACKOFF, _held_back(current, roles, begun), begun)
    found = reason_to_end(draft, current)
    if found and _all_go_elsewhere(draft, roles):
        return leave_at_once(draft, current, found, fallback_reason="all members are made from another template").allot(
            ()
        )
    return _planned(draft, current, intent, roles)


def _held_back(current: CurrentRun, roles: Succession, until: datetime) -> str:
    """Why the move waits: only leaving members may hold the newest state."""
    holders = joined([one.name for one in roles.leaves])
    return (
        f"only {holders} may hold the state that run {current.run} begins with: the next run waits until {clock(until)}"
    )


def _all_go_elsewhere(draft: Draft, roles: Succession) -> bool:
    """Whether all members are new and may have another root: it may be claimed, so the old members end first."""
    pods = own(draft.snapshot)
    if roles.stays or not any(made_from_another(draft, pods[one.name]) for one in roles.leaves):
        return False
    names = (*(one.name for one in roles.leaves), *draft.next_members)
    roots = {pods[name].root for name in names if name in pods}
    return len(roots) > 1 or "" in roots


def _none_trains(draft: Draft, current: CurrentRun, intent: Intent) -> bool:
    """Whether new members get their ranks before they are warm: training begins sooner, and no member trains meanwhile.

    A member that dies as it imports is a failure, and a standby that does costs none: so this is tried once in a row.
    """
    upcoming = draft.status.next
    replaced = upcoming and upcoming.replacements
    return intent.disruption is Disruption.MEMBER_LOST and current.warm and not replaced


def take_over_with_fewer(draft: Draft) -> Draft:
    """The job goes on with the members that it has, in one of its sizes, before training stops or all have to leave."""
    current, intent, upcoming = draft.current, draft.intent, draft.status.next
    if draft.status.previous or (upcoming and upcoming.plan):
        return draft
    if current is None or intent is None or not intent.prepare or _has_no_root(draft):
        return draft
    roles, pods = succession(draft), own(draft.snapshot)
    if _all_go_elsewhere(draft, roles) or not all(can_train(draft, pods[one.name]) for one in roles.stays):
        return draft
    ready = tuple(name for name in draft.next_members if name in pods and can_train(draft, pods[name]))
    size = most_with(draft, len(roles.stays) + len(ready))
    joins, stays = ready[: max(size - len(roles.stays), 0)], keep(draft, roles.stays, size)
    if refused(draft, (*(one.name for one in stays), *joins)):
        return draft
    draft, due = _goes_on_with(draft, current, intent, roles, size)
    if not due:
        return draft
    if _cannot_train_on(draft, current, intent) and not joins:
        draft = give_up_growing(draft)
    leaves = (*roles.leaves, *(one for one in roles.stays if one not in stays))
    fewer = Succession(stays, leaves, len(joins))
    others = tuple(name for name in draft.next_members if name not in joins)
    return _planned(give_back(draft, others).allot(joins).but(waiting=None), current, intent, fewer)


def _goes_on_with(
    draft: Draft, current: CurrentRun, intent: Intent, roles: Succession, size: int
) -> tuple[Draft, bool]:
    """Whether it is time for a run of this size; 0 means no run.

    If a member has ended no member trains: then it is time as soon as a run may begin at all.
    """
    have, until = len(current.plan.members), ready_by(draft, current, intent)
    begins = state_leaves_until(draft) or intent.not_before or draft.now
    if unexpected(draft.snapshot, current):
        due = size > 0
    elif intent.disruption is Disruption.SIZE_CHANGE and not roles.leaves:
        draft, due = lasts(draft, size if size > have else 0)
        due = due or (size > 0 and _cannot_train_on(draft, current, intent))
    elif all_by := _awaits_all_until(draft, intent):
        draft, due = draft.wake(all_by), False
    else:
        due = size > 0 and (size >= have or (until is not None and draft.now >= until))
    return draft.wake(begins), due and draft.now >= begins


def _awaits_all_until(draft: Draft, intent: Intent) -> datetime | None:
    """Until when a fixed size that grows awaits all new members though some could replace the old ones, which leave
    only because they were made from another template; None if that time is over, or in any other case."""
    spec = draft.snapshot.spec
    until = later(intent.since, growth_seconds(spec, offered=False))
    waits = spec.elastic is None and intent.disruption is Disruption.SIZE_CHANGE and draft.now < until
    return until if waits else None


def _cannot_train_on(draft: Draft, current: CurrentRun, intent: Intent) -> bool:
    """Whether the time for new members of a larger run is over, and the current run cannot just go on.

    Members were offered a run, and none has reported since which run trains. They may wait for members that never come:
    another run ends that. Or an edit allows a smaller size and not the current one.
    """
    upcoming, have = draft.status.next, len(current.plan.members)
    if intent.grow_by is None or upcoming is None or draft.now < intent.grow_by:
        return False
    return upcoming.attempts > 0 or 0 < most_with(draft, have) < have


def _has_no_root(draft: Draft) -> bool:
    """Whether another job has a better claim to the root; other gates hold back new members alone."""
    return draft.blocked and draft.waiting is not None and draft.waiting.reason is Reason.SHARED_ROOT


def stop_growing(draft: Draft) -> Draft:
    """When the time for new members of a larger run is over, release them: the run trains on in its size.

    Not after members were offered a run: then none has reported which run trains, see `take_over_with_fewer`.
    """
    current, intent, upcoming = draft.current, draft.intent, draft.status.next
    if current is None or intent is None or not intent.prepare or intent.grow_by is None:
        return draft
    if (upcoming and upcoming.plan) or intent.disruption is not Disruption.SIZE_CHANGE or succession(draft).leaves:
        return draft
    if draft.now < intent.grow_by:
        return draft.wake(intent.grow_by)
    if upcoming and upcoming.attempts:
        return draft
    draft = give_back(draft, draft.next_members).update_current(intent=None).update(next=None)
    draft = give_up_growing(draft).but(waiting=None)
    words = f"new members were not Ready in time; run {current.run} keeps its size{grows_later(draft)}"
    return draft.tell(Reason.GROWTH_GIVEN_UP, words)


def give_up(draft: Draft) -> Draft:
    """When the time for standbys is over, ask all members to save and leave; the next run uses the standbys."""
    current, intent, upcoming = draft.current, draft.intent, draft.status.next
    if current is None or intent is None or not intent.prepare or (upcoming and upcoming.plan):
        return draft
    until, found = ready_by(draft, current, intent), reason_to_end(draft, current)
    if until is None or found is None:
        return draft
    if draft.now < until:
        return draft.wake(until)
    held = draft.waiting or Waiting(Reason.STARTING_MEMBERS, "they are not Ready")
    if spares_the_run(draft):
        return _go_on_trying(draft, intent, held)
    if new_members_fail(draft):
        return _go_on_without(draft, current, intent, held) or fall_back(draft, current, found, held)
    return fall_back(draft, current, found, held)


def _go_on_without(draft: Draft, current: CurrentRun, intent: Intent, held: Waiting) -> Draft | None:
    """After a failed offer of another size: begin another run of the members that there are, and then try again.

    It is not known which run trains: they may wait for members that never come, which another run ends. None if one of
    them cannot go on. A member that was Ready before may train, and is awaited: each act of a handover has a deadline.
    """
    members, pods = current.plan.members, own(draft.snapshot)
    unfit = [one for one in members if one.name not in pods or not can_train(draft, pods[one.name])]
    hidden = why_ready_no_more(draft, [pods[one.name] for one in unfit if one.name in pods])
    awaited = hidden or draft.status.previous or _has_no_root(draft)
    if awaited or refused(draft, [one.name for one in members]):
        return _go_on_trying(draft, intent, held)
    if unfit or size_of(current.plan).each != wanted_size(draft.snapshot).each:
        return None
    if intent.not_before and draft.now < intent.not_before:
        return draft.wake(intent.not_before)
    alone = give_back(draft, draft.next_members).allot(()).but(waiting=None)
    return _planned(alone, current, intent, Succession(members))


def _go_on_trying(draft: Draft, intent: Intent, held: Waiting) -> Draft:
    """Train on, and keep trying: the next members would fail as the last ones did.

    The time of those that could not start begins again, so that they have all of it once the cause is gone.
    """
    series = draft.status.next.replacements if draft.status.next else None
    if series is None or not series.nodes:
        until = later(draft.now, max(patience(draft.snapshot, intent.disruption), _RENEWED_SECONDS))
        draft = draft.update_current(intent=intent.model_copy(update={"ready_by": until})).wake(until)
    if series is None or held.message.endswith(series.cause):
        return draft
    return draft.but(waiting=Waiting(held.reason, f"{held.message}; those before: {series.cause}"))


def train_on(draft: Draft) -> Draft:
    """While every member trains, show what the job waits for as the standbys' wait and not as the job's."""
    current, intent = draft.current, draft.intent
    if current is None or intent is None or not intent.prepare or current.outcomes:
        return draft
    if any(own(draft.snapshot)[member.name].deleting for member in succession(draft).leaves):
        return draft
    return draft.but(standbys_wait=draft.waiting, waiting=None)


def _planned(draft: Draft, current: CurrentRun, intent: Intent, roles: Succession) -> Draft:
    """Plan the next run: live if that can be tried, otherwise in place."""
    upcoming = draft.status.next or NextRun(run=next_run(draft.status))
    why = _not_live(draft, current, intent, roles)
    plan = live_plan(draft, roles) if not why else None
    if plan:
        draft = draft.update(next=upcoming.model_copy(update={"plan": plan}), run=plan.run)
        return draft.tell(Reason.RUN_PLANNED, _words(plan, roles, f"live hand-over from run {current.run}"))
    lost = intent.disruption is Disruption.MEMBER_LOST
    plan = plan_in_place(draft, roles, lost=lost)
    why = why or "an assignment has no room for more"
    saves = "saves and they go on in their pods" if roles.stays else "saves and leaves"
    ends = "is lost; the surviving members restart in their pods" if lost else saves
    how = f"run {current.run} {ends}: {why}"
    return succeed(draft, current, plan, intent, why=why).tell(Reason.RUN_PLANNED, _words(plan, roles, how))


def _not_live(draft: Draft, current: CurrentRun, intent: Intent, roles: Succession) -> str:
    """Why the current run cannot be asked to change its membership as it trains, "" if that can be tried.

    It need not be known to train: a member that still decides whether it has taken over waits for that decision first,
    and a member of the previous run saves.
    """
    snapshot, upcoming, pods = draft.snapshot, draft.status.next, own(draft.snapshot)
    refused, old = draft.status.live_refused, (*roles.stays, *roles.leaves)
    template = {template_of(draft, pods[name]) for name in (*(one.name for one in old), *draft.next_members)}
    if upcoming and upcoming.fallback_reason:
        return upcoming.fallback_reason
    if why := _who_cannot(current, intent, [pods[one.name] for one in old]):
        return why
    if snapshot.spec.completion is not Completion.LOG:
        return "with completion ExitCode its script has no Session"
    if intent.disruption is Disruption.RUN_LOST and current.plan.handover is None:
        return f"run {current.plan.takes_over} cannot save any more"
    if len(template) > 1 or size_of(current.plan).each != wanted_size(snapshot).each:
        return "the members are not all made from one template"
    if why := _template_rules_out(snapshot.spec.template):
        return why
    if refused and refused.template in template:
        return refused.why or "its script cannot"
    if any(run_named(pods[one.name].assignment) < current.run or not pods[one.name].ready for one in old):
        return f"run {current.run} has not begun on all its members"
    return ""


def _who_cannot(current: CurrentRun, intent: Intent, members: Sequence[PodView]) -> str:
    """Which member has ended, or has to, so that no run trains whose membership could change; "" if none."""
    if current.outcomes:
        first = min(current.outcomes, key=order_of_death)
        more = f", and {len(current.outcomes) - 1} more" if len(current.outcomes) > 1 else ""
        return f"{first.name} has ended ({first.error_name or first.outcome}){more}"
    if deleted := [pod.name for pod in members if pod.deleting]:
        return f"members are being deleted: {joined(deleted)}"
    return "" if intent.disruption in _TRAINING else "not all its members train"


def _template_rules_out(template: Mapping[str, Any]) -> str:
    """Why no script of this template can, "" if one can: every Session would refuse, so members are not asked."""
    trainer: dict[str, Any] = next(iter(template.get("spec", {}).get("containers") or ()), {})
    said = next((one.get("value") for one in trainer.get("env") or () if one.get("name") == Env.LIVE), None)
    if said == "no":
        return f"{Env.LIVE}=no"
    gpus = [name for name in trainer.get("resources", {}).get("limits") or () if name.startswith(_GPUS)]
    if gpus and said != "yes":
        return f"on GPUs ({gpus[0]}) ranks change live only with {Env.LIVE}=yes: it is not proven there"
    return ""


def _words(plan: RunPlan, roles: Succession, how: str) -> str:
    left = sorted({member.node for member in roles.leaves} - {"", *(member.node for member in plan.members)})
    emptied = f", and no member is left on {joined(left)}" if left else ""
    going = f"; {joined([member.name for member in roles.leaves])} leave{emptied}" if roles.leaves else ""
    return (
        f"run {plan.run}: {len(plan.members)} members, {plan.world} processes; "
        f"{len(roles.stays)} stay, {roles.joins} are new{going}; {how}"
    )
