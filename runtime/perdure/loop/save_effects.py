"""What one process does for its saves in the background: the copy, the upload, the commit, and their reports.

perdure.loop.background_saves decides by its machine, and has it carried out here. Nothing here knows the machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final, Protocol

from perdure.checkpoint.background import events as ev
from perdure.checkpoint.background import rank0
from perdure.checkpoint.background.arena import Filled
from perdure.checkpoint.background.copies import Copies
from perdure.checkpoint.background.rank0 import CopiedPart
from perdure.checkpoint.checkpointer import Checkpointer
from perdure.checkpoint.schedule import DEAR_SECONDS, CheckpointSchedule
from perdure.checkpoint.state import Contribution, Saved
from perdure.console import say
from perdure.errors import Fenced, StorageError
from perdure.group.collectives import on_rank0
from perdure.group.peers import Peers
from perdure.log.position import Position
from perdure.loop.deferral import CopyBegun, Deferral, NoCopy
from perdure.loop.position.progress import ProgressTracker
from perdure.loop.requests import Requests
from perdure.loop.telemetry.events import Event
from perdure.loop.telemetry.timings import Timings
from perdure.state.registry import Registry
from perdure.store import Store
from perdure.wire import CommitRef
from perdure.wire.channel import SaveFailed
from perdure.wire.settings import Member, Settings

DEADLINE_SECONDS: Final = 300.0
"""A save may take this long, and longer if it is large."""
SLOWEST: Final = 8 * 2**20
"""Bytes per second. A rank that uploads slower than this has failed, unless its upload still moves at the deadline:
nothing would be faster if it began anew."""
ANSWERED_SECONDS: Final = 1.0
"""An estimate of the time to write the manifest and the log entry."""


class SavingRun(Protocol):
    """The parts of a Run that saves read, and the listeners that they tell."""

    settings: Settings
    progress: ProgressTracker
    registry: Registry
    store: Store
    peers: Peers
    requests: Requests
    schedule: CheckpointSchedule
    timings: Timings

    @property
    def checkpointer(self) -> Checkpointer:
        """Makes the run's commits."""
        ...

    def tell(self, event: Event) -> None:
        """Reports an event to the agent and the other sinks."""
        ...

    def tell_commit(self) -> None:
        """Reports the newest commit to the agent and the hooks."""
        ...

    def tell_failures(self) -> None:
        """Tells the agent how many saves have failed in a row."""
        ...


@dataclass(frozen=True)
class _Copied:
    """What a rank remembers of a save, from the copy on."""

    name: str
    position: Position
    folder: str
    begun: float
    copied: float = math.inf
    """When the upload could begin: all of the part was copied. time.monotonic(), as `begun`."""
    allowed: float = math.inf
    """Seconds from then to the deadline."""
    part: Filled | None = None
    """The copied part; None while it is copied, and if it could not be."""
    parts: tuple[CopiedPart, ...] = ()
    """The copied part of each rank, as it is or will be."""
    members: tuple[Member, ...] = ()
    seconds: tuple[Mapping[str, float], ...] = ()
    """Seconds by part of each rank, so far."""


