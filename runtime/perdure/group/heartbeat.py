"""Detects dead peers for a rank that is asked to leave.

Ranks leave together. A rank that is cut off from the others would wait in a collective forever, because no connection
is reset. So each rank writes a growing number to the run's store, and reads that of the rank before it. A rank that is
asked to leave and has seen no new number for longer than a step takes exits: its peers are gone. The others then lose
their connection to it, or see no new number either.

The heartbeat never disturbs work in progress: it pauses while a checkpoint is made, and a rank that was never heard
does not count as gone. Each number comes with the rank's place (perdure.group.places): a rank that makes no
progress for long logs where all of them are. Used by the session; it uses no collective.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from perdure.console import warn
from perdure.group.places import Beat, Standstill, decode
from perdure.group.rendezvous import ANSWER_SECONDS, reach
from perdure.wire.settings import Settings

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

BEAT_SECONDS: Final = 2.0
SILENCE_SECONDS: Final = 20.0
"""Silence up to this, or up to the longest step, means nothing: code that holds the GIL delays the numbers."""


@dataclass
class Silence:
    """Measures how long a peer has been silent. The caller passes every time."""

    _heard: float | None = None
    _stepped: float | None = None
    _longest_step: float = 0.0
    _pauses: int = 0

    def heard(self, now: float) -> None:
        """The peer has written a new number."""
        self._heard = now

    def stepped(self, now: float) -> None:
        """This rank has finished a step. The longest step is how long a peer may be busy."""
        if self._stepped is not None:
            self._longest_step = max(self._longest_step, now - self._stepped)
        self._stepped = now

    def pause(self) -> None:
        """Ignore silence until `resume`."""
        self._pauses += 1

    def resume(self, now: float) -> None:
        """Count silence from now on."""
        self._pauses -= 1
        self._stepped = None  # the time of a save is not part of a step
        if self._heard is not None:
            self._heard = now

    @property
    def longest(self) -> float | None:
        """The seconds of the longest step; None while a checkpoint is made, which may take any time."""
        return None if self._pauses else self._longest_step

    def too_long(self, now: float) -> float | None:
        """The seconds of silence, if they mean that the peer is gone."""
        if self._heard is None or self._pauses:
            return None
        silent = now - self._heard
        return silent if silent > max(SILENCE_SECONDS, self._longest_step) else None


class Heartbeat:
    """Writes this rank's number and reads its peer's; does nothing in a world of one."""

    def __init__(
        self,
        settings: Settings,
        exit_requested: Callable[[], bool],
        gone: Callable[[str], None],
        place: Callable[[], str] = lambda: "",
    ) -> None:
        """While `exit_requested()` is true and the peers are silent, another thread calls `gone` with the reason.

        `place` says where this rank stands, as a Beat has it.
        """
        self._settings = settings
        self._exit_requested = exit_requested
        self._gone = gone
        self._place = place
        self._standstill = Standstill()
        self._silence = Silence()
        self._stopped = threading.Event()
        self._peer = (settings.rank - 1) % settings.world
        self._store: Store | None = None
        self._number = 0
        self._last = b""

    def start(self, *, at_once: bool = True) -> None:
        """Start when all ranks are connected. Unless `at_once` is false, wait until the peer's first number is read."""
        if self._settings.world == 1:
            return
        counted = threading.Event()
        for act in (partial(self._go_on_counting, counted, at_once=at_once), self._watch):
            threading.Thread(target=act, name="perdure-heartbeat", daemon=True).start()
        if at_once:
            counted.wait(ANSWER_SECONDS)

    def stop(self) -> None:
        """Stop: from now on the other ranks may leave."""
        self._stopped.set()

    def stepped(self) -> None:
        """A step is done."""
        self._silence.stepped(time.monotonic())

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """A checkpoint is made, in which a peer that writes much may be silent for long."""
        self._silence.pause()
        try:
            yield
        finally:
            self._silence.resume(time.monotonic())

    def _watch(self) -> None:
        while not self._stopped.wait(BEAT_SECONDS / 4):
            silent = self._silence.too_long(time.monotonic()) if self._exit_requested() else None
            if silent is not None:
                self._gone(
                    f"no heartbeat of rank {self._peer} came for {silent:.0f} s, and this rank is asked to leave"
                )
                return

    def _go_on_counting(self, counted: threading.Event, *, at_once: bool) -> None:
        """May hang as long as the network does; callers wait for this thread only briefly."""
        if at_once:
            self._count_and_listen()
        counted.set()
        while not self._stopped.wait(BEAT_SECONDS):
            self._count_and_listen()

    def _count_and_listen(self) -> None:
        self._number += 1
        place = self._place()
        seconds, longest = self._standstill.at(place, time.monotonic()), self._silence.longest
        try:
            self._store = self._store or reach(self._settings)  # the script's own may wait for something else
            self._store.set(_key(self._settings.rank), Beat(self._number, seconds, place).encode())
            found = bytes(self._store.get(_key(self._peer)))
            if longest is not None and self._standstill.is_to_look(time.monotonic(), longest):
                self._say_where_all_stand(self._store)
        except (RuntimeError, OSError):  # dist's own errors are RuntimeErrors
            self._store = None
            return
        if found != self._last:
            self._last = found
            self._silence.heard(time.monotonic())

    def _say_where_all_stand(self, store: Store) -> None:
        beats = {rank: decode(beat.decode()) for rank, beat in heartbeats(store, range(self._settings.world)).items()}
        if line := self._standstill.line(beats, time.monotonic()):
            warn(line)


def heartbeats(store: Store, ranks: Iterable[int]) -> dict[int, bytes]:
    """The newest beat of each of these ranks that has sent one, in two calls once all have: any rank may read it."""
    keys = {rank: _key(rank) for rank in ranks}
    if keys and not store.check(list(keys.values())):
        keys = {rank: key for rank, key in keys.items() if store.check([key])}
    found = store.multi_get(list(keys.values())) if keys else []
    return dict(zip(keys, map(bytes, found), strict=True))


def _key(rank: int) -> str:
    return f"pulse/{rank}"
