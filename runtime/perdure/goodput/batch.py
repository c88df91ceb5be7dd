"""The batch of the largest goodput: more samples in a step cost less each, and win less each.

The efficiency is Pollux' (Qiao et al., OSDI '21, section 3.1), by the noise scale of McCandlish et al. ("An empirical
model of large-batch training", 2018).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final

from perdure.goodput.speed import Speed

WORTH: Final = 1.05
"""A change of the batch must promise so many times the goodput of now: the measures themselves err by a few percent."""


@dataclass(frozen=True)
class BatchRange:
    """Which batches a script allows, in samples. Raises ValueError if it allows none."""

    initial: int
    """A step's batch as the script asks for it."""
    most: int
    """A step's batch at most."""
    per_rank: tuple[int, int]
    """What one rank computes at once: at least, at most."""
    accumulates: bool
    """Whether a rank may compute several such parts for one step."""

    def __post_init__(self) -> None:
        low, high = self.per_rank
        if not 1 <= self.initial <= self.most:
            raise ValueError(f"a batch from {self.initial} to {self.most} samples: must be 1 <= initial <= most")
        if not 1 <= low <= high:
            raise ValueError(f"{low} to {high} samples of a rank at once: must be 1 <= low <= high")


@dataclass(frozen=True)
class BatchChoice:
    """A batch, how each rank computes its share of it, and what it promises."""

    batch: int
    """Samples in a step, over all ranks."""
    micro: int
    """Samples that a rank computes at once; parts of a share that is no multiple of it are smaller."""
    accumulation: int
    """Parts before the one that is followed by the exchange."""
    goodput: float
    """Samples per second, each counted by what it wins beside one of a step of the initial batch."""


def efficiency(noise: float, initial: int, batch: int) -> float:
    """What a sample wins in a step of `batch` samples, beside one in a step of `initial`: (phi + M0) / (phi + M).

    1 at most for a larger batch. A noise that is no number, or negative, is none.
    """
    if noise == inf:
        return 1.0
    known = noise if noise > 0 else 0.0
    return (known + initial) / (known + batch)


def choice_of(
    speed: Speed, noise: float, allowed: BatchRange, nodes: int, ranks: int, *, batch: int
) -> BatchChoice | None:
    """How the ranks would compute this batch, and its goodput; None where they cannot, or nothing is known of them.

    As few parts as possible: each more costs `alpha` and wins nothing. But one rank alone measures the noise by the
    difference of parts, so it computes two or more of every batch above the initial one.
    """
    low, high = allowed.per_rank
    share = -(-batch // ranks)
    parts = max(-(-share // high), 2 if ranks == 1 and batch > allowed.initial else 1)
    micro = -(-share // parts)
    if micro < low or (parts > 1 and not allowed.accumulates):
        return None
    # By the mean size of the parts: they differ by one sample at most.
    seconds = speed.step_seconds(nodes, ranks, share / parts, parts - 1)
    if not 0 < seconds < inf:
        return None
    goodput = batch / seconds * efficiency(noise, allowed.initial, batch)
    return BatchChoice(batch, micro, parts - 1, goodput) if isfinite(goodput) else None


def batches(allowed: BatchRange, multiple: int = 1) -> Iterator[int]:
    """The batches to choose from, rising: the initial one, sqrt(2) times more from one to the next, and the largest.

    All but the initial one are multiples of `multiple`, so that no rank's share differs from another's.
    """
    yield allowed.initial
    last, largest = allowed.initial, allowed.most // multiple * multiple
    for exponent in range(1, 2 * (allowed.most // allowed.initial).bit_length() + 1):
        batch = min(round(allowed.initial * 2 ** (exponent / 2) / multiple) * multiple, largest)
        if batch > last:
            yield batch
            last = batch


def best_batch(
    speed: Speed, noise: float, allowed: BatchRange, nodes: int, ranks: int, *, multiple: int = 1
) -> BatchChoice | None:
    """The choice of the largest goodput, of equal ones the smallest batch; None where the ranks can compute none of
    the batches, or nothing is known of so many ranks."""
    choices = (choice_of(speed, noise, allowed, nodes, ranks, batch=batch) for batch in batches(allowed, multiple))
    return max(filter(None, choices), key=lambda one: one.goodput, default=None)


def is_worth(now: BatchChoice, then: BatchChoice) -> bool:
    """Whether a change from `now` to `then` promises enough; both are judged by the same measures."""
    return then.goodput >= WORTH * now.goodput and then != now
