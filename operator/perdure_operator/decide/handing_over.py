"""A living run is being taken over: which of the two runs trains is known only from members that end.

The log decides, and the operator does not read it: it relies on what members have read there. A member that was handed
over, has saved, or reports the newer run's entry shows that the newer run goes on, live or in place. A member that has
read that it never does, or ended without a vote that was needed, shows that it does not: the older run trains on, if
all its members live, and the next attempt gets another number. Any other end shows nothing about the attempt.

One thing is certain without evidence: a run of which a member has ended trains no more. If both runs have lost one, no
member goes on with either; if only the older has, the operator waits a while for evidence. Without evidence the next
move is right in both cases: it names the runs that no member may go on with, and asks the one that is on to save.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from perdure.wire.truncation import shortened
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import CurrentRun, Disruption, Intent, MemberOutcome, NextRun, RunPlan
from perdure_operator.decide.disruptions import EndReason, final_reason, known_by, reason_to_end
from perdure_operator.decide.draft import Draft, Waiting, clock, doubled, later, next_run
from perdure_operator.decide.facts import (
    add_lost_run,
    joined,
    one_more,
    order_of_death,
    own,
    reports_save,
    still_running,
)
from perdure_operator.decide.history import failed_to_take_over
from perdure_operator.decide.outcomes import failed_by_itself, read_end
from perdure_operator.decide.plans import ATTEMPTS, succeed
from perdure_operator.decide.sizing import growth_seconds

NEWS_SECONDS: Final = 30
"""How long a move that has time waits for evidence of the previous one: most attempts are over by then."""
SILENT_SECONDS: Final = 10
"""How long it waits if no member leaves, so that no end shows that the newer run has begun.

The only evidence is then the end of a newcomer that failed, most often at once. Its replacement has to start before the
next offer.
"""

_WHY_CHARACTERS: Final = 400
"""How much of a newcomer's error a message shows."""


def resolve_handover(draft: Draft) -> Draft:
    """Find out which run goes on, or move on without that."""
    current, intent, upcoming = draft.current, draft.intent, draft.status.next
    if current is None or intent is None or upcoming is None or upcoming.plan is None:
        return draft
    plan = upcoming.plan
    known, failed = known_by(draft, plan), _ended_newcomers(draft, upcoming, plan)
    if _goes_on(draft, current, plan, failed):
        return succeed(draft, current, plan, intent)
    never = _aborted(plan, (*current.outcomes, *failed))
    if current.outcomes:
        if never:
            return _try_again(draft, upcoming, plan, intent, failed)
        return _resolve_without_evidence(draft, current, plan, intent, failed)
    if failed:
        if never or draft.now < _decided_by(draft, plan):
            return _try_again(draft, upcoming, plan, intent, failed)
        return succeed(draft, current, plan, intent, unconfirmed=True)
    if draft.now >= known:
        return succeed(draft, current, plan, intent)
    return _move_on(draft, current, plan, intent).wake(known)


def _goes_on(draft: Draft, current: CurrentRun, plan: RunPlan, failed: list[MemberOutcome]) -> bool:
    """Whether a member reports that the newer run has taken over, or that the older one has ended in the log."""
    known = draft.status.opened >= plan.run or reports_save(current.run, current)
    return known or any(one.taken_over_by == plan.run for one in (*current.outcomes, *failed))


def _aborted(plan: RunPlan, ends: Iterable[MemberOutcome]) -> bool:
    """Whether a member reports that it never will."""
    return any(one.aborted_run == plan.run for one in ends)


def _resolve_without_evidence(
    draft: Draft, current: CurrentRun, plan: RunPlan, intent: Intent, failed: list[MemberOutcome]
) -> Draft:
    """Go on after the older run lost a member: it trains no more.

    If the newer run lost one, too, or the older has no member left, move on at once. Otherwise wait: a member that is
    left most often soon shows by its own end which run goes on.
    """
    ended = {one.name for one in current.outcomes}
    both = failed or any(member.name in ended for member in plan.members)
    none_left = all(member.name in ended for member in current.plan.members)
    first = min(current.outcomes, key=order_of_death)
    news = later(first.time or draft.now, NEWS_SECONDS)
    if both or none_left or draft.now >= news:
        return succeed(draft, current, plan, intent, unconfirmed=True)
    after = _move_on(draft, current, plan, intent).wake(news)
    if after.current is not current or after.standbys_wait:
        return after
    what = f"whether run {plan.run} has taken over is unknown"
    words = (
        f"{first.name} of run {current.run} has ended, and {what}; a member that ends until {clock(news)} may show it"
    )
    return after.but(standbys_wait=Waiting(Reason(intent.disruption), words))


