"""One decision about the global batch: a value, written into the commits and into the headers of hand-overs.

Everything that training does with it is a function of the decision and of the position: so a resumed run does the same
again, and a run that is given the decisions of another one repeats it. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from perdure.errors import UserError
from perdure.goodput.batch import efficiency

UNCHANGED: Final = 0.05
"""A factor of the rate, or the worth of a sample, is kept if it would change by a smaller part."""


@dataclass(frozen=True)
class BatchDecision:
    """From the sample `consumed` of `epoch` on a global batch has `batch` samples."""

    epoch: int
    """Counted over all loops."""
    consumed: int
    """Samples of the epoch that were used before."""
    ranks: int
    """How many ranks shared a batch."""
    batch: int
    """Samples of a global batch: of all ranks and parts."""
    micro: int
    """Samples of one rank in one part, at most."""
    accumulation: int
    """Parts of a batch before the one with which the ranks synchronise; 0: none."""
    noise: float | None
    """The gradient noise scale in samples that it was made with; None: not measured."""
    rate: float
    """What the script's learning rates are multiplied by."""

    @property
    def place(self) -> tuple[int, int]:
        """Where it begins to count."""
        return self.epoch, self.consumed

    def write(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)

    def split(self, samples: int) -> int:
        """In how many parts a batch of so many samples is handed out. A smaller one, as the last of an epoch, has as
        few as its samples need; and none is without a sample."""
        parts = self.accumulation + 1
        return min(parts, samples if samples >= self.batch else -(-samples // (self.micro * self.ranks)))

    def worth(self, samples: int, initial: int) -> float:
        """What they win in its batches, in samples of a batch of `initial` ones. Without a noise, as many."""
        return samples * (1.0 if self.noise is None else efficiency(self.noise, initial, self.batch))

    def says_the_same(self, other: BatchDecision) -> bool:
        """Whether training goes on alike with either."""
        alike = ("ranks", "batch", "micro", "accumulation")
        rates = abs(self.rate - other.rate) < UNCHANGED * other.rate
        return rates and all(getattr(self, name) == getattr(other, name) for name in alike)

    def counts_the_same(self, other: BatchDecision, initial: int) -> bool:
        """Whether progress counts alike with either, in samples of a batch of `initial` ones."""
        before = other.worth(initial, initial)
        return abs(self.worth(initial, initial) - before) < UNCHANGED * before


def fitted(decision: BatchDecision, ranks: int, most: int, *, accumulates: bool) -> BatchDecision:
    """The same for so many ranks, of which each has `most` samples at once. It has more parts if they need them, and
    without accumulation a smaller batch in one part."""
    batch = decision.batch if accumulates else min(decision.batch, ranks * most)
    accumulation = max(decision.accumulation, -(-batch // (ranks * most)) - 1) if accumulates else 0
    return replace(
        decision, ranks=ranks, batch=batch, micro=-(-batch // (ranks * (accumulation + 1))), accumulation=accumulation
    )


def read_decision(value: Any, what: str) -> BatchDecision:
    """What `write` has written. UserError for anything else; `what` names it."""
    if not isinstance(value, Mapping):
        raise UserError(f"{what} is {str(value)[:80]!r}: give a mapping with epoch, consumed, batch and so on")
    known = {"noise": None, "rate": 1.0, "accumulation": 0, "ranks": 1, **value}
    whole = {name: _whole(known.get(name), name, least, what) for name, least in _LEAST.items()}
    micro = _whole(
        known.get("micro", -(-whole["batch"] // (whole["ranks"] * (whole["accumulation"] + 1)))), "micro", 1, what
    )
    noise = None if known["noise"] is None else _number(known["noise"], "noise", what)
    rate = _number(known["rate"], "rate", what)
    if rate == 0:
        raise UserError(f"{what}: rate is 0: give what the learning rate is multiplied by")
    if micro * whole["ranks"] * (whole["accumulation"] + 1) < whole["batch"]:
        raise UserError(
            f"{what}: {whole['ranks']} ranks with {whole['accumulation'] + 1} parts of {micro} samples have no room "
            f"for a batch of {whole['batch']}"
        )
    return BatchDecision(**whole, micro=micro, noise=noise, rate=rate)


_LEAST: Final[Mapping[str, int]] = {"epoch": 0, "consumed": 0, "ranks": 1, "batch": 1, "accumulation": 0}


def _whole(value: Any, name: str, least: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{what}: {name} is {value!r}: give a whole number of {least} or more")
    return value


def _number(value: Any, name: str, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise UserError(f"{what}: {name} is {value!r}: give a number of 0 or more")
    return float(value)


def last_at(decisions: Sequence[BatchDecision], place: tuple[int, int]) -> BatchDecision | None:
    """The last of them, in their order, that counts at this place."""
    return next((one for one in reversed(decisions) if one.place <= place), None)
