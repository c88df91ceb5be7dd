"""The images that a pod's trainers leave: files in memory that belong to the agent, and so outlive a trainer.

A file without a name (memfd_create): a restricted pod has no other place that is large enough, for /dev/shm has 64 MiB
as a rule. A trainer is no child that it could be handed to, since a zygote may have forked it; it opens the file by its
place among the agent's (/proc/PID/fd/N), which whoever is the same user may do. A pod that dies takes it along, as it
takes the trainer.

What is in an image nobody asks here, only whether it is whole. Called by the agent's shell.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from perdure.wire.channel import IMAGE_MAGIC

_NOEXEC_SEAL: Final = 8
"""MFD_NOEXEC_SEAL: some nodes allow no other; older kernels do not know it."""


class Images:
    """Of each process of the pod the image it may leave, and the one that was left before."""

    def __init__(self) -> None:
        self._own: dict[int, int] = {}
        self._held: dict[int, int] = {}
        self.trouble = ""
        """Why there is no place for images, if so."""

    def next_trainer(self, processes: int) -> None:
        """Keeps what the last trainer has left, where that is whole, and makes room for the next one's."""
        for local_rank, file in self._own.items():
            if _is_whole(file):
                if local_rank in self._held:
                    os.close(self._held[local_rank])
                self._held[local_rank] = file
            else:
                os.close(file)
        self._own.clear()
        for local_rank in range(processes):
            try:
                self._own[local_rank] = _made(f"perdure-image-{local_rank}")
            except OSError as error:
                self.trouble = f"no file in memory can be made ({error.strerror}): a lost member costs steps"

    def place(self, local_rank: int) -> Path | None:
        """Where a process of the trainer leaves its image."""
        return _path(self._own.get(local_rank))

    def held(self, local_rank: int) -> Path | None:
        """What was left before the trainer."""
        return _path(self._held.get(local_rank))

    def left(self) -> list[Path]:
        """What the trainer has left itself, as far as it is whole; else what those before it have."""
        files = [file for file in self._own.values() if _is_whole(file)] or list(self._held.values())
        return [path for path in map(_path, files) if path]

    def forget(self) -> None:
        """What was left before the trainer is of no more use: its memory is needed."""
        for file in self._held.values():
            os.close(file)
        self._held.clear()


def _is_whole(file: int) -> bool:
    return os.pread(file, len(IMAGE_MAGIC), 0) == IMAGE_MAGIC


def _made(name: str) -> int:
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | _NOEXEC_SEAL)
    except OSError:
        return os.memfd_create(name, os.MFD_CLOEXEC)


def _path(file: int | None) -> Path | None:
    return None if file is None else Path(f"/proc/{os.getpid()}/fd/{file}")
