"""Saves in the background: the ranks copy their state at one place, and train on while it is uploaded.

The machine of perdure.checkpoint.background decides. This module carries out its actions, and tells it what the vote's
vector, the uploading process and rank 0's requests say. Everything happens in the main thread: at a request for a
batch, a vote, or an exit. Small states are saved at once, because a copy and a process would not pay.

Called by perdure.session.boundary and by whatever ends a run or changes its ranks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Protocol

from perdure.checkpoint import tensors
from perdure.checkpoint.background import events as ev
from perdure.checkpoint.background import rank0
from perdure.checkpoint.background.arena import Filled
from perdure.checkpoint.background.copies import Copies
from perdure.checkpoint.background.machine import State, begin, step
from perdure.checkpoint.background.rank0 import Part
from perdure.checkpoint.background.state import (
    Carried,
    Words,
    carried,
    may_hand_over,
    reduced,
    renewed,
    stands,
    unanswered,
    words,
)
from perdure.checkpoint.checkpointer import Checkpointer, Left
from perdure.checkpoint.schedule import DEAR_SECONDS, CheckpointSchedule
from perdure.checkpoint.state import Contribution, Saved
from perdure.checkpoint.upload import Staged
from perdure.console import say
from perdure.errors import Fenced, PerdureError, StorageError, StorageRefused, in_words
from perdure.group.collectives import on_rank0
from perdure.group.peers import Peers
from perdure.log.position import Position
from perdure.loop.position.progress import Progress
from perdure.loop.requests import Requests
from perdure.loop.telemetry.events import Event
from perdure.loop.telemetry.timings import Timings
from perdure.state.registry import Registry
from perdure.store import Store
from perdure.wire import CommitRef
from perdure.wire.channel import SaveFailed
from perdure.wire.settings import Member, Settings

LOOK_SECONDS: Final = 0.05
"""How often ranks that stand look whether a save is settled."""
DEADLINE_SECONDS: Final = 300.0
"""A save may take this long, and longer if it is large."""
SLOWEST: Final = 8 * 2**20
"""Bytes per second. A rank that uploads slower than this has failed."""
STOP_SECONDS: Final = 3.0
"""How long a hand-over waits for the store's answer to a commit."""
SHARE: Final = 0.25
"""A rank that is asked to leave waits for at most this part of its time for the save before the one that is wanted."""
ANSWERED_SECONDS: Final = 1.0
"""An estimate of the time to write the manifest and the log entry."""

WISHES: Final[Mapping[str, ev.Wish]] = {"cadence": ev.Wish.LATER, "epoch": ev.Wish.THIS_STEP}
"""How firmly a save is wanted, by its reason; every other one is wanted now."""

Save = Callable[[str], None]
"""Makes a blocking save for a reason."""


class SavingRun(Protocol):
    """The parts of a Run that saves read, and the listeners that they tell."""

    settings: Settings
    progress: Progress
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
    deadline: float = math.inf
    part: Filled | None = None
    """None while it is copied, and if it could not be."""
    parts: tuple[Part, ...] = ()
    members: tuple[Member, ...] = ()
    seconds: tuple[Mapping[str, float], ...] = ()
    """Of each rank, so far."""


