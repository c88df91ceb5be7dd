"""The agent's part in a live hand-over: offers to the trainer, and the meaning of its reports for the pod. Pure.

The log decides an attempt, not the agent. The agent offers an attempt instead of asking for a save. It does not kill a
trainer that votes, because the log may already contain the result. It starts an offered run only if the older one is
known to have ended. Used by `perdure.agent.machine` and `perdure.agent.stage`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from perdure.agent.state import Acknowledge, Action, AgentState, OfferAssignment, PrintLine, TrainerProcesses
from perdure.wire import AttemptRecord, ExitKind, HandoverRecord, HandoverWord, Leave, Outcome, Train
from perdure.wire.channel import Exiting, HandoverEnded, TookOver, TrainerReport, Voting

BACKSTOP_SECONDS: Final = 10.0
"""A trainer without a report this long after an attempt's limit is asked to save."""

Noted = tuple[AgentState, list[Action]]


def word_of(state: AgentState, run: int) -> HandoverWord | None:
    """How the attempt to begin this run ended; None if this pod does not know."""
    return next((record.word for record in state.handovers if record.run == run), None)


def word_here(state: AgentState, trainer: TrainerProcesses, run: int) -> HandoverWord | None:
    """The outcome of an attempt that this trainer took part in; None if this pod does not know."""
    return word_of(state, run) if _was_offered(trainer, run) else None


def _was_offered(trainer: TrainerProcesses, run: int) -> bool:
    return any(known.run == run for known in trainer.offered)


def offered_now(state: AgentState, trainer: TrainerProcesses) -> Train | Leave | None:
    """The newer assignment if the trainer can take part in its live hand-over; None if it has to end.

    That includes a take-over of a run whose own attempt is undecided here: the trainer first waits for that word.
    """
    newer = state.current
    if newer is None or newer.run <= trainer.run or newer.handover is None:
        return None
    attempted = {offer.run for offer in trainer.offered if word_of(state, offer.run) is None}
    able = trainer.live and (trainer.opened_at is not None or trainer.bound)
    return newer if able and newer.handover.run in {trainer.run, *attempted} else None


def asked_at(state: AgentState, newer: Train | Leave) -> float:
    """When a trainer that was offered `newer` and has not reported is asked to save."""
    limit = newer.handover.limit if newer.handover else 0
    return state.first_seen + limit + BACKSTOP_SECONDS


def offer(trainer: TrainerProcesses, newer: Train | Leave) -> tuple[TrainerProcesses, list[Action]]:
    """Offer the assignment to the trainer, once per version of it."""
    if newer in trainer.offered[-1:]:
        return trainer, []
    others = tuple(known for known in trainer.offered if known.run != newer.run)
    say = PrintLine(f"run {newer.run} is offered to the trainer of run {trainer.run}, which trains on meanwhile")
    return replace(trainer, offered=(*others, newer)), [say, OfferAssignment(trainer.origin, newer)]


def noted(state: AgentState, trainer: TrainerProcesses, report: TrainerReport) -> Noted:
    """Record a report about a hand-over. It comes from one process and holds for all of them."""
    match report:
        case Voting(run, following):
            acknowledge = Acknowledge(trainer.origin, following)
            if following < trainer.run or word_of(state, following):
                return state, [acknowledge]  # already decided: another process was quicker
            say = PrintLine(f"the trainer votes for run {following} to take over run {run}")
            return replace(state, trainer=replace(trainer, voting=report, voted=following)), [say, acknowledge]
        case TookOver():
            return _took_over(state, trainer, report)
        case HandoverEnded(run, word, why):
            say = PrintLine(f"run {run} has not taken over: {word}: {why}")
            return _decided(state, trainer, HandoverRecord(run, word, why), say)
        case Exiting(ExitKind.HANDED_OVER) | Exiting(attempt=AttemptRecord(word=HandoverWord.GO)) if trainer.voting:
            # A later offer is another attempt.
            return _decided(state, trainer, HandoverRecord(trainer.voting.next, HandoverWord.GO))
        case _:
            return state, []


