"""Notices whoever else draws from the generators that a training script draws from."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch

Generators = Mapping[str, bytes]


def generators() -> Generators:
    """The state of each global generator of this process."""
    name, key, *rest = np.random.get_state()
    return {
        "Python": str(random.getstate()).encode(),
        "NumPy": np.asarray(key).tobytes() + str((name, *rest)).encode(),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def compare(before: Generators) -> None:
    """Raise AssertionError if one of these was drawn from meanwhile."""
    now = generators()
    drawn = [whose for whose in before if before[whose] != now[whose]]
    assert not drawn, f"drawn from the global generator of {' and '.join(drawn)}"


@contextmanager
def undrawn() -> Iterator[None]:
    """Nothing draws in this block, however it ends."""
    before = generators()
    try:
        yield
    finally:
        compare(before)


class Script:
    """Compares the generators all through a training, in which the script itself draws in its steps alone."""

    def __init__(self, *drawn: str) -> None:
        """`drawn`: whose generators it draws from in a step. The others are compared there too, which notices other
        threads."""
        self._drawn = drawn
        self._before: Generators = {}
        self._world = 0

    def goes_on(self, world: int = 1) -> None:
        """A batch has come, with so many ranks. The first one comes with restored generators, and one of another world
        with new ones, so nothing is compared."""
        if world == self._world:
            compare(self._before)
        self._before, self._world = generators(), world

    def calls(self) -> None:
        """The step is computed, and the session is called next."""
        compare({whose: state for whose, state in self._before.items() if whose not in self._drawn})
        self._before = generators()
