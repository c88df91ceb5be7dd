"""Standbys: how they are named, which spares are kept warm, and which of them the next run takes.

A run that has begun has `elastic.spares` spares. A spare that cannot be used any more is replaced, at a pace that never
becomes a storm. Members come first: new spares are made only while nothing asks
the run to change. A job without `elastic` has none.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from perdure_operator.api import names
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import Disruption, Replacements, RunPlan, Spares
from perdure_operator.decide.blame import backoff_until
from perdure_operator.decide.draft import PAUSE_AT_MOST_SECONDS, Draft, clock, doubled_seconds, later
from perdure_operator.decide.facts import EDIT_SECONDS, joined, one_more, own
from perdure_operator.decide.placement import how_far, why_unfit, why_useless
from perdure_operator.decide.sizing import grows_again_at, wanted_size
from perdure_operator.decide.succession import only_grows, succession
from perdure_operator.state.snapshot import RefusalKind

FIRST_PAUSE_SECONDS: Final = 10
"""The first pause between spares, longer than between members: no run waits for a spare, and each try writes status."""

BEGINNING_SECONDS: Final = 5
"""How long after its plan a run gets no new spares: a pod that imports would take CPU from trainers that start."""
CHANGED_SECONDS: Final = 30
"""How long after its offer a run gets no new spares: most attempts are over by then, reported or not."""
FORGOTTEN_SECONDS: Final = 2 * PAUSE_AT_MOST_SECONDS
"""How long after the last replacement a spare that fails begins another series."""


def new_names(draft: Draft, count: int) -> tuple[Draft, tuple[str, ...]]:
    """`count` member names that were never used, and the draft that has used them up."""
    snapshot = draft.snapshot
    first = max([draft.status.next_member, *(names.member_number(name) + 1 for name in own(snapshot))])
    new = tuple(names.member(snapshot.name, snapshot.uid, first + index) for index in range(count))
    return draft.update(next_member=first + len(new)), new


def take_spares(draft: Draft) -> Draft:
    """Give the next run the standbys that can train soonest; those that it needs no more become spares."""
    draft = _without_roomless(draft)
    if not draft.spares:
        return draft
    pods, wanted = own(draft.snapshot), succession(draft).joins
    there = [name for name in draft.spares if name in pods and not why_unfit(draft, name, pods[name])]
    chosen = soonest(draft, (*draft.next_members, *there), wanted)
    taken = tuple(name for name in (*draft.next_members, *there) if name in chosen)
    if not taken or taken == draft.next_members:
        return draft
    back = (name for name in draft.next_members if name not in chosen)
    left = (*(name for name in draft.spares if name not in chosen), *back)
    return draft.allot(taken).set_aside(left)


def give_back(draft: Draft, names: tuple[str, ...]) -> Draft:
    """Keep those of these names as spares that have pods, as no run needs them any more; only `elastic` jobs do."""
    pods = own(draft.snapshot)
    made = tuple(name for name in names if name in pods)
    if draft.snapshot.spec.elastic is None or not made:
        return draft
    return draft.set_aside((*draft.spares, *made))


def keep_spares(draft: Draft) -> Draft:
    """Release spares that are too many or of no use, and create missing ones."""
    if draft.status.spares is None and draft.snapshot.spec.elastic is None:
        return draft
    return _fill(_keep_soonest(_drop_unfit(draft)))


def soonest(draft: Draft, names: tuple[str, ...], most: int) -> frozenset[str]:
    """The `most` of these names that can train soonest; of equals the first."""
    pods = own(draft.snapshot)
    return frozenset(sorted(names, key=lambda name: -how_far(draft, pods.get(name)))[:most])


def paused_until(draft: Draft) -> datetime | None:
    """Until when no spare is created; None if one may be. The pause doubles with each replacement after the first."""
    series = draft.status.spares.replacements if draft.status.spares else None
    if series is None or series.count < 2:
        return None
    until = later(series.last_time, doubled_seconds(series.count - 1, FIRST_PAUSE_SECONDS, PAUSE_AT_MOST_SECONDS))
    if series.generation != draft.snapshot.generation:
        until = min(until, later(series.last_time, EDIT_SECONDS))
    return until if draft.now < until else None


def _without_roomless(draft: Draft) -> Draft:
    """Release spares of the joiners' class that have no node, if a member's place is free: they would use up quota.

    The new member has the template's PriorityClass, and may find room where such a spare does not.
    """
    elastic, pods = draft.snapshot.spec.elastic, own(draft.snapshot)
    named = elastic.joiner_priority_class_name if elastic else None
    if named is None or succession(draft).joins <= len(draft.next_members) or only_grows(draft):
        return draft
    roomless = {name for name in draft.spares if name in pods and not pods[name].node}
    lower = {name for name in roomless if pods[name].priority_class == named}
    return draft.set_aside(tuple(name for name in draft.spares if name not in lower)) if lower else draft


def _most(draft: Draft) -> int:
    """How many spares there may be: as many as the spec asks for, or as many as the run is about to grow by."""
    snapshot, intent, elastic = draft.snapshot, draft.intent, draft.snapshot.spec.elastic
    if elastic is None or snapshot.spec.suspend or snapshot.deleting:
        return 0
    if intent and intent.leave and intent.disruption is Disruption.STOP:
        return 0
    if draft.current is None and draft.blocked and not _pauses(draft):
        return 0  # a job that waits without a run leaves the room to others
    return max(elastic.spares, _to_grow_by(draft))


def _pauses(draft: Draft) -> bool:
    return draft.waiting is not None and draft.waiting.reason is Reason.BACKOFF


def _to_grow_by(draft: Draft) -> int:
    current, plan, upcoming = draft.current, draft.newest_plan, draft.status.next
    if current is None or plan is None or grows_again_at(draft, current):
        return 0
    named = len(upcoming.members) if upcoming and not upcoming.plan else 0
    return max(wanted_size(draft.snapshot).members - len(plan.members) - named, 0)


def _keep_soonest(draft: Draft) -> Draft:
    """Release spares beyond the most there may be; those that can train soonest stay."""
    most = _most(draft)
    if len(draft.spares) <= most:
        return draft
    kept = soonest(draft, draft.spares, most)
    return draft.set_aside(tuple(name for name in draft.spares if name in kept))


def _drop_unfit(draft: Draft) -> Draft:
    """Release spares that cannot train.

    One on a node that need not be left stays: it helps after a member was lost, and the next may land there too.
    """
    pods = own(draft.snapshot)
    unfit = {
        name: why for name in draft.spares if (why := why_useless(draft, name, pods.get(name)) or _refused(draft, name))
    }
    if not unfit:
        return draft
    words = joined([f"{name} {why}" for name, why in unfit.items()])
    draft = draft.tell(Reason.SPARE_REPLACED, f"spares that cannot train are deleted: {words}")
    left = tuple(name for name in draft.spares if name not in unfit)
    return draft.update(spares=Spares(names=left, replacements=_one_more(draft, words)))


def _refused(draft: Draft, name: str) -> str:
    """Why this spare's pod was refused, "" if it was not. Asking again in every round would hold up urgent writes."""
    refusals = (one for one in draft.snapshot.refusals if one.kind is RefusalKind.REFUSED)
    return next((f"was refused: {one.message}" for one in refusals if one.pod == name), "")


