"""Whether the other ranks are still there, for a rank that is asked to leave.

Ranks leave together, so one that is cut off from the others waits in a collective for what never comes, and nothing
tells: no connection is reset. Each rank therefore counts aloud in the run's store, and listens to the rank before it.
One that is asked to leave, and has not heard anything for longer than a step takes, ends: its peers are gone. The
others then see its connections end, or hear nothing either.

What is in progress is never disturbed: nobody listens while a checkpoint is made, and nobody is believed to be gone
who was never heard. Used by the session; no collective is used here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from perdure.group.rendezvous import ANSWER_SECONDS, reach
from perdure.wire.settings import Settings

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

BEAT_SECONDS: Final = 2.0
SILENCE_SECONDS: Final = 20.0
"""A process that holds the interpreter's lock counts late: so long is nothing, nor as long as a step has taken."""


@dataclass
class Silence:
    """For how long nothing has been heard of a peer, as far as that means anything. Every time is the caller's."""

    _heard: float | None = None
    _stepped: float | None = None
    _longest_step: float = 0.0
    _pauses: int = 0

    def heard(self, now: float) -> None:
        """The peer is there."""
        self._heard = now

    def stepped(self, now: float) -> None:
        """This rank has finished a step: the longest tells how long a peer may be busy."""
        if self._stepped is not None:
            self._longest_step = max(self._longest_step, now - self._stepped)
        self._stepped = now

    def pause(self) -> None:
        """Silence means nothing until `resume`."""
        self._pauses += 1

    def resume(self, now: float) -> None:
        """Silence counts from now."""
        self._pauses -= 1
        self._stepped = None  # what comes after a save is not one step
        if self._heard is not None:
            self._heard = now

    def too_long(self, now: float) -> float | None:
        """The seconds of silence, if they mean that the peer is gone."""
        if self._heard is None or self._pauses:
            return None
        silent = now - self._heard
        return silent if silent > max(SILENCE_SECONDS, self._longest_step) else None


class Heartbeat:
    """This rank's counting and listening; in a world of one it does nothing."""

    def __init__(self, settings: Settings, exit_requested: Callable[[], bool], gone: Callable[[str], None]) -> None:
        """While `exit_requested()` is true and the peers are silent, another thread calls `gone` with the reason."""
        self._settings = settings
        self._exit_requested = exit_requested
        self._gone = gone
        self._silence = Silence()
        self._stopped = threading.Event()
        self._peer = (settings.rank - 1) % settings.world
        self._store: Store | None = None
        self._number = 0
        self._last = b""

    def start(self, *, at_once: bool = True) -> None:
        """Once all ranks are connected: each hears its peer before it trains, or soon if not `at_once`."""
        if self._settings.world == 1:
            return
        counted = threading.Event()
        for act in (partial(self._go_on_counting, counted, at_once=at_once), self._watch):
            threading.Thread(target=act, name="perdure-pulse", daemon=True).start()
        if at_once:
            counted.wait(ANSWER_SECONDS)

    def stop(self) -> None:
        """From here on the others may leave when they like."""
        self._stopped.set()

    def stepped(self) -> None:
        """A step is done."""
        self._silence.stepped(time.monotonic())

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """A checkpoint is made: whoever writes much may be silent for long."""
        self._silence.pause()
        try:
            yield
        finally:
            self._silence.resume(time.monotonic())

    def _watch(self) -> None:
        while not self._stopped.wait(BEAT_SECONDS / 4):
            silent = self._silence.too_long(time.monotonic()) if self._exit_requested() else None
            if silent is not None:
                self._gone(f"rank {self._peer} was not heard for {silent:.0f} s, and this rank is asked to leave")
                return

    def _go_on_counting(self, counted: threading.Event, *, at_once: bool) -> None:
        """May hang for as long as the network does: nothing waits for this thread, or not for long."""
        if at_once:
            self._count_and_listen()
        counted.set()
        while not self._stopped.wait(BEAT_SECONDS):
            self._count_and_listen()

    def _count_and_listen(self) -> None:
        self._number += 1
        try:
            self._store = self._store or reach(self._settings)  # the script's own may wait for something else
            self._store.set(f"pulse/{self._settings.rank}", str(self._number))
            found = bytes(self._store.get(f"pulse/{self._peer}"))
        except (RuntimeError, OSError):  # dist's own errors are RuntimeErrors
            self._store = None
            return
        if found != self._last:
            self._last = found
            self._silence.heard(time.monotonic())
