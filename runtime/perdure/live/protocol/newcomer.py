"""The machine of a newcomer. It does not train and has no group before it knows GO.

Until it has voted it may leave at any time; it says so, and the older run keeps training. Called by
perdure.live.protocol.machine.
"""

from __future__ import annotations

from dataclasses import replace

from perdure.live.protocol.events import (
    Acknowledged,
    Alarm,
    AllWarm,
    Connect,
    Connected,
    Event,
    ExitProcess,
    FirstBatch,
    Heard,
    JoinInPlace,
    LinkClosed,
    LogAnswered,
    Moved,
    MoveState,
    Newer,
    NotLive,
    Passed,
    ReadLog,
    SayToAll,
    SetConnected,
    SetSeen,
    Sigterm,
    Silent,
    TellVoting,
    Unable,
    Vote,
)
from perdure.live.protocol.state import UNVOTED, PartyPhase, PartyState, Step, stay, to
from perdure.live.protocol.waiting import Answers, waited
from perdure.log.verdict import Verdict
from perdure.wire import ExitKind, HandoverWord

HOLDING = frozenset({PartyPhase.RUNNING_ON, PartyPhase.TELLING, PartyPhase.VOTED, PartyPhase.ASKING})
"""Phases in which a newcomer holds the whole state."""


def step_newcomer(state: PartyState, event: Event) -> Step:
    """The step of a newcomer."""
    if state.phase in (PartyPhase.VOTED, PartyPhase.ASKING):
        return waited(state, event, Answers(_read, _joins, _refused))
    return _unvoted(state, event) if state.phase in UNVOTED else stay(state)


def _unvoted(state: PartyState, event: Event) -> Step:
    match event:
        case AllWarm() | Connected() | Moved() | FirstBatch() | Acknowledged():
            return _comes_nearer(state, event)
        case Heard(word, why) if word is not HandoverWord.GO:
            return _read(state, word, why)
        case LinkClosed():
            return _failed(replace(state, deaf=True), "the link to the decider is closed")
        case Silent():
            return _failed(replace(state, deaf=True), "the decider is silent")
        case Passed(Alarm.LIMIT) if not state.late:
            return stay(state, ReadLog(), late=True)
        case LogAnswered(verdict) if state.late or verdict not in (Verdict.OPEN, None):
            return _answered(state, verdict)
    why = _why_not(state, event)
    if why:
        next_state, actions = _failed(state, why)
        return next_state, (SayToAll(HandoverWord.ABORT, why), *actions)
    return stay(state)


def _comes_nearer(state: PartyState, event: Event) -> Step:
    """The steps to its vote. It waits in Move until the old ranks stop, and then for its script's first batch."""
    match event:
        case AllWarm() if state.phase is PartyPhase.PREPARING:
            return stay(state, Connect())
        case Connected() if state.phase is PartyPhase.PREPARING:
            return to(state, PartyPhase.MOVING, SetConnected(), MoveState())
        case Moved() if state.phase is PartyPhase.MOVING:
            return to(state, PartyPhase.RUNNING_ON)
        case FirstBatch() if state.phase is PartyPhase.RUNNING_ON and not state.late:
            return to(state, PartyPhase.TELLING, TellVoting())
        case Acknowledged() if state.phase is PartyPhase.TELLING:
            return to(state, PartyPhase.VOTED, Vote(), voted=True)
    return stay(state)


def _answered(state: PartyState, verdict: Verdict | None) -> Step:
    """The log's answer. This newcomer never voted, so it cannot be GO."""
    match verdict:
        case Verdict.ENDED:
            return _joins(state)
        case Verdict.OPEN | None:
            return stay(state, ReadLog(again=True))
    return _failed(state, "the older run keeps training, as the log says")


def _read(state: PartyState, word: HandoverWord, why: str) -> Step:
    return _joins(state) if word is HandoverWord.RESTART else _failed(state, why or "aborted")


def _refused(state: PartyState) -> Step:
    """The log refused the newer run. If only one rank trained the older one, it has to show that it lives."""
    if state.attempt.world == 1 and not state.deaf:
        return stay(state, ReadLog(again=True))
    return _failed(state, "refused in the log")


def _joins(state: PartyState) -> Step:
    return to(state, PartyPhase.JOINING, SetSeen(), JoinInPlace(), word=HandoverWord.RESTART)


def _failed(state: PartyState, why: str) -> Step:
    if state.deaf and state.attempt.world == 1 and state.phase in HOLDING:
        # This process may hold the last copy of the state. It appends nothing, because the silent rank may be alive.
        kept = f"{why}, and no other process holds this state"
        return to(state, PartyPhase.ENDED, SetSeen(), ExitProcess(ExitKind.PEER_LOST, kept), word=HandoverWord.ABORT)
    return to(state, PartyPhase.ENDED, SetSeen(), ExitProcess(ExitKind.HANDOVER_FAILED, why), word=HandoverWord.ABORT)


def _why_not(state: PartyState, event: Event) -> str:
    """Why a newcomer that has not voted ends the attempt; "" if it does not."""
    match event:
        case Unable(why) | NotLive(why):
            return why
        case Sigterm():
            return "the newcomer's pod is to end"
        case Newer(takes_over) if takes_over != state.attempt.next:
            return "a newer run was planned"
        case Passed(Alarm.ACK) if state.phase is PartyPhase.TELLING:
            return "the newcomer's agent did not acknowledge the vote"
        case Passed(Alarm.DEADLINE):
            return "nothing came of the attempt in time"
    return ""
