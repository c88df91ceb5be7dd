"""The times of `Speed` from measured steps: least squares of the relative error, with no time below 0.

What the steps do not tell apart is decided by small penalties, so that there is always one answer, and it changes
little where the steps change little. As long as all parts have one size, half of their time counts for the part itself
and half for its samples; and what may be computing or an exchange counts as computing, so that what was not seen yet is
worth trying, up to the ranks that `Speed` believes. Both are Pollux' (Qiao et al., OSDI '21), whose fit of seven
unknowns starts from a guess and may end anywhere; without the overlap of the two it is a convex problem of six.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perdure.goodput.speed import Speed

_PENALTIES: Final = (1e-7, 1e-7, 1e-5, 1e-3, 1e-5, 1e-3)
"""By term, as they are in `Speed`, of the square of what it adds: too small to be seen where the steps tell it. That of
an exchange is larger than that of computing, and that of each further rank larger than that of the first two."""
_SHORTEST: Final = 1e-9
_LONGEST: Final = 1e9
"""No step is measured outside of these seconds: such a number is a mistake of a clock."""
_MOST: Final = 2**31
"""Nor has one more samples or ranks."""

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class StepTimes:
    """The measured times of steps that were alike; what is no time is left out of the fit."""

    nodes: int
    ranks: int
    micro: int
    """Samples that each rank computes at once."""
    accumulation: int
    """Parts before the one that is followed by the exchange."""
    micro_seconds: float | None
    """The time of such a part; None where there was none."""
    step_seconds: float
    """The time of the last part and of the exchange after it."""


def fit(times: Iterable[StepTimes]) -> Speed:
    """The times that foretell these best. Of no times at all a `Speed` that believes no rank.

    The order of the times changes nothing but the last digits.
    """
    known = [one for one in times if _is_known(one)]
    if not known:
        return Speed(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0)
    rows = [(_terms(one, exchange=True), one.step_seconds) for one in known]
    rows += [(_terms(one, exchange=False), one.micro_seconds) for one in known if one.micro_seconds is not None]
    alpha, beta, c_in, d_in, c_out, d_out = _least(
        np.array([terms for terms, seconds in rows if _is_time(seconds)], dtype=np.float64)
        / np.array([[seconds] for _, seconds in rows if _is_time(seconds)])
    )
    if not any(one.nodes > 1 for one in known):
        c_out, d_out = c_in, d_in  # it is not known to be dearer between nodes, but will not be cheaper either
    return Speed(alpha, beta, c_in, d_in, c_out, d_out, max(one.ranks for one in known))


def _is_known(times: StepTimes) -> bool:
    return _is_time(times.step_seconds) and 1 <= times.micro <= _MOST and 1 <= times.nodes <= times.ranks <= _MOST


def _is_time(seconds: float) -> bool:
    return _SHORTEST <= seconds <= _LONGEST


def _terms(times: StepTimes, *, exchange: bool) -> tuple[int, ...]:
    """How often each time of `Speed` is in a part, and in the exchange that follows it."""
    inner = exchange and times.ranks > 1 and times.nodes == 1
    outer = exchange and times.ranks > 1 and times.nodes > 1
    further = times.ranks - 2
    return 1, times.micro, int(inner), inner * further, int(outer), outer * further


def _least(terms: _Array) -> list[float]:
    """The x >= 0 with the least sum of (terms x - 1)^2 and of the penalties.

    Each set of terms that are not 0 is solved; the sum is convex, so the best of those without a negative one is it.
    """
    lengths = np.sqrt((terms**2).sum(0))
    seen = lengths > 0
    units = terms / np.where(seen, lengths, 1.0)
    squares, sums = units.T @ units + np.diag(np.where(seen, _PENALTIES, 1.0)), units.sum(0)
    sets = np.array(np.meshgrid(*[[False, True]] * len(lengths))).reshape(len(lengths), -1).T
    both = sets[:, :, None] & sets[:, None, :]
    found = np.linalg.solve(np.where(both, squares, np.eye(len(lengths))), (sets * sums)[:, :, None])[:, :, 0]
    error = np.einsum("ni,ij,nj->n", found, squares, found) - 2 * found @ sums
    best = found[np.where((found >= 0).all(1), error, np.inf).argmin()]
    return [float(one) for one in best / np.where(seen, lengths, 1.0)]
