"""A voted party: it may no longer say anything, and waits until it knows the outcome.

The decider's word is quick; if it may be missing, the party reads the log. If this party cannot reach the decider, or
time is up, and the log has no outcome, it appends Refused at once. The first of Opened and Refused decides for all, so
the party may be wrong about the decider, and need not wait for a limit. Old ranks and newcomers differ in what they do
then: see `Answers`.

Called by perdure.live.protocol.old and perdure.live.protocol.newcomer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from perdure.live.protocol.events import (
    Alarm,
    AppendRefused,
    Event,
    ExitProcess,
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
from perdure.live.protocol.state import PartyPhase, PartyState, Step, stay, to
from perdure.log.verdict import Verdict
from perdure.wire import ExitKind, HandoverWord


@dataclass(frozen=True)
class Answers:
    """A party's steps after a failed attempt."""

    word: Callable[[PartyState, HandoverWord, str], Step]
    ended: Callable[[PartyState], Step]
    """The party's step after the older run ended in the log."""
    refused: Callable[[PartyState], Step]
    """The party's step after the log refused the newer run."""


def waited(state: PartyState, event: Event, answers: Answers) -> Step:
    """The step of a voted party in VOTED or ASKING, except for the decider."""
    match event:
        case Heard(HandoverWord.GO):
            return went(state, heard=True)
        case Heard(word, why):
            return answers.word(state, word, why)
        case LogAnswered(verdict) if state.phase is PartyPhase.ASKING:
            return _answered(state, verdict, answers)
        case VoteReduced(whole=False):
            return _ask(state)  # the decider decides and says its word
        case LinkClosed():
            return _ask(stay(state, settles=True, deaf=True)[0])
        case Silent(party) if party == state.attempt.decider:
            return _ask(stay(state, settles=True, deaf=True)[0])
        case Passed(Alarm.LIMIT):
            return _ask(stay(state, late=True)[0])
        case Passed(Alarm.QUIET):
            return _ask(stay(state, settles=True)[0])
        case Passed(Alarm.DEADLINE):
            return lost(state, "the outcome of the hand-over did not become known in time")
    return stay(state)


def went(state: PartyState, *, heard: bool = False) -> Step:
    """The newer run took over, as this party read in the log or `heard` from the decider."""
    state = replace(state, word=HandoverWord.GO)
    if not state.leaves:
        return to(state, PartyPhase.TOOK_OVER, SetSeen(), Install(), TellTookOver())
    if state.decides and state.needed:
        return to(state, PartyPhase.LINGERING, leaves_as=ExitKind.HANDED_OVER)
    next_state, actions = leave(state, heard=heard)
    return next_state, (SetSeen(), *actions)


def leave(state: PartyState, *, heard: bool = False) -> Step:
    """A leaver that knows GO exits.

    If one pod has all ranks of the newer run, and may have died before any of them knew, this process may hold the last
    copy of the state. It keeps that copy, and appends nothing, because the silent ranks may be alive.
    """
    attempt = state.attempt
    if state.decides:
        unknowing = state.needed | state.missed
        knows = any(party.number not in unknowing for party in attempt.parties if party.new is not None)
    else:
        knows = heard or not attempt.of_new(0).decides
    if knows or not attempt.alone:
        return to(state, PartyPhase.ENDED, ExitProcess(ExitKind.HANDED_OVER))
    kept = f"run {attempt.next} has taken over, but its only pod has been silent since: it may be lost"
    return to(state, PartyPhase.ENDED, ExitProcess(ExitKind.PEER_LOST, kept))


def lost(state: PartyState, why: str) -> Step:
    """End this process, which is safe whatever happened."""
    return to(state, PartyPhase.ENDED, ExitProcess(ExitKind.PEER_LOST, why))


def _ask(state: PartyState) -> Step:
    if state.phase is PartyPhase.ASKING:
        return stay(state)
    return to(state, PartyPhase.ASKING, ReadLog())


def _answered(state: PartyState, verdict: Verdict | None, answers: Answers) -> Step:
    match verdict:
        case Verdict.GO:
            return went(state)
        case Verdict.REFUSED:
            return answers.refused(state)
        case Verdict.ENDED:
            return answers.ended(state)
        case Verdict.FENCED:
            return to(state, PartyPhase.ENDED, ExitProcess(ExitKind.FENCED, "another run owns the log"))
        case Verdict.OPEN if state.settles:
            return stay(state, AppendRefused())
        case _:
            return stay(state, ReadLog(again=True))
