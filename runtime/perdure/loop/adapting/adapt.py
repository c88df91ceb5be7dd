"""What a script asks of its loader: `session.loader(dataset, 256, adapt=perdure.Adapt(up_to=4096, ...))`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.errors import UserError
from perdure.goodput.rates import RateRule


@dataclass(frozen=True)
class Adapt:
    """Lets a loader's global batch grow and shrink while the job trains, and the learning rate with it.

    A decision is made at an epoch's begin, where a checkpoint is due, and after a change of ranks, nowhere else. Each
    is part of the checkpoint.
    `session.micro()` belongs to it, because a batch may be handed out in several parts.
    """

    up_to: int
    """The largest global batch, in samples. The smallest is the loader's batch_size."""
    per_rank: tuple[int, int] = (1, 1 << 30)
    """How many samples a rank gets at once: at least, where the batch has so many, and at most, which is a limit of its
    memory."""
    rule: str = "adascale"
    """How the learning rate follows the batch: "linear", "sqrt", "legw", "adascale" or "adamscale" (RateRule)."""
    warm_up: int = 0
    """With "legw", over how many samples a run with the loader's batch_size warms up; a larger batch takes that many
    times more."""
    accumulates: bool = True
    """Whether a batch that is too large for the ranks is handed out in parts. Otherwise it is as large as they can
    hold."""
    decisions: str | Path | Sequence[Mapping[str, Any]] | None = None
    """The decisions of an earlier run, as its loader's `decisions` gave them, or a JSON file with them: nothing is
    measured, and nothing else is decided."""

    def check(self, loader: str, batch: int) -> None:
        """UserError for values that do not go together. `batch` is the loader's batch_size."""
        if not _is_whole(self.up_to) or self.up_to < batch:
            raise UserError(f"{loader}: Adapt(up_to={self.up_to!r}): give the largest global batch, {batch} or more")
        limits = self.per_rank
        if not isinstance(limits, tuple | list) or len(limits) != 2 or not all(map(_is_whole, limits)):
            raise UserError(f"{loader}: Adapt(per_rank={limits!r}): give the fewest and the most samples of one rank")
        if not isinstance(self.rule, str) or self.rule not in set(RateRule):
            raise UserError(f"{loader}: Adapt(rule={self.rule!r}): give one of {', '.join(RateRule)}")
        if not _is_whole(self.warm_up) or self.warm_up < 0 or (self.warm_up and self.rule != RateRule.LEGW):
            raise UserError(f"{loader}: Adapt(warm_up={self.warm_up!r}): give samples, with rule='legw' alone")
        if not 1 <= limits[0] <= limits[1]:
            raise UserError(f"{loader}: Adapt(per_rank={limits!r}): give two numbers of 1 or more, the lower one first")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
