"""The time of a step by nodes, ranks, samples at once and accumulation.

It is Pollux' model of throughput (Qiao et al., OSDI '21, section 3.2) without its overlap of computing and
communicating, gamma: that term needs more measured points than most jobs ever have.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

BELIEVED: Final = 2
"""Times the most ranks that were measured: beyond them the model knows nothing, as in Pollux."""


@dataclass(frozen=True)
class Speed:
    """The six times of Pollux' model, in seconds, all of them from 0; and how far they are believed."""

    alpha: float
    """One part, whatever its size."""
    beta: float
    """Each sample of it."""
    c_in: float
    """Two ranks of one node agree on a gradient."""
    d_in: float
    """Each further rank there."""
    c_out: float
    """Two ranks of two nodes agree on a gradient."""
    d_out: float
    """Each further rank, on two nodes or more."""
    profiled: int
    """The most ranks that were measured together."""

    def compute_seconds(self, micro: float) -> float:
        """The time of a part of that many samples, forward and backward."""
        return self.alpha + self.beta * micro

    def network_seconds(self, nodes: int, ranks: int) -> float:
        """The time in which the ranks agree on a gradient."""
        if ranks <= 1:
            return 0.0
        if nodes <= 1:
            return self.c_in + self.d_in * (ranks - 2)
        return self.c_out + self.d_out * (ranks - 2)

    def step_seconds(self, nodes: int, ranks: int, micro: float, accumulation: int) -> float:
        """The time of a step in which each rank computes `accumulation` parts of `micro` samples, and one more that is
        followed by the exchange. Infinite for more ranks than are believed."""
        if ranks > self.believed_ranks:
            return inf
        return (accumulation + 1) * self.compute_seconds(micro) + self.network_seconds(nodes, ranks)

    @property
    def believed_ranks(self) -> int:
        """Up to so many ranks the model is believed."""
        return BELIEVED * self.profiled
