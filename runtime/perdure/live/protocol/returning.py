"""Old ranks after a failed attempt: all of them leave the stop together, or none does.

Ranks may have read different words (abort or restart), and only some may be asked to exit. One unlagged round on the
older run's own group gives all the same choice. Called by perdure.live.protocol.old and .deciding.
"""

from __future__ import annotations

from perdure.live.protocol.events import (
    Action,
    Alarm,
    AskExit,
    BeginRound,
    Choice,
    Event,
    ExitAgreed,
    OlderRunEnded,
    Passed,
    RoundDone,
    SaveAndExit,
    SayToAll,
    SetSeen,
    Sigterm,
    Silent,
    Stopped,
    TellEnded,
    TrainingDone,
    TrainOn,
)
from perdure.live.protocol.events import ExitProcess as End
from perdure.live.protocol.state import PartyPhase, PartyState, Step, also, stay, to, waits_for
from perdure.live.protocol.waiting import lost
from perdure.wire import ExitKind, HandoverWord


def say_and_return(state: PartyState, word: HandoverWord, why: str) -> Step:
    """Say the word to all parties, and leave the stop with the other old ranks."""
    next_state, actions = read_and_return(state, word, why)
    return also((next_state, (SayToAll(word, why),)), actions)


def read_and_return(state: PartyState, word: HandoverWord, why: str) -> Step:  # noqa: ARG001  (see Answers.word)
    """Leave the stop with the other old ranks."""
    if word is HandoverWord.RESTART:
        choice = Choice.RESTART
    else:
        choice = Choice.EXIT if state.exits or (state.late and state.forced) else Choice.TRAIN
    return to(state, PartyPhase.ROUND, SetSeen(), BeginRound(choice), word=word)


def in_the_round(state: PartyState, event: Event) -> Step:
    """ROUND."""
    match event:
        case RoundDone(None):
            return lost(state, "the older run's ranks could not agree how to continue")
        case RoundDone(Choice.TRAIN):
            asks = (AskExit(),) if state.exits else ()
            report = _report(state, HandoverWord.ABORT, "the attempt was aborted")
            return to(state, PartyPhase.ABORTED, *report, TrainOn(state.attempt.next), *asks, reported=True)
        case RoundDone(Choice.EXIT):
            report = _report(state, HandoverWord.ABORT, "the attempt was aborted, and the run is to end")
            return to(state, PartyPhase.SAVING, *report, SaveAndExit(state.attempt.next), reported=True)
        case RoundDone(Choice.RESTART):
            report = _report(state, HandoverWord.RESTART, "the newer run begins in place")
            return to(state, PartyPhase.SAVING, *report, SaveAndExit(), reported=True, word=HandoverWord.RESTART)
        case Silent(party, lost=True) if waits_for(state, party):
            return lost(state, f"party {party} was silent for long, and the older run needs it")
        case Sigterm():
            return stay(state, exit_requested=True)
        case Passed(Alarm.DEADLINE):
            return lost(state, "the older run's ranks did not agree in time how to continue")
    return stay(state)


def gave_up(state: PartyState, why: str, *, say: bool) -> Step:
    """Give the attempt up before the stop: this old rank no longer offers it and keeps training."""
    said: tuple[Action, ...] = (SayToAll(HandoverWord.ABORT, why),) if say else ()
    asks = (AskExit(),) if state.exits else ()
    report = _report(state, HandoverWord.ABORT, why)
    return to(
        state,
        PartyPhase.ABORTED,
        *said,
        SetSeen(),
        *report,
        TrainOn(state.attempt.next),
        *asks,
        reported=True,
        word=HandoverWord.ABORT,
    )


def trains_on(state: PartyState, event: Event) -> Step:
    """ABORTED: trains as before, except that time may be short."""
    match event:
        case Stopped():
            # The others had not heard of the abort when the vector named the attempt.
            return say_and_return(state, HandoverWord.ABORT, "given up before the stop")
        case Passed(Alarm.LAST_CALL) if state.forced and not state.exit_requested and state.newer is None:
            return stay(state, AskExit(), exit_requested=True)
        case Passed(Alarm.LIMIT):
            return stay(state, late=True)
        case ExitAgreed():
            return to(state, PartyPhase.SAVING, SaveAndExit(state.attempt.next))
        case Sigterm():
            return stay(state, exit_requested=True)
    return stay(state)


def saves(state: PartyState, event: Event) -> Step:
    """SAVING."""
    match event:
        case OlderRunEnded() if state.decides and state.needed:
            return to(state, PartyPhase.LINGERING, leaves_as=ExitKind.CHECKPOINTED)
        case OlderRunEnded():
            return to(state, PartyPhase.ENDED, End(ExitKind.CHECKPOINTED))
    return stay(state)


def reached(state: PartyState, event: TrainingDone) -> Step:  # noqa: ARG001
    """The training is done while an attempt is prepared, so there is nothing to hand over."""
    said = (SayToAll(HandoverWord.ABORT, "completed"),) if state.decides else ()
    report = _report(state, HandoverWord.ABORT, "completed")
    train_on = TrainOn(state.attempt.next)
    return to(state, PartyPhase.ABORTED, *said, SetSeen(), *report, train_on, reported=True, word=HandoverWord.ABORT)


def exits_before_the_stop(state: PartyState) -> Step:
    """All old ranks agreed to end the run. Newcomers begin the newer run in place, after that end."""
    why = "the run ends for another reason"
    said = (SayToAll(HandoverWord.RESTART, why),) if state.decides else ()
    report = _report(state, HandoverWord.RESTART, why)
    return to(
        state, PartyPhase.SAVING, *said, SetSeen(), *report, SaveAndExit(), reported=True, word=HandoverWord.RESTART
    )


def _report(state: PartyState, word: HandoverWord, why: str) -> tuple[Action, ...]:
    return () if state.reported else (TellEnded(word, why),)
