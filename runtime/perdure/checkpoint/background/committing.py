"""Rank 0's part: it commits a save that is durable on all ranks.

Before the append is sent the save may still fail. Afterwards only the log knows: the append is repeated until it is
answered, and given up only where another run owns the log. Called by the machine.
"""

from __future__ import annotations

from dataclasses import replace

from perdure.checkpoint.background.events import (
    Append,
    Appended,
    CommitFenced,
    NoAnswer,
    NotPrepared,
    Prepare,
    Prepared,
)
from perdure.checkpoint.background.state import CommitState, LoggedCommit, SavesState, Step, stay
from perdure.checkpoint.background.this_rank import fail

CommitEvent = Prepared | NotPrepared | Appended | NoAnswer | CommitFenced


def begin_commit(state: SavesState) -> Step:
    """Begin to commit the save under way, which is durable on all ranks."""
    if state.rank or state.save is None:
        return stay(state)
    return stay(state, Prepare(state.save), commit=CommitState.PREPARING)


def step_commit(state: SavesState, event: CommitEvent) -> Step:
    """Act on the store's answer."""
    save = state.save
    if save is None or event.name != save.name:
        return stay(state)
    match event:
        case Prepared() if state.commit is CommitState.PREPARING:
            return stay(state, Append(save, state.final), commit=CommitState.SENT, sent_final=state.final)
        case NotPrepared(why=why) if state.commit is CommitState.PREPARING:
            return fail(state, why)
        case Appended(seq=seq) if state.commit is CommitState.SENT:
            answer = LoggedCommit(save.number, state.sent_final, seq).pack()
            return stay(state, commit=CommitState.ANSWERED, answer=answer)
        case NoAnswer() if state.commit is CommitState.SENT:
            return stay(state, Append(save, state.sent_final, again=True))
        case CommitFenced(why=why) if state.commit is CommitState.SENT:
            return stay(replace(state, fenced=why or "another run owns the log"))
    return stay(state)
