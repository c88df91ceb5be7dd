"""Maintains `status.history`: how each of the newest runs took over from the one before it.

It is for people. The operator itself reads it for what a run cost, and for whether a run without evidence has taken
over.

`begin` adds an entry when its run becomes the current one. `learn_from` completes it from the outcomes of members,
which report what the takeover cost.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, Final

from perdure.wire import Beginning, ExitKind, HandoverRecord, HandoverWord, Outcome, Rescue, SkippedCommit
from perdure.wire.truncation import shortened
from perdure_operator.api.reasons import Reason
from perdure_operator.api.status import (
    Disruption,
    EarlierDisruption,
    EarlierTakeovers,
    HistoryEntry,
    RunPlan,
    Takeover,
)
from perdure_operator.decide.accounting import with_accounts, with_pause
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.outcomes import never_takes_over

RUNS_KEPT: Final = 20
MEMBERS_NAMED: Final = 8
TEXT_CHARACTERS: Final = 160
"""Length limit of `cause` and `why`."""

COST: Final = ("steps_lost", "unreported", "reached", "kept")
"""The fields of NextRun that say what the previous run cost, as far as known when that run is closed."""
COUNTED_WAYS: Final = {Takeover.LIVE: "live", Takeover.IN_PLACE: "in_place", Takeover.RECREATE: "recreate"}
"""The ways that EarlierTakeovers and EarlierDisruption count."""
PARTS_OF_A_SAVE: Final = ("agree", "stage", "upload", "commit")
"""Of Outcome.seconds."""
NOTHING_LOST: Final[dict[str, Any]] = {"steps_lost": 0, "steps_in_doubt": 0, "unreported": False}


def begin(
    draft: Draft,
    plan: RunPlan,
    before: RunPlan | None,
    how: Takeover,
    why: str = "",
    *,
    disruption: Disruption | None = None,
) -> Draft:
    """Add an entry for the run of this plan. `before` is the plan of the previous run, None if that is unknown;
    `disruption` is why that ended."""
    old, new = ({member.name for member in one.members} if one else set() for one in (before, plan))
    came = [f"+{member.name}" for member in plan.members if member.name not in old]
    went = [f"-{member.name}" for member in (before.members if before else ()) if member.name not in new]
    changed = [*came[: MEMBERS_NAMED // 2 if went else MEMBERS_NAMED], *went]
    upcoming = draft.status.next
    entry = HistoryEntry(
        run=plan.run,
        size=len(plan.members),
        changed=tuple(changed[:MEMBERS_NAMED]),
        changes=len(came) + len(went),
        cause=shortened(plan.cause, TEXT_CHARACTERS),
        disruption=disruption,
        how=how,
        why=shortened(why, TEXT_CHARACTERS),
        **({name: getattr(upcoming, name) for name in COST} if upcoming else {}),
        time=draft.now,
    )
    entries = (*draft.status.history, entry)
    dropped, status = entries[:-RUNS_KEPT], draft.status
    return draft.update(
        history=entries[-RUNS_KEPT:],
        earlier_takeovers=_counted(status.earlier_takeovers, dropped),
        earlier_disruptions=reduce(_with_entry, dropped, status.earlier_disruptions),
        how=how,
    )


def _counted(before: EarlierTakeovers, dropped: tuple[HistoryEntry, ...]) -> EarlierTakeovers:
    """The counts with these entries. Entries whose way was never reported are not counted."""
    for entry in dropped:
        if way := COUNTED_WAYS.get(entry.how):
            before = before.model_copy(update={way: getattr(before, way) + 1})
    return before


def _with_entry(known: tuple[EarlierDisruption, ...], entry: HistoryEntry) -> tuple[EarlierDisruption, ...]:
    """The counts by disruption, with this entry."""
    if entry.disruption is None:
        return known
    old = next((one for one in known if one.disruption is entry.disruption), None)
    counts = old or EarlierDisruption(disruption=entry.disruption)
    more = {"steps_lost": counts.steps_lost + entry.steps_lost}
    if way := COUNTED_WAYS.get(entry.how):
        more[way] = getattr(counts, way) + 1
    counts = counts.model_copy(update=more)
    return (*known, counts) if old is None else tuple(counts if one is old else one for one in known)


def amend(draft: Draft, run: int, **fields: Any) -> Draft:
    """Change these fields of the run's entry, and the totals in status by the difference. No entry: no change."""
    old = entry_of(draft, run)
    if old is None:
        return draft
    new = old.model_copy(update=fields)
    if new == old:
        return draft
    entries, status = tuple(new if one is old else one for one in draft.status.history), draft.status
    if old.pause is None and new.pause is not None:  # a longer one of another member is no second pause
        draft = draft.update(pauses=with_pause(status.pauses, new.pause))
    return draft.update(
        history=entries,
        how=entries[-1].how,
        steps_lost=max(0, status.steps_lost + new.steps_lost - old.steps_lost),
        steps_in_doubt=max(0, status.steps_in_doubt + new.steps_in_doubt - old.steps_in_doubt),
        runs_unreported=max(0, status.runs_unreported + new.unreported - old.unreported),
    )


