"""Memory files for the images that trainers leave. They belong to the agent, so they outlive a trainer.

They are unnamed (memfd_create): a restricted pod has no other place that is large enough, because /dev/shm usually has
64 MiB. A trainer may be forked by the zygote and cannot inherit the file, so it opens /proc/PID/fd/N of the agent, as
the same user may. The files end with the pod.

This module only checks whether an image is complete. Called by the agent's shell.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from perdure.wire.channel import IMAGE_MAGIC

_NOEXEC_SEAL: Final = 8
"""MFD_NOEXEC_SEAL: some nodes require it; older kernels do not know it."""


class Images:
    """Per process: the file for its own image, and the image left by the previous trainer."""

    def __init__(self) -> None:
        self._own: dict[int, int] = {}
        self._held: dict[int, int] = {}
        self.trouble = ""
        """Why no file could be made; "" if all is well."""

    def next_trainer(self, processes: int) -> None:
        """Keep the complete images of the last trainer, and make files for the next one's."""
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
        """The file for a process's image."""
        return _path(self._own.get(local_rank))

    def held(self, local_rank: int) -> Path | None:
        """The image that an earlier trainer left."""
        return _path(self._held.get(local_rank))

    def left(self) -> list[Path]:
        """The complete images of the last trainer; if it left none, those of earlier ones."""
        files = [file for file in self._own.values() if _is_whole(file)] or list(self._held.values())
        return [path for path in map(_path, files) if path]

    def forget(self) -> None:
        """Free the images of earlier trainers, which are no longer needed."""
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