class BackgroundSaves:
    """The saves of one process."""

    def __init__(self, run: SavingRun) -> None:
        self._run = run
        self._state: State | None = None
        self._copies = Copies(run.settings.root)
        self._store_requests: rank0.Requests | None = None
        self._last: _Copied | None = None
        """The save that was copied last: the one under way, and the one that is to be told."""
        self._turns = 0
        """How often the ranks have left with a save under way, and then trained on in another loop."""
        self._late = ""
        """The save whose deadline has passed."""
        self._looked_for_room = False

    # The run begins, changes its ranks, and ends.

    def begin(self, before: Carried | None = None) -> None:
        """The run is open; `before` is what it has to know of the one that it has taken over."""
        self._state = begin(self._mark(), self._run.settings.rank, before)

    def hand_over(self) -> None:
        """This process is now a rank of the newer run."""
        if self._state is None:
            return
        if not self._idle:
            self._feed(ev.HandsOver())
        self._state = renewed(self._state, self._mark(), self._run.settings.rank)
        self._store_requests = None
        self._last = None

    def end(self) -> None:
        """This process ends its part: nothing of it stays behind."""
        if self._state is not None:
            self._feed(ev.Ends())
        self._copies.end()
        self._state = self._store_requests = None

    def _mark(self) -> str:
        return f"{self._run.settings.uid}/{self._run.checkpointer.run}/{self._turns}"

    # What the ranks vote and read.

    def words(self) -> Sequence[int]:
        """What this rank says in the vote's vector."""
        if self._state is None or self._idle:
            return Words().vector()
        self._look()
        return words(self._state).vector()

    def heard(self, most: Sequence[int]) -> None:
        """What all ranks have said."""
        if self._state is not None and not self._idle:
            self._feed(ev.Agreed(Words.read(most)))

    @property
    def may_hand_over(self) -> bool:
        """Whether the ranks may hand over now."""
        return self._state is None or may_hand_over(self._state)

    @property
    def carried(self) -> Carried:
        """What the newer run has to know if this one is handed over now."""
        return Carried() if self._state is None else carried(self._state)

    # Where a save may begin.

    def at_hand_out(self, reason: str, save: Save) -> None:
        """All ranks are at a place where the run may stop. `reason`: why a save is due; empty if none is. Collective.

        `save` makes it if it is to be made at once. Raises what it raises.
        """
        state, progress = self._state, self._run.progress
        if state is None:
            if reason:
                save(reason)
            return
        looks = progress.step > 0 and (reason or not self._looked_for_room) and not state.room
        size = self._bytes() if reason or looks else 0
        pays = size >= self._run.settings.background_bytes
        if looks:
            self._looked_for_room = True
            if pays:
                self._feed(ev.Room(self._copies.make_room(size // self._run.peers.world)))
        if self._idle and not (reason and pays):
            if reason:
                save(reason)
            return
        self._look()
        paused = self._run.schedule.paused or bool(state.outcome and not state.outcome.seq)
        if state.save is None and (reason or (state.owed and not paused)):
            self._agree("says whether it can copy what it saves")
        position = progress.position() if reason else None
        here = ev.HandOut(
            progress.step,
            WISHES.get(reason, ev.Wish.NOW) if reason else None,
            reason,
            same=position is not None and self._is_at(position),
            paused=paused,
        )
        self._feed(here, save)
        begun = time.monotonic()
        while self._state is not None and stands(self._state):
            self._stand(begun, save)

    def _stand(self, begun: float, save: Save) -> None:
        time.sleep(LOOK_SECONDS)
        self._look()
        left = self._run.requests.left()
        patience = DEADLINE_SECONDS if left is None else left * SHARE
        said, waits = self._gather("waits for the save before", time.monotonic() - begun > patience)
        self._feed(ev.Stood(said, late=any(waits)), save)

    def _agree(self, doing: str) -> None:
        said, _ = self._gather(doing, None)
        self._feed(ev.Agreed(said))

    def _gather(self, doing: str, beside: Any) -> tuple[Words, list[Any]]:
        told = self._run.peers.gather(doing, [list(words(self._known).vector()), beside])
        return reduced(Words.read(vector) for vector, _ in told), [other for _, other in told]

    # The ranks stop for a hand-over.

    def stop(self) -> str:
        """The ranks stand for a hand-over: waits for the store's answer to a commit. Returns why that has failed.

        Collective, if a save is under way.
        """
        if self._state is None or self._idle:
            return ""
        begun, refused = time.monotonic(), ""
        try:
            self._feed(ev.Stops())
            while stands(self._known) and not refused:
                self._look()
                said, waits = self._gather("waits for a commit", time.monotonic() - begun > STOP_SECONDS)
                for action in self._feed(ev.Stood(said, late=any(waits))):
                    if isinstance(action, ev.RefuseHandover):
                        refused = action.why
                time.sleep(LOOK_SECONDS / 10)
        except PerdureError as error:
            return str(error)
        return refused

    def train_on(self) -> None:
        """The hand-over was aborted."""
        if self._state is not None:
            self._feed(ev.TrainsOn())

    # The ranks leave.

    def leave(self, position: Position, left: Left, whole: Callable[[Left], None], *, hurries: bool) -> bool:
        """All ranks leave their run at `position`, with a final commit. Collective.

        `whole` makes it from the live state within the time that it is given. `hurries`: somebody waits for the end.
        Returns whether it did; if not, the save under way was of this very position. Raises what `whole` raises, and
        StorageError if time is up.
        """
        if self._state is None or self._idle:
            whole(left)
            return True
        try:
            return self._leave(position, left, whole, hurries)
        finally:
            self._turns += 1
            self._state = renewed(self._known, self._mark(), self._run.settings.rank)

    def _leave(self, position: Position, left: Left, whole: Callable[[Left], None], hurries: bool) -> bool:
        failed: list[StorageError] = []
        while True:
            self._look()
            actions = self._feed(self._leaving(position, left, hurries))
            for action in actions:
                match action:
                    case ev.Stream(keep=keep):
                        if self._streams(lambda keep=keep: whole(lambda: _less(left(), keep)), failed):  # type: ignore[misc]
                            return True
                    case ev.Left():
                        return False
                    case ev.Close(why) | ev.GiveUp(why):
                        if isinstance(action, ev.Close):
                            self._run.checkpointer.close(why)
                        if self._run.progress.saved:
                            return False
                        raise failed[-1] if failed else StorageError(f"step {position.step} is not saved: {why}")
            if not actions:
                time.sleep(LOOK_SECONDS)

    def _streams(self, whole: Callable[[], None], failed: list[StorageError]) -> bool:
        """Makes the last save of the live state; False if the store did not answer in time."""
        try:
            whole()
        except StorageRefused:
            raise
        except StorageError as error:
            failed.append(error)
            self._feed(ev.Streamed(done=False))
            return False
        self._feed(ev.Streamed(done=True))
        return True

    def _leaving(self, position: Position, left: Left, hurries: bool) -> ev.Leaves:
        known = {
            "left": left(),
            "rest": self._rest(),
            "whole": self._whole(),
            "hurries": hurries,
            "unanswered": unanswered(self._known),
        }
        said, told = self._gather("leaves with a save under way", known)
        return ev.Leaves(
            said,
            left=min((one["left"] for one in told if one["left"] is not None), default=None),
            rest=max(one["rest"] for one in told),
            whole=max(one["whole"] for one in told),
            same=self._is_at(position),
            hurries=any(one["hurries"] for one in told),
            unanswered=any(one["unanswered"] for one in told),
        )

    def _whole(self) -> float:
        """An estimate of a blocking save, in seconds."""
        seconds = self._run.timings.seconds
        return sum(seconds.get(part, 0.0) for part in ("stage", "upload", "commit"))

    def _rest(self) -> float:
        """An estimate of what the save under way still takes, in seconds. One that is late may take as long again."""
        save = self._known.save
        if save is None:
            return 0.0
        since, whole = time.monotonic() - self._copied(save).begun, self._whole()
        return max(ANSWERED_SECONDS, whole - since if since < whole else since)

    # Looking.

    @property
    def _known(self) -> State:
        if self._state is None:
            raise RuntimeError("no run is open")
        return self._state

    @property
    def _idle(self) -> bool:
        """Whether no save is under way, owed or to be told. Equal on all ranks."""
        state = self._state
        return state is None or not (state.save or state.outcome or state.owed)

    def _bytes(self) -> int:
        """How large the state is, about. Equal on all ranks."""
        return sum(map(tensors.size_of, self._run.registry.trained()))

    def _is_at(self, position: Position) -> bool:
        """Whether the save under way is all that is wanted at this position: it has no pin. Equal on all ranks."""
        save, pinned = self._known.save, self._run.checkpointer.pin is not None
        return save is not None and not pinned and self._copied(save).position == position

    def _look(self) -> None:
        """Hears what the uploading process, rank 0's requests and the clock say."""
        for event in self._copies.heard():
            self._feed(event)
        for answer in self._store_requests.answers() if self._store_requests else ():
            if isinstance(answer, ev.NoAnswer):
                self._tell_no_answer()
            self._feed(answer)
        save = self._known.save
        if save and save.name != self._late and time.monotonic() > self._copied(save).deadline:
            self._late = save.name
            self._feed(ev.Late(save.name))

    def _tell_no_answer(self) -> None:
        checkpointer, why = self._run.checkpointer, self._store_requests.trouble if self._store_requests else ""
        self._run.tell(SaveFailed(checkpointer.failures + 1, why))

    # Acting.

    def _feed(self, event: ev.Event, save: Save | None = None) -> list[ev.Action]:
        """Passes an event to the machine and carries out its actions, but for those of the caller, which it returns."""
        self._state, actions = step(self._known, event)
        return [action for action in actions if not self._act(action, save)]

    def _act(self, action: ev.Action, save: Save | None) -> bool:
        match action:
            case ev.Copy():
                self._copy(action.save)
            case ev.Order() | ev.Kill():
                self._act_on_process(action)
            case ev.Prepare() | ev.Append() | ev.Abandon():
                self._act_on_rank_0(action)
            case ev.TellCommitted() | ev.TellFailed() | ev.TellMissed():
                self._tell(action)
            case ev.Stream(reason, final=False) if save:
                save(reason)
                self._feed(ev.Streamed(done=self._run.progress.saved))
            case ev.StopFenced():
                self._stop_fenced()
            case _:
                return False
        return True

    def _copy(self, save: ev.Save) -> None:
        """Copies this rank's part while training waits. Collective; raises UserError if the ranks have diverged."""
        run, checkpointer = self._run, self._run.checkpointer
        position, begun = run.progress.position(), time.monotonic()
        folder = f"data/{checkpointer.run}/{position.step}-{save.name}/"
        self._last = _Copied(save.name, position, folder, begun)
        if self._store_requests:
            self._store_requests.beside(checkpointer.discard)
        try:
            found = self._filled(checkpointer.stage_now(), save, position)
            part = None if isinstance(found, str) else found
            own = {
                "member": asdict(checkpointer.member),
                "part": [part.seal.size, part.seal.checksum] if part else [0, ""],
                "seconds": {"stage": time.monotonic() - begun},
            }
            every = run.peers.gather("has copied what it saves", own)
        except BaseException as error:
            self._feed(ev.CopyFailed(save.name, f"it could not be copied: {in_words(error)}"))
            raise
        most = max(one["part"][0] for one in every)
        self._last = replace(
            self._last,
            deadline=time.monotonic() + DEADLINE_SECONDS + most / SLOWEST,
            part=part,
            parts=tuple(Part(*one["part"]) for one in every),
            members=tuple(Member(**one["member"]) for one in every),
            seconds=tuple(one["seconds"] for one in every),
        )
        self._feed(ev.CopyFailed(save.name, found) if isinstance(found, str) else ev.Sealed(save.name))

    def _copied(self, save: ev.Save) -> _Copied:
        if self._last is None or self._last.name != save.name:
            raise RuntimeError(f"save {save.name} of step {save.step} was not copied")
        return self._last

    def _filled(self, staged: Staged, save: ev.Save, position: Position) -> Filled | str:
        """The copy, or why there is none."""
        uid, run = self._run.settings.uid, self._run.checkpointer.run
        found = self._copies.fill(staged, uid=uid, run=run, name=save.name, position=position)
        if isinstance(found, str):
            self._feed(ev.Room(usable=False))
        return found

    def _act_on_process(self, action: ev.Order | ev.Kill) -> None:
        match action:
            case ev.Order(save, uploader):
                copied = self._copied(save)
                if copied.part:
                    self._copies.order(uploader, copied.folder, copied.part)
            case ev.Kill(uploader):
                self._copies.kill(uploader)

    def _act_on_rank_0(self, action: ev.Prepare | ev.Append | ev.Abandon) -> None:
        checkpointer, copied = self._run.checkpointer, self._copied(action.save)
        writer = checkpointer.writer
        if writer is None:
            return
        name, position = copied.name, copied.position
        if self._store_requests is None:
            self._store_requests = rank0.Requests(checkpointer.store, writer, checkpointer.writing)
        match action:
            case ev.Prepare():
                self._store_requests.prepare(name, copied.folder, copied.parts, checkpointer.run, position)
            case ev.Append(save, final, again):
                self._store_requests.append(name, position, final=final, reason=save.reason, again=again)
            case ev.Abandon():
                writer.abandoned.add(copied.folder)

    def _tell(self, action: ev.TellCommitted | ev.TellFailed | ev.TellMissed) -> None:
        """At one place on all ranks. Collective."""
        run, checkpointer = self._run, self._run.checkpointer
        match action:
            case ev.TellCommitted(save, seq):
                copied = self._copied(save)
                checkpointer.note(self._saved(copied, seq), copied.position)
                run.schedule.saved(copied.begun)
                here = copied.position == run.progress.position() and checkpointer.pin is None
                run.progress.saved = run.progress.saved or here
                run.tell_commit()
                if self._store_requests:
                    self._store_requests.beside(checkpointer.retire)
            case ev.TellFailed(save, why):
                copied = self._copied(save)
                told = run.peers.gather("tells why a save has failed", why)
                why = next(filter(None, told), "no rank knows why")
                seconds = max(DEAR_SECONDS, time.monotonic() - copied.begun)
                try:
                    checkpointer.count_failure(copied.position, StorageError(why), seconds)
                finally:
                    run.tell_failures()
                run.schedule.failed(checkpointer.failures, checkpointer.wasted)
            case ev.TellMissed(reason, why):
                pin, checkpointer.pin = checkpointer.pin, None
                lost = f", so nothing is pinned as {pin!r}" if pin else ""
                if run.settings.rank == 0:
                    say(f"no checkpoint of step {run.progress.step} was made ({reason}){lost}: {why}")

    def _saved(self, copied: _Copied, seq: int) -> Saved:
        upload = self._copies.seconds
        uploads = self._run.peers.gather("tells how long its upload took", upload)
        commit = time.monotonic() - copied.begun - copied.seconds[0]["stage"] - uploads[0]
        by_rank = [
            Contribution(member, {**seconds, "upload": took, **({"commit": max(commit, 0.0)} if rank == 0 else {})})
            for rank, (member, seconds, took) in enumerate(zip(copied.members, copied.seconds, uploads, strict=True))
        ]
        own = {"upload": upload, "commit": max(commit, 0.0)}
        return Saved(CommitRef(seq, copied.position.step), own, tuple(by_rank))

    def _stop_fenced(self) -> None:
        """Another run owns the log. Raises that on all ranks."""

        def act() -> None:
            if self._store_requests and self._store_requests.fenced:
                raise self._store_requests.fenced
            raise Fenced("another run owns the log")

        on_rank0(self._run.peers, "may no longer write", act)


def _less(left: float | None, keep: float) -> float | None:
    return None if left is None else left - keep