def confirm(draft: Draft) -> Draft:
    """Confirm a run that was taken for the current one, once the log shows it, or its time to begin is over.

    Not if a member has reported that it never takes over.
    """
    current = draft.current
    if current is None or not current.unconfirmed or failed_to_take_over(draft, current.run):
        return draft
    known = known_by(draft, current.plan)
    if draft.status.opened >= current.run or draft.now >= known:
        return draft.update_current(unconfirmed=False)
    return draft.wake(known)


def _decided_by(draft: Draft, plan: RunPlan) -> datetime:
    """By when the attempt is decided: a newcomer that ends later was most likely a member of the newer run."""
    limit = plan.handover.limit if plan.handover else 0
    return later(plan.assigned_time or draft.now, limit + NEWS_SECONDS)


def _ended_newcomers(draft: Draft, upcoming: NextRun, plan: RunPlan) -> list[MemberOutcome]:
    pods = own(draft.snapshot)
    newcomers = [member for member in plan.members if member.name in upcoming.members]
    return [end for member in newcomers if (end := read_end(draft, member, pods.get(member.name)))]


def _try_again(draft: Draft, upcoming: NextRun, plan: RunPlan, intent: Intent, failed: list[MemberOutcome]) -> Draft:
    """Try again with other newcomers. The ones before cost no failure, only a pause and an attempt.

    If members of the older run have ended, too, the older run has lost them.
    """
    members = draft.current.outcomes if draft.current else ()
    ends = joined([f"{one.name}: {_how_ended(one)}" for one in (*members, *failed)])
    words = f"run {plan.run} has not taken over from run {plan.takes_over}: {ends}"
    where = {member.name: member.node for member in plan.members}
    nodes = [where[one.name] for one in failed if failed_by_itself(one)]
    attempts, broken = upcoming.attempts + 1, upcoming.broken + bool(nodes)
    again = NextRun(
        run=next_run(draft.status),
        attempts=attempts,
        broken=broken,
        attempted_runs=add_lost_run(upcoming.attempted_runs, plan.run),
        fallback_reason=words if attempts - broken >= ATTEMPTS else "",
        disruption=upcoming.disruption,
        cause=upcoming.cause,
        replacements=one_more(draft, upcoming.replacements, words, nodes) if nodes else upcoming.replacements,
    )
    grows = intent.disruption is Disruption.SIZE_CHANGE and not plan.leavers
    pause, time = doubled(draft.now, attempts), growth_seconds(draft.snapshot.spec, offered=True)
    until = later(draft.now, time) if grows or intent.grow_by else None
    intent = intent.model_copy(update={"ready_by": None, "not_before": pause, "grow_by": until})
    draft = draft.update_current(intent=intent).update(next=again)
    return draft.tell(Reason.HANDOVER_FAILED, words, warning=True)


def _how_ended(one: MemberOutcome) -> str:
    """How a newcomer ended, and why: the last line of its traceback, which names the error."""
    lines = one.error_tail.strip().splitlines()
    last = shortened(lines[-1], _WHY_CHARACTERS) if lines else ""
    name = "" if last.startswith(one.error_name) else one.error_name
    return ": ".join(word for word in (one.outcome, name, last) if word)


def _move_on(draft: Draft, current: CurrentRun, plan: RunPlan, intent: Intent) -> Draft:
    """Move on for another reason, as if the newer run were on: the next plan asks the run that is on to save."""
    after = succeed(draft, current, plan, intent, unconfirmed=True)
    if after.current is None:
        return draft
    if final_reason(after, after.current):
        return after
    found = reason_to_end(after, after.current)
    if found is None:
        return draft
    patience = later(plan.assigned_time or draft.now, NEWS_SECONDS if plan.leavers else SILENT_SECONDS)
    if draft.now >= patience or _has_no_time(draft, plan, found):
        return after
    held = f"then {found.cause}; that waits until {clock(patience)}, as only members that end report how this ended"
    return draft.but(standbys_wait=Waiting(Reason(found.disruption), held)).wake(patience)


def _has_no_time(draft: Draft, plan: RunPlan, found: EndReason) -> bool:
    """Whether the reason cannot wait: a node with a deadline, damaged hardware, a deleted member of the older run.

    A deleted newcomer shows by its end which run trains; if that is the newer one, it makes all its members save.
    """
    if found.disruption is not Disruption.MEMBER_DELETED:
        return found.urgent
    go_on = {member.name for member in plan.members}
    return any(pod.deleting and pod.name in go_on for pod in still_running(draft))
