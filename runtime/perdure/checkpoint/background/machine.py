"""One rank's state machine.

Pure and total: the same state and event always give the same step, and events without meaning in a state are ignored.
No clock: deadlines are events, and estimates come with them. The shell of saves drives it, and so does the model
checker that tries every order of events in small worlds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from perdure.checkpoint.background.agreeing import drop, heard, report_last_save
from perdure.checkpoint.background.committing import CommitEvent, step_commit
from perdure.checkpoint.background.events import (
    Agreed,
    AtBoundary,
    Ends,
    Event,
    HandsOver,
    KillUploader,
    Leaves,
    RefuseHandover,
    Save,
    Stood,
    Stops,
    Stream,
    Streamed,
    TellMissed,
    TrainsOn,
    Wish,
)
from perdure.checkpoint.background.leaving import leave, streamed
from perdure.checkpoint.background.state import Firm, Mode, PartState, SavesState, Step, begin, name_of, stay, then
from perdure.checkpoint.background.this_rank import PartEvent, begin_copy, step_part
from perdure.checkpoint.background.vector import ArenaUse

__all__ = ["SavesState", "Step", "begin", "step"]

CollectiveEvent = Agreed | AtBoundary | Stood | Streamed | Stops | TrainsOn | HandsOver | Leaves


def step(state: SavesState, event: Event) -> Step:
    """The state after `event`, and the actions in order."""
    if isinstance(event, PartEvent):
        return step_part(state, event)
    if isinstance(event, CommitEvent):
        return step_commit(state, event)
    if isinstance(event, Ends):
        return _ends(state)
    return stay(state) if state.mode is Mode.LEFT else _on_all_ranks(state, event)


def _on_all_ranks(state: SavesState, event: CollectiveEvent) -> Step:
    match event:
        case Agreed(words):
            return heard(state, words)
        case AtBoundary():
            return _at_boundary(state, event)
        case Stood():
            return _stood(state, event)
        case Streamed(done):
            return streamed(state, done=done)
        case Leaves():
            return leave(state, event)
        case Stops() | TrainsOn() | HandsOver():
            return _in_a_hand_over(state, event)
    assert_never(event)


def _in_a_hand_over(state: SavesState, event: Stops | TrainsOn | HandsOver) -> Step:
    match event:
        case Stops():
            return _stops(state)
        case TrainsOn() if state.mode in (Mode.SETTLES, Mode.STOPPED):
            return stay(state, mode=Mode.TRAINS)
        case HandsOver() if state.mode is Mode.STOPPED:
            return _hands_over(state)
    return stay(state)


def _at_boundary(state: SavesState, event: AtBoundary) -> Step:
    if state.mode is not Mode.TRAINS:
        return stay(state)
    state, actions = report_last_save(state)
    return then((state, actions), _wanted(state, event))


def _wanted(state: SavesState, event: AtBoundary) -> Step:
    wish, reason = event.wish, event.reason
    if wish is None and state.owed and not event.paused:
        wish, reason = Wish.LATER, state.owed
    if wish is None or state.mode is not Mode.TRAINS:
        return stay(state)
    firm = Firm(wish, event.step, reason, event.same)
    if state.save is None and wish is Wish.NOW:
        return _streams(state, firm)
    if state.save is None and state.busiest is not ArenaUse.IN_USE:
        return _begins(state, firm)
    return stay(state) if wish is Wish.LATER else stay(state, mode=Mode.STANDS, firm=firm)


def _begins(state: SavesState, firm: Firm) -> Step:
    """All ranks begin a save. Nothing is under way, and no arena is in use."""
    if firm.wish is Wish.NOW or state.busiest is ArenaUse.NONE:
        return _streams(state, firm)
    number = state.number + 1
    save = Save(number, name_of(state.writer, number), firm.step, firm.reason)
    return begin_copy(replace(state, number=number, mode=Mode.TRAINS, firm=None, owed=""), save)


def _streams(state: SavesState, firm: Firm) -> Step:
    return stay(state, Stream(firm.reason), mode=Mode.TRAINS, firm=None, owed="")


def _stood(state: SavesState, event: Stood) -> Step:
    if state.mode not in (Mode.STANDS, Mode.SETTLES):
        return stay(state)
    state, actions = heard(state, event.words)
    committed = state.outcome is not None and state.outcome.seq > 0
    state, telling = report_last_save(state)
    first = state, (*actions, *telling)
    if state.mode is Mode.SETTLES:
        return then(first, _settles(state, late=event.late))
    if state.mode is Mode.STANDS and state.firm:
        return then(first, _stands(state, state.firm, committed=committed, late=event.late))
    return first


def _settles(state: SavesState, *, late: bool) -> Step:
    """The newer run opens only once no append of the older one can come."""
    if state.save is None:
        return stay(state, mode=Mode.STOPPED)
    return stay(state, RefuseHandover("the store has not answered a commit")) if late else stay(state)


def _stands(state: SavesState, firm: Firm, *, committed: bool, late: bool) -> Step:
    if state.save:
        missed = TellMissed(firm.reason, "the save before it is not settled")
        return stay(state, missed, mode=Mode.TRAINS, firm=None, owed=firm.reason) if late else stay(state)
    if committed and firm.same:
        return stay(state, mode=Mode.TRAINS, firm=None)
    if state.busiest is ArenaUse.IN_USE and firm.wish is not Wish.NOW:
        # No save is in progress, so a blocking one is safe.
        return _streams(state, firm) if late else stay(state)
    return _begins(state, firm)


def _stops(state: SavesState) -> Step:
    if state.mode is not Mode.TRAINS:
        return stay(state)
    state, actions = report_last_save(state)
    if state.mode is Mode.TRAINS:
        state = replace(state, mode=Mode.SETTLES if state.save and state.everywhere else Mode.STOPPED)
    return state, actions


def _hands_over(state: SavesState) -> Step:
    owed, was = state.owed, state.save
    state, actions = drop(state)
    if was:
        state = replace(state, owed=owed or was.reason, dropped=True)
    return replace(state, mode=Mode.LEFT), actions


def _ends(state: SavesState) -> Step:
    """Nothing of this process stays behind, and nothing more is begun."""
    state = replace(state, mode=Mode.LEFT, part=PartState.NONE)
    return (
        stay(state, KillUploader(state.uploader), dying=state.uploader, uploader=0) if state.uploader else stay(state)
    )
