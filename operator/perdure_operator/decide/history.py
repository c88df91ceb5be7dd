"""How each run took over from the previous one, for people: the newest runs, in status. Nothing is decided from it.

An entry is written when its run becomes the current one, and completed when members that left report what it cost.
Called by the policies that learn it.
"""

from __future__ import annotations

from typing import Any, Final

from perdure.wire import Beginning, ExitKind, Fallback, HandoverRecord, HandoverWord, Outcome, Rescue
from perdure.wire.truncation import shortened
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import HistoryEntry, RunPlan, Takeover
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.outcomes import never_takes_over

RUNS: Final = 20
MEMBERS: Final = 8
WORDS: Final = 160

COST: Final = ("steps_lost", "untold", "reached", "kept")
"""What the previous run cost, as far as it is known when that run is closed."""
NOTHING_LOST: Final[dict[str, Any]] = {"steps_lost": 0, "steps_in_doubt": 0, "untold": False}


def begin(draft: Draft, plan: RunPlan, before: RunPlan | None, how: Takeover, why: str = "") -> Draft:
    """Add an entry for the run of this plan; `before` is the plan of the previous run, if that is still known."""
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
        **({name: getattr(upcoming, name) for name in COST} if upcoming else {}),
        time=draft.now,
    )
    return draft.update(history=(*draft.status.history, entry)[-RUNS:], how=how)


def amend(draft: Draft, run: int, **fields: Any) -> Draft:
    """Change these fields of the run's entry, if it still exists, and the sums in status."""
    old = entry_of(draft, run)
    if old is None:
        return draft
    new = old.model_copy(update=fields)
    if new == old:
        return draft
    entries, status = tuple(new if one is old else one for one in draft.status.history), draft.status
    return draft.update(
        history=entries,
        how=entries[-1].how,
        steps_lost=max(0, status.steps_lost + new.steps_lost - old.steps_lost),
        steps_in_doubt=max(0, status.steps_in_doubt + new.steps_in_doubt - old.steps_in_doubt),
        runs_untold=max(0, status.runs_untold + new.untold - old.untold),
    )


def learn_from(draft: Draft, outcome: Outcome) -> Draft:
    """Record what a member reports about its hand-overs, and about the state with which its runs began."""
    for record in outcome.handovers:
        if record.word is HandoverWord.GO:
            draft = amend(draft, record.run, **NOTHING_LOST)  # even if a leaver died before it could report it
            draft = amend(draft, record.run, how=Takeover.LIVE, why="", pause=_longest(draft, record))
        elif record.word is HandoverWord.RESTART:
            draft = amend(draft, record.run, how=Takeover.IN_PLACE, why=shortened(record.why, WORDS))
    draft = _never_took_over(draft, outcome)
    for beginning in outcome.begun:
        draft = _begun(draft, beginning)
    if outcome.rescue:
        draft = _rescued(draft, outcome.rescue)
    return _fell_back(draft, outcome.fell_back) if outcome.fell_back else draft


def _never_took_over(draft: Draft, outcome: Outcome) -> Draft:
    """Correct the entry of a run that was taken for the current one without evidence, if this member knows better.

    If the previous run has saved, the run goes on in place instead.
    """
    run = never_takes_over(outcome)
    entry = entry_of(draft, run) if run else None
    if entry is None or entry.how is not Takeover.UNKNOWN or draft.status.opened >= entry.run:
        return draft
    if outcome.run < entry.run and outcome.outcome is ExitKind.CHECKPOINTED:
        return amend(draft, entry.run, how=Takeover.IN_PLACE)
    words = f"run {entry.run} has not taken over, though it was taken for the current run: a member reports as it ends"
    draft = amend(draft, entry.run, how=Takeover.NEVER)
    return draft.tell(Reason.HANDOVER_FAILED, words, warning=True)


def took_over(draft: Draft, run: int) -> bool:
    """Whether a run may be on, as far as members have reported."""
    entry = entry_of(draft, run)
    return entry is None or entry.how is not Takeover.NEVER


def _longest(draft: Draft, record: HandoverRecord) -> float | None:
    """The longest known pause: newcomers did no step before, and report none."""
    entry = entry_of(draft, record.run)
    known = entry.pause if entry else None
    told = (one for one in (known, record.parts.get("pause")) if one is not None)
    return max(told, default=None)


def _begun(draft: Draft, told: Beginning) -> Draft:
    """Correct the steps lost before this run, which were an estimate: now both ends of the gap are known.

    None of the runs in between, to which the same members were to go, has begun.
    """
    entry = entry_of(draft, told.run)
    if entry is None:
        return draft
    draft, reached = never_begun(draft, told.of, told.run) if told.of else (draft, None)
    reached = highest(entry.reached, reached, told.reached if told.of else None)
    draft = amend(draft, told.run, began=told.step, reached=reached, untold=entry.untold and reached is None)
    if entry.how is Takeover.NEVER:  # not live, but it has begun
        draft = amend(draft, told.run, how=Takeover.IN_PLACE)
    last = entry.kept if reached is None else reached
    if last is None:
        return draft
    return amend(draft, told.run, steps_lost=max(0, last - told.step), steps_in_doubt=0)


def never_begun(draft: Draft, of: int, run: int) -> tuple[Draft, int | None]:
    """Let runs after `of` and before `run` cost nothing; also the step that `of` reached, as their members reported."""
    reached = None
    for one in draft.status.history:
        if of < one.run < run and one.began is None and one.how is not Takeover.LIVE:
            reached = highest(reached, one.reached)
            draft = amend(draft, one.run, **NOTHING_LOST)
    return draft, reached


def highest(*steps: int | None) -> int | None:
    """The highest known step, None if none is known."""
    return max((step for step in steps if step is not None), default=None)


def _rescued(draft: Draft, rescue: Rescue) -> Draft:
    """Do not count steps as lost that a rescue commit brought to this run. Every member reports it; it counts once.

    The steps may have been counted for any run since the one that they are from: the last may never have begun.
    """
    entry = entry_of(draft, rescue.run)
    if entry is None or entry.rescued:
        return draft
    since, left = (rescue.of or rescue.run - 1), rescue.steps
    for one in reversed(draft.status.history) if entry.began is None else ():  # an older agent reports no more
        if since < one.run <= rescue.run:
            doubt = min(one.steps_in_doubt, left)
            lost = min(one.steps_lost, left - doubt)
            left -= doubt + lost
            known = {"steps_in_doubt": one.steps_in_doubt - doubt, "steps_lost": one.steps_lost - lost}
            draft = amend(draft, one.run, **known)
    return amend(draft, rescue.run, rescued=rescue.steps)


def _fell_back(draft: Draft, told: Fallback) -> Draft:
    """Record that the run skipped a commit, and tell people once, as every member reports it.

    Its cost follows from where the run began.
    """
    entry = entry_of(draft, told.run)
    if entry is None or entry.fell_back is not None:
        return draft
    draft = amend(draft, told.run, fell_back=told.steps)
    words = f"run {told.run} could not use {told.why}; it has begun {told.steps} steps before it"
    return draft.tell(Reason.COMMIT_SKIPPED, words, warning=True)


def entry_of(draft: Draft, run: int) -> HistoryEntry | None:
    """The run's entry; None if it is too old, or the run never became the current one."""
    return next((one for one in draft.status.history if one.run == run), None)
