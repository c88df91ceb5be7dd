"""This rank's part of a save: its copy, its upload, and who may still write or read the arena.

An arena is free once its uploader has released it, or is killed and reaped. Its bytes stay until the next copy, so
another process may upload them again. Words of another save are ignored, however late they come. Called by the machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from perdure.checkpoint.background.events import (
    Copy,
    CopyChanged,
    CopyFailed,
    Durable,
    Failed,
    KillUploader,
    Late,
    Released,
    Room,
    Save,
    Sealed,
    StartUpload,
    UploaderEnded,
    UploaderStuck,
)
from perdure.checkpoint.background.state import CommitState, PartState, SavesState, Step, stay

UPLOADERS: Final = 2
"""How many processes may try to upload one part: one that dies is followed by another."""

PartEvent = (
    Room | Sealed | CopyFailed | CopyChanged | Durable | Failed | Released | UploaderEnded | UploaderStuck | Late
)  # fmt: skip


def begin_copy(state: SavesState, save: Save) -> Step:
    """Begins this rank's part of a save."""
    copying = replace(state, save=save, part=PartState.COPYING, arena=save.name, copying=True, why="", changed=False)
    return stay(copying, Copy(save), orders=0)


def step_part(state: SavesState, event: PartEvent) -> Step:
    """Act on what this rank's own threads and processes report."""
    match event:
        case Room(usable):
            return stay(state, room=usable)
        case Sealed(name) if state.copying and name == state.arena:
            return _copied(replace(state, copying=False, arena=""))
        case CopyFailed(name) | CopyChanged(name) if state.copying and name == state.arena:
            return _not_copied(replace(state, copying=False, arena=""), event)
        case Durable(name, uploader) if state.save and name == state.save.name:
            # Not of one that has died: another one may work under the same name.
            says_it = state.part in (PartState.UPLOADING, PartState.HELD) and uploader in (state.uploader, state.dying)
            return stay(state, part=PartState.DURABLE, durable=state.save.number) if says_it else stay(state)
        case Failed(name, why) if state.save and name == state.save.name and state.part is PartState.UPLOADING:
            return fail(state, why)
        case Released(name, uploader) if name == state.arena and uploader == state.uploader and not state.copying:
            return stay(state, arena="")
        case UploaderEnded(uploader, why) if uploader in (state.dying, state.uploader) and uploader:
            return _ended(state, uploader, why)
        case UploaderStuck(uploader) if uploader == state.dying and uploader:
            broken = replace(state, broken=True)
            waits = state.part in (PartState.UPLOADING, PartState.HELD)
            return fail(broken, "its uploader cannot be ended") if waits else stay(broken)
        case Late(name):
            return _late(state, name)
    return stay(state)


def fail(state: SavesState, why: str) -> Step:
    """This rank's part of the save under way has failed, unless it has already."""
    if state.save is None or state.part in (PartState.NONE, PartState.FAILED):
        return free(state)
    failed = replace(state, failed=state.save.number, why=why, commit=CommitState.NONE)
    return let_go(failed, PartState.FAILED)


def let_go(state: SavesState, part: PartState) -> Step:
    """Drop this rank's part: end its uploader if it works on it."""
    works = state.part is PartState.UPLOADING
    state = replace(state, part=part)
    return _kill(state) if works else free(state)


def free(state: SavesState) -> Step:
    """Kills the uploader if it may still read the arena. One that is being written is freed when the copy ends."""
    return _kill(state) if state.arena and not state.copying else stay(state)


def _kill(state: SavesState) -> Step:
    if state.uploader:
        return stay(state, KillUploader(state.uploader), dying=state.uploader, uploader=0)
    return stay(state) if state.dying else stay(state, arena="")


def hold(state: SavesState) -> Step:
    """Stops this rank's upload and keeps its bytes."""
    if state.part is PartState.COPYING:
        return stay(state, part=PartState.HELD)
    return _kill(replace(state, part=PartState.HELD)) if state.part is PartState.UPLOADING else stay(state)


def resume(state: SavesState) -> Step:
    """Uploads again what was held, by another process under the same name."""
    if state.part is not PartState.HELD:
        return stay(state)
    again = replace(state, part=PartState.COPYING if state.copying else PartState.UPLOADING, orders=0)
    return stay(again) if state.copying or state.dying else _order(again)


def _copied(state: SavesState) -> Step:
    if state.part is PartState.COPYING:
        return _order(replace(state, part=PartState.UPLOADING))
    return stay(state)


def _not_copied(state: SavesState, event: CopyFailed | CopyChanged) -> Step:
    if isinstance(event, CopyFailed):
        return fail(state, event.why)
    return fail(replace(state, changed=state.part is not PartState.FAILED), "it changed while it was copied")


def _order(state: SavesState) -> Step:
    save = state.save
    if save is None:
        return stay(state)
    if not state.uploader:
        state = replace(state, uploader=state.uploaders + 1, uploaders=state.uploaders + 1)
    return stay(state, StartUpload(save, state.uploader), arena=save.name, orders=state.orders + 1)


def _ended(state: SavesState, uploader: int, why: str) -> Step:
    """The uploader has ended, so no process reads the arena any more."""
    state = replace(state, dying=0) if uploader == state.dying else replace(state, uploader=0)
    if state.copying:
        return stay(state)
    state = replace(state, arena="")
    if state.part is not PartState.UPLOADING:
        return stay(state)
    return _order(state) if state.orders < UPLOADERS else fail(state, why or "its uploaders have ended")


def _late(state: SavesState, name: str) -> Step:
    """The deadline frees an arena too: an uploader may stand still between its last two words."""
    if state.save and name == state.save.name and state.part in (PartState.COPYING, PartState.UPLOADING):
        return fail(state, "not uploaded by its deadline")
    return free(state) if name == state.arena and state.part is not PartState.HELD else stay(state)
