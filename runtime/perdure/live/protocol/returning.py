"""Old ranks whose attempt came to nothing: all of them leave the stop together, or none does.

Who read what of abort and restart may differ from rank to rank, and so may who has been asked to exit meanwhile; one
unlagged round on the older run's own group makes one of it. Called by perdure.live.protocol.old and .deciding.
"""

from __future__ import annotations

from perdure.live.protocol.events import (
    Action,
    Alarm,
    AskExit,
    Choice,
    Event,
    ExitAgreed,
    GoalReached,
    Passed,
    Round,
    RoundDone,
    SaveAndExit,
    Saved,
    Say,
    SetSeen,
    Sigterm,
    Silent,
    Stopped,
    TellEnded,
    TrainOn,
)
from perdure.live.protocol.events import Exit as End
from perdure.live.protocol.state import Phase, State, Step, also, stay, to, waits_for
from perdure.live.protocol.waiting import lost
from perdure.wire import ExitKind, HandoverWord


def say_and_return(state: State, word: HandoverWord, why: str) -> Step:
    """Says it to all, and leaves the stop with the others."""
    next_state, actions = read_and_return(state, word, why)
    return also((next_state, (Say(word, why),)), actions)


def read_and_return(state: State, word: HandoverWord, why: str) -> Step:  # noqa: ARG001  (see Answers.word)
    """Leaves the stop with the others."""
    if word is HandoverWord.RESTART:
        choice = Choice.RESTART
    else:
        choice = Choice.EXIT if state.exits or (state.late and state.forced) else Choice.TRAIN
    return to(state, Phase.ROUND, SetSeen(), Round(choice), word=word)


def in_the_round(state: State, event: Event) -> Step:
    """ROUND."""
    match event:
        case RoundDone(None):
            return lost(state, "the older run's ranks could not agree how to go on")
        case RoundDone(Choice.TRAIN):
            asks = (AskExit(),) if state.exits else ()
            told = _told(state, HandoverWord.ABORT, "the attempt was aborted")
            return to(state, Phase.ABORTED, *told, TrainOn(state.attempt.next), *asks, told=True)
        case RoundDone(Choice.EXIT):
            told = _told(state, HandoverWord.ABORT, "the attempt was aborted, and the run is to end")
            return to(state, Phase.SAVING, *told, SaveAndExit(state.attempt.next), told=True)
        case RoundDone(Choice.RESTART):
            told = _told(state, HandoverWord.RESTART, "the newer run begins in place")
            return to(state, Phase.SAVING, *told, SaveAndExit(), told=True, word=HandoverWord.RESTART)
        case Silent(party, lost=True) if waits_for(state, party):
            return lost(state, f"nothing was heard of party {party} for long, and the older run needs it")
        case Sigterm():
            return stay(state, asked=True)
        case Passed(Alarm.DEADLINE):
            return lost(state, "the older run's ranks did not agree in time how to go on")
    return stay(state)


def gave_up(state: State, why: str, *, say: bool) -> Step:
    """The attempt is over for this old rank before the stop: it names it no more, and trains on."""
    said: tuple[Action, ...] = (Say(HandoverWord.ABORT, why),) if say else ()
    asks = (AskExit(),) if state.exits else ()
    told = _told(state, HandoverWord.ABORT, why)
    return to(
        state,
        Phase.ABORTED,
        *said,
        SetSeen(),
        *told,
        TrainOn(state.attempt.next),
        *asks,
        told=True,
        word=HandoverWord.ABORT,
    )


def trains_on(state: State, event: Event) -> Step:
    """ABORTED: as if nothing had happened, except that time may be short."""
    match event:
        case Stopped():
            # The others had not heard it when the vector named the attempt.
            return say_and_return(state, HandoverWord.ABORT, "given up before the stop")
        case Passed(Alarm.LAST_CALL) if state.forced and not state.asked and state.newer is None:
            return stay(state, AskExit(), asked=True)
        case Passed(Alarm.LIMIT):
            return stay(state, late=True)
        case ExitAgreed():
            return to(state, Phase.SAVING, SaveAndExit(state.attempt.next))
        case Sigterm():
            return stay(state, asked=True)
    return stay(state)


def saves(state: State, event: Event) -> Step:
    """SAVING."""
    match event:
        case Saved() if state.decides and state.needed:
            return to(state, Phase.LINGERING, leaves_as=ExitKind.CHECKPOINTED)
        case Saved():
            return to(state, Phase.ENDED, End(ExitKind.CHECKPOINTED))
    return stay(state)


def reached(state: State, event: GoalReached) -> Step:  # noqa: ARG001
    """The training is done while an attempt is prepared: nothing is left to hand over."""
    said = (Say(HandoverWord.ABORT, "completed"),) if state.decides else ()
    told = _told(state, HandoverWord.ABORT, "completed")
    return to(
        state, Phase.ABORTED, *said, SetSeen(), *told, TrainOn(state.attempt.next), told=True, word=HandoverWord.ABORT
    )


def exits_before_the_stop(state: State) -> Step:
    """All old ranks have agreed to end the run: the newcomers begin the newer one in place, behind its end."""
    why = "the run ends for another reason"
    said = (Say(HandoverWord.RESTART, why),) if state.decides else ()
    told = _told(state, HandoverWord.RESTART, why)
    return to(state, Phase.SAVING, *said, SetSeen(), *told, SaveAndExit(), told=True, word=HandoverWord.RESTART)


def _told(state: State, word: HandoverWord, why: str) -> tuple[Action, ...]:
    return () if state.told else (TellEnded(word, why),)
