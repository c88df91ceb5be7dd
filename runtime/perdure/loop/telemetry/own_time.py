"""What part of its time the script's thread works itself, and does not wait for other ranks.

In a synchronous training all ranks take as long for a step, whichever of them is slow, because the others wait for it
in a collective. There they sleep. So a thread's own time is its time on a CPU, the time in which it was ready and had
none, and the time in which it waited for a batch of the session's loader. `figures` reports it.

Blind for a sleep anywhere else, and for a device: docs/decisions/077.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

WINDOW_SECONDS: Final = 30.0
"""A share is over so many seconds of training: shorter ones differ by what a rank does now and then, such as a log."""


@dataclass(frozen=True)
class Scheduled:
    """What the kernel's scheduler has counted of a thread, in seconds."""

    ran: float
    """On a CPU."""
    waited: float
    """Ready to run, without a CPU."""


def scheduled(thread: int) -> Scheduled | None:
    """That of a thread of this process, by its native id; None where the kernel does not tell."""
    try:
        ran, waited, _ = Path(f"/proc/self/task/{thread}/schedstat").read_bytes().split()
    except (OSError, ValueError):
        return None
    return Scheduled(int(ran) / 1e9, int(waited) / 1e9)


class OwnTime:
    """Measures the thread that makes the steps. The kernel is asked at both ends of each window and pause only."""

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.monotonic,
        ran: Callable[[], float] = time.thread_time,
        counted: Callable[[int], Scheduled | None] = scheduled,
    ) -> None:
        """`ran` is the time on a CPU of the thread that calls it."""
        self._now, self._ran, self._counted = now, ran, counted
        self.share: float | None = None
        """Of the last whole window, from 0 to 1; None before there is one, and where the kernel does not tell."""
        self.data_share: float | None = None
        """The part of that window in which it waited for a batch; None also if it asked the session for none."""
        self._thread = 0
        self._began: tuple[float, Scheduled] | None = None
        """Where the present part of the window began; None in a pause, and before the first step."""
        self._draw: tuple[float, float] | None = None
        """When the present draw began, and how long the thread had run by then."""
        self._clear()

    def _clear(self) -> None:
        self._seconds = self._on_cpu = self._ready = self._drawing = self._drawing_on_cpu = 0.0
        self._draws = False

    def stepped(self) -> None:
        """The thread that calls this has made a step."""
        if self._began is None:
            self._thread = threading.get_native_id()
            self.go_on()
        elif self._seconds + self._now() - self._began[0] >= WINDOW_SECONDS:
            self.pause()
            self.share, self.data_share = self._own_share(), self._data_share()
            self._clear()
            self.go_on()

    def pause(self) -> None:
        """From here on it does no training, until it goes on."""
        counted = self._counted(self._thread) if self._began else None
        if self._began and counted:
            at, before = self._began
            self._seconds += self._now() - at
            self._on_cpu += counted.ran - before.ran
            self._ready += counted.waited - before.waited
        self._began = self._draw = None

    def go_on(self) -> None:
        """It trains again, if it has begun to."""
        if self._thread and self._began is None and (counted := self._counted(self._thread)):
            self._began = (self._now(), counted)

    def begin_anew(self) -> None:
        """Its ranks have changed: what was measured before is about others."""
        self.share, self.data_share, self._began, self._draw = None, None, None, None
        self._clear()

    def begin_draw(self) -> None:
        """The thread asks for a batch, and waits for no other rank meanwhile."""
        if self._began:
            self._draw = (self._now(), self._ran())

    def end_draw(self) -> None:
        """It has the batch."""
        if self._draw:
            at, ran = self._draw
            self._drawing += self._now() - at
            self._drawing_on_cpu += self._ran() - ran
            self._draw, self._draws = None, True

    def _own_share(self) -> float | None:
        """All of a draw; of the rest, what it ran, and in proportion what it was ready to run."""
        if self._seconds <= 0.0:
            return None
        rest = max(0.0, self._on_cpu - self._drawing_on_cpu)
        stretched = rest * (1 + self._ready / self._on_cpu) if rest else 0.0
        return min(1.0, (self._drawing + stretched) / self._seconds)

    def _data_share(self) -> float | None:
        return min(1.0, self._drawing / self._seconds) if self._draws and self._seconds > 0.0 else None
