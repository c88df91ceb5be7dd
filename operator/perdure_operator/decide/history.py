"""How each run took over from the one before it, for people: the newest runs, in status. Nothing is decided from it.

Written when a run is the one that is on, and completed when those who left it have told what it cost. Called by the
policies that know.
"""

from __future__ import annotations

from typing import Any, Final

from perdure.contract import HandoverRecord, HandoverWord, Outcome, Rescue
from perdure.words import shortened
from perdure_operator.api.status import HistoryEntry, RunPlan, Takeover
from perdure_operator.decide.draft import Draft

RUNS: Final = 20
MEMBERS: Final = 8
WORDS: Final = 160


def begin(draft: Draft, plan: RunPlan, before: RunPlan | None, how: Takeover, why: str = "") -> Draft:
    """With an entry for the run of this plan; `before` is the plan of the run it follows, where that is still known."""
    old, new = ({member.name for member in one.members} if one else set() for one in (before, plan))
    came = [f"+{member.name}" for member in plan.members if member.name not in old]
    went = [f"-{member.name}" for member in (before.members if before else ()) if member.name not in new]
    changed = [*came[: MEMBERS // 2 if went else MEMBERS], *went]
    upcoming = draft.status.next
    entry = HistoryEntry(
        run=plan.run,
        size=len(plan.members),
        changed=tuple(changed[:MEMBERS]),
        changes=len(came) + len(went),
        cause=shortened(plan.cause, WORDS),
        how=how,
        why=shortened(why, WORDS),
        steps_lost=upcoming.steps_lost if upcoming else 0,
        time=draft.now,
    )
    return draft.update(history=(*draft.status.history, entry)[-RUNS:], how=how)


def amend(draft: Draft, run: int, **fields: Any) -> Draft:
    """With these fields of the run's entry, if it is still there."""
    entries = tuple(one.model_copy(update=fields) if one.run == run else one for one in draft.status.history)
    newest = entries[-1].how if entries else draft.status.how
    return draft if entries == draft.status.history else draft.update(history=entries, how=newest)


def learn_from(draft: Draft, outcome: Outcome) -> Draft:
    """What a member tells of the hand-overs that it took part in."""
    for record in outcome.handovers:
        if record.word is HandoverWord.GO:
            draft = _all_kept(draft, record.run)
            draft = amend(draft, record.run, how=Takeover.LIVE, why="", pause=_longest(draft, record))
        elif record.word is HandoverWord.RESTART:
            draft = amend(draft, record.run, how=Takeover.IN_PLACE, why=shortened(record.why, WORDS))
    return _rescued(draft, outcome.rescue) if outcome.rescue else draft


def _longest(draft: Draft, record: HandoverRecord) -> float | None:
    """As far as it is known: newcomers have no step before, and tell of no pause."""
    known = next((one.pause for one in draft.status.history if one.run == record.run), None)
    told = (one for one in (known, record.parts.get("pause")) if one is not None)
    return max(told, default=None)


def _all_kept(draft: Draft, run: int) -> Draft:
    """A run that has taken over alive began with all; a leaver that died before it could tell was believed to have
    lost some."""
    counted = next((one.steps_lost for one in draft.status.history if one.run == run), 0)
    draft = draft.update(steps_lost=max(0, draft.status.steps_lost - counted))
    return amend(draft, run, steps_lost=0)


def _rescued(draft: Draft, rescue: Rescue) -> Draft:
    """What the run has begun with was counted as lost when one before it ended: every member tells, one counts.

    That need not be the last one before it: one that was planned since may not have begun.
    """
    entry = next((one for one in draft.status.history if one.run == rescue.run), None)
    if entry is None or entry.rescued:
        return draft
    since, left = (rescue.of or rescue.run - 1), rescue.steps
    for one in reversed(draft.status.history):
        back = min(one.steps_lost, left) if since < one.run <= rescue.run else 0
        left -= back
        draft = amend(draft, one.run, steps_lost=one.steps_lost - back)
    back = rescue.steps - left
    draft = draft.update(steps_lost=max(0, draft.status.steps_lost - back))
    return amend(draft, rescue.run, rescued=rescue.steps)
