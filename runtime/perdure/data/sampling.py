"""Which sample goes where: a pure plan over one global order, the same for every world size.

The order of an epoch is a permutation of the dataset drawn from (seed, epoch) alone. Global batch b is the b-th slice
of that order, however many ranks share it, so a position in the order ("consumed") is all there is to save: any world
goes on from it without losing or repeating a sample.

Pure: no torch, no global random state, no dataset. Used by perdure.data.loader; tests drive it directly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from perdure.errors import UserError

KIND: Final = "global-order"
"""`kind` of this loader's cursor; another order of samples is another kind."""


@dataclass(frozen=True)
class SamplingPlan:
    """How one loader walks its dataset; a value of the user's script, not of the checkpoint."""

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
        """The tail that a declared drop_last leaves out of every epoch."""
        return self.samples % self.batch if self.drop_last else 0

    def order(self, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Sample numbers in the order in which the epoch consumes them."""
        if not self.shuffle:
            return np.arange(self.samples, dtype=np.int64)
        generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        return generator.permutation(self.samples).astype(np.int64, copy=False)

    def shares(self, epoch: int, consumed: int, rank: int, world: int) -> Iterator[BatchShard]:
        """This rank's part of every global batch from `consumed` to the epoch's end."""
        order = self.order(epoch)
        for start in range(consumed, self.end, self.batch):
            stop = min(start + self.batch, self.end)
            first, last = _part(stop - start, rank, world)
            ids = tuple(int(n) for n in order[start + first : start + last])
            yield BatchShard(ids, start, stop, world, placeholder=int(order[start]))

    def cursor(self, epoch: int, consumed: int) -> dict[str, Any]:
        """What a commit records of this loader."""
        cursor = {"kind": KIND, "epoch": epoch, "consumed": consumed, "samples": self.samples}
        cursor |= {"seed": self.seed, "shuffle": self.shuffle}
        return cursor | {"dropped": self.dropped} if self.drop_last else cursor

    def resume(self, cursor: Mapping[str, Any], epoch: int) -> int:
        """The position a cursor stands for, in samples. UserError if this plan cannot go on from it."""
        if cursor.get("kind") != KIND:
            raise UserError(
                f"loader {self.name!r}: the checkpoint was made by a loader of kind {cursor.get('kind')!r}, this is "
                f"{KIND!r}: use the same kind, or another root"
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
        return consumed


@dataclass(frozen=True)
class BatchShard:
    """One rank's part of one global batch."""

    ids: tuple[int, ...]
    """May be empty: at a ragged end there are fewer samples than ranks."""
    start: int
    stop: int
    world: int
    placeholder: int
    """A sample of the global batch from which an empty part takes its shape."""

    @property
    def weight(self) -> float:
        """What this rank's mean loss counts for, so that the mean over ranks is the mean over the global batch."""
        return len(self.ids) * self.world / (self.stop - self.start)


def _part(size: int, rank: int, world: int) -> tuple[int, int]:
    """The half-open range of a batch that belongs to a rank: sizes differ by one at most, the first have more."""
    base, extra = divmod(size, world)
    first = rank * base + min(rank, extra)
    return first, first + base + (rank < extra)
