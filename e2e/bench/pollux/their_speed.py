"""Pollux: a model of the time of a step, fitted to what a job has measured, and the batch that it finds best.

Section 4.1 and 4.2 of the paper: T = a * T_compute + (T_compute^gamma + T_network^gamma)^(1/gamma), with a compute time
that is linear in the micro-batch, and a network time that is linear in the ranks, on one node and on several.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, minimize

from e2e.bench.pollux.measurements import Noise, StepTime

Numbers = NDArray[np.float64]
Measured = frozenset[tuple[tuple[int, int, int], StepTime]]
"""Times of a step by (nodes, ranks, micro-batch)."""
LEAST: Final = 1e-8
TRIED: Final = 50
"""Batches, evenly on a scale of powers."""


@dataclass(frozen=True)
class Batch:
    """A micro-batch of each rank, and how many more than one make a step."""

    micro: int
    accumulation: int

    def of(self, ranks: int) -> int:
        """The samples of a step."""
        return ranks * self.micro * (self.accumulation + 1)


@dataclass(frozen=True)
class BatchLimits:
    """What a job may choose of."""

    initial: int
    most: int
    micro: tuple[int, int]


Parameters = tuple[float, ...]
"""alpha and beta of the compute time, of the network's between nodes and within one, and gamma."""


@cache
def fit(measured: Measured) -> Parameters:
    """The least error of logarithms, with a dislike of large gammas and of terms that grow with ranks."""
    keys, values = zip(*sorted(measured), strict=True)
    nodes, ranks, micro = np.array(keys, dtype=float).T
    step, sync = np.array(values, dtype=float).T
    compute = step - sync
    start = [0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001]
    lower, upper = [LEAST] * 6 + [1.0], [math.inf] * 6 + [10.0]
    fixed = {}
    if len(set(micro)) == 1:
        fixed[0] = float(compute.mean()) / 2
    several, within = nodes > 1, (nodes == 1) & (ranks > 1)
    if not several.any():
        fixed |= {2: LEAST, 3: LEAST}
    if not within.any():
        fixed |= {4: LEAST, 5: LEAST}
    if not (ranks > 2).any():
        fixed |= {3: LEAST, 5: LEAST}
    for place, value in fixed.items():
        start[place] = lower[place] = upper[place] = value
    data = (micro, np.maximum(ranks - 2, LEAST), several, within, np.log(compute), np.log(step))
    found = minimize(_error, start, args=data, jac=True, bounds=Bounds(lower, upper, keep_feasible=True)).x
    if not several.any():
        found[2], found[3] = max(found[2], found[4] * 1.1), max(found[3], found[5] * 1.1)
    return tuple(float(value) for value in found)


def _error(parameters: Numbers, *data: Any) -> tuple[float, Numbers]:
    micro, more, several, within, log_compute, log_step = data
    a, b, a_out, b_out, a_in, b_in, gamma = parameters
    compute = a + b * micro
    network = np.where(several, a_out + b_out * more, np.where(within, a_in + b_in * more, LEAST + LEAST * more))
    log_c, log_n = np.log(compute), np.log(network)
    log_sum = np.logaddexp(gamma * log_c, gamma * log_n)
    of_compute = np.exp(gamma * log_c - log_sum)
    of_network = 1.0 - of_compute
    gradient = np.zeros(7)
    error_1, slope_1 = _root_mean_square(log_c - log_compute)
    error_2, slope_2 = _root_mean_square(log_sum / gamma - log_step)
    by_compute = slope_1 / compute + slope_2 * of_compute / compute
    by_network = slope_2 * of_network / network
    gradient[0], gradient[1] = by_compute.sum(), by_compute @ micro
    gradient[2], gradient[3] = by_network[several].sum(), by_network[several] @ more[several]
    gradient[4], gradient[5] = by_network[within].sum(), by_network[within] @ more[within]
    gradient[6] = slope_2 @ ((of_compute * log_c + of_network * log_n) / gamma - log_sum / gamma**2)
    gradient[6] += 2e-3 * (gamma - 1)
    penalty = 1e-3 * (gamma - 1) ** 2
    for constant, growing in ((2, 3), (4, 5)):
        ratio = parameters[growing] / parameters[constant]
        penalty += 1e-2 * ratio**2
        gradient[growing] += 2e-2 * ratio / parameters[constant]
        gradient[constant] -= 2e-2 * ratio**2 / parameters[constant]
    return error_1 + error_2 + penalty, gradient


def _root_mean_square(differences: Numbers) -> tuple[float, Numbers]:
    value = math.sqrt(float(np.mean(differences**2)))
    return value, differences / (len(differences) * value) if value > 0 else np.zeros_like(differences)


def best(
    parameters: Parameters, noise: Noise, limits: BatchLimits, nodes: NDArray[np.int64], ranks: NDArray[np.int64]
) -> tuple[Numbers, NDArray[np.int64], NDArray[np.int64]]:
    """The largest goodput for each pair of nodes and ranks, with the micro-batch and the accumulation that have it."""
    least = np.maximum(limits.initial, limits.micro[0] * ranks).astype(float)
    share = np.geomspace(least, np.full_like(least, limits.most), TRIED) / ranks
    accumulation = np.ceil(share / limits.micro[1] - LEAST) - 1
    one = (ranks == 1) & (share > limits.initial + LEAST)
    accumulation = np.where(one, np.maximum(accumulation, 1), accumulation)
    micro = np.ceil(share / (accumulation + 1) - LEAST)
    a, b, a_out, b_out, a_in, b_in, gamma = parameters
    compute = a + b * micro
    more = np.maximum(ranks - 2, LEAST)
    network = np.where(nodes > 1, a_out + b_out * more, np.where(ranks > 1, a_in + b_in * more, LEAST + LEAST * more))
    step = accumulation * compute + (compute**gamma + network**gamma) ** (1 / gamma)
    scale = ranks * micro * (accumulation + 1) / limits.initial
    left = noise.var / scale + noise.sqr
    gain = np.where(left > 0, (noise.var + noise.sqr) / np.where(left > 0, left, 1.0), 1.0)
    allowed = (limits.micro[0] <= micro) & (micro <= limits.micro[1])
    goodput = np.where(allowed, gain * limits.initial / step, 0.0)
    chosen = np.argmax(goodput, axis=0), np.arange(len(ranks))
    return goodput[chosen], micro[chosen].astype(np.int64), accumulation[chosen].astype(np.int64)


def split(batch: int, limits: BatchLimits, ranks: int) -> Batch:
    """A given batch as micro-batches."""
    share = math.ceil(batch / ranks - LEAST)
    accumulation = math.ceil(share / limits.micro[1] - LEAST) - 1
    if ranks == 1 and batch > limits.initial:
        accumulation = max(1, accumulation)
    return Batch(math.ceil(share / (accumulation + 1) - LEAST), accumulation)


def within(batch: Batch, limits: BatchLimits, ranks: int) -> Batch:
    """The same, not above the largest batch."""
    return Batch(min(batch.micro, limits.most // (ranks * (batch.accumulation + 1))), batch.accumulation)


def frozen(times: Mapping[tuple[int, int, int], StepTime]) -> Measured:
    """As `fit` takes them."""
    return frozenset(times.items())