class SaveEffects:
    """For one process and its main thread."""

    def __init__(self, run: SavingRun) -> None:
        self._run = run
        self.copies = Copies(run.settings.root)
        self.deferral: Deferral[Filled] = Deferral(run.registry)
        self._requests: rank0.CommitRequests | None = None
        """On rank 0: what it asks of the store while training goes on."""
        self._last: _Copied | None = None
        """The save that was copied last: the one under way, and the one whose end is not reported yet."""
        self._late = ""
        """The save whose deadline has passed."""
        self._unanswered = 0
        """How often the append that is under way was tried without an answer."""

    def join_newer_run(self) -> None:
        """This process is now a rank of the newer run."""
        self.deferral.settle()
        self._requests = self._last = None

    def end(self) -> None:
        """Stop the copy and the upload."""
        self.deferral.end()
        self.copies.end()
        self._requests = None

    # Results.

    def results(self) -> Iterator[ev.Event]:
        """What the uploading process and rank 0's requests have said since."""
        yield from self.copies.heard()
        for answer in self._requests.answers() if self._requests else ():
            self._unanswered = self._unanswered + 1 if isinstance(answer, ev.NoAnswer) else 0
            if self._unanswered:
                self._tell_no_answer()
            yield answer

    def copied(self) -> list[ev.Event]:
        """Wait for the copy that ran during training, and yield its outcome; nothing without such a copy."""
        if not self.deferral.copies or self._last is None:
            return []
        return self._copied_as(self._last, self.deferral.found())

    def has_become_late(self, save: ev.Save) -> bool:
        """Whether this save's deadline has passed, and its upload has not moved for as long as a small save may take;
        true once."""
        copied = self._copied(save)
        until = max(copied.copied + copied.allowed, self.copies.moved_at + DEADLINE_SECONDS)
        if save.name == self._late or time.monotonic() <= until:
            return False
        self._late = save.name
        return True

    def position(self, save: ev.Save) -> Position:
        """Where this save was copied."""
        return self._copied(save).position

    def whole(self) -> float:
        """An estimate of a blocking save, in seconds."""
        return self._run.timings.of_a_save()

    def rest(self, save: ev.Save) -> float:
        """An estimate of what this save still takes, in seconds. One that is late may take as long again."""
        since, whole = max(0.0, time.monotonic() - self._copied(save).copied), self.whole()
        return max(ANSWERED_SECONDS, whole - since if since < whole else since)

    def _copied(self, save: ev.Save) -> _Copied:
        if self._last is None or self._last.name != save.name:
            raise RuntimeError(f"save {save.name} of step {save.step} was not copied")
        return self._last

    def _tell_no_answer(self) -> None:
        checkpointer, why = self._run.checkpointer, self._requests.trouble if self._requests else ""
        self._run.tell(SaveFailed(checkpointer.failures + self._unanswered, why))

    # Actions.

    def copy(self, save: ev.Save, *, trains: bool) -> list[ev.Event]:
        """Copies this rank's part. Collective; raises UserError if the ranks have diverged.

        `trains`: the script is about to train a batch. Then the copy may go on meanwhile, and `copied` tells.
        """
        run, checkpointer = self._run, self._run.checkpointer
        position, begun = run.progress.position(), time.monotonic()
        folder = f"data/{checkpointer.run}/{position.step}-{save.name}/"
        self._last = _Copied(save.name, position, folder, begun)
        if self._requests:
            self._requests.beside(checkpointer.discard)
        fill = partial(self.copies.fill, uid=run.settings.uid, run=checkpointer.run, name=save.name, position=position)
        staged = checkpointer.stage_now()
        found = self.deferral.copy(staged, fill, trains=trains and self.copies.has_room(staged))
        own = {
            "member": asdict(checkpointer.member),
            "part": [0, ""] if isinstance(found, NoCopy) else [found.size, found.checksum],
            "seconds": {"stage": time.monotonic() - begun},
        }
        every = run.peers.gather("has copied what it saves", own)
        most = max(one["part"][0] for one in every)
        self._last = replace(
            self._last,
            allowed=DEADLINE_SECONDS + most / SLOWEST,
            parts=tuple(CopiedPart(*one["part"]) for one in every),
            members=tuple(Member(**one["member"]) for one in every),
            seconds=tuple(one["seconds"] for one in every),
        )
        return [] if isinstance(found, CopyBegun) else self._copied_as(self._last, found)

    def _copied_as(self, copied: _Copied, found: Filled | NoCopy) -> list[ev.Event]:
        self._last = copied = replace(copied, copied=time.monotonic())
        if isinstance(found, Filled):
            self._last = replace(copied, part=found)
            return [ev.Sealed(copied.name)]
        if found.changed:
            return [ev.CopyChanged(copied.name)]
        return [ev.Room(usable=False), ev.CopyFailed(copied.name, found.why)]

    def act_on_process(self, action: ev.StartUpload | ev.KillUploader) -> None:
        """Has this rank's part uploaded by another process, or ends that."""
        match action:
            case ev.StartUpload(save, uploader):
                copied = self._copied(save)
                if copied.part:
                    self.copies.order(uploader, copied.folder, copied.part)
            case ev.KillUploader(uploader):
                self.copies.kill(uploader)

    def act_on_rank_0(self, action: ev.Prepare | ev.Append | ev.Abandon) -> None:
        """Writes the manifest or the log's entry, beside the training; nothing on other ranks."""
        checkpointer, copied = self._run.checkpointer, self._copied(action.save)
        writer = checkpointer.writer
        if writer is None:
            return
        name, position = copied.name, copied.position
        if self._requests is None:
            self._requests = rank0.CommitRequests(checkpointer.store, writer, checkpointer.writing)
        match action:
            case ev.Prepare():
                self._requests.prepare(name, copied.folder, copied.parts, checkpointer.run, position)
            case ev.Append(save, final, again):
                self._requests.append(name, position, final=final, reason=save.reason, again=again)
            case ev.Abandon():
                writer.abandoned.add(copied.folder)

    def tell(self, action: ev.TellCommitted | ev.TellFailed | ev.TellMissed) -> None:
        """Reports how a save has ended, at one place on all ranks. Collective."""
        run, checkpointer = self._run, self._run.checkpointer
        match action:
            case ev.TellCommitted(save, seq):
                copied = self._copied(save)
                checkpointer.note(self._saved(copied, seq), copied.position)
                run.schedule.saved(copied.begun)
                here = copied.position == run.progress.position() and checkpointer.pin is None
                run.progress.saved = run.progress.saved or here
                run.tell_commit()
                if self._requests:
                    self._requests.beside(checkpointer.retire)
            case ev.TellFailed():
                self._tell_failed(action)
            case ev.TellMissed(reason, why):
                pin, checkpointer.pin = checkpointer.pin, None
                lost = f", so nothing is pinned as {pin!r}" if pin else ""
                if run.settings.rank == 0:
                    say(f"no checkpoint of step {run.progress.step} was made ({reason}){lost}: {why}")

    def _tell_failed(self, action: ev.TellFailed) -> None:
        run, checkpointer, copied = self._run, self._run.checkpointer, self._copied(action.save)
        found = run.peers.gather("tells why a save has failed", [action.why, action.changed])
        reasons = [why for why, changed in found if why and not changed]
        if not reasons and any(changed for _, changed in found):
            self.deferral.refuse()  # the script is the same on all ranks, and no rank's next save is to be lost
            run.schedule.end_pause()
            return
        why = next(iter(reasons), "no rank knows why")
        stood = (one["stage"] for one in copied.seconds)  # none if the copy raised; the upload stopped no training
        seconds = max([DEAR_SECONDS, *stood])
        try:
            checkpointer.count_failure(copied.position, StorageError(why), seconds)
        finally:
            run.tell_failures()
        run.schedule.failed(checkpointer.failures, checkpointer.wasted)

    def _saved(self, copied: _Copied, seq: int) -> Saved:
        own = {"upload": self.copies.seconds} | ({"commit": self._requests.seconds} if self._requests else {})
        every = self._run.peers.gather("tells how long its upload took", own)
        parts = zip(copied.members, copied.seconds, every, strict=True)
        by_rank = [Contribution(member, {**seconds, **took}) for member, seconds, took in parts]
        own["commit"] = every[0]["commit"]  # rank 0's, for which a blocking save waits
        return Saved(CommitRef(seq, copied.position.step), own, tuple(by_rank))

    def stop_fenced(self) -> None:
        """Another run owns the log: raises Fenced on all ranks. Collective."""

        def act() -> None:
            if self._requests and self._requests.fenced:
                raise self._requests.fenced
            raise Fenced("another run owns the log")

        on_rank0(self._run.peers, "may no longer write", act)
