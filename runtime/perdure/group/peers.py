"""The small messages ranks exchange outside the training step: JSON over collectives, never pickle.

`Peers` is what saving, restoring and opening the log need of the other ranks. `Solo` is a world of one and touches no
collective. The gloo implementation lives in perdure.group.gloo, beside the process group it owns.
"""

from __future__ import annotations

from typing import Any, Protocol


class Peers(Protocol):
    """The ranks of one run. Every method is collective: all ranks call it in the same order.

    Each raises PeerLost when another rank is gone or does not answer in time.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def gather(self, value: Any) -> list[Any]:
        """Every rank's JSON value, by rank, on all ranks."""
        ...

    def broadcast(self, value: Any) -> Any:
        """Rank 0's JSON value, on all ranks; the others' arguments are ignored."""
        ...


class Solo:
    """A world of one."""

    rank = 0
    world = 1

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value


class Alone:
    """A rank that is to be one of a world, and has nobody to talk to yet: what it says, it hears."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value
