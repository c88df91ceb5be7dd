"""Assigns samples to ranks where a batch is handed out in parts and its size changes: pure, as data.sampling is.

Batches are slices of the epoch's order, one after the other, however large: so each sample comes once. A batch's parts
are slices of it, and a rank's share is a slice of a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perdure.loop.adapting.decision import BatchDecision
from perdure.loop.data.sampling import SampleOrder, part_of


class Batch(NamedTuple):
    """One global batch, and the decision about it."""

    start: int
    stop: int
    decision: BatchDecision

    @property
    def parts(self) -> int:
        """In how many parts it is handed out."""
        return self.decision.split(self.stop - self.start)


class PartShare(NamedTuple):
    """One rank's share of one part of a global batch: what data.sampling's BatchShard is to a whole batch."""

    ids: tuple[int, ...]
    """May be empty: a part may have fewer samples than there are ranks."""
    start: int
    stop: int
    world: int
    placeholder: int
    """A sample of the part that gives an empty share its shape."""
    batch: Batch

    @property
    def weight(self) -> float:
        """The weight of this rank's mean loss that makes the mean over ranks, summed over the parts, the mean over the
        global batch."""
        return len(self.ids) * self.world / (self.batch.stop - self.batch.start)

    @property
    def last(self) -> bool:
        """Whether the batch has no further part."""
        return self.stop == self.batch.stop


def batches(decisions: Sequence[BatchDecision], epoch: int, consumed: int, end: int) -> Iterator[Batch]:
    """The global batches from `consumed` to the epoch's end.

    `decisions` are in order: the first one counts already, and a later one from its place on, where a batch ends.
    """
    for number, decision in enumerate(decisions):
        until = decisions[number + 1] if number + 1 < len(decisions) else None
        stop = end if until is None or until.epoch != epoch else min(until.consumed, end)
        for start in range(consumed, stop, decision.batch):
            yield Batch(start, min(start + decision.batch, stop), decision)
        consumed = max(consumed, stop)


def count(decisions: Sequence[BatchDecision], epoch: int, consumed: int, end: int) -> int:
    """How many parts those batches have. It takes no longer for a larger dataset."""
    found = 0
    for number, decision in enumerate(decisions):
        until = decisions[number + 1] if number + 1 < len(decisions) else None
        stop = end if until is None or until.epoch != epoch else min(until.consumed, end)
        whole, rest = divmod(max(stop - consumed, 0), decision.batch)
        found += whole * decision.split(decision.batch) + (decision.split(rest) if rest else 0)
        consumed = max(consumed, stop)
    return found


@dataclass(frozen=True)
class PartShares:
    """One rank's share of every part that is left in an epoch. Made while it is iterated."""

    order: SampleOrder
    decisions: Sequence[BatchDecision]
    epoch: int
    consumed: int
    end: int
    rank: int
    world: int

    def __len__(self) -> int:
        return count(self.decisions, self.epoch, self.consumed, self.end)

    def __iter__(self) -> Iterator[PartShare]:
        for batch in batches(self.decisions, self.epoch, self.consumed, self.end):
            numbers, parts = self.order[batch.start : batch.stop], batch.parts
            for part in range(parts):
                first, last = part_of(batch.stop - batch.start, part, parts)
                own_first, own_last = part_of(last - first, self.rank, self.world)
                own = numbers[first + own_first : first + own_last]
                yield PartShare(
                    tuple(own.tolist()),
                    batch.start + first,
                    batch.start + last,
                    self.world,
                    placeholder=int(numbers[first]),
                    batch=batch,
                )
