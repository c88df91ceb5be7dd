"""Small messages between ranks over a gloo group of their own: JSON as bytes, never pickle.

Any failure of gloo means that another rank is gone or silent, so it is PeerLost; which rank is to blame is told by
that rank's own outcome. Made by perdure.group.rendezvous; used by everything that is collective and not training.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from perdure.errors import PeerLost
from perdure.group.world import Group

SIZE_BYTES: Final = 8
FIRST_BYTES: Final = 64 * 1024
"""So much goes with the size: each exchange waits for the slowest of all ranks."""
LEAST_BYTES: Final = 256
"""... and so much of each of many ranks."""


@contextlib.contextmanager
def peer_lost(doing: str) -> Iterator[None]:
    """Turns a failed collective into PeerLost."""
    try:
        yield
    except RuntimeError as error:  # gloo's own; dist.DistError is one too
        raise lost(doing, error) from error


def lost(doing: str, error: RuntimeError) -> PeerLost:
    """What a failed collective means."""
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return PeerLost(f"another rank went away or did not answer while {doing}: {first}")


class GlooPeers:
    """The ranks of a run, over a group that nothing else uses. From any thread."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._whole = threading.Lock()
        """Of another thread's exchange no part comes between two of one."""
        self.rank = group.rank()
        self.world = group.size()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's JSON value, by rank, on all ranks: in one exchange what is short, in two what is longer."""
        with self._whole:
            return [message.value() for message in self._gathered(_to_bytes(value))]

    def _gathered(self, own: torch.Tensor) -> list[_Message]:
        first = max(LEAST_BYTES, FIRST_BYTES // self.world)
        found = [_Message(part) for part in self._all(_begun(own, first))]
        longest = max(message.size for message in found)
        if longest > first:
            rest = _bytes(longest - first)
            rest[: max(0, own.numel() - first)] = own[first:]
            found = [message.with_rest(part) for message, part in zip(found, self._all(rest), strict=True)]
        return found

    def _all(self, own: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.zeros_like(own) for _ in range(self.world)]
        with peer_lost("messages were exchanged"):
            self._group.allgather([parts], [own]).wait()
        return parts

    def broadcast(self, value: Any) -> Any:
        """Rank 0's JSON value, on all ranks; the others' arguments are ignored."""
        with self._whole:
            return self._broadcast(_to_bytes(value if self.rank == 0 else None)).value()

    def _broadcast(self, own: torch.Tensor) -> _Message:
        begun = _begun(own, FIRST_BYTES)
        self._from_rank0(begun)
        message = _Message(begun)
        if message.size > FIRST_BYTES:
            rest = own[FIRST_BYTES:].clone() if self.rank == 0 else _bytes(message.size - FIRST_BYTES)
            self._from_rank0(rest)
            message = message.with_rest(rest)
        return message

    def _from_rank0(self, data: torch.Tensor) -> None:
        with peer_lost("rank 0's message was awaited"):
            self._group.broadcast([data], dist.BroadcastOptions()).wait()


@dataclass(frozen=True)
class _Message:
    """What has come of one: its size in bytes, and behind it as much of it as there was room for."""

    data: torch.Tensor

    @property
    def size(self) -> int:
        return int.from_bytes(bytes(self.data[:SIZE_BYTES].numpy()), "little")

    def with_rest(self, rest: torch.Tensor) -> _Message:
        return _Message(torch.cat((self.data, rest)))

    def value(self) -> Any:
        return json.loads(bytes(self.data[SIZE_BYTES : SIZE_BYTES + self.size].numpy()))


def _begun(own: torch.Tensor, first: int) -> torch.Tensor:
    """The size of a message, and its `first` bytes."""
    begun = _bytes(SIZE_BYTES + first)
    begun[:SIZE_BYTES] = torch.frombuffer(bytearray(own.numel().to_bytes(SIZE_BYTES, "little")), dtype=torch.uint8)
    begun[SIZE_BYTES : SIZE_BYTES + own.numel()] = own[:first]
    return begun


def _bytes(size: int) -> torch.Tensor:
    """Gloo's tensors are the CPU's, whatever default device the script has set."""
    return torch.zeros(size, dtype=torch.uint8, device="cpu")


def _to_bytes(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value, separators=(",", ":")).encode()), dtype=torch.uint8)
