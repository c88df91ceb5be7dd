"""Events and actions of a save in the background. Values only; the package's docstring lists them.

Called by the machine and by the shell that drives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from perdure.checkpoint.background.vector import Words


class Wish(StrEnum):
    """How firmly a save is wanted."""

    LATER = "later"  # by the clock or by steps: skipped while another one is under way
    THIS_STEP = "this-step"  # an epoch's end: of this very step, and training goes on while it is uploaded
    NOW = "now"  # a person or the script wants it: committed when training goes on


@dataclass(frozen=True)
class Save:
    """A save, equal on all ranks."""

    number: int
    """Counted per run, from 1."""
    name: str
    """The save's name: its folder, its label in arenas, and the key in every word about it."""
    step: int
    reason: str


# What all ranks read alike, at the same call: fed by the main thread.


@dataclass(frozen=True)
class Agreed:
    """A vector was read."""

    words: Words


@dataclass(frozen=True)
class AtBoundary:
    """All ranks are at a place where a save may be begun."""

    step: int
    wish: Wish | None = None
    """The due save; None if there is none."""
    reason: str = ""
    same: bool = False
    """Whether the save under way is of this very position."""
    paused: bool = False
    """Whether failed saves have to be made again only later."""


@dataclass(frozen=True)
class Stood:
    """The ranks stand, and have gathered their words."""

    words: Words
    late: bool = False
    """Whether a rank may wait no longer."""


@dataclass(frozen=True)
class Streamed:
    """The blocking save is over."""

    done: bool


@dataclass(frozen=True)
class Stops:
    """All old ranks have stopped for a hand-over."""


@dataclass(frozen=True)
class TrainsOn:
    """The hand-over was aborted, and the older run trains on."""


@dataclass(frozen=True)
class HandsOver:
    """The newer run has taken over."""


@dataclass(frozen=True)
class Leaves:
    """The ranks leave their run, and have gathered what each has to say. Repeated until the turn is over."""

    words: Words
    left: float | None
    """The least time of all ranks, in seconds; None without a deadline."""
    rest: float
    """The greatest estimate of what the save under way still takes, its commit included, in seconds."""
    whole: float | None
    """The greatest estimate of a whole blocking save, in seconds; None if none is wanted or possible here."""
    same: bool = False
    """Whether the save under way is of this very position."""
    hurries: bool = False
    """Whether a drain or a user waits for the ranks to leave."""
    unanswered: bool = False
    """Whether rank 0 has sent an append that has no answer."""


@dataclass(frozen=True)
class Ends:
    """This process ends: no copy and no uploader of it may be left."""


# What a rank hears from its own threads and processes.


@dataclass(frozen=True)
class Room:
    """Whether there is an arena of the size that a save needs."""

    usable: bool


@dataclass(frozen=True)
class Sealed:
    """This rank's part is in its arena, whole."""

    name: str


@dataclass(frozen=True)
class CopyFailed:
    """This rank's part could not be copied, and the copying thread no longer writes."""

    name: str
    why: str


@dataclass(frozen=True)
class CopyChanged:
    """The state has changed while this rank's part was copied, and the copying thread no longer writes."""

    name: str


@dataclass(frozen=True)
class Durable:
    """This uploader has this rank's part and its index object in the store."""

    name: str
    uploader: int


@dataclass(frozen=True)
class Failed:
    """The uploader cannot upload this rank's part."""

    name: str
    why: str


@dataclass(frozen=True)
class Released:
    """This uploader no longer reads the arena, and will not before its next order."""

    name: str
    uploader: int


@dataclass(frozen=True)
class UploaderEnded:
    """This uploader has ended and is reaped."""

    uploader: int
    why: str = ""
    """Why it ended, if it was not killed."""


@dataclass(frozen=True)
class UploaderStuck:
    """This uploader was killed and could not be reaped in time."""

    uploader: int


@dataclass(frozen=True)
class Late:
    """The deadline of a save has passed."""

    name: str


@dataclass(frozen=True)
class Prepared:
    """Rank 0: all parts are as they should be, and the manifest is written."""

    name: str


@dataclass(frozen=True)
class NotPrepared:
    """Rank 0: a part is not as it should be, or the store did not answer."""

    name: str
    why: str


@dataclass(frozen=True)
class Appended:
    """Rank 0: the commit is in the log."""

    name: str
    seq: int


@dataclass(frozen=True)
class NoAnswer:
    """Rank 0: the append may be in the log or still come, or not."""

    name: str


@dataclass(frozen=True)
class CommitFenced:
    """Rank 0: another run owns the log."""

    name: str
    why: str


Event = (
    Agreed | AtBoundary | Stood | Streamed | Stops | TrainsOn | HandsOver | Leaves | Ends | Room | Sealed | CopyFailed
    | CopyChanged | Durable | Failed | Released | UploaderEnded | UploaderStuck | Late | Prepared | NotPrepared
    | Appended | NoAnswer | CommitFenced
)  # fmt: skip


# What the shell does.


@dataclass(frozen=True)
class Copy:
    """Has this rank's part copied into the arena and sealed; training may go on meanwhile. The save's deadline
    begins once it is copied."""

    save: Save


@dataclass(frozen=True)
class StartUpload:
    """Orders this uploader to upload the sealed arena; begins the process if it does not run."""

    save: Save
    uploader: int


@dataclass(frozen=True)
class KillUploader:
    """Kills and reaps this uploader."""

    uploader: int


@dataclass(frozen=True)
class Prepare:
    """Rank 0, in a thread: reads the index objects, compares label and seal, writes the manifest."""

    save: Save


@dataclass(frozen=True)
class Append:
    """Rank 0, in a thread: appends the commit to the log."""

    save: Save
    final: bool
    again: bool = False
    """Whether it was sent before and had no answer; then after a pause."""


@dataclass(frozen=True)
class Abandon:
    """Rank 0: the save's folder may be deleted, because no append that names it was ever sent."""

    save: Save


@dataclass(frozen=True)
class TellCommitted:
    """Main thread: the save is in the log as entry `seq`."""

    save: Save
    seq: int


@dataclass(frozen=True)
class TellFailed:
    """Main thread: the save has failed, and is owed."""

    save: Save
    why: str
    """Empty if another rank knows."""
    changed: bool = False
    """Whether nothing is wrong here, but the state has changed while this rank copied it."""


@dataclass(frozen=True)
class TellMissed:
    """Main thread: a save of this very step was wanted and could not be made."""

    reason: str
    why: str


@dataclass(frozen=True)
class Stream:
    """Main thread: makes a blocking save of this very step from the live tensors."""

    reason: str
    final: bool = False
    keep: float = 0.0
    """Seconds that have to be left when it is given up."""


@dataclass(frozen=True)
class RefuseHandover:
    """Main thread: this attempt cannot go on."""

    why: str


@dataclass(frozen=True)
class StopFenced:
    """Main thread: raises Fenced."""

    why: str
    """Empty on ranks other than 0."""


@dataclass(frozen=True)
class Close:
    """Main thread: the turn is over, and rank 0 appends Closed."""

    why: str


@dataclass(frozen=True)
class GiveUp:
    """Main thread: the turn is over, and it is unknown whether the last append will be in the log."""

    why: str


@dataclass(frozen=True)
class Left:
    """Main thread: the turn is over, and the log says how."""


Action = (
    Copy | StartUpload | KillUploader | Prepare | Append | Abandon | TellCommitted | TellFailed | TellMissed
    | Stream | RefuseHandover | StopFenced | Close | GiveUp | Left
)  # fmt: skip
