"""Moves the training state from the old ranks into a newcomer's own tensors, point to point.

The state is what a commit made here would hold, in the same description, so that the receiver uses the code that
restores. Every old rank sends a part, without a copy if its tensor is contiguous, and changes nothing. Small tensors
travel together, large ones in pieces.

Called by perdure.live.effects during the stop. perdure.layout.plan assigns the parts to ranks.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from perdure.checkpoint import boxes, tensors
from perdure.checkpoint.boxes import described as described_layout
from perdure.checkpoint.boxes import held, is_sharded, placements_over, view
from perdure.checkpoint.manifest import REPLICATED, SHARED, Item
from perdure.checkpoint.stage import described
from perdure.checkpoint.state import RankState
from perdure.errors import UserError
from perdure.group.gloo import peer_lost
from perdure.group.world import Group
from perdure.layout.box import Box
from perdure.layout.elastic import ElasticMesh, MeshChange, read_placements, write_placements
from perdure.layout.messages import Message, messages
from perdure.layout.plan import Move, TensorDemand, plan
from perdure.live.protocol.parties import Attempt, PartyRole

SMALL_BYTES: Final = 64 * 1024
"""Tensors up to this size are packed into messages of up to PIECE_BYTES, because a message costs as much as a copy."""
IN_FLIGHT: Final = 8
"""Copies in flight to or from all parties together, plus one for each party, of PIECE_BYTES at most. Messages without a
copy need no memory, so all of them are in flight at once, and no link waits for this process."""
AT_ONCE: Final = 8
"""Parties served at a time. All processes use the same order, so there is no deadlock."""

Key = tuple[str, str]
Put = Callable[[Tensor], None]


@dataclass(frozen=True)
class Place:
    """Memory of a tensor, or of a box of it."""

    memory: Tensor
    box: Box

    def of(self, box: Box) -> Tensor:
        """The elements of a box inside of this one."""
        return view(self.memory, box.within(self.box))


@dataclass(frozen=True)
class Parcel:
    """What one old rank sends to one party, in this order."""

    sender: int
    receiver: int
    moves: tuple[Move, ...]
    items: Mapping[str, Item]
    """All tensors, by the moves' names."""

    def item(self, move: Move) -> Item:
        """The tensor of a move."""
        return self.items[move.name]

    def messages(self) -> Iterator[Message]:
        """The moves as messages."""
        return messages(self.moves, small=SMALL_BYTES, most=tensors.PIECE_BYTES)


class Window:
    """Messages in flight between two parties, with at most `most` copies among them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._copies = 0
        self._works: deque[tuple[Any, Tensor, bool, Put | None]] = deque()

    def add(self, work: Any, data: Tensor, *, copied: bool, then: Put | None = None) -> None:
        """Add a message. Its memory is kept until it has arrived; then `then` gets it."""
        self._works.append((work, data, copied, then))
        self._copies += copied

    def narrow(self) -> None:
        """Wait until at most the allowed number of copies is in flight."""
        while self._copies > self._most:
            self._finish()

    def close(self) -> None:
        """Wait until all messages have arrived."""
        while self._works:
            self._finish()

    def _finish(self) -> None:
        work, data, copied, then = self._works.popleft()
        work.wait()
        self._copies -= copied
        if then:
            then(data)


def describe(state: RankState) -> tuple[Item, ...]:
    """The tensors to send, as in a manifest. Equal on all old ranks, except for buffers, which only rank 0 sends."""
    return (*_items(SHARED, state.shared), *_items(REPLICATED, state.replicated))


Placements = Sequence[Sequence[int]]
"""How a tensor is placed over the run's mesh, as perdure.layout.elastic writes it."""


def shards(state: RankState, mesh: ElasticMesh | None) -> dict[str, Placements]:
    """The sharded tensors by name, each with its placements over the run's mesh. Equal on all old ranks.

    Raises UserError for one that is sharded over another mesh, or of which a rank has several pieces.
    """
    found: dict[str, Placements] = {}
    for name, tensor in state.shared.items():
        if is_sharded(tensor):
            placements = placements_over(tensor, mesh) if mesh else None
            if placements is None or len(held(tensor)) > 1:
                raise UserError(f"tensor {name} is placed as {described_layout(tensor)}: its ranks change by a restart")
            found[name] = write_placements(placements)
    return found


