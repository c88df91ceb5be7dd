"""Moves the state of training from the old ranks into a newcomer's own tensors, point to point.

What is sent is what a commit made here would hold, described as a commit describes it, so that whoever receives it
takes it over by the code that restores. Every old rank sends a part, straight from its live tensors where they lie
flat in memory, and changes nothing. Small tensors travel together, large ones in pieces.

Called in the stop, by perdure.live.effects; which rank sends what, perdure.live.protocol.parties answers.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from perdure.checkpoint import tensors
from perdure.checkpoint.manifest import REPLICATED, SHARED, Item
from perdure.checkpoint.stage import described
from perdure.checkpoint.state import State
from perdure.errors import UserError
from perdure.group.gloo import peer_lost
from perdure.group.world import Group
from perdure.live.protocol.parties import Attempt

SMALL_BYTES: Final = 64 * 1024
"""Tensors up to this size are packed, up to PIECE_BYTES: a message costs as much as copying them."""
IN_FLIGHT: Final = 8
"""Messages under way to or from all parties together, and one more for each, that are copies, of PIECE_BYTES at most.
What is sent from where it lies and received to where it belongs needs no memory: all of it is under way at once, and no
link waits for this process to go on."""
AT_ONCE: Final = 8
"""Parties that are served at a time. They are taken in one order by all, so none waits for one that waits for it."""

Key = tuple[str, str]
Put = Callable[[Tensor], None]


@dataclass(frozen=True)
class Parcel:
    """Tensors that one old rank sends to one party, in this order."""

    sender: int
    receiver: int
    items: tuple[Item, ...]


class Window:
    """Messages between two parties that are under way, `most` copies among them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._copies = 0
        self._works: deque[tuple[Any, Tensor, bool, Put | None]] = deque()

    def add(self, work: Any, data: Tensor, *, copied: bool, then: Put | None = None) -> None:
        """One more; its memory is kept until it has arrived, which is when `then` gets it."""
        self._works.append((work, data, copied, then))
        self._copies += copied

    def narrow(self) -> None:
        """Returns when no more copies are under way than may be."""
        while self._copies > self._most:
            self._finish()

    def close(self) -> None:
        """Returns when all have arrived."""
        while self._works:
            self._finish()

    def _finish(self) -> None:
        work, data, copied, then = self._works.popleft()
        work.wait()
        self._copies -= copied
        if then:
            then(data)


def describe(state: State) -> tuple[Item, ...]:
    """What there is to send, as a manifest lists it; equal on all old ranks, but for buffers that only rank 0 sends."""
    return (*_items(SHARED, state.shared), *_items(REPLICATED, state.replicated))


def parcels(attempt: Attempt, items: Sequence[Item]) -> list[Parcel]:
    """Who sends what to whom. All parties find the same."""
    shared = [item for item in items if item.part == SHARED]
    replicated = tuple(item for item in items if item.part == REPLICATED)
    found: dict[tuple[int, int], list[Item]] = {(0, party): list(replicated) for party in attempt.header_to}
    for route in attempt.routes([item.size for item in shared]):
        found.setdefault((route.sender, route.receiver), []).append(shared[route.piece])
    return [Parcel(sender, receiver, tuple(items)) for (sender, receiver), items in sorted(found.items()) if items]


def needing_room(named: Mapping[str, Tensor]) -> tuple[Item, ...]:
    """Those of these shared tensors for which memory is worth being made before it is needed."""
    return tuple(item for item in _items(SHARED, named) if item.device == "cpu" and item.size > SMALL_BYTES)


def make_room(items: Sequence[Item]) -> dict[Key, Tensor]:
    """Memory for these tensors on this machine. It is written to: the system gives it page by page, which would take
    longer than receiving it. UserError if there is none."""
    found: dict[Key, Tensor] = {}
    for item in items:
        try:
            tensor = tensors.empty(item.dtype, item.shape, order=item.order)
        except RuntimeError as error:
            raise UserError(f"there is no memory for {item.name} ({item.size / 2**20:.0f} MiB): {error}") from error
        memory = tensors.flat_bytes(tensor)
        if memory is not None:
            memory.numpy().fill(0)  # not by torch: it would start threads of its own for this one
        found[item.part, item.name] = tensor
    return found


def send(group: Group, given: Sequence[Parcel], state: State) -> None:
    """Sends these parcels, whose sender this process is. PeerLost if one does not arrive."""
    live = {(SHARED, name): tensor for name, tensor in state.shared.items()}
    live |= {(REPLICATED, name): tensor for name, tensor in state.replicated.items()}
    with peer_lost("the state was sent"), torch.device("cpu"):
        _interleave([_sending(group, parcel, live, _window(given)) for parcel in given])


