"""The agent's part in a live hand-over: what is offered to a trainer, and what its words mean for the pod. Pure.

The agent decides nothing of an attempt: the log does. It offers one instead of asking for a save, keeps from killing a
trainer that votes (whose vote may stand in a log entry already), and starts a run that was offered here only where the
older one is known to have ended. `perdure.agent.machine` and `perdure.agent.stage` ask.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from perdure.agent.state import Acknowledge, Action, Offer, Say, State, Trainer
from perdure.wire import AttemptRecord, ExitKind, HandoverRecord, HandoverWord, Leave, Outcome, Train
from perdure.wire.channel import Exiting, HandoverEnded, Report, TookOver, Voting

BACKSTOP_SECONDS: Final = 10.0
"""A trainer that has told nothing so long after an attempt's limit is asked to save."""

Noted = tuple[State, list[Action]]


def word_of(state: State, run: int) -> HandoverWord | None:
    """How the attempt of this run ended, as far as this pod knows."""
    return next((record.word for record in state.handovers if record.run == run), None)


def word_here(state: State, trainer: Trainer, run: int) -> HandoverWord | None:
    """How the attempt ended that this trainer took part in, if it is known."""
    return word_of(state, run) if _was_offered(trainer, run) else None


def _was_offered(trainer: Trainer, run: int) -> bool:
    return any(known.run == run for known in trainer.offered)


def offered_now(state: State, trainer: Trainer) -> Train | Leave | None:
    """The newer assignment, where the trainer may go over to it without ending; None where it has to end for it.

    Also where that takes over a run whose own attempt is not decided here: the trainer waits for that word first.
    """
    newer = state.current
    if newer is None or newer.run <= trainer.run or newer.handover is None:
        return None
    attempted = {offer.run for offer in trainer.offered if word_of(state, offer.run) is None}
    able = trainer.live and (trainer.opened_at is not None or trainer.bound)
    return newer if able and newer.handover.run in {trainer.run, *attempted} else None


def asked_at(state: State, newer: Train | Leave) -> float:
    """When a trainer that was offered `newer`, and has told nothing, is asked to save."""
    limit = newer.handover.limit if newer.handover else 0
    return state.first_seen + limit + BACKSTOP_SECONDS


def offer(trainer: Trainer, newer: Train | Leave) -> tuple[Trainer, list[Action]]:
    """Shows the assignment to the trainer, once as it is."""
    if newer in trainer.offered[-1:]:
        return trainer, []
    others = tuple(known for known in trainer.offered if known.run != newer.run)
    say = Say(f"run {newer.run} is offered to the trainer of run {trainer.run}: it trains on meanwhile")
    return replace(trainer, offered=(*others, newer)), [say, Offer(trainer.origin, newer)]


def noted(state: State, trainer: Trainer, report: Report) -> Noted:
    """What a report tells about a hand-over; it is that of one process, and true for all of them."""
    match report:
        case Voting(run, following):
            acknowledge = Acknowledge(trainer.origin, following)
            if following < trainer.run or word_of(state, following):
                return state, [acknowledge]  # it was decided since: another process was quicker
            say = Say(f"the trainer votes for run {following} to take over run {run}")
            return replace(state, trainer=replace(trainer, voting=report, voted=following)), [say, acknowledge]
        case TookOver():
            return _took_over(state, trainer, report)
        case HandoverEnded(run, word, why):
            say = Say(f"run {run} has not taken over: {word}: {why}")
            return _decided(state, trainer, HandoverRecord(run, word, why), say)
        case Exiting(ExitKind.HANDED_OVER) | Exiting(attempt=AttemptRecord(word=HandoverWord.GO)) if trainer.voting:
            # What was offered since is another attempt.
            return _decided(state, trainer, HandoverRecord(trainer.voting.next, HandoverWord.GO))
        case _:
            return state, []


def _took_over(state: State, trainer: Trainer, report: TookOver) -> Noted:
    if report.run < trainer.run:
        return state, []
    say = Say(f"run {report.run} has taken over: rank {report.rank} of {report.world}, step {report.step}")
    if report.run > trainer.run:
        request = trainer.request if state.shutdown or state.newest > report.run else None
        trainer = replace(trainer, run=report.run, started_for=trainer.origin, request=request)
    return _decided(state, trainer, HandoverRecord(report.run, HandoverWord.GO, parts=report.parts), say)


def _decided(state: State, trainer: Trainer, record: HandoverRecord, *actions: Action) -> Noted:
    if trainer.voting and trainer.voting.next <= record.run:
        trainer = replace(trainer, voting=None)
    state = replace(state, trainer=trainer)
    if word_of(state, record.run):
        return state, []
    return replace(state, handovers=(*state.handovers, record)), list(actions)


def attempt_of(state: State, told: AttemptRecord | None) -> AttemptRecord | None:
    """What the trainer did and read of its newest attempt: as `told` by itself, and as it is known here without that.

    A vote is acknowledged before it counts, so one of which nothing is known here was not counted.
    """
    trainer = state.trainer
    if trainer is None:
        return told
    newest = max([trainer.origin * trainer.joins, *(offer.run for offer in trainer.offered)])
    word = word_of(state, newest)
    if not newest or word is HandoverWord.RESTART or (told and told.run > newest):
        return told
    known = AttemptRecord(newest, trainer.voted == newest, word)
    if told is None or told.run < newest:
        return known
    return AttemptRecord(newest, told.voted or known.voted, told.word or known.word)


def ended_by_rescue(state: State, trainer: Trainer) -> int:
    """The run that was to take over the image's, where its last word is that image; 0 if there is none.

    Of a newcomer that is its own run. Nobody begins it in place behind that: it was given up by who stood in the
    hand-over, or its own members are lost.
    """
    own = () if trainer.image_of == trainer.run else (trainer.run,)
    offered = (*own, *(offer.run for offer in trainer.offered))
    return max((run for run in offered if word_of(state, run) in (None, HandoverWord.ABORT)), default=0)


def heir_of(state: State, trainer: Trainer, image_of: int) -> int:
    """The run that may have begun where that image is of, and is lost too; 0 if there is none.

    The trainer's own, where that has not come to commit what was left before it; else one that has taken over from it,
    or that it was a newcomer of, and that a newer assignment names: for that it was not heard is no sign.
    """
    if not trainer.left_image:
        return trainer.run
    went = [record.run for record in state.handovers if record.word is HandoverWord.GO]
    if image_of != trainer.run:
        went.append(trainer.run)
    return max((run for run in went if state.current and run in state.current.lost), default=0)


def keeps_the_state(state: State, trainer: Trainer, outcome: Outcome) -> bool:
    """Whether it has handed over and is told nothing newer, but has left an image, as nobody else may hold the state.

    Then its pod does not go yet.
    """
    over = outcome.outcome is ExitKind.PEER_LOST and word_here(state, trainer, state.newest) is HandoverWord.GO
    return over and trainer.left_image


def may_follow(state: State, trainer: Trainer, outcome: Outcome, newer: Train) -> bool:
    """Whether the run may be started here although it was to take over this trainer's.

    A final commit of the older run is in the log, and rules the hand-over out, where the trainer says so; whatever else
    an end without a word was, the run may live among the others.
    """
    if not _was_offered(trainer, newer.run):
        return True
    word = word_of(state, newer.run)
    return word is HandoverWord.RESTART or (word is None and outcome.outcome is ExitKind.CHECKPOINTED)
