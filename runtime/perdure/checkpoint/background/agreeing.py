"""The changes by the words of all ranks, and the resulting reports. Called by the machine."""

from __future__ import annotations

from dataclasses import replace

from perdure.checkpoint.background.committing import begin_commit
from perdure.checkpoint.background.events import Abandon, Action, Save, StopFenced, TellCommitted, TellFailed
from perdure.checkpoint.background.state import (
    CommitState,
    LoggedCommit,
    Mode,
    PartState,
    SaveOutcome,
    SavesState,
    Step,
    stay,
    then,
)
from perdure.checkpoint.background.this_rank import let_go
from perdure.checkpoint.background.vector import ArenaUse, Words


def heard(state: SavesState, words: Words) -> Step:
    """The combined vector of all ranks was read."""
    state = replace(state, busiest=ArenaUse(words.arena))
    save, answer = state.save, LoggedCommit.unpack(words.committed)
    if save is None:
        return stay(state)
    if answer.number == save.number:
        return _committed(state, save, answer)
    if words.failed >= save.number:
        return _failed(state, save)
    if words.durable >= save.number and not state.everywhere:
        return begin_commit(replace(state, everywhere=True))
    return stay(state)


def _committed(state: SavesState, save: Save, answer: LoggedCommit) -> Step:
    ended = state.mode is Mode.LEAVES and answer.final
    return stay(_without(state), outcome=SaveOutcome(save, answer.seq), dropped=False, ended=ended)


def _failed(state: SavesState, save: Save) -> Step:
    state = replace(
        state, outcome=SaveOutcome(save, why=state.why, changed=state.changed), owed=state.owed or save.reason
    )
    return drop(state)


def drop(state: SavesState) -> Step:
    """Drop the save under way. No append that names it was sent."""
    if state.save is None:
        return stay(state)
    abandon = () if state.rank else (Abandon(state.save),)
    ended = let_go(state, PartState.NONE)
    return then((state, abandon), (_without(ended[0]), ended[1]))


def _without(state: SavesState) -> SavesState:
    return replace(state, save=None, everywhere=False, part=PartState.NONE, commit=CommitState.NONE)


def report_last_save(state: SavesState) -> Step:
    """Tells all ranks, at one place, how the last save ended, and whether they may go on."""
    done, actions = state.outcome, list[Action]()
    if done:
        save = done.save
        actions.append(TellCommitted(save, done.seq) if done.seq else TellFailed(save, done.why, done.changed))
        state = replace(state, outcome=None)
    if state.busiest is ArenaUse.FENCED and state.mode is not Mode.LEFT:
        actions.append(StopFenced(state.fenced))
        state = replace(state, mode=Mode.LEFT)
    return state, tuple(actions)
