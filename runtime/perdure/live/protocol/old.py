"""The machine of an old rank, staying or leaving. The rank does not change before it knows GO.

Called by perdure.live.protocol.machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from perdure.live.protocol.deciding import after_the_put, at_the_limit, before_the_put
from perdure.live.protocol.events import (
    Acknowledged,
    Alarm,
    AllConnected,
    AllWarm,
    AskExit,
    CloseStore,
    Connect,
    Connected,
    Event,
    ExitAgreed,
    ExitProcess,
    Heard,
    LinkClosed,
    Moved,
    MoveState,
    Newer,
    NotLive,
    PartyGone,
    Passed,
    SeenBy,
    SetConnected,
    Sigterm,
    Silent,
    Stopped,
    StoreSeen,
    TellVoting,
    TrainingDone,
    Unable,
    Vote,
)
from perdure.live.protocol.returning import (
    exits_before_the_stop,
    gave_up,
    in_the_round,
    reached,
    read_and_return,
    saves,
    say_and_return,
    trains_on,
)
from perdure.live.protocol.state import PartyPhase, PartyState, Step, stay, to, waits_for
from perdure.live.protocol.waiting import Answers, leave, lost, waited
from perdure.wire import ExitKind, HandoverWord

DECIDER_GONE = "the link to the decider is closed"
NEWER_RUN = "a newer run was planned"


def step_old(state: PartyState, event: Event) -> Step:
    """The step of an old rank."""
    if isinstance(event, Newer):
        state = replace(state, newer=event)
    if isinstance(event, (SeenBy, PartyGone)) or (isinstance(event, Silent) and event.lost):
        state, closing = _not_needed_by(state, event)
        next_state, actions = _in_phase(state, event)
        return next_state, (*closing, *actions)
    return _in_phase(state, event)


def _in_phase(state: PartyState, event: Event) -> Step:
    match state.phase:
        case PartyPhase.PREPARING:
            return _prepares(state, event)
        case PartyPhase.MOVING | PartyPhase.TELLING:
            return _stands(state, event)
        case PartyPhase.VOTED | PartyPhase.ASKING | PartyPhase.DECIDING:
            return _voted(state, event)
        case PartyPhase.ROUND:
            return in_the_round(state, event)
        case PartyPhase.ABORTED:
            return trains_on(state, event)
        case PartyPhase.SAVING:
            return saves(state, event)
        case PartyPhase.LINGERING:
            return _lingers(state, event)
        case PartyPhase.TOOK_OVER | PartyPhase.ENDED | PartyPhase.RUNNING_ON | PartyPhase.JOINING:
            return stay(state)
    assert_never(state.phase)


def _prepares(state: PartyState, event: Event) -> Step:
    # Unable and the limit may come in the same moment, in either order: before the limit this rank trains on, and past
    # it asks for an exit first. A stop or an exit that the ranks had agreed on meanwhile still reaches it
    # (`trains_on`), so they never part. The model checker tries both orders.
    match event:
        case AllWarm() | Connected() | AllConnected() | StoreSeen():
            return _comes_nearer(state, event)
        case Stopped() if state.exit_requested and not state.leaves:
            return say_and_return(state, HandoverWord.ABORT, "this pod is to end")
        case Stopped():
            return to(state, PartyPhase.MOVING, MoveState())
        case ExitAgreed():
            return exits_before_the_stop(state)
        case TrainingDone():
            return reached(state, event)
        case NotLive():
            return _asks_exit(state)  # also for a growth, because newcomers are warm: one stop, and no other attempt
        case Passed(Alarm.LIMIT | Alarm.QUIET) if state.forced or state.late:
            return _asks_exit(state)
        case Sigterm():
            return stay(state, exit_requested=True)
    why = _why_not(state, event)
    # The decider repeats the word for parties without a link to its sender.
    say = state.decides or not isinstance(event, Heard)
    return gave_up(state, why, say=say) if why else stay(state)


def _asks_exit(state: PartyState) -> Step:
    """Ask once. The agreed exit then makes the decider say restart."""
    return stay(state, *(() if state.late else (AskExit(),)), late=True)


def _comes_nearer(state: PartyState, event: AllWarm | Connected | AllConnected | StoreSeen) -> Step:
    """The steps to its offer in the vector."""
    match event:
        case AllWarm():
            return stay(state, Connect())
        case Connected():
            return stay(state, SetConnected())
        case AllConnected():
            return stay(state, connected=True)
        case StoreSeen(answers):
            return stay(state, silent=not answers)


def _stands(state: PartyState, event: Event) -> Step:
    """Stopped, and not voted yet."""
    match event:
        case Moved() if state.phase is PartyPhase.MOVING:
            return to(state, PartyPhase.TELLING, TellVoting())
        case Acknowledged() if state.phase is PartyPhase.TELLING:
            return to(state, PartyPhase.VOTED, Vote(), voted=True)
        case Sigterm() if state.leaves:
            return stay(state, exit_requested=True)
        case Sigterm():
            return say_and_return(replace(state, exit_requested=True), HandoverWord.ABORT, "this pod is to end")
        case Heard(HandoverWord.RESTART, why) if not state.decides:
            return read_and_return(state, HandoverWord.RESTART, why)
        case Passed(Alarm.LIMIT) if state.decides:
            return at_the_limit(state)
        case Passed(Alarm.SILENCE) if state.decides:
            return say_and_return(state, HandoverWord.ABORT, "not all parties voted in time")
        case Passed(Alarm.DEADLINE):
            return lost(state, "the hand-over was not decided in time")
        case Passed(Alarm.LIMIT):
            # The decider has the same limit, and may say restart.
            return stay(state, late=True)
    why = _why_not(state, event)
    return say_and_return(state, HandoverWord.ABORT, why) if why else stay(state)


def _voted(state: PartyState, event: Event) -> Step:
    """Voted: requests wait until the outcome is known."""
    if isinstance(event, Sigterm):
        return stay(state, exit_requested=True)
    if state.phase is PartyPhase.DECIDING:
        return after_the_put(state, event)
    if state.decides:
        return before_the_put(state, event)
    return waited(state, event, Answers(read_and_return, _ended, _refused))


def _refused(state: PartyState) -> Step:
    return read_and_return(state, HandoverWord.ABORT, "refused in the log")


def _ended(state: PartyState) -> Step:
    return lost(state, "the run has ended without this rank")


def _lingers(state: PartyState, event: Event) -> Step:
    match event:
        case Passed(Alarm.DEADLINE):
            return _has_lingered(state)
        case SeenBy() | PartyGone() | Silent() if not state.needed:
            return _has_lingered(state)
    return stay(state)


def _has_lingered(state: PartyState) -> Step:
    if state.leaves_as is ExitKind.HANDED_OVER:
        return leave(state)
    return to(state, PartyPhase.ENDED, ExitProcess(state.leaves_as))


def _not_needed_by(state: PartyState, event: SeenBy | PartyGone | Silent) -> tuple[PartyState, tuple[CloseStore, ...]]:
    """The decider keeps its store until each party knows the outcome or is gone."""
    party, left = event.party, state.needed - {event.party}
    missed = state.missed - {party} if isinstance(event, SeenBy) else state.missed | ({party} & state.needed)
    closing = (CloseStore(),) if state.needed and not left else ()
    return replace(state, needed=left, missed=missed), closing


def _why_not(state: PartyState, event: Event) -> str:
    """Why an old rank that has not voted ends the attempt; "" if it does not."""
    match event:
        case Unable(why) | Heard(HandoverWord.ABORT, why):
            return why or "aborted"
        case LinkClosed() if not state.decides:
            return DECIDER_GONE
        case Silent(party) if state.phase is not PartyPhase.PREPARING and waits_for(state, party):
            return f"party {party} is silent"
        case PartyGone(party):
            return f"party {party} is gone"
        case Newer(takes_over) if takes_over != state.attempt.next:
            return NEWER_RUN
        case Passed(Alarm.ACK) if state.phase is PartyPhase.TELLING:
            return "the agent did not acknowledge the vote"
        case Passed(Alarm.LIMIT | Alarm.QUIET):
            return "the limit has passed"
    return ""
