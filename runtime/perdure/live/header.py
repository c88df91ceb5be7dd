"""What the old ranks' rank 0 sends to all parties in the stop of a hand-over, before the tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import Tensor

from perdure.checkpoint.codec import decode
from perdure.checkpoint.manifest import REPLICATED, SHARED, Item, read_item
from perdure.checkpoint.state import RankState
from perdure.live.transfer import Key, Placements
from perdure.log.position import Position
from perdure.log.reader import ReadPosition
from perdure.wire import CommitRef


@dataclass(frozen=True)
class Header:
    """What a commit made here would hold, without the tensors."""

    position: Position
    items: tuple[Item, ...]
    objects: Any
    """The state's objects, encoded."""
    ranks: tuple[Any, ...]
    """Each old rank's own state, encoded; for a newer run of another size only what ranks of another world continue
    with (perdure.state.rng.elsewhere)."""
    place: ReadPosition
    """The place up to which rank 0 has read the log."""
    commit: CommitRef | None
    goal: Any
    source: str
    """The loader that the old ranks' scripts asked for a batch."""
    saved: bool
    due: str
    """Why a checkpoint is due at exactly this step."""
    exhausted: bool
    age: float
    """Seconds since the last checkpoint."""
    alike: tuple[str, ...] = ()
    """The random generators that drew the same numbers on all ranks when they began."""
    sums: tuple[Any, ...] = ()
    """The accumulators of each old rank; empty if no rank has any."""
    parts: tuple[Any, ...] = ()
    """For a newer run of another size: each old rank's states of objects that are its own, encoded."""
    saves: Mapping[str, Any] = field(default_factory=dict)
    """What the newer run has to know of this one's saves: perdure.checkpoint.background.state.Carried."""
    shards: Mapping[str, Placements] = field(default_factory=dict)
    """The sharded tensors, each with its placements: perdure.live.transfer.shards."""
    mesh: tuple[int, ...] = ()
    """The shape of the mesh over which they are sharded; empty if none is."""
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What the script has set in the parts of a sharded model: perdure.state.fully_sharded.options."""
    alone: Any = None
    """For a newer run of another size: the only old rank's own state, encoded. No rank continues with it, but a
    newcomer may be the last process that has it."""
    all_able: bool = False
    """Whether all ranks could leave images when they began."""
    mirrors: int = 0
    """After how many steps they mirror their parts; 0: never."""

    def write(self) -> dict[str, Any]:
        """The header as JSON values. Nothing is copied, because it may hold the generators of many ranks."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        commit = asdict(self.commit) if self.commit else None
        items = [vars(item) for item in self.items]  # asdict would copy deeply, while training stands still
        return plain | {
            "position": {"step": self.position.step, "epoch": self.position.epoch, "cursors": self.position.cursors},
            "items": items,
            "ranks": list(self.ranks),
            "alike": list(self.alike),
            "sums": list(self.sums),
            "parts": list(self.parts),
            "mesh": list(self.mesh),
            "place": asdict(self.place),
            "commit": commit,
        }

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Header:
        """The header from those values."""
        position, commit = Position(**body["position"]), body["commit"]
        items = tuple(map(read_item, body["items"]))
        known = {
            "position": position,
            "items": items,
            "ranks": tuple(body["ranks"]),
            "place": ReadPosition(**body["place"]),
        }
        known |= {"alike": tuple(body["alike"]), "sums": tuple(body["sums"]), "parts": tuple(body["parts"])}
        known["mesh"] = tuple(body["mesh"])
        return cls(**{**body, **known, "commit": CommitRef(**commit) if commit else None})

    def state(self, found: Mapping[Key, Tensor], rank: Any) -> RankState:
        """The state of these tensors and this rank's own part, decoded, or None."""
        shared = {name: tensor for (part, name), tensor in found.items() if part == SHARED}
        replicated = {name: tensor for (part, name), tensor in found.items() if part == REPLICATED}
        return RankState(shared, replicated, decode(self.objects), rank)

    def received(self, found: Mapping[Key, Tensor], own: RankState | None) -> RankState:
        """Rank 0's buffers and objects, with this rank's own parameters, which are equal to rank 0's."""
        state = self.state(found, None)
        return RankState(own.shared if own else {}, state.replicated, state.objects)


@dataclass(frozen=True)
class Stop:
    """Where an old rank stopped, and the save that was due there."""

    source: str
    due: str
    exhausted: bool
