"""Small messages between ranks over a separate gloo group: JSON as bytes, never pickle.

Any failure of gloo means that another rank is gone or silent, so it becomes PeerLost. That rank's own outcome says why
it failed. Created by perdure.group.rendezvous; used by every collective outside training.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from perdure.errors import PeerLost, PerdureError
from perdure.group.peers import check_together
from perdure.group.world import Group

SIZE_BYTES: Final = 8
FIRST_BYTES: Final = 64 * 1024
"""Bytes of a message sent together with its size: each exchange waits for the slowest rank, so most need only one."""
LEAST_BYTES: Final = 256
"""The least of these bytes, if many ranks share FIRST_BYTES."""
LINE_END: Final = b"\n"
CUT: Final = b"... "
DIGEST_BYTES: Final = 8


@contextlib.contextmanager
def peer_lost(doing: str) -> Iterator[None]:
    """Turn a failed collective into PeerLost."""
    try:
        yield
    except RuntimeError as error:  # gloo's own; dist.DistError is one too
        raise lost(doing, error) from error


def lost(doing: str, error: RuntimeError) -> PeerLost:
    """The PeerLost for a failed collective."""
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return PeerLost(f"another rank went away or did not answer while {doing}: {first}")


class NotMet(PerdureError):
    """What a call was made for is over, so the other ranks may not make it."""


class GlooPeers:
    """The ranks of a run, over a group that nothing else uses. Safe to use from any thread."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._whole = threading.Lock()
        """Held for a whole exchange, so that two threads' messages do not interleave."""
        self._own = threading.local()
        self.rank = group.rank()
        self.world = group.size()
        self.doing = ""
        """What the call is for in which this rank waits for the others; "" outside of one."""

    def gather(self, doing: str, value: Any) -> list[Any]:
        """Every rank's JSON value, by rank, on all ranks. Short values take one exchange, longer ones two."""
        with self._in(doing):
            return [message.value() for message in self._gathered(_to_bytes(doing, value))]

    def broadcast(self, doing: str, value: Any) -> Any:
        """Rank 0's JSON value, on all ranks; the others' arguments are ignored."""
        own = _to_bytes(doing, value if self.rank == 0 else None)
        with self._in(doing):
            return self._rest_of_rank0(self._met(own)[0], own, self._first).value()

    def announce(self, value: Any) -> Any:
        """Like `broadcast`, without a check that all ranks make this call, so rank 0 does not wait for the others."""
        own = _to_bytes("", value if self.rank == 0 else None)
        begun = _begun(own, FIRST_BYTES)
        with self._whole:
            self._from_rank0(begun)
            return self._rest_of_rank0(_Message(begun), own, FIRST_BYTES).value()

    @contextlib.contextmanager
    def only_while(self, holds: Callable[[], bool]) -> Iterator[None]:
        """Calls of this thread, in the block, raise NotMet once `holds()` is False. It is looked at while no other
        thread exchanges, so none of them can be late for a call that the others make no more."""
        self._own.holds = holds
        try:
            yield
        finally:
            del self._own.holds

    @contextlib.contextmanager
    def _in(self, doing: str) -> Iterator[None]:
        with self._whole:
            if not getattr(self._own, "holds", lambda: True)():
                raise NotMet(f"the others are not waited for any more while {doing}")
            self.doing = " ".join(doing.splitlines())
            try:
                yield
            finally:
                self.doing = ""

    @property
    def _first(self) -> int:
        return max(LEAST_BYTES, FIRST_BYTES // self.world)

    def _met(self, own: torch.Tensor) -> list[_Message]:
        """The first part of each rank's message. Raises RanksApart on all ranks unless all make the same call."""
        found = [_Message(part) for part in self._all(_begun(own, self._first))]
        check_together([message.doing for message in found])
        return found

    def _gathered(self, own: torch.Tensor) -> list[_Message]:
        first, found = self._first, self._met(own)
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

    def _rest_of_rank0(self, message: _Message, own: torch.Tensor, first: int) -> _Message:
        if message.size <= first:
            return message
        rest = own[first:].clone() if self.rank == 0 else _bytes(message.size - first)
        self._from_rank0(rest)
        return message.with_rest(rest)

    def _from_rank0(self, data: torch.Tensor) -> None:
        with peer_lost("rank 0's message was awaited"):
            self._group.broadcast([data], dist.BroadcastOptions()).wait()


@dataclass(frozen=True)
class _Message:
    """A message, or its first part: the size in bytes, then the bytes received so far.

    The first line says what the rank is doing. The rest is JSON without line breaks.
    """

    data: torch.Tensor

    @property
    def size(self) -> int:
        return int.from_bytes(bytes(self.data[:SIZE_BYTES].numpy()), "little")

    def with_rest(self, rest: torch.Tensor) -> _Message:
        return _Message(torch.cat((self.data, rest)))

    @property
    def doing(self) -> str:
        return self._parts()[0].decode(errors="replace")

    def value(self) -> Any:
        return json.loads(self._parts()[1])

    def _parts(self) -> tuple[bytes, bytes]:
        doing, _, value = bytes(self.data[SIZE_BYTES : SIZE_BYTES + self.size].numpy()).partition(LINE_END)
        return doing, value


def _begun(own: torch.Tensor, first: int) -> torch.Tensor:
    """The size of a message, and its `first` bytes."""
    begun = _bytes(SIZE_BYTES + first)
    begun[:SIZE_BYTES] = torch.frombuffer(bytearray(own.numel().to_bytes(SIZE_BYTES, "little")), dtype=torch.uint8)
    begun[SIZE_BYTES : SIZE_BYTES + own.numel()] = own[:first]
    return begun


def _bytes(size: int) -> torch.Tensor:
    """A tensor for gloo, which needs the CPU even if the script has set another default device."""
    return torch.zeros(size, dtype=torch.uint8, device="cpu")


def _to_bytes(doing: str, value: Any) -> torch.Tensor:
    text = _short(doing) + LINE_END + json.dumps(value, separators=(",", ":")).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _short(doing: str) -> bytes:
    """`doing` as one line that fits the first exchange. A long line is cut and ends with a digest."""
    line = " ".join(doing.splitlines()).encode()
    if len(line) < LEAST_BYTES:
        return line
    digest = hashlib.blake2b(line, digest_size=DIGEST_BYTES).hexdigest().encode()
    return line[: LEAST_BYTES - len(digest) - len(CUT) - len(LINE_END)] + CUT + digest
