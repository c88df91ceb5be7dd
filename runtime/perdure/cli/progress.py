"""Progress of a long command: a bar on stderr if it is a terminal, otherwise nothing.

rich draws it, and is imported only when there is a bar. It follows NO_COLOR.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from perdure.console import in_bytes
from perdure.store.metered import metered

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """Shows nothing."""

    def expect(self, steps: int) -> None:
        """There will be so many steps, such as commits."""

    def step(self) -> None:
        """One of them is done."""

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Leaves the terminal to a line of the command's own."""
        yield


class _Drawn(Bar):
    """A bar, the steps, the bytes that went through stores, and their rate."""

    def __init__(self, progress: Progress, doing: str) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task(doing, total=None, steps="", bytes="")
        self._lock = threading.Lock()
        self._begun = time.monotonic()
        self._bytes = self._done = self._steps = 0

    def moved(self, count: int) -> None:
        """So many bytes were read or written."""
        with self._lock:
            self._bytes += count
            rate = self._bytes / max(time.monotonic() - self._begun, 1e-3)
            self._progress.update(self._task, bytes=f"{in_bytes(self._bytes)}, {in_bytes(round(rate))}/s")

    def expect(self, steps: int) -> None:
        self._steps = steps
        self._say()

    def step(self) -> None:
        self._done = min(self._done + 1, self._steps)
        self._say()

    @contextmanager
    def aside(self) -> Iterator[None]:
        if not sys.stdout.isatty():  # the line goes elsewhere
            yield
            return
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()

    def _say(self) -> None:
        if self._steps:
            steps = f"{self._done}/{self._steps}"
            self._progress.update(self._task, completed=self._done, total=self._steps, steps=steps)


@contextmanager
def progress(doing: str, *, as_json: bool) -> Iterator[Bar]:
    """The bar of a command, while it runs. It shows nothing where no person watches stderr, and with JSON."""
    if as_json or not _watched():
        yield Bar()
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[steps]}"),
        TextColumn("{task.fields[bytes]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as shown:
        bar = _Drawn(shown, doing)
        with metered(bar.moved):
            yield bar


def _watched() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and find_spec("rich") is not None