def _one_more(draft: Draft, cause: str) -> Replacements:
    old = draft.status.spares.replacements if draft.status.spares else None
    lately = old if old and draft.now < later(old.last_time, FORGOTTEN_SECONDS) else None
    return one_more(draft, lately, cause)


def _fill(draft: Draft) -> Draft:
    """Name new spares for missing ones, beside a run that trains and does not change, or has most likely changed."""
    current, elastic = draft.current, draft.snapshot.spec.elastic
    missing = (elastic.spares if elastic else 0) - len(draft.spares)
    if missing <= 0 or current is None or current.outcomes or not current.warm:
        return draft
    offered = _offered(draft)
    if draft.snapshot.deleting or draft.blocked or (current.intent and not offered):
        return draft
    begun = _begins(offered, CHANGED_SECONDS) if offered else _begins(current.plan, BEGINNING_SECONDS)
    pauses = (begun, paused_until(draft), backoff_until(draft.status.failures))
    if until := max((until for until in pauses if until and draft.now < until), default=None):
        return draft.wake(until).because(f"the next spares are created at {clock(until)}")
    draft, new = new_names(draft, missing)
    return draft.set_aside((*draft.spares, *new))


def _offered(draft: Draft) -> RunPlan | None:
    """The plan of a run that all members were offered; it may take long until one reports that a larger run is on."""
    return draft.status.next.plan if draft.status.next else None


def _begins(plan: RunPlan, seconds: int) -> datetime | None:
    """When the run of this plan gets new spares; None at once, if an older operator has not noted the plan's time."""
    return later(plan.assigned_time, seconds) if plan.assigned_time else None
