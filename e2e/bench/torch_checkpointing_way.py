"""torch_checkpointing as a way to save: beside training, by another process, without waiting for the disk."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch_checkpointing import CheckpointManager
from torch_checkpointing.config import AsyncCheckpointSaverConfig
from torch_checkpointing.staging import CheckpointStagerConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

from e2e.bench.stalling import Plain


class TorchCheckpointing:
    """Its asynchronous manager, with the configuration that its documents have for machines without a device.

    A thread copies while training goes on, and the optimizer's step waits for it: run the step within `lock`.
    """

    def __init__(self, state: Plain, folder: Path) -> None:
        self._state, self._folder = state, folder
        pinned = torch.cuda.is_available()
        staging = CheckpointStagerConfig(use_pinned_memory=pinned, use_non_blocking_copy=pinned)
        saver = AsyncCheckpointSaverConfig(staging_config=staging)
        # With direct I/O, its default, version 0.1.1 cannot write a file to ext4: EINVAL.
        storage = LocalFileSystemStorageConfig(use_direct_io=False)
        self._manager = CheckpointManager(CheckpointManager.Config(save=saver, storage_config=storage))
        self._written: Future[Any] | None = None
        self._ended = 0.0
        self._timed = threading.Event()

    def lock(self) -> AbstractContextManager[object]:
        """What the optimizer's step runs in."""
        return self._manager.lock()

    def save(self, number: int) -> None:
        """Returns when training may continue."""
        begun = time.perf_counter()
        self._timed.clear()

        def ended(_: Future[Any]) -> None:
            self._ended = time.perf_counter() - begun
            self._timed.set()

        written = self._manager.save(str(self._folder / str(number)), self._state.plain())
        if written is None:
            raise TypeError("torch_checkpointing has saved before it returned")
        written.add_done_callback(ended)
        self._written = written

    def awaited(self) -> float:
        """The seconds until the last save was written, which it waits for."""
        self._timed.wait()
        if self._written:
            self._written.result()
        return self._ended
