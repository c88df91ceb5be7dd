"""Times of steps by nodes, ranks, micro-batch and accumulation.

What counts is the time from a batch handed out to the request for the next one: neither waiting in the loader nor what
the session does where a run may stop. The micro-batch in which the script calls `step()` is the one that
synchronises. These are times of the process: one that runs ahead of its device waits for it in the long run, but not in
each micro-batch. The first steps after each start and each change of ranks do not count, and neither does one with an
evaluation in it.

It is saved and restored with the training, so a run that repeats steps counts them once. Rank 0's is saved.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from perdure.goodput.fitting import StepTimes, fit
from perdure.goodput.speed import Speed

DROPPED: Final = 3
"""How many steps after a start, or after a change of ranks, do not count."""
KEPT: Final = 32
"""How many times are kept of each kind of step: the newest ones."""
LEAST: Final = 3
"""Of how many steps a median is believed."""
MOST_KINDS: Final = 64
"""How many kinds of steps are kept: those seen last."""


@dataclass(frozen=True)
class StepKind:
    """What the time of a step depends on."""

    nodes: int
    ranks: int
    micro: int
    """Samples of one rank in one micro-batch: some may have one less."""
    accumulation: int
    """Micro-batches before the one that synchronises."""


class SpeedProfile:
    """One process's. `hardware` is what it runs on: times of other hardware are kept apart."""

    def __init__(self, hardware: str, *, now: Callable[[], float] = time.perf_counter) -> None:
        self._hardware, self._now = hardware, now
        self._times: dict[str, dict[StepKind, deque[tuple[float, float]]]] = {}
        """By hardware and kind: the mean of the micro-batches, and the last one."""
        self._drop = DROPPED
        self._since: float | None = None
        """When the present batch was handed out; None if none is, or if its time does not count."""
        self._source, self._samples = "", 0
        self._micro: list[tuple[int, float]] = []
        """Samples and seconds of the present step's micro-batches so far."""
        self._counts = True
        """Whether the present step counts."""
        self._stepped = False

    def begin_anew(self) -> None:
        """The ranks have changed."""
        self._drop = DROPPED
        self._clear()

    def batch_handed_out(self, source: str, samples: int) -> None:
        """The script has a batch of this source to train on, with so many samples for this rank."""
        if self._micro and source != self._source:
            self._counts = False
        self._source, self._samples, self._since = source, samples, self._now()

    def spoil(self) -> None:
        """The script does something else; if that is within a step, its time does not count."""
        if self._since is not None or self._micro:
            self._counts = False

    def stepped(self) -> None:
        """The script has stepped."""
        self._stepped = True

    def batch_requested(self, nodes: int | None, ranks: int) -> None:
        """The script is done with the batch that it has, if any. `nodes`: None if it is not known yet."""
        if self._since is not None:
            self._micro.append((self._samples, self._now() - self._since))
            self._since = None
        if self._stepped:
            self._end_step(nodes, ranks)

    def _end_step(self, nodes: int | None, ranks: int) -> None:
        sizes = [samples for samples, _ in self._micro]
        are_parts = bool(sizes) and min(sizes) > 0 and max(sizes) - min(sizes) <= 1
        if self._drop:
            self._drop -= 1
        elif self._counts and nodes is not None and are_parts:
            *before, (_, last) = self._micro
            kind = StepKind(nodes, ranks, max(sizes), len(before))
            mean = sum(seconds for _, seconds in before) / len(before) if before else 0.0
            self._note(kind, mean, last)
        self._clear()

    def _clear(self) -> None:
        self._micro, self._counts, self._stepped, self._since = [], True, False, None

    def _note(self, kind: StepKind, micro: float, last: float) -> None:
        here = self._times.setdefault(self._hardware, {})
        times = here.pop(kind, None) or deque[tuple[float, float]](maxlen=KEPT)
        times.append((micro, last))
        here[kind] = times  # the last one, in the order of a dict
        if len(here) > MOST_KINDS:
            del here[next(iter(here))]

    def times(self) -> Iterator[StepTimes]:
        """The medians of each kind of step that is known of this hardware."""
        for kind, times in self._times.get(self._hardware, {}).items():
            if len(times) >= LEAST:
                micro = median(micro for micro, _ in times) if kind.accumulation else None
                yield StepTimes(**vars(kind), micro_seconds=micro, step_seconds=median(last for _, last in times))

    def speed(self) -> Speed | None:
        """What they foretell of other steps on this hardware; None as long as nothing is known."""
        times = [*self.times()]
        return fit(times) if times else None

    def write(self) -> dict[str, list[Any]]:
        """As plain values."""
        return {
            hardware: [
                [[kind.nodes, kind.ranks, kind.micro, kind.accumulation], [list(pair) for pair in times]]
                for kind, times in kinds.items()
            ]
            for hardware, kinds in self._times.items()
        }

    def read(self, written: Mapping[str, Sequence[Any]]) -> None:
        """Goes on with what `write` has written."""
        self._times = {
            hardware: {
                StepKind(*kind): deque(((micro, last) for micro, last in times), maxlen=KEPT) for kind, times in kinds
            }
            for hardware, kinds in written.items()
        }
