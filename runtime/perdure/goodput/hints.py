"""What ranks would win for a job, of the hints that it has reported.

A job may report anything. Its lie can only be bounded: hints that contradict themselves are worth nothing, ranks never
win more than their number, and more than twice the most that were ever measured win nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Final

from perdure.goodput.batch import BatchRange, best_batch
from perdure.goodput.speed import Speed
from perdure.wire.scaling import ScalingHints, read_scaling

REMEMBERED: Final = 1024
"""So many answers are kept: who shares a pool asks every two seconds, and hints change with a job's reports."""


def hints_of(allowed: BatchRange, noise: float, speed: Speed) -> ScalingHints:
    """The hints that say this; `speed_of` and `range_of` read them."""
    low, high = allowed.per_rank
    measured = (speed.alpha, speed.beta, speed.c_in, speed.d_in, speed.c_out, speed.d_out, speed.profiled)
    return ScalingHints(allowed.initial, allowed.most, low, high, allowed.accumulates, noise, *measured)


def speed_of(hints: ScalingHints) -> Speed:
    """The reported time of a step."""
    return Speed(hints.alpha, hints.beta, hints.c_in, hints.d_in, hints.c_out, hints.d_out, hints.profiled)


def range_of(hints: ScalingHints) -> BatchRange:
    """The reported range of batches."""
    return BatchRange(
        hints.initial_batch, hints.most_batch, (hints.per_rank_low, hints.per_rank_high), hints.accumulates
    )


def speedups(hints: ScalingHints, sizes: Iterable[tuple[int, int]]) -> tuple[float, ...]:
    """The goodput at each size (nodes, ranks), in goodputs of one rank alone: from 0 to that number of ranks.

    0 where the ranks can compute none of the batches. Ranks beyond the believed ones win nothing. Hints that
    contradict themselves, or hold what is no number, promise that further ranks win nothing: 1 for each size.
    """
    return _speedups(hints, tuple(sizes))


@lru_cache(maxsize=REMEMBERED)
def _speedups(hints: ScalingHints, sizes: tuple[tuple[int, int], ...]) -> tuple[float, ...]:
    alone = _alone(hints)
    if not alone:
        return tuple(1.0 for _ in sizes)
    speed, allowed = speed_of(hints), range_of(hints)
    believed = ((nodes, min(ranks, speed.believed_ranks), ranks) for nodes, ranks in sizes)
    return tuple(min(_goodput(speed, hints, allowed, n, most) / alone, float(ranks)) for n, most, ranks in believed)


def _alone(hints: ScalingHints) -> float:
    """The goodput of one rank alone; 0 if the hints are worth nothing."""
    if read_scaling(asdict(hints)) is None:
        return 0.0
    speed, allowed = speed_of(hints), range_of(hints)
    # A rank that can compute no batch as the script allows would have to do so in more parts, or in smaller ones.
    forced = replace(allowed, accumulates=True, per_rank=(1, hints.per_rank_high))
    return _goodput(speed, hints, allowed, 1, 1) or _goodput(speed, hints, forced, 1, 1)


def _goodput(speed: Speed, hints: ScalingHints, allowed: BatchRange, nodes: int, ranks: int) -> float:
    choice = best_batch(speed, hints.noise, allowed, nodes, ranks) if ranks > 0 else None
    return choice.goodput if choice else 0.0
