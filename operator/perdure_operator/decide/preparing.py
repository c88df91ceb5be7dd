"""Make before break: standbys start elsewhere while the run trains on; once all are Ready the next run is planned.

Members that stay keep their pods, and theirs ranks where the size is the same. Until the plan is written the signal may
be withdrawn and others may join it. Where standbys are not Ready in time, everybody saves and leaves, as without them.
"""

from __future__ import annotations

from dataclasses import replace

from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import CurrentRun, Disruption, Intent, PreviousRun, RunPlan
from perdure_operator.decide.disruptions import final_reason, reason_to_end
from perdure_operator.decide.draft import Draft, clock, later
from perdure_operator.decide.exit_problems import LATE_MARGIN_SECONDS, await_leavers
from perdure_operator.decide.facts import joined, own, refused
from perdure_operator.decide.intents import commit_to_leave, fall_back, limited, may_prepare, nobody_goes_on, ready_by
from perdure_operator.decide.placement import can_train
from perdure_operator.decide.plans import plan_in_place
from perdure_operator.decide.startup_problems import not_ready
from perdure_operator.decide.succession import Succession, succession


def reconsider(draft: Draft) -> Draft:
    """The signal may be withdrawn while nobody was told of it, and more members may have to leave."""
    current, intent = draft.current, draft.intent
    if current is None or intent is None:
        return draft
    found = reason_to_end(draft, current)
    if final := final_reason(draft, current):
        lost = found is not None and found.disruption is Disruption.MEMBER_LOST  # then there is nothing to save
        return commit_to_leave(draft, current, found if found and lost else final)
    if found is None:
        words = f"no longer true: {intent.cause}; nobody was asked to leave"
        return draft.update_current(intent=None).update(next=None).tell(Reason.WITHDRAWN, words)
    if found.disruption is not intent.disruption:
        draft = draft.tell(Reason(found.disruption), found.cause)
        if not may_prepare(draft, current, found):
            return commit_to_leave(draft, current, found)
    elif draft.snapshot.deleting or nobody_goes_on(draft, found):
        return commit_to_leave(draft, current, found)
    draft = draft.update_current(intent=limited(draft, current, found))
    if draft.status.next is None:
        return draft
    upcoming = draft.status.next.model_copy(update={"disruption": found.disruption, "cause": found.cause})
    return draft.update(next=upcoming)


def take_over(draft: Draft) -> Draft:
    """Write the next run's plan once its members are Ready on nodes that stay."""
    current, intent = draft.current, draft.intent
    if current is None or intent is None or not intent.prepare or draft.blocked:
        return draft
    heirs, pods = succession(draft), own(draft.snapshot)
    names = (*(member.name for member in heirs.stays), *draft.next_members)
    missing = tuple(name for name in names if name not in pods or not can_train(draft, pods[name]))
    if missing or refused(draft, names):
        return not_ready(draft, missing or names)
    if intent.not_before and draft.now < intent.not_before:
        words = f"the next run begins at {clock(intent.not_before)}: {intent.cause}"
        return draft.wait(Reason.BACKOFF, words, intent.not_before)
    if draft.status.previous:
        return await_leavers(draft, draft.status.previous)
    return _planned(draft, current, intent, heirs)


def give_up(draft: Draft) -> Draft:
    """When the time for standbys is over everybody saves and leaves; those that are there are used afterwards."""
    current, intent = draft.current, draft.intent
    if current is None or intent is None or not intent.prepare:
        return draft
    until, found = ready_by(current, intent), reason_to_end(draft, current)
    if until is None or found is None:
        return draft
    if draft.now < until:
        return draft.wake(until)
    held = draft.waiting.message if draft.waiting else "they are not Ready"
    return fall_back(draft, current, found, f"no standby has taken over by {clock(until)}: {held}")


def train_on(draft: Draft) -> Draft:
    """What standbys wait for is no reason for not training, as long as every member trains."""
    current, intent = draft.current, draft.intent
    if current is None or intent is None or not intent.prepare or current.outcomes:
        return draft
    if any(own(draft.snapshot)[member.name].deleting for member in succession(draft).leaves):
        return draft
    return replace(draft, standbys_wait=draft.waiting, waiting=None)


def _planned(draft: Draft, current: CurrentRun, intent: Intent, heirs: Succession) -> Draft:
    plan = plan_in_place(draft, heirs, lost=intent.disruption is Disruption.MEMBER_LOST)
    stay = {member.name for member in heirs.stays}
    previous = PreviousRun(
        run=current.run,
        members=tuple(member for member in current.plan.members if member.name not in stay),
        outcomes=current.outcomes,
        intent=_request(draft, intent, plan),
        replacements=current.replacements,
    )
    row = draft.status.next.replacements if draft.status.next else None
    run = CurrentRun(run=plan.run, plan=plan, replacements=row)
    draft = draft.update(current=run, previous=previous, next=None, run=plan.run, lost=plan.lost)
    return draft.tell(Reason.RUN_PLANNED, _words(plan, heirs))


def _request(draft: Draft, intent: Intent, plan: RunPlan) -> Intent:
    """What those who leave are told."""
    deadline = later(draft.now, plan.seconds + LATE_MARGIN_SECONDS)
    told = {"prepare": False, "leave": True, "seconds": plan.seconds, "lost": plan.lost, "deadline": deadline}
    return intent.model_copy(update=told)


def _words(plan: RunPlan, heirs: Succession) -> str:
    going = f"; {joined([member.name for member in heirs.leaves])} leave" if heirs.leaves else ""
    return (
        f"run {plan.run}: {len(plan.members)} members, {plan.world} processes; "
        f"{len(heirs.stays)} go on in their pods, {heirs.joins} are new{going}"
    )