def receive(group: Group, given: Sequence[Parcel], targets: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    """Receives these parcels into `targets`, and new tensors where there is none. PeerLost if one does not come."""
    found = {
        (item.part, item.name): _target(item, targets.get((item.part, item.name)))
        for parcel in given
        for item in parcel.items
    }
    with peer_lost("the state was received"), torch.device("cpu"):
        _interleave([_receiving(group, parcel, found, _window(given)) for parcel in given])
    return found


def _items(part: str, named: Mapping[str, Tensor]) -> Iterator[Item]:
    for name, tensor in sorted(named.items()):
        yield described(part, name, tensor)


def _target(item: Item, live: Tensor | None) -> Tensor:
    return tensors.empty(item.dtype, item.shape, order=item.order) if live is None else live


def _window(given: Sequence[Parcel]) -> int:
    """How many copies of one of them are under way."""
    return max(1, IN_FLIGHT // max(1, len(given)))


def _packs(parcel: Parcel) -> Iterator[list[Item]]:
    """The small ones, as many as go together."""
    pack: list[Item] = []
    size = 0
    for item in parcel.items:
        if item.size > SMALL_BYTES:
            continue
        if size + item.size > tensors.PIECE_BYTES:
            yield pack
            pack, size = [], 0
        pack.append(item)
        size += item.size
    if size:
        yield pack


def _size(items: Sequence[Item]) -> int:
    return sum(item.size for item in items)


def _large(parcel: Parcel) -> list[Item]:
    return [item for item in parcel.items if item.size > SMALL_BYTES]


def _interleave(works: Sequence[Iterator[None]]) -> None:
    """Each in turn, until all are done: what several parties send arrives at the same time."""
    later = iter(works)
    now = deque(itertools.islice(later, AT_ONCE))
    while now:
        work = now.popleft()
        try:
            next(work)
        except StopIteration:
            now.extend(itertools.islice(later, 1))
        else:
            now.append(work)


def _sending(group: Group, parcel: Parcel, live: Mapping[Key, Tensor], most: int) -> Iterator[None]:
    window = Window(most)
    for data, copied in _messages(parcel, live):
        window.add(group.send([data], parcel.receiver, 0), data, copied=copied)
        yield
        window.narrow()
    window.close()


def _messages(parcel: Parcel, live: Mapping[Key, Tensor]) -> Iterator[tuple[Tensor, bool]]:
    """What is sent, in order, and whether it is a copy: small tensors together, and each large one in pieces of one
    size."""
    for pack in _packs(parcel):
        data = bytearray().join(piece for item in pack for piece in tensors.read(live[item.part, item.name]))
        yield torch.frombuffer(data, dtype=torch.uint8), True
    for item in _large(parcel):
        tensor = live[item.part, item.name]
        flat = tensors.flat_bytes(tensor)
        if flat is None:
            yield from ((piece, True) for piece in _copied(tensor))
        else:
            yield from ((piece, False) for piece in flat.split(tensors.PIECE_BYTES))


def _copied(tensor: Tensor) -> Iterator[Tensor]:
    buffer = bytearray()
    for piece in tensors.read(tensor):
        buffer += piece
        while len(buffer) >= tensors.PIECE_BYTES:
            yield torch.frombuffer(buffer[: tensors.PIECE_BYTES], dtype=torch.uint8)
            buffer = buffer[tensors.PIECE_BYTES :]
    if buffer:
        yield torch.frombuffer(buffer, dtype=torch.uint8)


def _receiving(group: Group, parcel: Parcel, found: Mapping[Key, Tensor], most: int) -> Iterator[None]:
    window = Window(most)
    for piece, put in _places(parcel, found):
        window.add(group.recv([piece], parcel.sender, 0), piece, copied=put is not None, then=put)
        yield
        window.narrow()
    window.close()


def _places(parcel: Parcel, found: Mapping[Key, Tensor]) -> Iterator[tuple[Tensor, Put | None]]:
    """Where each message is received to, in order, and what then takes it to its place, if it is not there."""
    for pack in _packs(parcel):
        yield torch.empty(_size(pack), dtype=torch.uint8), partial(_unpack, pack, found)
    for item in _large(parcel):
        target = found[item.part, item.name]
        flat = tensors.flat_bytes(target)
        if flat is not None:
            yield from ((piece, None) for piece in flat.split(tensors.PIECE_BYTES))
            continue
        sink = tensors.Sink(target)
        for start in range(0, item.size, tensors.PIECE_BYTES):
            size = min(tensors.PIECE_BYTES, item.size - start)
            yield torch.empty(size, dtype=torch.uint8), partial(_write, sink)


def _unpack(pack: Sequence[Item], found: Mapping[Key, Tensor], packed: Tensor) -> None:
    for item, part in zip(pack, packed.split([item.size for item in pack]), strict=True):
        if item.size:
            _write(tensors.Sink(found[item.part, item.name]), part)


def _write(sink: tensors.Sink, piece: Tensor) -> None:
    sink.write(piece.numpy().data)
