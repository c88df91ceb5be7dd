"""The small messages ranks exchange outside the training step: JSON over collectives, never pickle.

`Peers` is what saving, restoring and opening the log need of the other ranks. `Solo` is a world of one and touches no
collective. The gloo implementation lives in perdure.group.gloo, beside the process group it owns.

Each message says what its rank is doing. Otherwise ranks that take different paths in the script could meet in
different calls, and each would take the other's value for an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from perdure.errors import UserError


class RanksApart(UserError):
    """The ranks have met in different calls. Raised on all ranks, before any uses a value of another."""


def check_together(doing: Sequence[str]) -> None:
    """Raise RanksApart unless all ranks make the same call. `doing` is by rank."""
    for rank, other in enumerate(doing):
        if other != doing[0]:
            raise RanksApart(
                f"the ranks have come apart: rank 0 {doing[0]}, rank {rank} {other}: make the same calls of the "
                f"session, in the same order, on every rank"
            )


class Peers(Protocol):
    """The ranks of one run. Every method is collective: all ranks call it in the same order.

    `doing` says in a few words what the call is for, to follow "rank 0": "ends an epoch". It is unique to a call. Each
    method raises PeerLost when another rank is gone or does not answer in time, and RanksApart when a rank makes
    another call.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def gather(self, doing: str, value: Any) -> list[Any]:
        """Every rank's JSON value, by rank, on all ranks."""
        ...

    def broadcast(self, doing: str, value: Any) -> Any:
        """Rank 0's JSON value, on all ranks; the others' arguments are ignored."""
        ...


class Solo:
    """A world of one."""

    rank = 0
    world = 1

    def gather(self, doing: str, value: Any) -> list[Any]:  # noqa: ARG002
        return [value]

    def broadcast(self, doing: str, value: Any) -> Any:  # noqa: ARG002
        return value


class Alone:
    """A rank of a larger world that is not connected yet: it hears only itself."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world

    def gather(self, doing: str, value: Any) -> list[Any]:  # noqa: ARG002
        return [value]

    def broadcast(self, doing: str, value: Any) -> Any:  # noqa: ARG002
        return value
