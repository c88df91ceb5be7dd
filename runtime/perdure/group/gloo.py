"""Small messages between ranks over a gloo group of their own: JSON as bytes, never pickle.

Any failure of gloo means that another rank is gone or silent, so it is PeerLost; which rank is to blame is told by
that rank's own outcome. Made by perdure.group.rendezvous; used by everything that is collective and not training.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from perdure.errors import PeerLost
from perdure.group.world import Group


@contextlib.contextmanager
def peer_lost(doing: str) -> Iterator[None]:
    """Turns a failed collective into PeerLost."""
    try:
        yield
    except RuntimeError as error:  # gloo's own; dist.DistError is one too
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PeerLost(f"another rank went away or did not answer while {doing}: {first}") from error


class GlooPeers:
    """The ranks of a run, over a group that nothing else uses."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.rank = group.rank()
        self.world = group.size()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's JSON value, by rank, on all ranks."""
        own = _to_bytes(value)
        sizes = [int(size.item()) for size in self._all(_number(own.numel()))]
        padded = _bytes(max(sizes))
        padded[: own.numel()] = own
        return [_from_bytes(part[:size]) for part, size in zip(self._all(padded), sizes, strict=True)]

    def _all(self, own: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.zeros_like(own) for _ in range(self.world)]
        with peer_lost("messages were exchanged"):
            self._group.allgather([parts], [own]).wait()
        return parts

    def broadcast(self, value: Any) -> Any:
        """Rank 0's JSON value, on all ranks; the others' arguments are ignored."""
        data = _to_bytes(value if self.rank == 0 else None)
        size = _number(data.numel())
        self._from_rank0(size)
        if self.rank != 0:
            data = _bytes(int(size.item()))
        self._from_rank0(data)
        return _from_bytes(data)

    def _from_rank0(self, data: torch.Tensor) -> None:
        with peer_lost("rank 0's message was awaited"):
            self._group.broadcast([data], dist.BroadcastOptions()).wait()


def _number(value: int) -> torch.Tensor:
    """Gloo's tensors are the CPU's, whatever default device the script has set."""
    return torch.tensor([value], dtype=torch.int64, device="cpu")


def _bytes(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8, device="cpu")


def _to_bytes(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value, separators=(",", ":")).encode()), dtype=torch.uint8)


def _from_bytes(data: torch.Tensor) -> Any:
    return json.loads(bytes(data.numpy()))
