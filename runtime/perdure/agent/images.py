"""Memory files for the images that trainers leave. They belong to the agent, so they outlive a trainer.

They are unnamed (memfd_create): a restricted pod has no other place that is large enough, because /dev/shm usually has
64 MiB. A trainer may be forked by the zygote and cannot inherit the file, so it opens /proc/PID/fd/N of the agent, as
the same user may. The files end with the pod.

This module only checks whether an image is complete. Called by the agent's shell.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from perdure.wire.channel import IMAGE_MAGIC

_NOEXEC_SEAL: Final = 8
"""MFD_NOEXEC_SEAL: some nodes require it; older kernels do not know it."""
MIRROR_FILES: Final = 4
"""Files of a process for a mirror: two for its own snapshots, two for another pod's."""


class ImageFiles:
    """Per process: the files for its own images, and the images left by the previous trainer."""

    def __init__(self, *, mirrors: bool = False) -> None:
        """`mirrors`: each process also gets files for a mirror (perdure.loop.mirroring)."""
        self._number = 1 + (MIRROR_FILES if mirrors else 0)
        self._own: dict[int, list[int]] = {}
        self._held: dict[int, list[int]] = {}
        self.trouble = ""
        """Why no file could be made; "" if all is well."""

    def next_trainer(self, processes: int) -> None:
        """Keep the complete images of the last trainer, and make files for the next one's."""
        for local_rank, files in self._own.items():
            whole = [file for file in files if _is_whole(file)]
            if whole:
                _close(self._held.get(local_rank, ()))
                self._held[local_rank] = whole
            _close(file for file in files if file not in whole)
        self._own.clear()
        for local_rank in range(processes):
            self._own[local_rank] = files = []
            try:
                files += (_made(f"perdure-image-{local_rank}") for _ in range(self._number))
            except OSError as error:
                self.trouble = f"no file in memory can be made ({error.strerror}): a lost member costs steps"
                _close(files)
                files.clear()

    def place(self, local_rank: int) -> Path | None:
        """The file for a process's image."""
        return next(iter(map(_path, self._own.get(local_rank, ()))), None)

    def mirror_files(self, local_rank: int) -> list[Path]:
        """The files for its snapshots, and then those for another pod's; none if nothing is mirrored."""
        return list(map(_path, self._own.get(local_rank, ())[1:]))

    def held(self, local_rank: int) -> list[Path]:
        """The images that an earlier trainer left."""
        return list(map(_path, self._held.get(local_rank, ())))

    def left(self) -> list[Path]:
        """The complete images of the last trainer; if it left none, those of earlier ones."""
        own = [file for files in self._own.values() for file in files if _is_whole(file)]
        return list(map(_path, own or [file for files in self._held.values() for file in files]))

    def forget(self) -> None:
        """Free the images of earlier trainers, which are no longer needed."""
        for files in self._held.values():
            _close(files)
        self._held.clear()


def _is_whole(file: int) -> bool:
    return os.pread(file, len(IMAGE_MAGIC), 0) == IMAGE_MAGIC


def _made(name: str) -> int:
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | _NOEXEC_SEAL)
    except OSError:
        return os.memfd_create(name, os.MFD_CLOEXEC)


def _close(files: Iterable[int]) -> None:
    for file in files:
        os.close(file)


def _path(file: int) -> Path:
    return Path(f"/proc/{os.getpid()}/fd/{file}")