def learn_from(draft: Draft, outcome: Outcome) -> Draft:
    """Record what a member's outcome reports: its hand-overs, the state that its runs began with, and its time."""
    for record in outcome.handovers:
        if record.word is HandoverWord.GO:
            draft = amend(draft, record.run, **NOTHING_LOST)  # also where a leaver died before it could report
            draft = amend(draft, record.run, how=Takeover.LIVE, why="", pause=_longest_pause(draft, record))
        elif record.word is HandoverWord.RESTART:
            draft = amend(draft, record.run, how=Takeover.IN_PLACE, why=shortened(record.why, TEXT_CHARACTERS))
    draft = _correct_takeover(draft, outcome)
    for beginning in outcome.begun:
        draft = _record_beginning(draft, beginning)
    if outcome.rescue:
        draft = _record_rescue(draft, outcome.rescue)
    if time := draft.status.time_account:
        left = _seconds_of_its_save(outcome)
        draft = draft.update(time_account=with_accounts(time, outcome.accounts, draft.now, left=left))
    return _record_skipped_commit(draft, outcome.skipped_commit) if outcome.skipped_commit else draft


def _seconds_of_its_save(outcome: Outcome) -> float:
    """How long the member saved before it left."""
    if outcome.outcome is not ExitKind.CHECKPOINTED:
        return 0.0
    return sum(max(0.0, outcome.seconds.get(part, 0.0)) for part in PARTS_OF_A_SAVE)


def _correct_takeover(draft: Draft, outcome: Outcome) -> Draft:
    """Correct the entry of a run that became the current one without evidence, if this member shows that it failed.

    If the previous run has saved, the new run continues in place instead.
    """
    run = never_takes_over(outcome)
    entry = entry_of(draft, run) if run else None
    if entry is None or entry.how is not Takeover.UNKNOWN or draft.status.opened >= entry.run:
        return draft
    if outcome.run < entry.run and outcome.outcome is ExitKind.CHECKPOINTED:
        return amend(draft, entry.run, how=Takeover.IN_PLACE)
    words = f"run {entry.run} has not taken over, although status named it the current run: an ended member says so"
    draft = amend(draft, entry.run, how=Takeover.NEVER)
    return draft.tell(Reason.HANDOVER_FAILED, words, warning=True)


def failed_to_take_over(draft: Draft, run: int) -> bool:
    """Whether a member reported that this run, recorded as the current one, never took over."""
    entry = entry_of(draft, run)
    return entry is not None and entry.how is Takeover.NEVER


def _longest_pause(draft: Draft, record: HandoverRecord) -> float | None:
    """The longest reported pause in seconds, None without a report. Newcomers did not pause, and report none."""
    entry = entry_of(draft, record.run)
    pauses = (entry.pause if entry else None, record.parts.get("pause"))
    return max((pause for pause in pauses if pause is not None), default=None)


def _record_beginning(draft: Draft, beginning: Beginning) -> Draft:
    """Replace the estimate of the steps lost before this run: both ends of the gap are now known.

    The same members were to enter the runs in between, so none of those has begun.
    """
    run, of = beginning.run, beginning.of
    entry = entry_of(draft, run)
    if entry is None:
        return draft
    draft, reached = never_begun(draft, of, run) if of else (draft, None)
    reached = highest(entry.reached, reached, beginning.reached if of else None)
    draft = amend(draft, run, began=beginning.step, reached=reached, unreported=entry.unreported and reached is None)
    if entry.how is Takeover.NEVER:  # not live, but it has begun
        draft = amend(draft, run, how=Takeover.IN_PLACE)
    last = entry.kept if reached is None else reached
    if last is None:
        return draft
    return amend(draft, run, steps_lost=max(0, last - beginning.step), steps_in_doubt=0)


def never_begun(draft: Draft, of: int, run: int) -> tuple[Draft, int | None]:
    """Set the cost of the runs between `of` and `run`, which never began, to zero.

    Also returns the step that `of` reached, as members reported it in those runs' entries; None without a report.
    """
    reached = None
    for one in draft.status.history:
        if of < one.run < run and one.began is None and one.how is not Takeover.LIVE:
            reached = highest(reached, one.reached)
            draft = amend(draft, one.run, **NOTHING_LOST)
    return draft, reached


def highest(*steps: int | None) -> int | None:
    """The highest known step, None if none is known."""
    return max((step for step in steps if step is not None), default=None)


def _record_rescue(draft: Draft, rescue: Rescue) -> Draft:
    """Subtract the steps that a rescue commit saved from the steps lost. Every member reports them; they count once.

    They may have been counted in the entry of any run after the one that trained them, as later runs may never have
    begun.
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


def _record_skipped_commit(draft: Draft, skipped: SkippedCommit) -> Draft:
    """Record that the run began from an older commit. Every member reports it; one event is sent.

    The steps that this cost follow from where the run began.
    """
    entry = entry_of(draft, skipped.run)
    if entry is None or entry.steps_behind_skipped is not None:
        return draft
    draft = amend(draft, skipped.run, steps_behind_skipped=skipped.steps)
    words = f"run {skipped.run} could not use {skipped.why}; it began {skipped.steps} steps before it"
    return draft.tell(Reason.COMMIT_SKIPPED, words, warning=True)


def entry_of(draft: Draft, run: int) -> HistoryEntry | None:
    """The run's entry. None if the entry was dropped as too old, or the run never became the current one."""
    return next((one for one in draft.status.history if one.run == run), None)
