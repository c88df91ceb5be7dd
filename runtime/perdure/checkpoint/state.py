"""Values that pass between the session and the checkpoint: what a rank saves, and what it loads."""

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
    """Takes the place of a tensor in `RankState.objects`."""

    TAG: ClassVar = "ref"
    name: str
    """Name of the tensor in `shared` or `replicated`."""


@dataclass(frozen=True)
class ArrayRef:
    """Takes the place of a large NumPy array in `RankState.objects`: a tensor has its bytes."""

    TAG: ClassVar = "array"
    name: str
    """Name of the tensor."""
    dtype: str
    """NumPy's dtype, with the byte order."""
    shape: tuple[int, ...]
    order: tuple[int, ...] = ()
    """The order of its dimensions in memory, outermost first; empty for row-major. The tensor has this order."""


@dataclass(frozen=True)
class TwinRef:
    """Takes the place of a further name of a tensor in `RankState.objects`: tied weights are stored once."""

    TAG: ClassVar = "twin"
    name: str
    """The name under which it is stored."""


@dataclass(frozen=True)
class RankState:
    """What one rank saves, and gets back from a load."""

    shared: Mapping[str, Tensor]
    """Parameters and optimizer state, equal on all ranks: shared out over the ranks by size."""
    replicated: Mapping[str, Tensor]
    """Buffers and the like: rank 0's count."""
    objects: Mapping[str, Any]
    """Everything else, of the codec's types; rank 0's count."""
    rank: Any = None
    """This rank's own state, of the codec's types, such as random states. None after a load into another world size."""
    loose: frozenset[str] = frozenset()
    """Names in `replicated` and `objects` that may differ between ranks, because every rank continues with rank 0's
    anyway: buffers that DDP broadcasts, times."""


@dataclass(frozen=True)
class Contribution:
    """One rank's part in a commit."""

    member: Member
    seconds: Mapping[str, float]
    """Seconds for each part: stage (find and check what to save), upload (write the shard), and on rank 0 commit
    (manifest and log entry). If a commit's answer was lost, only its last attempt counts."""

    @property
    def own_seconds(self) -> float:
        """Seconds of this rank's work. Rank 0's commit is work for all."""
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
    """A commit that this run has just made: what a `committed` hook gets, the same on every rank."""

    seq: int
    """Its number in the log."""
    step: int
    """Optimizer steps done."""
    epoch: int
    """Finished epochs."""
    uri: str
    """The root: with `seq` it names the commit permanently."""
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
    state: RankState
    world: int
    """How many ranks saved it."""
    ranks: tuple[Any, ...]
    """The own state of each of those ranks, encoded."""
    made: str
    """When, for people."""
    skipped: tuple[str, ...]
    """What could not be used on the way to it, each with its reason, newest first: to be reported."""
    behind: Unusable | None = None
    """The newest existing commit, if that is not this one."""
    run: int = 0
    """The run that it was made by."""
