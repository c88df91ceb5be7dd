"""What each rank says of its saves in the background, as a vector of integers that all ranks reduce to one.

Values only. Called by the machine and by the shell that drives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum


class ArenaUse(IntEnum):
    """What a rank says of its arena. The greatest of all ranks counts."""

    FREE = 0
    IN_USE = 1
    NONE = 2  # no room for one, or a reader of it cannot be ended: saves stream
    FENCED = 3  # another run owns the log: no more saves at all


@dataclass(frozen=True)
class Words:
    """What a rank says, or what all of them say together."""

    durable: int = 0
    """The highest number whose part is durable; of all ranks the least."""
    failed: int = 0
    """The highest number that has failed; of all ranks the greatest."""
    arena: int = ArenaUse.FREE
    """See ArenaUse; of all ranks the greatest."""
    committed: int = 0
    """The last commit that rank 0 has in the log, packed; 0 on all other ranks."""

    def vector(self) -> tuple[int, int, int, int]:
        """The words as integers whose greatest count."""
        return -self.durable, self.failed, self.arena, self.committed

    @classmethod
    def read(cls, vector: Sequence[int]) -> Words:
        """The words from such integers."""
        durable, failed, arena, committed = vector
        return cls(-durable, failed, arena, committed)


def reduced(every: Iterable[Words]) -> Words:
    """What all ranks say together."""
    return Words.read([max(column) for column in zip(*(words.vector() for words in every), strict=True)])
