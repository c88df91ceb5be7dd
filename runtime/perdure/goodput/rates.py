"""How the learning rate follows the batch: rules that give a factor on the rate that the script asks for.

M0 is the script's own batch, M the one that is used, phi the noise scale of the gradient.
"""

from __future__ import annotations

from enum import StrEnum
from math import sqrt

from perdure.goodput.batch import efficiency


class RateRule(StrEnum):
    """A rule of the learning rate."""

    LINEAR = "linear"
    """M / M0 (Goyal et al., "Accurate, large minibatch SGD", 2017): for SGD, far below the noise scale."""
    SQRT = "sqrt"
    """sqrt(M / M0) (Krizhevsky, "One weird trick", 2014): keeps the variance of a step; the custom for Adam."""
    LEGW = "legw"
    """sqrt(M / M0) after a linear warm-up over M / M0 times the samples (You et al., "Large-batch training for LSTM and
    beyond", SC '19: linear-epoch gradual warm-up)."""
    ADASCALE = "adascale"
    """The gain (Johnson et al., "AdaScale SGD", ICML '20): linear where the noise rules, constant where it is none."""
    ADAMSCALE = "adamscale"
    """The root of the gain: AdaScale for Adam and its kin, as in AdaptDL."""


def gain(noise: float, initial: int, batch: int) -> float:
    """What a step of `batch` samples wins, in steps of `initial` samples: (phi / M0 + 1) / (phi / M + 1).

    From 1 to M / M0 for a larger batch: AdaScale's gain ratio, and M / M0 times Pollux' efficiency. The sum of the
    gains is a run's progress, whatever batches it used. Nothing is won by no samples.
    """
    return batch / initial * efficiency(noise, initial, batch) if batch > 0 else 0.0


def rate_factor(
    rule: RateRule, noise: float, initial: int, batch: int, *, consumed: int = 0, warm_up: int = 0
) -> float:
    """The factor on the learning rate of a step of `batch` samples.

    LEGW alone counts the samples that were `consumed` before, of `warm_up` that a run at the initial batch would take
    to warm up. A `noise` that is not known is 0, and only AdaScale and its kin look at it: then they change nothing.
    """
    times = batch / initial
    if rule is RateRule.LINEAR:
        return times
    if rule is RateRule.SQRT:
        return sqrt(times)
    if rule is RateRule.LEGW:
        return sqrt(times) * (min(1.0, consumed / (warm_up * times)) if warm_up * times > 0 else 1.0)
    won = gain(noise, initial, batch)
    return won if rule is RateRule.ADASCALE else sqrt(won)
