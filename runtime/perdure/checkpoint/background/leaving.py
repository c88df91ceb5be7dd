"""How the ranks leave with a save under way: one decision by all, from the least time left and the greatest estimates.

The turn ends with a final commit, with Closed, or without an end if none is wanted. Called by the machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from perdure.checkpoint.background.agreeing import drop, heard, report_last_save
from perdure.checkpoint.background.events import Close, GiveUp, Leaves, Left, Stream
from perdure.checkpoint.background.state import Mode, SavesState, Step, stay, then, unanswered
from perdure.checkpoint.background.this_rank import hold, resume

LAST: Final = "leaving"
"""The reason of the last save."""
NEARLY: Final = 4
"""In a hurry a save under way is finished first only if that takes at most this part of the time of the last one."""
PATIENT_SECONDS: Final = 30.0
MANY: Final = 10
"""Without a hurry it is finished first, unless that takes longer than both this and so many times a whole save."""


def leave(state: SavesState, event: Leaves) -> Step:
    """Decide what the ranks do next. They gather again until the turn is over."""
    if state.mode is not Mode.LEAVES:
        state = replace(state, mode=Mode.LEAVES, firm=None, found=state.save is not None)
    state, actions = heard(state, event.words)
    committed = state.outcome is not None and state.outcome.seq > 0
    state, telling = report_last_save(state)
    first = state, (*actions, *telling)
    if state.mode is not Mode.LEAVES:
        return first
    if committed and event.same:
        state = replace(state, kept=True)
    if state.ended:
        return then(first, _over(state))
    if state.save is None:
        return then(first, _without(state, event))
    return then(first, _committing(state, event) if state.everywhere else _uploading(state, event))


def streamed(state: SavesState, *, done: bool) -> Step:
    """The blocking save is over."""
    if state.mode is not Mode.LEAVES:
        return stay(state, dropped=state.dropped and not done)
    if not done:
        return stay(state, tried=True)
    step = drop(replace(state, ended=True))
    return then(step, _over(step[0]))


def _over(state: SavesState) -> Step:
    return stay(state, Left(), mode=Mode.LEFT)


def _closes(state: SavesState, why: str) -> Step:
    step = drop(state)
    return then(step, stay(step[0], Close(why), mode=Mode.LEFT))


def _without(state: SavesState, event: Leaves) -> Step:
    """No save is under way any more."""
    if event.whole is None:
        return _over(state)
    if state.kept:
        return _closes(state, "everything is saved")
    if not state.tried and (not state.found or _fits(event, event.whole)):
        return stay(state, Stream(LAST, final=True))
    return _closes(state, "no time for another save")


def _committing(state: SavesState, event: Leaves) -> Step:
    """All parts are in the store: what is missing is one entry in the log."""
    if _over_time(event):
        if event.unanswered or unanswered(state):
            return stay(state, GiveUp("time is up, and the store has not answered a commit"), mode=Mode.LEFT)
        return _closes(state, "time is up")
    return stay(state, final=event.same or state.tried or not _whole_fits(event, event.whole))


def _uploading(state: SavesState, event: Leaves) -> Step:
    if state.tried:
        return _goes_back(state, event)
    if state.finishes or event.whole is None or not _fits(event, event.whole):
        return _finishes_if_it_fits(state, event)
    worth_it = event.rest <= _patience(event, event.whole)
    if worth_it and _fits(event, event.rest + event.whole):
        return stay(state, waits=True, final=event.same)
    if worth_it and event.same and not state.waits:
        return stay(state, finishes=True, final=True)
    # One that is late, or is waited for so long, may be uploaded by a process that stands still.
    held = hold(state)
    return then(held, stay(held[0], Stream(LAST, final=True, keep=event.rest)))


def _patience(event: Leaves, whole: float) -> float:
    if not event.hurries:
        return max(PATIENT_SECONDS, MANY * whole)
    return whole if event.same else whole / NEARLY


def _goes_back(state: SavesState, event: Leaves) -> Step:
    """The whole save has failed: what was held may still be in time."""
    if not state.finishes and not _fits(event, event.rest):
        return _closes(state, "no time for what was held")
    step = _finishes_if_it_fits(state, event)
    return then(step, resume(step[0])) if step[0].save else step


def _finishes_if_it_fits(state: SavesState, event: Leaves) -> Step:
    """A save that is being finished is given up only in the last second: the estimate may be wrong."""
    if _over_time(event) or not (state.finishes or _fits(event, event.rest)):
        if event.whole is None:
            step = drop(state)
            return then(step, _over(step[0]))
        return _closes(state, "no time for the save under way")
    return stay(state, finishes=True, final=event.whole is not None)


def _fits(event: Leaves, seconds: float) -> bool:
    return event.left is None or event.left >= seconds


def _whole_fits(event: Leaves, whole: float | None) -> bool:
    return whole is None or _fits(event, whole)


def _over_time(event: Leaves) -> bool:
    return event.left is not None and event.left <= 0
