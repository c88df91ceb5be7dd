"""Runs of Weights & Biases. Needs the package `wandb`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import wandb


class WandB:
    """One run of a project is one history.

    Offline, wandb writes a folder for each process and does not know what earlier ones wrote: after a kill right
    behind a commit the values of that commit may be there twice.
    """

    def __init__(self, project: str, **options: Any) -> None:
        """`options` go to `wandb.init`; `id` and `resume` are the tracker's."""
        self._options = {"project": project, **options}
        self._run: Any = None
        self._first = 0

    def open(self, key: str) -> None:
        """See `HistorySink`."""
        self._run = wandb.init(**self._options, id=key, resume="allow", reinit="create_new")
        self._first = self._run.step

    def last_step(self, name: str) -> int:
        """See `HistorySink`. wandb's next step is one after the newest."""
        return self._first - 1

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """See `HistorySink`."""
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """See `HistorySink`. wandb's own process sends."""

    def close(self) -> None:
        """See `HistorySink`."""
        self._run.finish()
