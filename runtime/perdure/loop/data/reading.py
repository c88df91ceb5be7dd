"""A loader whose epoch takes a number of samples instead of the whole dataset.

With `rewind=False` it continues where the epoch before stopped, in one order until the dataset is used up. Otherwise
each epoch begins at the first sample. Its position is one number in that order, so any number of ranks can continue
from it.

Made by `Session.loader(per_epoch=...)`; perdure.loop.position.progress says when an epoch is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from perdure.errors import UserError
from perdure.loop.data.loader import Loader
from perdure.loop.data.sampling import SamplingPlan, Shares

KIND: Final = "reader"
"""`kind` of its cursor; `order` is the kind of the samples' order."""


@dataclass(frozen=True)
class Portion:
    """How much of the dataset an epoch takes."""

    per_epoch: int
    """Samples of all ranks together."""
    rewind: bool
    """Whether each epoch begins with the first sample of its order."""


def read_portion(plan: SamplingPlan, samples: int | None, *, train: bool, rewind: bool) -> Portion | None:
    """None for an epoch of the whole dataset. UserError for arguments that do not go together."""
    name = f"loader {plan.name!r}"
    if samples is None:
        if not rewind:
            raise UserError(f"{name}: rewind=False without per_epoch: say how many samples an epoch takes")
        return None
    if not train:
        raise UserError(f"{name}: an evaluation takes all samples: leave out per_epoch, or give a part of the dataset")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise UserError(f"{name}: per_epoch is {samples!r}: give the samples of an epoch, 1 or more")
    if plan.drop_last and samples % plan.batch:
        raise UserError(
            f"{name}: with drop_last an epoch of {samples} samples would end with a part of a batch of {plan.batch}: "
            f"give a multiple of it as per_epoch"
        )
    return Portion(samples, rewind)


class Reader(Loader):
    """This rank's batches of the present epoch."""

    def __init__(self, *arguments: Any, portion: Portion, **options: Any) -> None:
        """As a Loader."""
        super().__init__(*arguments, **options)
        self.portion = portion
        self._base = 0
        """Samples that finished epochs have used, if it continues."""
        self._set_end()

    def exhausted(self) -> bool:
        """Whether all samples were handed out."""
        return not self.portion.rewind and self._base + self.handed_out >= self.plan.end

    def beside(self) -> dict[str, Any]:
        """Arguments that are in neither the plan nor the options."""
        return super().beside() | {"per_epoch": self.portion.per_epoch, "rewind": self.portion.rewind}

    def cursor(self, epoch: int) -> dict[str, Any]:
        """What a commit records."""
        found = super().cursor(epoch)
        return found | {"kind": KIND, "order": found["kind"], "base": self._base, **vars(self.portion)}

    def resume(self, cursor: Mapping[str, Any], epoch: int) -> int:
        """The position in the epoch. UserError if this reader cannot continue from it."""
        if cursor.get("kind") != KIND:
            if self.plan.resume(cursor, epoch):
                raise UserError(
                    f"{self}: the checkpoint was made in the middle of epoch {epoch} without per_epoch: leave it out "
                    f"until the epoch is over, or use another root"
                )
            return 0
        base, used = (0 if self.portion.rewind else int(cursor["base"])), int(cursor["consumed"])
        consumed = used if cursor.get("epoch") == epoch else 0
        self._check(cursor, base + consumed, in_epoch=consumed > 0)
        self._base = base
        self._set_end()
        return consumed

    def rewind(self, consumed: int = 0) -> None:
        """Continue at a position in the next epoch, which follows what this one handed out, if it continues."""
        if not self.portion.rewind:
            self._base += self.handed_out
            self._set_end()
        super().rewind(consumed)

    def _check(self, cursor: Mapping[str, Any], used: int, *, in_epoch: bool) -> None:
        """UserError if it would not continue with the samples after the `used` ones."""
        own, keep = self.cursor(0), "keep it until the epoch is over" if in_epoch else "keep it"
        for field in ("samples", "seed", "shuffle", "order", *(("per_epoch", "rewind") if in_epoch else ())):
            if used and cursor.get(field) != own[field]:
                raise UserError(
                    f"{self}: {field} is {own[field]}, but the checkpoint was made after {used} samples of a reader "
                    f"with {cursor.get(field)}: {keep}, or use another root"
                )

    def _set_end(self) -> None:
        self.end = min(self.portion.per_epoch, self.plan.end - self._base)

    def _shares(self, epoch: int) -> Shares:
        order = self.plan.order(epoch if self.portion.rewind else 0)
        first = self._base + self.consumed
        return Shares(self.plan, order, first, self._rank, self._world, self._base + self.end)

    def _draw(self, epoch: int) -> Iterator[tuple[int, Any]]:
        base = self._base
        for stop, batch in super()._draw(epoch):
            yield stop - base, batch