def parcels(
    attempt: Attempt,
    items: Sequence[Item],
    party: int,
    sharded: Mapping[str, Placements] = MappingProxyType({}),
    change: MeshChange | None = None,
) -> list[Parcel]:
    """What this party sends to others, receives from them, and copies itself; the same at both ends. `sharded` is what
    `shards` returns, for the mesh that changes."""
    newcomers = [party.number for party in attempt.newcomers]
    named = {f"{item.part}/{item.name}": item for item in items}
    kept: list[Move] = []

    def demand(name: str, item: Item) -> TensorDemand:
        if item.part != SHARED:
            return TensorDemand.whole(name, item.shape, item.size, [0], attempt.tensor_receivers)
        if change is None or item.name not in sharded:
            return TensorDemand.whole(name, item.shape, item.size, range(attempt.world), newcomers)
        width = item.size // max(1, math.prod(item.shape))
        moved, stays = change.of(item.shape, read_placements(sharded[item.name]))
        kept.extend(Move(party, party, name, box, box.count * width) for box in stays.get(party, ()))
        return TensorDemand(name, width, moved)

    moves = plan([demand(name, item) for name, item in named.items()], party)
    ordered = sorted([*moves, *kept], key=lambda move: move.order)
    links = itertools.groupby(ordered, key=lambda move: (move.source, move.destination))
    return [Parcel(sender, receiver, tuple(found), named) for (sender, receiver), found in links]


def mesh_change(attempt: Attempt, mesh: ElasticMesh) -> MeshChange:
    """What an attempt moves of tensors that are sharded over this mesh of the living run. UserError if the newer run
    has no such mesh."""
    same = attempt.world == attempt.new_world
    holding = [party.number for party in attempt.parties if same and party.part is PartyRole.STAYER]
    parties = {party.new: party.number for party in attempt.parties if party.new is not None}
    return MeshChange(mesh, mesh.of(attempt.new_world), parties=parties, holding=holding)


def to_preallocate(named: Mapping[str, Tensor]) -> tuple[Item, ...]:
    """The shared tensors to make before the stop: large ones, because of their memory, and sharded ones, because torch
    needs a tenth of a millisecond for each. Sharded ones have a box."""
    items = [item for item in _items(SHARED, named) if item.device == "cpu"]
    sharded = {item.name for item in items if is_sharded(named[item.name])}
    return tuple(
        replace(item, box=Box.whole(item.shape)) if item.name in sharded else item
        for item in items
        if item.name in sharded or item.size > SMALL_BYTES
    )


def preallocate(items: Sequence[Item], owners: Mapping[str, Tensor] = MappingProxyType({})) -> dict[Key, Tensor]:
    """Allocate these tensors and touch every page: page faults would take longer than receiving. `owners`: by the name
    of a sharded one the parameter whose shards it has; without one it gets no memory. Raises UserError if memory is
    short."""
    found: dict[Key, Tensor] = {}
    for item in items:
        if item.box is None:
            make = partial(tensors.empty, item.dtype, item.shape, order=item.order)
        elif (owner := owners.get(item.name)) is not None:
            make = partial(boxes.like, owner, tensors.dtype_of(item.dtype))
        else:
            continue
        found[item.part, item.name] = allocate(item.name, make)
    return found


def allocate(name: str, make: Callable[[], Tensor]) -> Tensor:
    """The new tensor that `make` returns, filled with zeros, so that every page is touched. Raises UserError, with the
    name, if memory is short."""
    try:
        tensor = make()
    except RuntimeError as error:
        raise UserError(f"there is no memory for {name}: {error}") from error
    local = boxes.local(tensor)
    memory = tensors.flat_bytes(local)
    if memory is None:  # on an accelerator, say
        local.detach().zero_()
    else:
        memory.numpy().fill(0)  # torch would start threads for this one
    return tensor


def exchange(
    group: Group, party: int, given: Sequence[Parcel], state: RankState, new_shards: Mapping[Key, Place]
) -> dict[Key, Tensor]:
    """On a stayer whose shards change: send and receive at the same time, and copy what stays here.

    `new_shards` are the places of its new shards. The result is what was received besides. Raises PeerLost as the
    others do.
    """
    live = _live(state)
    with ThreadPoolExecutor(1, "perdure-handover-send") as sending:
        sent = sending.submit(
            _send, group, [parcel for parcel in given if parcel.sender == party != parcel.receiver], live
        )
        mine = [parcel for parcel in given if parcel.receiver == party != parcel.sender]
        found = receive(group, mine, {}, new_shards)
        sent.result()
    for parcel in (parcel for parcel in given if parcel.sender == parcel.receiver == party):
        for message in parcel.messages():
            for into, box in zip(_views(parcel, message, new_shards), _views(parcel, message, live), strict=True):
                tensors.fill(into, box)
    return found


def send(group: Group, given: Sequence[Parcel], state: RankState) -> None:
    """Send the parcels of this process. Raises PeerLost if one does not arrive."""
    _send(group, given, _live(state))


