"""Standbys beside the run: whom the next run takes from among them, and whom it gives back.

Moves of names within status, and how many there may be. A job without `elastic` has none. Called by the policies that
name members and plan runs; `sparing` alone makes new ones and lets go of them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import Disruption
from perdure_operator.decide.backoff import doubled_seconds
from perdure_operator.decide.draft import PAUSE_AT_MOST_SECONDS, Draft, later
from perdure_operator.decide.facts import EDIT_SECONDS, own, wanted_size
from perdure_operator.decide.fitness import how_far, why_unfit
from perdure_operator.decide.growth import rests_until
from perdure_operator.decide.succession import only_grows, succession

FIRST_PAUSE_SECONDS: Final = 10
"""Nobody waits for a spare: what takes or refuses one may do the same to the next, and each try is written down."""


def take_spares(draft: Draft) -> Draft:
    """The next run has those for its members who can train soonest; whom it needs no more is kept beside it."""
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
    """These were named for a run that goes on without them: those that were made are kept, if there may be so many."""
    pods = own(draft.snapshot)
    made = tuple(name for name in names if name in pods)
    if draft.snapshot.spec.elastic is None or not made:
        return draft
    return draft.set_aside((*draft.spares, *made))


def keep_soonest(draft: Draft) -> Draft:
    """No more of them than there may be."""
    most = _most(draft)
    if len(draft.spares) <= most:
        return draft
    kept = soonest(draft, draft.spares, most)
    return draft.set_aside(tuple(name for name in draft.spares if name in kept))


def soonest(draft: Draft, names: tuple[str, ...], most: int) -> frozenset[str]:
    """So many of these as can train soonest; of equals the first."""
    pods = own(draft.snapshot)
    return frozenset(sorted(names, key=lambda name: -how_far(draft, pods.get(name)))[:most])


def paused_until(draft: Draft) -> datetime | None:
    """Until when no spare is made: the first replacement is made at once, each further one later and later."""
    row = draft.status.spares.replacements if draft.status.spares else None
    if row is None or row.count < 2:
        return None
    until = later(row.last_time, doubled_seconds(row.count - 1, FIRST_PAUSE_SECONDS, PAUSE_AT_MOST_SECONDS))
    if row.generation != draft.snapshot.generation:
        until = min(until, later(row.last_time, EDIT_SECONDS))
    return until if draft.now < until else None


def _without_roomless(draft: Draft) -> Draft:
    """Who takes a member's place has the template's class: one of another that has no room may wait where it need not.

    It is let go, for what it has of a quota.
    """
    elastic, pods = draft.snapshot.spec.elastic, own(draft.snapshot)
    named = elastic.joiner_priority_class_name if elastic else None
    if named is None or succession(draft).joins <= len(draft.next_members) or only_grows(draft):
        return draft
    roomless = {name for name in draft.spares if name in pods and not pods[name].node}
    lower = {name for name in roomless if pods[name].priority_class == named}
    return draft.set_aside(tuple(name for name in draft.spares if name not in lower)) if lower else draft


def _most(draft: Draft) -> int:
    """How many there may be: those that are asked for, and those that a run is about to grow by."""
    snapshot, intent, elastic = draft.snapshot, draft.intent, draft.snapshot.spec.elastic
    if elastic is None or snapshot.spec.suspend or snapshot.deleting:
        return 0
    if intent and intent.leave and intent.disruption is Disruption.STOP:
        return 0
    if draft.current is None and draft.blocked and not _pauses(draft):
        return 0  # whoever waits without a run takes nobody's room
    return max(elastic.spares, _to_grow_by(draft))


def _pauses(draft: Draft) -> bool:
    return draft.waiting is not None and draft.waiting.reason is Reason.BACKOFF


def _to_grow_by(draft: Draft) -> int:
    current, plan, upcoming = draft.current, draft.newest_plan, draft.status.next
    if current is None or plan is None or rests_until(draft, current):
        return 0
    named = len(upcoming.members) if upcoming and not upcoming.plan else 0
    return max(wanted_size(draft.snapshot).members - len(plan.members) - named, 0)
