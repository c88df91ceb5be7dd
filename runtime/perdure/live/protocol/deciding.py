"""The decider after its vote: only it appends Opened, and once its PUT has begun only the log gives the outcome.

Before the PUT it may still say abort or restart. Afterwards it repeats the PUT until it is answered, past the older
run's own commits only. Called by perdure.live.protocol.old.
"""

from __future__ import annotations

from perdure.live.protocol.events import (
    Alarm,
    AppendOpened,
    Event,
    ExitProcess,
    Heard,
    LogAnswered,
    PartyGone,
    Passed,
    SayToAll,
    Silent,
    VoteReduced,
)
from perdure.live.protocol.returning import say_and_return
from perdure.live.protocol.state import PartyPhase, PartyState, Step, also, stay, to, waits_for
from perdure.live.protocol.waiting import lost, went
from perdure.log.verdict import Verdict
from perdure.wire import ExitKind, HandoverWord


def before_the_put(state: PartyState, event: Event) -> Step:
    """VOTED: nothing is appended yet."""
    match event:
        case VoteReduced(whole=True):
            return to(state, PartyPhase.DECIDING, AppendOpened())
        case VoteReduced(False, why):
            return say_and_return(state, HandoverWord.ABORT, why or "the vote failed")
        case Heard(HandoverWord.ABORT, why):
            # Repeated for parties without a link to the sender.
            return say_and_return(state, HandoverWord.ABORT, why)
        case PartyGone(party):
            return say_and_return(state, HandoverWord.ABORT, f"party {party} is gone")
        case Silent(party) if waits_for(state, party):
            return say_and_return(state, HandoverWord.ABORT, f"party {party} is silent")
        case Passed(Alarm.SILENCE):
            return say_and_return(state, HandoverWord.ABORT, "not all parties voted in time")
        case Passed(Alarm.LIMIT):
            return at_the_limit(state)
        case Passed(Alarm.DEADLINE):
            return lost(state, "the hand-over was not decided in time")
    return stay(state)


def at_the_limit(state: PartyState) -> Step:
    """The decider's word at the limit: if a pod has to leave anyway, it needs its exit save now."""
    word = HandoverWord.RESTART if state.forced else HandoverWord.ABORT
    return say_and_return(stay(state, late=True)[0], word, "the limit has passed")


def after_the_put(state: PartyState, event: Event) -> Step:
    """DECIDING: the PUT may have arrived at any time."""
    match event:
        case LogAnswered(verdict):
            return _answered(state, verdict)
        case Passed(Alarm.DEADLINE):
            return lost(state, "the store did not answer the hand-over's PUT in time")
    return stay(state)


def _answered(state: PartyState, verdict: Verdict | None) -> Step:
    match verdict:
        case Verdict.GO:
            next_state, actions = went(state)
            return also((next_state, (SayToAll(HandoverWord.GO),)), actions)
        case Verdict.REFUSED:
            return say_and_return(state, HandoverWord.ABORT, "refused in the log")
        case Verdict.OPEN:
            return stay(state, AppendOpened())
        case None:
            return stay(state, AppendOpened(again=True))
        case Verdict.ENDED:
            return lost(state, "the run ended while it was being handed over")
        case Verdict.FENCED:
            return to(state, PartyPhase.ENDED, ExitProcess(ExitKind.FENCED, "another run owns the log"))
