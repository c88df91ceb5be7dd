"""The values that cross between the session and the checkpoint: what a rank brings to a save and gets from a load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from perdure.log.position import Position
from perdure.wire import CommitRef
from perdure.wire.settings import Member

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TensorRef:
    """Stands in `State.objects` where a tensor was taken out."""

    TAG: ClassVar = "ref"
    name: str
    """Of the tensor in `shared` or `replicated`."""


@dataclass(frozen=True)
class ArrayRef:
    """Stands in `State.objects` where a large NumPy array was taken out: a tensor has its bytes."""

    TAG: ClassVar = "array"
    name: str
    """Of the tensor."""
    dtype: str
    """NumPy's, with the byte order."""
    shape: tuple[int, ...]
    order: tuple[int, ...] = ()
    """Its dimensions as they lay in memory, the outermost first; none: row by row. The tensor's are in this order."""


@dataclass(frozen=True)
class TwinRef:
    """Stands in `State.objects` for a further name of a tensor: tied weights are stored once."""

    TAG: ClassVar = "twin"
    name: str
    """The one under which it is stored."""


@dataclass(frozen=True)
class State:
    """What one rank brings to a save, and gets back from a load."""

    shared: Mapping[str, Tensor]
    """Parameters and optimizer state, equal on all ranks: shared out over the ranks by size."""
    replicated: Mapping[str, Tensor]
    """Buffers and the like: rank 0's are the ones that count."""
    objects: Mapping[str, Any]
    """Everything else, of the codec's closed set; rank 0's are the ones that count."""
    rank: Any = None
    """This rank's own, of the codec's closed set: RNG state. None after a load into another world size."""
    loose: frozenset[str] = frozenset()
    """Names in `replicated` and `objects` that may differ between ranks, as every rank goes on with rank 0's anyway:
    buffers that DDP broadcasts, times."""


@dataclass(frozen=True)
class Contribution:
    """What one rank had to do with a commit."""

    member: Member
    seconds: Mapping[str, float]
    """How long it took: stage (what is to be saved is found and checked), upload (its shard is written), and on rank 0
    commit (manifest and log entry). Of a commit whose answer got lost, only what its last attempt took."""

    @property
    def own_seconds(self) -> float:
        """Of its own work; what rank 0 does at the end it does for all."""
        return sum(seconds for name, seconds in self.seconds.items() if name != "commit")


@dataclass(frozen=True)
class Saved:
    """A save that is in the log."""

    commit: CommitRef
    seconds: Mapping[str, float]
    """This rank's durations: stage, upload, commit."""
    by_rank: tuple[Contribution, ...]


@dataclass(frozen=True)
class NewCommit:
    """A commit that this run has just made: what a `committed` hook is told, on every rank alike."""

    seq: int
    """Its number in the log."""
    step: int
    """Optimizer steps done."""
    epoch: int
    """Finished epochs."""
    uri: str
    """The root: with `seq` it names the commit for good."""
    world: int
    """How many ranks made it."""
    members: tuple[Member, ...]
    """Where each rank ran: name and node."""
    seconds: tuple[Mapping[str, float], ...]
    """How long each rank took, by part: stage and upload, and commit on rank 0."""
    slowest: int
    """The rank whose stage and upload took longest."""


@dataclass(frozen=True)
class Unusable:
    """A commit that is in the log, and of which something is missing or damaged."""

    commit: CommitRef
    why: str


@dataclass(frozen=True)
class Loaded:
    """A commit that every rank has read and verified."""

    commit: CommitRef
    position: Position
    state: State
    world: int
    """How many ranks saved it."""
    ranks: tuple[Any, ...]
    """What is each of those ranks' own, encoded."""
    made: str
    """When, for people."""
    skipped: tuple[str, ...]
    """What could not be used on the way to it, each with its reason, newest first: to be reported."""
    behind: Unusable | None = None
    """The newest commit that there is, where that is not this one."""
