"""Assigns samples to ranks: a pure plan over one global order, the same for every world size.

The order of an epoch is a permutation of the dataset drawn from (seed, epoch) alone. Global batch b is the b-th slice
of that order, however many ranks share it, so a position in the order ("consumed") is all there is to save: any world
goes on from it without losing or repeating a sample.

Nothing here is as large as the dataset, whatever its size: up to SHUFFLED_SAMPLES an order is a shuffled array, above
it is computed where it is needed, and batches come one at a time.

Pure: no torch, no global random state, no dataset. Used by perdure.loop.data.loader; tests drive it directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from perdure.errors import UserError
from perdure.loop.data.permutation import Numbers, permuted

KIND: Final = "global-order"
"""`kind` of this loader's cursor; another order of samples is another kind."""
LARGE_KIND: Final = "global-order-computed"
"""`kind` for a shuffled dataset of more than SHUFFLED_SAMPLES."""
SHUFFLED_SAMPLES: Final = 1 << 20
"""This many are shuffled in 0.05 s and 8 MB."""
CHUNK_SAMPLES: Final = 1 << 15
"""How much of an order is computed at a time: few calls of numpy, without a visible pause."""


@dataclass(frozen=True)
class SamplingPlan:
    """How one loader goes through its dataset; a value of the user's script, not of the checkpoint."""

    name: str
    samples: int
    batch: int
    """Samples of one global batch, over all ranks."""
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise UserError(f"loader {self.name!r}: batch_size is {self.batch}: give the global batch, 1 or more")
        if self.seed < 0:
            raise UserError(f"loader {self.name!r}: seed is {self.seed}: give 0 or more")
        if self.samples < 1:
            raise UserError(f"loader {self.name!r}: the dataset is empty: give it at least one sample")
        if self.drop_last and self.batch > self.samples:
            raise UserError(
                f"loader {self.name!r}: drop_last with a batch_size of {self.batch} leaves nothing of "
                f"{self.samples} samples: use a smaller batch_size"
            )

    @property
    def end(self) -> int:
        """How many samples an epoch consumes."""
        return self.samples - self.dropped

    @property
    def dropped(self) -> int:
        """Samples at the end of every epoch that drop_last leaves out."""
        return self.samples % self.batch if self.drop_last else 0

    @property
    def kind(self) -> str:
        """The kind of order: see KIND."""
        return LARGE_KIND if self.shuffle and self.samples > SHUFFLED_SAMPLES else KIND

    def order(self, epoch: int) -> SampleOrder:
        """The order in which the epoch consumes its samples."""
        return SampleOrder(self, epoch)

    def shares(self, epoch: int, consumed: int, rank: int, world: int) -> Shares:
        """This rank's share of every global batch from `consumed` to the epoch's end."""
        return Shares(self, self.order(epoch), consumed, rank, world)

    def cursor(self, epoch: int, consumed: int) -> dict[str, Any]:
        """What a commit records of this loader."""
        cursor = {"kind": self.kind, "epoch": epoch, "consumed": consumed, "samples": self.samples}
        cursor |= {"seed": self.seed, "shuffle": self.shuffle}
        return cursor | {"dropped": self.dropped} if self.drop_last else cursor

    def resume(self, cursor: Mapping[str, Any], epoch: int) -> int:
        """The position that a cursor stands for, in samples. UserError if this plan cannot continue from it."""
        kind = cursor.get("kind")
        if kind not in (KIND, LARGE_KIND):
            raise UserError(
                f"loader {self.name!r}: the checkpoint was made by a loader of kind {kind!r}, this is {self.kind!r}: "
                f"use the same kind, or another root"
            )
        consumed = int(cursor.get("consumed", 0))
        if consumed == 0 or cursor.get("epoch") != epoch:
            return 0
        for field, mine in (("samples", self.samples), ("seed", self.seed), ("shuffle", self.shuffle)):
            if cursor.get(field) != mine:
                raise UserError(
                    f"loader {self.name!r}: {field} is {mine}, the checkpoint in the middle of epoch {epoch} was made "
                    f"with {cursor.get(field)}: keep it until the epoch is over, or use another root"
                )
        if kind != self.kind:
            raise UserError(
                f"loader {self.name!r}: the checkpoint in the middle of epoch {epoch} goes by an order of kind "
                f"{kind!r}, which this version of perdure has for other sizes only: finish the epoch with the version "
                f"that made it, or use another root"
            )
        return consumed


