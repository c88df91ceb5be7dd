"""A party that has voted: it may say nothing any more, and does nothing before it knows what happened.

A word of the decider is quick; where it may be missing the log is asked. Where the decider is gone for this party, or
time is up, and the log says nothing, it appends Refused at once: the first of Opened and Refused is the answer for
everybody, so it may be wrong about the decider, and never waits for a limit. What an answer means for a
party differs between old ranks and newcomers: see `Answers`.

Called by perdure.live.protocol.old and perdure.live.protocol.newcomer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from perdure.live.protocol.events import (
    Alarm,
    AppendRefused,
    Event,
    Exit,
    Heard,
    Install,
    LinkClosed,
    LogAnswered,
    Passed,
    ReadLog,
    SetSeen,
    Silent,
    TellTookOver,
    VoteReduced,
)
from perdure.live.protocol.state import Phase, State, Step, stay, to
from perdure.log.verdict import Verdict
from perdure.wire import ExitKind, HandoverWord


@dataclass(frozen=True)
class Answers:
    """What a party does when it learns that the attempt did not take place."""

    word: Callable[[State, HandoverWord, str], Step]
    ended: Callable[[State], Step]
    """The older run has ended in the log."""


def waited(state: State, event: Event, answers: Answers) -> Step:
    """A voted party that is not the decider, in VOTED or ASKING."""
    match event:
        case Heard(HandoverWord.GO):
            return went(state, heard=True)
        case Heard(word, why):
            return answers.word(state, word, why)
        case LogAnswered(verdict) if state.phase is Phase.ASKING:
            return _answered(state, verdict, answers)
        case VoteReduced(whole=False):
            return _ask(state)  # the decider, which is there, says what it makes of it
        case LinkClosed():
            return _ask(stay(state, settles=True, deaf=True)[0])
        case Silent(party) if party == state.attempt.decider:
            return _ask(stay(state, settles=True, deaf=True)[0])
        case Passed(Alarm.LIMIT):
            return _ask(stay(state, late=True)[0])
        case Passed(Alarm.QUIET):
            return _ask(stay(state, settles=True)[0])
        case Passed(Alarm.DEADLINE):
            return lost(state, "nobody knows in time what became of the hand-over")
    return stay(state)


def went(state: State, *, heard: bool = False) -> Step:
    """The newer run has taken over, and this party knows it: of the log, or it has `heard` it of the decider."""
    state = replace(state, word=HandoverWord.GO)
    if not state.leaves:
        return to(state, Phase.TOOK_OVER, SetSeen(), Install(), TellTookOver())
    if state.decides and state.needed:
        return to(state, Phase.LINGERING, leaves_as=ExitKind.HANDED_OVER)
    next_state, actions = leave(state, heard=heard)
    return next_state, (SetSeen(), *actions)


def leave(state: State, *, heard: bool = False) -> Step:
    """A leaver ends that knows go. Where the newer run has one member, and that may have died before it knew, what this
    process holds may be the last of the state: it keeps it, and appends nothing, for whoever is silent may live.
    """
    heir = state.attempt.of_new(0)
    knows = heir.number not in state.needed | state.missed if state.decides else heard or not heir.decides
    if state.attempt.new_world > 1 or knows:
        return to(state, Phase.ENDED, Exit(ExitKind.HANDED_OVER))
    kept = f"run {state.attempt.next} has taken over, and its only rank was not heard since: it may be lost"
    return to(state, Phase.ENDED, Exit(ExitKind.PEER_LOST, kept))


def lost(state: State, why: str) -> Step:
    """It ends, and takes part in nothing any more: that is safe whatever has happened."""
    return to(state, Phase.ENDED, Exit(ExitKind.PEER_LOST, why))


def _ask(state: State) -> Step:
    if state.phase is Phase.ASKING:
        return stay(state)
    return to(state, Phase.ASKING, ReadLog())


def _answered(state: State, verdict: Verdict | None, answers: Answers) -> Step:
    match verdict:
        case Verdict.GO:
            return went(state)
        case Verdict.REFUSED:
            return answers.word(state, HandoverWord.ABORT, "refused in the log")
        case Verdict.ENDED:
            return answers.ended(state)
        case Verdict.FENCED:
            return to(state, Phase.ENDED, Exit(ExitKind.FENCED, "another run owns the log"))
        case Verdict.OPEN if state.settles:
            return stay(state, AppendRefused())
        case _:
            return stay(state, ReadLog(again=True))
