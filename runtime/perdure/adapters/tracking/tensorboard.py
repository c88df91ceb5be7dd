"""Event files for TensorBoard. Needs the package `tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import SCALARS, TENSORS, EventAccumulator
from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """One folder is one history. Processes that follow each other add files to it, which TensorBoard shows as one."""

    def __init__(self, folder: str | Path) -> None:
        """`folder` must be the same for all ranks: what is on a pod's own disk is lost with the pod."""
        self._folder = Path(folder)
        self._writer: SummaryWriter | None = None
        self._steps: dict[str, int] = {}

    def open(self, key: str) -> None:
        """See `HistorySink`. Reads the files that are there."""
        self._steps = _newest_steps(self._folder) if self._folder.is_dir() else {}
        self._writer = SummaryWriter(str(self._folder))

    def last_step(self, name: str) -> int:
        """See `HistorySink`."""
        return self._steps.get(name, -1)

    def write(self, step: int, values: Mapping[str, float | str]) -> None:
        """See `HistorySink`."""
        for name, value in values.items():
            if isinstance(value, str):
                self._open_writer.add_text(name, value, step)
            else:
                self._open_writer.add_scalar(name, value, step, new_style=False)

    def flush(self) -> None:
        """See `HistorySink`."""
        self._open_writer.flush()

    def close(self) -> None:
        """See `HistorySink`."""
        self._open_writer.close()

    @property
    def _open_writer(self) -> SummaryWriter:
        if self._writer is None:
            raise RuntimeError("open() comes first")
        return self._writer


def _newest_steps(folder: Path) -> dict[str, int]:
    found = EventAccumulator(str(folder), size_guidance={SCALARS: 1, TENSORS: 1}).Reload()
    tags = found.Tags()
    scalars = {tag: found.Scalars(tag)[-1].step for tag in tags["scalars"]}
    texts = {tag.removesuffix("/text_summary"): found.Tensors(tag)[-1].step for tag in tags["tensors"]}
    return scalars | texts
