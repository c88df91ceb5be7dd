"""This rank's arena and the process that uploads from it, as the machine sees them: by numbers and events."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from perdure.checkpoint.background import events as ev
from perdure.checkpoint.background import uploading
from perdure.checkpoint.background.arena import Arena, Filled, room_for
from perdure.checkpoint.upload import Staged
from perdure.console import in_bytes, say
from perdure.log.position import Position

Heard = ev.Durable | ev.Released | ev.Failed | ev.Ended | ev.Stuck


@dataclass
class _Dying:
    """A process that was killed, or has ended by itself."""

    number: int
    until: float
    """time.monotonic() at which it is given up."""


class Copies:
    """For one thread."""

    def __init__(self, root: str) -> None:
        """Takes no memory and starts nothing. `root`: the checkpoint root's URI."""
        self._root = root
        self._arena: Arena | None = None
        self.process: uploading.Uploader | None = None
        self._number = 0
        """The machine's number of the process."""
        self._dying: _Dying | None = None
        self.seconds = 0.0
        """How long the last upload took."""
        self._said_missing = False

    def make_room(self, size: int) -> bool:
        """Whether there is memory for a part of about `size` bytes; it is allocated while training goes on."""
        missing = room_for(size)
        if missing:
            self._say_missing(missing)
            return False
        if self._arena is None:
            try:
                self._arena = Arena()
            except OSError as error:
                say(f"this rank has no place for a copy of its state ({error}), so training waits for its checkpoints")
                return False
            self.process = uploading.Uploader(self._arena, self._root, os.environ)
        self._arena.prepare(size)
        return True

    def fill(self, staged: Staged, *, uid: str, run: int, name: str, position: Position) -> Filled | str:
        """Copy this rank's part while training waits; or why that is impossible."""
        if self._arena is None:
            return "this rank has no memory for a copy"
        missing = self._arena.missing(staged)
        if missing:
            self._say_missing(missing)
            return f"{in_bytes(missing)} of memory are missing for a copy"
        try:
            return self._arena.fill(staged, uid=uid, run=run, name=name, position=position)
        except OSError as error:
            return f"this rank's part cannot be copied: {error}"

    def order(self, uploader: int, folder: str, part: Filled) -> None:
        """Have this part uploaded by the process with this number."""
        self._number = uploader
        if self.process:
            self.process.order(folder, part)

    def kill(self, uploader: int) -> None:
        """End that process."""
        self._await_end(uploader)
        if self.process:
            self.process.kill()

    def heard(self) -> Iterator[Heard]:
        """What has come of the orders since."""
        process = self.process
        for word in process.words() if process else ():
            match word:
                case uploading.Durable(name, seconds):
                    self.seconds = seconds
                    yield ev.Durable(name, self._number)
                    yield ev.Released(name, self._number)
                case uploading.Failed(name, why) if process and process.pid is not None:
                    yield ev.Failed(name, why)
                case uploading.Failed():
                    self._await_end(self._number)
                case uploading.Released():
                    pass  # its index is missing yet
        if process and self._dying:
            yield from self._ends(process, self._dying)

    def end(self) -> None:
        """Nothing of it stays behind."""
        if self.process:
            self.process.close()
        if self._arena:
            self._arena.close()
        self.process = self._arena = None

    def _await_end(self, number: int) -> None:
        self._dying = _Dying(number, time.monotonic() + uploading.REAP_SECONDS)

    def _ends(self, process: uploading.Uploader, dying: _Dying) -> Iterator[Heard]:
        if process.reap(0.0):
            self._dying = None
            yield ev.Ended(dying.number)
        elif time.monotonic() > dying.until:
            dying.until = float("inf")
            say("the process that uploads checkpoints cannot be ended: from now on training waits for its checkpoints")
            yield ev.Stuck(dying.number)

    def _say_missing(self, missing: int) -> None:
        if not self._said_missing:
            self._said_missing = True
            say(
                f"{in_bytes(missing)} of memory are missing to copy this rank's part of a checkpoint, so training "
                f"waits for its upload"
            )