class SampleOrder:
    """The sample numbers of one epoch, in the order in which they are consumed."""

    def __init__(self, plan: SamplingPlan, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch
        self._shuffled: Numbers | None = None
        if plan.shuffle and plan.kind == KIND:
            generator = np.random.Generator(np.random.PCG64([plan.seed, epoch]))
            self._shuffled = generator.permutation(plan.samples).astype(np.int64, copy=False)

    def __getitem__(self, part: slice) -> Numbers:
        """The numbers at these positions; slices without a step only."""
        if self._shuffled is not None:
            return self._shuffled[part]
        start, stop, _ = part.indices(self._plan.samples)
        positions = np.arange(start, stop, dtype=np.int64)
        return (
            permuted(positions, self._plan.samples, self._plan.seed, self._epoch) if self._plan.shuffle else positions
        )


class Share(Protocol):
    """What a rank gets at once."""

    @property
    def ids(self) -> tuple[int, ...]:
        """May be empty."""
        ...

    @property
    def start(self) -> int:
        """Where the samples of all ranks begin."""
        ...

    @property
    def stop(self) -> int:
        """Where they end."""
        ...

    @property
    def world(self) -> int:
        """How many ranks share them."""
        ...

    @property
    def placeholder(self) -> int:
        """A sample that gives an empty share its shape."""
        ...

    @property
    def weight(self) -> float:
        """What this rank's mean loss is multiplied by."""
        ...


class EachShare(Protocol):
    """One rank's shares, in their order, any number of times."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Share]: ...


class BatchShard(NamedTuple):
    """One rank's share of one global batch. A tuple, because one is made at each step."""

    ids: tuple[int, ...]
    """May be empty: the last batch may have fewer samples than there are ranks."""
    start: int
    stop: int
    world: int
    placeholder: int
    """A sample of the global batch that gives an empty share its shape."""

    @property
    def weight(self) -> float:
        """The weight of this rank's mean loss that makes the mean over ranks the mean over the global batch."""
        return len(self.ids) * self.world / (self.stop - self.start)


@dataclass(frozen=True)
class Shares:
    """One rank's share of every global batch left in an epoch. Made while it is iterated: any number of times, by
    several iterators at once."""

    plan: SamplingPlan
    order: SampleOrder
    consumed: int
    rank: int
    world: int
    until: int | None = None
    """Where they end, if not with the dataset."""

    @property
    def end(self) -> int:
        """One past the last sample."""
        return self.plan.end if self.until is None else self.until

    def __len__(self) -> int:
        return len(range(self.consumed, self.end, self.plan.batch))

    def __iter__(self) -> Iterator[BatchShard]:
        batch, end = self.plan.batch, self.end
        chunk = batch * max(1, CHUNK_SAMPLES // batch)
        for first in range(self.consumed, end, chunk):
            numbers = self.order[first : min(first + chunk, end)]
            for start in range(first, min(first + chunk, end), batch):
                stop = min(start + batch, end)
                yield self._share(numbers[start - first : stop - first], start, stop)

    def _share(self, numbers: Numbers, start: int, stop: int) -> BatchShard:
        first, last = part_of(stop - start, self.rank, self.world)
        return BatchShard(tuple(numbers[first:last].tolist()), start, stop, self.world, placeholder=int(numbers[0]))


class BatchIds:
    """The batch sampler for torch's DataLoader: a list of sample numbers for each share.

    The placeholder of an empty share is given as `~number`, to tell it from a sample.
    """

    def __init__(self, shares: EachShare, made: Callable[[Share], None] = lambda _: None) -> None:
        """`made` is called with each share when its numbers are requested."""
        self._shares = shares
        self._made = made

    def __len__(self) -> int:
        return len(self._shares)

    def __iter__(self) -> Iterator[list[int]]:
        for share in self._shares:
            self._made(share)
            yield list(share.ids) or [~share.placeholder]


def part_of(size: int, rank: int, world: int) -> tuple[int, int]:
    """The half-open range of a batch that belongs to a rank: sizes differ by one at most, the first ranks have more."""
    base, extra = divmod(size, world)
    first = rank * base + min(rank, extra)
    return first, first + base + (rank < extra)
