"""Spares: `elastic.spares` warm standbys beside a run that has begun, and never before it.

They are the first to go. One that cannot be used any more is replaced, at a pace that is never a storm; members come
first, so new ones are made only while nothing asks the run to change.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import Replacements, RunPlan, Spares
from perdure_operator.decide.blame import backoff_until
from perdure_operator.decide.draft import PAUSE_AT_MOST_SECONDS, Draft, clock, later
from perdure_operator.decide.facts import joined, one_more, own
from perdure_operator.decide.fitness import why_useless
from perdure_operator.decide.naming import new_names
from perdure_operator.decide.spares import keep_soonest, paused_until
from perdure_operator.state.snapshot import RefusalKind

BEGINNING_SECONDS: Final = 5
"""So long after its plan a run begins: a pod that imports meanwhile would take CPU from trainers that start."""
CHANGED_SECONDS: Final = 30
"""So long after a run was offered most attempts are over, whether or not anybody can tell."""
FORGOTTEN_SECONDS: Final = 2 * PAUSE_AT_MOST_SECONDS
"""A spare that was good for so long after the last one was replaced begins another row."""


def keep_spares(draft: Draft) -> Draft:
    """Let go of those that are too many or of no use, and make those that are missing."""
    if draft.status.spares is None and draft.snapshot.spec.elastic is None:
        return draft
    return _fill(keep_soonest(_drop_unfit(draft)))


def _drop_unfit(draft: Draft) -> Draft:
    """One on a node that need not be left is of use where a member is lost, and the next may well land there too."""
    pods = own(draft.snapshot)
    unfit = {
        name: why for name in draft.spares if (why := why_useless(draft, name, pods.get(name)) or _refused(draft, name))
    }
    if not unfit:
        return draft
    words = joined([f"{name} {why}" for name, why in unfit.items()])
    draft = draft.tell(Reason.SPARE_REPLACED, f"spares that cannot train are let go: {words}")
    left = tuple(name for name in draft.spares if name not in unfit)
    return draft.update(spares=Spares(names=left, replacements=_one_more(draft, words)))


def _refused(draft: Draft, name: str) -> str:
    """Why its pod could not be created: asked again in every round, that would hold up what is urgent."""
    refusals = (one for one in draft.snapshot.refusals if one.kind is RefusalKind.REFUSED)
    return next((f"was refused: {one.message}" for one in refusals if one.pod == name), "")


def _one_more(draft: Draft, cause: str) -> Replacements:
    old = draft.status.spares.replacements if draft.status.spares else None
    lately = old if old and draft.now < later(old.last_time, FORGOTTEN_SECONDS) else None
    return one_more(draft, lately, cause)


def _fill(draft: Draft) -> Draft:
    """New ones for those that are missing, beside a run that trains and is left alone, or has most likely changed."""
    current, elastic = draft.current, draft.snapshot.spec.elastic
    missing = (elastic.spares if elastic else 0) - len(draft.spares)
    if missing <= 0 or current is None or current.outcomes or not current.warm:
        return draft
    offered = _offered(draft)
    if draft.snapshot.deleting or draft.blocked or (current.intent and not offered):
        return draft
    begun = _begins(draft, offered, CHANGED_SECONDS) if offered else _begins(draft, current.plan, BEGINNING_SECONDS)
    pauses = (begun, paused_until(draft), backoff_until(draft.status.failures))
    if until := max((until for until in pauses if until and draft.now < until), default=None):
        return draft.wake(until).because(f"the next spares are created at {clock(until)}")
    draft, new = new_names(draft, missing)
    return draft.set_aside((*draft.spares, *new))


def _offered(draft: Draft) -> RunPlan | None:
    """The plan of a run that all members were told of: for a larger one nobody may tell for long that it is on."""
    return draft.status.next.plan if draft.status.next else None


def _begins(draft: Draft, plan: RunPlan, seconds: int) -> datetime | None:
    """None where a clock was set back since its plan, whose time never changes: all its members are warm."""
    planned = plan.assigned_time
    return later(planned, seconds) if planned and planned <= draft.now else None
