"""Small messages between ranks over a gloo group of their own: JSON as bytes, never pickle.

Any failure of gloo means that another rank is gone or silent, so it is PeerLost; which rank is to blame is told by
that rank's own outcome. Made by perdure.exit.rendezvous; used by everything that is collective and not training.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from perdure.errors import PeerLost


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

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.rank = group.rank()
        self.world = group.size()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's JSON value, by rank, on all ranks."""
        own = _to_bytes(value)
        with peer_lost("messages were exchanged"):
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
            dist.all_gather(sizes, torch.tensor([own.numel()]), group=self._group)
            longest = int(max(size.item() for size in sizes))
            parts = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world)]
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: own.numel()] = own
            dist.all_gather(parts, padded, group=self._group)
        return [_from_bytes(part[: int(size.item())]) for part, size in zip(parts, sizes, strict=True)]

    def broadcast(self, value: Any) -> Any:
        """Rank 0's JSON value, on all ranks; the others' arguments are ignored."""
        data = _to_bytes(value if self.rank == 0 else None)
        with peer_lost("rank 0's message was awaited"):
            size = torch.tensor([data.numel()])
            dist.broadcast(size, src=0, group=self._group)
            if self.rank != 0:
                data = torch.empty(int(size.item()), dtype=torch.uint8)
            dist.broadcast(data, src=0, group=self._group)
        return _from_bytes(data)


def _to_bytes(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value, separators=(",", ":")).encode()), dtype=torch.uint8)


def _from_bytes(data: torch.Tensor) -> Any:
    return json.loads(bytes(data.numpy()))