def _send(group: Group, given: Sequence[Parcel], live: Mapping[Key, Place]) -> None:
    with peer_lost("the state was sent"), tensors.cpu_by_default():
        _interleave([_sending(group, parcel, live, _window(given)) for parcel in given])


def _live(state: RankState) -> dict[Key, Place]:
    held = {(SHARED, name): place for name, tensor in state.shared.items() if (place := _held(tensor))}
    whole = {(REPLICATED, name): Place(tensor, Box.whole(tensor.shape)) for name, tensor in state.replicated.items()}
    return held | whole


def receive(
    group: Group,
    given: Sequence[Parcel],
    targets: Mapping[Key, Tensor],
    new_shards: Mapping[Key, Place] = MappingProxyType({}),
) -> dict[Key, Tensor]:
    """Receive parcels into `targets`, or into new tensors if there is none. Raises PeerLost if one does not come.

    `new_shards` are places for parts of tensors, which are not in the result. It also has the sharded tensors of which
    this rank holds nothing.
    """
    items = {(item.part, item.name): item for parcel in given for item in map(parcel.item, parcel.moves)}
    found = {key: _target(item, targets.get(key)) for key, item in items.items() if key not in new_shards}
    into = {**new_shards, **{key: place for key, tensor in found.items() if (place := _held(tensor))}}
    with peer_lost("the state was received"), tensors.cpu_by_default():
        _interleave([_receiving(group, parcel, into, _window(given)) for parcel in given])
    return found | {key: tensor for key, tensor in targets.items() if is_sharded(tensor)}


def _held(tensor: Tensor) -> Place | None:
    """What this rank holds of a tensor; None if that is nothing."""
    if not is_sharded(tensor):
        return Place(tensor, Box.whole(tensor.shape))
    return next((Place(one.memory, one.box) for one in held(tensor)), None)


def _items(part: str, named: Mapping[str, Tensor]) -> Iterator[Item]:
    for name, tensor in sorted(named.items()):
        yield described(part, name, tensor)


def _target(item: Item, live: Tensor | None) -> Tensor:
    return tensors.empty(item.dtype, item.shape, order=item.order) if live is None else live


def _window(given: Sequence[Parcel]) -> int:
    """Copies in flight of one parcel."""
    return max(1, IN_FLIGHT // max(1, len(given)))


def _interleave(works: Sequence[Iterator[None]]) -> None:
    """Run all works in turns, so that several parties are served at the same time."""
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


def _sending(group: Group, parcel: Parcel, live: Mapping[Key, Place], most: int) -> Iterator[None]:
    window = Window(most)
    for data, copied in _messages(parcel, live):
        window.add(group.send([data], parcel.receiver, 0), data, copied=copied)
        yield
        window.narrow()
    window.close()


def _messages(parcel: Parcel, live: Mapping[Key, Place]) -> Iterator[tuple[Tensor, bool]]:
    """The messages in order, and whether each is a copy."""
    for message in parcel.messages():
        boxes = _views(parcel, message, live)
        if len(boxes) == 1:
            yield tensors.to_bytes(boxes[0]), tensors.flat_bytes(boxes[0]) is None
        else:
            data = bytearray().join(piece for box in boxes for piece in tensors.read(box))
            yield torch.frombuffer(data, dtype=torch.uint8), True


def _receiving(group: Group, parcel: Parcel, found: Mapping[Key, Place], most: int) -> Iterator[None]:
    window = Window(most)
    for piece, put in _places(parcel, found):
        window.add(group.recv([piece], parcel.sender, 0), piece, copied=put is not None, then=put)
        yield
        window.narrow()
    window.close()


def _places(parcel: Parcel, found: Mapping[Key, Place]) -> Iterator[tuple[Tensor, Put | None]]:
    """The buffer of each message in order, and a function that copies it to its tensors, if it was not received
    there."""
    for message in parcel.messages():
        boxes = _views(parcel, message, found)
        flat = tensors.flat_bytes(boxes[0]) if len(boxes) == 1 else None
        if flat is None:
            size = sum(map(tensors.size_of, boxes))
            yield torch.empty(size, dtype=torch.uint8, device="cpu"), partial(_unpack, boxes)
        else:
            yield flat, None


def _views(parcel: Parcel, message: Message, among: Mapping[Key, Place]) -> list[Tensor]:
    items = (parcel.items[move.name] for move in message)
    return [among[item.part, item.name].of(move.box) for item, move in zip(items, message, strict=True)]


def _unpack(boxes: Sequence[Tensor], packed: Tensor) -> None:
    data = packed.numpy().data
    for box in boxes:
        size = tensors.size_of(box)
        tensors.write(box, data[:size])
        data = data[size:]
