"""The gradient noise scale: how many samples a batch needs until its noise is as large as its signal.

Noise and signal of each step are sums over the ranks (perdure.loop.measuring.two_equations). Each rank keeps moving
averages of its own terms, on its device, and sends them with every check of the ranks; the sums of what all have sent
are equal on all ranks. So nothing waits for a collective of its own, and a check that is not made costs nothing. What
is saved and handed over are the sums: the steps since the newest check that all have read do not count.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from perdure.loop.measuring.two_equations import Solution

THETA: Final = 0.999
"""How much of the averages a step with the script's own batch keeps."""
LEAST_STEPS: Final = 10
"""The scale is unknown before so many steps."""


class NoiseMeter:
    """One rank's. `initial`: the samples of the script's own batch."""

    def __init__(self, initial: int) -> None:
        self._initial = initial
        self._own = torch.zeros(2, 0, dtype=torch.float64, device="cpu")
        """This rank's terms of noise and signal, by parameter group."""
        self._steps = 0
        self._words: list[int] = [0]
        """What this rank has said last."""
        self._copy: _Copy | None = None
        """From a device, begun when it has said that: what it says next."""
        self.noise_by_group: list[float] = []
        """tr S, the sum of all samples' variances, as of the newest check."""
        self.signal_by_group: list[float] = []
        """|G|^2, as of the newest check."""
        self.steps = 0
        """How many steps are in them."""

    @property
    def scale(self) -> float | None:
        """In samples: tr S / |G|^2; None if it is not known yet."""
        noise, signal = math.fsum(self.noise_by_group), math.fsum(self.signal_by_group)
        if self.steps < LEAST_STEPS or signal <= 0:
            return None
        return max(0.0, noise) / signal

    def add(self, own: Tensor, mean: Tensor, solution: Solution, *, batch: int, ranks: int, steps: int = 1) -> None:
        """Takes a step, of which `own` and `mean` are this rank's squared norms by parameter group.

        `mean` is that of all ranks' mean, of which each of `ranks` contributes a part. A step with an infinite
        gradient, as loss scaling makes them, is left out, on all ranks. `steps`: how many steps these are. They stand
        for `batch` samples, also of steps that nobody looked at.
        """
        kept = THETA ** (batch / self._initial)
        self.fit(own.numel())
        known = self._own.to(own.device)
        share = mean / ranks
        noise = solution.noise_own * own + solution.noise_mean * share
        signal = solution.signal_own * own + solution.signal_mean * share
        found = torch.stack([noise, signal])
        self._own = torch.where(found.isfinite().all(), kept * known + (1 - kept) * found, known)
        self._steps += steps

    def fit(self, groups: int) -> None:
        """From now on there are so many parameter groups: ranks have to say equally much, whatever they measure."""
        self._own = torch.nn.functional.pad(self._own, (0, groups - self._own.shape[1]))

    # What goes with the ranks' checks.

    def words(self) -> list[int]:
        """This rank's averages. Those of a device are as of the call before, so that nobody waits for the device."""
        if self._own.is_cpu:
            self._words = _written(self._own, self._steps)
            return self._words
        if self._copy:
            self._words = self._copy.words()
        self._copy = _Copy(self._own, self._steps)
        return self._words

    def heard(self, rows: Sequence[Sequence[int]]) -> None:
        """Each rank's averages."""
        values = [[_value(word) for word in row[:-1]] for row in rows]
        sums = [math.fsum(found) for found in zip(*values, strict=True)]
        if all(map(math.isfinite, sums)):
            groups = len(sums) // 2
            self.noise_by_group, self.signal_by_group, self.steps = sums[:groups], sums[groups:], rows[0][-1]

    # What is saved, and what ranks begin with.

    def begin(self, rank: int) -> None:
        """Goes on from what all ranks have heard, as this rank of a run that begins, or after a change of ranks."""
        known = [self.noise_by_group, self.signal_by_group]
        self._own = torch.tensor(known, dtype=torch.float64, device="cpu") * (rank == 0)
        self._steps, self._copy = self.steps, None
        # A device's averages are said one call late, so this is what all say first: each equally much.
        self._words = _written(self._own, self._steps)

    def write(self) -> dict[str, Any]:
        """As plain values: equal on all ranks."""
        return {"noise": list(self.noise_by_group), "signal": list(self.signal_by_group), "steps": self.steps}

    def read(self, written: Mapping[str, Any]) -> None:
        """What `write` has written."""
        self.noise_by_group, self.signal_by_group = list(written["noise"]), list(written["signal"])
        self.steps = written["steps"]


class _Copy:
    """A copy from a device that nobody waits for."""

    def __init__(self, averages: Tensor, steps: int) -> None:
        self._steps = steps
        self._there = torch.empty(averages.shape, dtype=averages.dtype, device="cpu", pin_memory=True)
        self._there.copy_(averages, non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record()

    def words(self) -> list[int]:
        self._done.synchronize()
        return _written(self._there, self._steps)


def _written(averages: Tensor, steps: int) -> list[int]:
    return [*map(_bits, averages.flatten().tolist()), steps]


def _bits(number: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def _value(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