def _took_over(state: AgentState, trainer: TrainerProcesses, report: TookOver) -> Noted:
    if report.run < trainer.run:
        return state, []
    say = PrintLine(f"run {report.run} has taken over: rank {report.rank} of {report.world}, step {report.step}")
    if report.run > trainer.run:
        request = trainer.request if state.shutdown or state.newest > report.run else None
        trainer = replace(trainer, run=report.run, started_for=trainer.origin, request=request)
    return _decided(state, trainer, HandoverRecord(report.run, HandoverWord.GO, parts=report.parts), say)


def _decided(state: AgentState, trainer: TrainerProcesses, record: HandoverRecord, *actions: Action) -> Noted:
    if trainer.voting and trainer.voting.next <= record.run:
        trainer = replace(trainer, voting=None)
    state = replace(state, trainer=trainer)
    if word_of(state, record.run):
        return state, []
    return replace(state, handovers=(*state.handovers, record)), list(actions)


def attempt_of(state: AgentState, reported: AttemptRecord | None) -> AttemptRecord | None:
    """The trainer's newest attempt, merged from its own report and the agent's knowledge.

    The agent acknowledges a vote before it counts, so an unknown vote did not count.
    """
    trainer = state.trainer
    if trainer is None:
        return reported
    newest = max([trainer.origin * trainer.joins, *(offer.run for offer in trainer.offered)])
    word = word_of(state, newest)
    if not newest or word is HandoverWord.RESTART or (reported and reported.run > newest):
        return reported
    known = AttemptRecord(newest, trainer.voted == newest, word)
    if reported is None or reported.run < newest:
        return known
    return AttemptRecord(newest, reported.voted or known.voted, reported.word or known.word)


def ended_by_rescue(state: AgentState, trainer: TrainerProcesses) -> int:
    """The run that would have taken over the image's run, if that run's last entry is that image; 0 if there is none.

    For a newcomer that is its own run. No member begins that run in place: the parties of the hand-over gave it up, or
    its own members are lost.
    """
    own = () if trainer.image_of == trainer.run else (trainer.run,)
    offered = (*own, *(offer.run for offer in trainer.offered))
    return max((run for run in offered if word_of(state, run) in (None, HandoverWord.ABORT)), default=0)


def successor_of(state: AgentState, trainer: TrainerProcesses, image_of: int) -> int:
    """The lost run that may have begun at that image; 0 if there is none.

    It is the trainer's own run if the image is older than the trainer. Otherwise it is a run that took over from it, or
    that it joined as a newcomer, if a newer assignment lists it as lost; silence alone proves nothing.
    """
    if not trainer.left_image:
        return trainer.run
    went = [record.run for record in state.handovers if record.word is HandoverWord.GO]
    if image_of != trainer.run:
        went.append(trainer.run)
    return max((run for run in went if state.current and run in state.current.lost), default=0)


def keeps_the_state(state: AgentState, trainer: TrainerProcesses, outcome: Outcome) -> bool:
    """Whether the pod has to stay: its trainer handed over, but left an image that may be the only copy.

    A newer assignment ends that.
    """
    over = outcome.outcome is ExitKind.PEER_LOST and word_here(state, trainer, state.newest) is HandoverWord.GO
    return over and trainer.left_image


def may_follow(state: AgentState, trainer: TrainerProcesses, outcome: Outcome, newer: Train) -> bool:
    """Whether the newer run may be started in place, although it was offered to this trainer.

    It may if the attempt ended in a restart, or if the trainer reported the older run's last commit, which rules the
    hand-over out. After any other end with an unknown outcome, the newer run may be alive in other pods.
    """
    if not _was_offered(trainer, newer.run):
        return True
    word = word_of(state, newer.run)
    return word is HandoverWord.RESTART or (word is None and outcome.outcome is ExitKind.CHECKPOINTED)
