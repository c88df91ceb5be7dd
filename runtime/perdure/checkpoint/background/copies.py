"""This rank's arena and the process that uploads from it, as the machine sees them: by numbers and events."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from perdure.checkpoint.background import events as ev
from perdure.checkpoint.background import uploading
from perdure.checkpoint.background.arena import Arena, Filled, need_for
from perdure.checkpoint.upload import Staged
from perdure.console import in_bytes, say
from perdure.log.position import Position

UploaderEvent = ev.Durable | ev.Released | ev.Failed | ev.UploaderEnded | ev.UploaderStuck | ev.Room
MOST_DEATHS: Final = 2
"""After this many processes that ended by themselves, with no part uploaded between, uploads count as impossible
here."""
AGAIN_SECONDS: Final = 60.0
"""Delay before a rank that could not copy or upload retries; doubled each time."""
LONGEST_SECONDS: Final = 3600.0


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
        self._why = ""
        """Why the last process that ended by itself has ended."""
        self.seconds = 0.0
        """How long the last upload took."""
        self.moved_at = -math.inf
        """The last time.monotonic() at which the upload under way was ordered, or known to move."""
        self._said_missing = False
        self._largest = 0
        """Size of the largest part that there was no memory for: a part may be larger than it was estimated."""
        self._deaths = 0
        """How many processes have ended by themselves since the last upload."""
        self._again_at = -math.inf
        """Until this time.monotonic() saves have to be made without copies, however much memory there is."""
        self._pause = AGAIN_SECONDS

    def needs(self, size: int) -> tuple[int, int | None]:
        """Bytes that this rank needs to copy a part of about `size` bytes, beyond what its arena has; and how many are
        free in its pod, None if unknown."""
        return need_for(max(size, self._largest), self._arena.held if self._arena else 0)

    def make_room(self, size: int, missing: int) -> bool:
        """Whether there is memory for a part of about `size` bytes. It is allocated while training continues.

        `missing`: how many bytes its pod lacks for all that its ranks need.
        """
        if time.monotonic() < self._again_at:
            return False
        size = max(size, self._largest)
        if missing:
            self._say_missing(missing)
            return False
        try:
            arena = self._arena = self._arena or self._begun()
        except OSError as error:
            self._give_up(f"this rank cannot copy its state for a process that uploads it ({error})")
            return False
        arena.prepare(size)
        return True

    def _begun(self) -> Arena:
        """The arena. The process begins here, so that no save fails where none can."""
        arena = Arena()
        try:
            process = uploading.Uploader(arena, self._root, os.environ)
            process.start()
        except OSError:
            arena.close()
            raise
        self.process = process
        return arena

    def has_room(self, staged: Staged) -> bool:
        """Whether there is memory now for this part."""
        return self._arena is not None and not self._arena.missing(staged)

    def fill(
        self,
        staged: Staged,
        *,
        uid: str,
        run: int,
        name: str,
        position: Position,
        whole: str = "",
    ) -> Filled | str:
        """Copy this rank's part; or why that is impossible. `whole` as for the arena, which raises StateChanged.

        From any thread, while no other one uses this.
        """
        if self._arena is None:
            return "this rank has no memory for a copy"
        missing = self._arena.missing(staged)
        if missing:
            self._say_missing(missing)
            self._largest = staged.size
            return f"{in_bytes(missing)} of memory are missing for a copy"
        try:
            return self._arena.fill(staged, uid=uid, run=run, name=name, position=position, whole=whole)
        except OSError as error:
            self._give_up(f"this rank's part cannot be copied ({error})")
            return f"this rank's part cannot be copied: {error}"

    def order(self, uploader: int, folder: str, part: Filled) -> None:
        """Order the process with this number to upload this part."""
        self._number, self.moved_at = uploader, time.monotonic()
        if self.process:
            self.process.order(folder, part)

    def kill(self, uploader: int) -> None:
        """End that process."""
        self._await_end(uploader)
        if self.process:
            self.process.kill()

    def heard(self) -> Iterator[UploaderEvent]:
        """The results of orders since the last call."""
        process = self.process
        for word in process.words() if process else ():
            match word:
                case uploading.PartUploaded(name, seconds):
                    self.seconds, self._deaths, self._pause = seconds, 0, AGAIN_SECONDS
                    yield ev.Durable(name, self._number)
                    yield ev.Released(name, self._number)
                case uploading.UploadFailed(name, why) if process and process.pid is not None:
                    yield ev.Failed(name, why)
                case uploading.UploadFailed(_, why):
                    self._deaths, self._why = self._deaths + 1, why
                    self._await_end(self._number)
                case uploading.UploadMoves():
                    self.moved_at = time.monotonic()
                case uploading.ArenaRead():
                    pass  # its index is missing yet
        if process and self._dying:
            yield from self._ends(process, self._dying)

    def end(self) -> None:
        """End the process and free the arena."""
        if self.process:
            self.process.close()
        if self._arena:
            self._arena.close()
        self.process = self._arena = None

    def _await_end(self, number: int) -> None:
        self._dying = _Dying(number, time.monotonic() + uploading.REAP_SECONDS)

    def _ends(self, process: uploading.Uploader, dying: _Dying) -> Iterator[UploaderEvent]:
        if process.reap(0.0):
            self._dying = None
            if self._deaths >= MOST_DEATHS:
                self._give_up(f"no process can upload for this rank ({self._why})")
                yield ev.Room(usable=False)
            yield ev.UploaderEnded(dying.number, self._why)
        elif time.monotonic() > dying.until:
            dying.until = float("inf")
            say("the process that uploads checkpoints cannot be ended: from now on training waits for its checkpoints")
            yield ev.UploaderStuck(dying.number)

    def _give_up(self, why: str) -> None:
        self._deaths, self._again_at = 0, time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_SECONDS)
        say(f"{why}: training waits for its checkpoints, and this rank tries again later")

    def _say_missing(self, missing: int) -> None:
        if not self._said_missing:
            self._said_missing = True
            say(
                f"{in_bytes(missing)} of memory are missing to copy this rank's part of a checkpoint, so training "
                f"waits for its upload"
            )
