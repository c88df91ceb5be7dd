"""How far a training has come, whatever batches it used: samples, each counted by what it wins in its batch.

It is a function of the decisions and of the steps, so a resumed run goes on with the same number, and a run that is
given the decisions of another one counts alike. A step that loss scaling has skipped does not count. Whether it has, a
fused optimizer knows on its device alone: nobody waits for that until the number is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

STATE: Final = "progress"
"""The name of the value in a checkpoint."""
_UNSURE: Final = 64
"""After so many steps of which only a device knows, it is asked. It has done most of them by then."""


class StatisticalProgress:
    """That of all runs of a training."""

    def __init__(self) -> None:
        self.counts = False
        """Whether there is a loader whose steps count."""
        self.known = 0.0
        """Without the steps of which only a device knows whether they were skipped. From any thread."""
        self._unsure: list[tuple[float, Tensor]] = []
        """What each of these is worth, and a number above 0 if it was skipped."""

    @property
    def samples(self) -> float:
        """Samples so far. It may wait for the device."""
        self._ask_device()
        return self.known

    def add(self, worth: float, steps: Sequence[Tensor | None]) -> None:
        """A step is done. `steps` has an entry for each optimizer that has stepped in it: a number above 0 if it has
        changed nothing, or None if it always changes something. If no optimizer has stepped, the step was skipped."""
        if any(skipped is None for skipped in steps):
            if self._unsure:  # in their order, so that the sum is the same whenever the device is asked
                self._unsure.append((worth, torch.zeros((), device="cpu")))
            else:
                self.known += worth
        elif steps:
            found = torch.stack([skipped.reshape(()) for skipped in steps if skipped is not None])
            self._unsure.append((worth, found.amin()))
        if len(self._unsure) >= _UNSURE:
            self._ask_device()

    def _ask_device(self) -> None:
        unsure, self._unsure = self._unsure, []
        for worth, skipped in unsure:
            if not skipped.item():
                self.known += worth

    def state_dict(self) -> dict[str, Any]:
        """Nothing if there is none, as in each training that does not adapt."""
        return {STATE: self.samples} if self.samples else {}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """Restores it."""
        self._unsure.clear()
        self.known = float(saved.get(STATE, 0.0))
