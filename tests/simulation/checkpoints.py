"""One simulated rank's part in the log: it opens the run, finds where to go on, commits, completes.

Real: `perdure.log.writer` with all its rules, the log and its commits, entries, manifests, retention. Modelled
after the modules of the same names, because those block or need torch: `together`, `opening`, `load`, `save`, `saving`.
A shard is a few bytes. `trainer` owns one of these per process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import perdure.log.writer as writing
from perdure.checkpoint import manifest
from perdure.checkpoint.retention import retire
from perdure.errors import (
    Corrupt,
    Fenced,
    LogLost,
    PeerLost,
    PerdureError,
    RootTakenOver,
    StorageError,
    StorageRefused,
    UserError,
)
from perdure.log import entry, objects
from perdure.log.images import ImageOffer
from perdure.log.position import Position
from perdure.log.reader import Log, ReadPosition, Slot
from perdure.log.writer import NotYet, Writer
from perdure.wire import CommitRef
from perdure.wire.settings import Settings
from tests.simulation.gang import Gang, Seat
from tests.simulation.images import Image
from tests.simulation.interface import MemberHost
from tests.simulation.parts import position_of, put_part, repeatable
from tests.simulation.store import Access, AtOnce, Call, Tape

ASK_AGAIN_SECONDS: Final = 0.2
LOOK_AGAIN_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 1.0
GRAVEST: Final = (RootTakenOver, Fenced, LogLost, UserError, StorageError, Corrupt)

Act = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class TapedWriter:
    """A run's writer, and the tape on which its store runs."""

    tape: Tape
    writer: Writer


def make_writer(host: MemberHost, settings: Settings) -> TapedWriter:
    """For a run's rank 0."""
    tape = Tape(Access(host.bucket, settings.root, host.network, host.ip, host.rng))
    with repeatable(writing, tape, host):
        log, lost, floor = Log(tape), settings.lost, settings.floor
        return TapedWriter(tape, Writer(log, uid=settings.uid, run=settings.run, lost=lost, floor=floor))


class Checkpoints:
    """What one process does with the store, together with the other ranks of its gang."""

    def __init__(
        self, host: MemberHost, settings: Settings, gang: Gang, seat: Seat, writer: TapedWriter | None = None
    ) -> None:
        """`writer` is rank 0's, where it has one already."""
        self.commit: CommitRef | None = None
        """The newest commit this run has made or resumed from."""
        self.goal_before = 0
        """The goal that the log says was reached, in epochs."""
        self.behind: tuple[CommitRef, str] | None = None
        """The newest commit, where an older one was read, and why."""
        self._host, self._settings, self._gang, self._seat = host, settings, gang, seat
        self._rng = host.rng
        if writer is None and settings.rank == 0:
            writer = make_writer(host, settings)
        self._tape = (
            writer.tape if writer else Tape(Access(host.bucket, settings.root, host.network, host.ip, host.rng))
        )
        self._access = self._tape.access
        self._run = settings.run or 0
        self._own_writer = writer.writer if writer else None
        self._image: Image | None = None
        """What this run begins with, if that was in no commit."""

    # handing over

    @property
    def place(self) -> ReadPosition:
        """Up to where rank 0 has read the log."""
        return self._writer.place

    def abort(self, run: int) -> None:
        """That run never opens: later entries say so."""
        if self._own_writer:
            self._own_writer.never_opens(run)

    def take_over(self, entry: Slot, commit: CommitRef | None, goal: int) -> None:
        """Go on where the older run stood; `entry` has opened this one."""
        self.commit, self.goal_before = commit, goal
        if self._own_writer:
            self._own_writer.take_up(entry)

    # opening

    async def open(self, give_up: Callable[[], None], held: Image | None = None) -> None:
        """Return when the run is open in the log; `held` is the image that this rank's pod has kept."""
        told: list[Image | None] = await self._gang.gather(self._seat, held)
        offers = [image.offer(rank) for rank, image in enumerate(told) if image]
        self.goal_before, chosen = await self._on_rank0(lambda: self._wait_for_turn(give_up, offers))
        found = (image for image in told if image and chosen and (image.run, image.step) == (chosen.run, chosen.step))
        self._image = next(found, None)

    async def inherit(self) -> tuple[int, int]:
        """The image with which this run begins is its first commit; how many steps it is ahead, and whose it is."""
        image, begun = self._image, self._host.monotonic()
        if image is None:
            return 0, 0
        if self._seat.rank == 0:
            self._gang.track = replace(image.track, saved=False)
        before: int = await self._on_rank0(lambda: self._committed_below(image.step))
        while True:
            try:
                await self.save(f"image of run {image.run}", final=False)
            except StorageRefused:
                raise
            except StorageError:
                over = self._host.monotonic() - begun >= self._settings.rendezvous
                if await self._gang.broadcast(self._seat, over):
                    raise
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return image.step - before, image.run

    async def _committed_below(self, step: int) -> int:
        writer = self._writer
        found: int = await self._tape.run(lambda: writer.commits().step_below(step))
        return found

    async def _wait_for_turn(
        self, give_up: Callable[[], None], offers: list[ImageOffer]
    ) -> tuple[int, entry.ImageRef | None]:
        settings, host, writer = self._settings, self._host, self._writer
        begun = host.monotonic()
        started = settings.started or begun
        while True:
            give_up()
            over = host.monotonic() - started >= settings.wait
            try:
                answer = await self._write(lambda: writer.try_open(settings.world, wait_over=over, images=offers))  # noqa: B023
            except StorageRefused:
                raise
            except StorageError:
                if host.monotonic() - begun >= settings.rendezvous:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            if not isinstance(answer, NotYet):
                return int(answer.completed.goal["epochs"]) if answer.completed else 0, answer.image
            left = max(AGAIN_SECONDS, started + settings.wait - host.monotonic())
            await self._access.appended.wait(min(LOOK_AGAIN_SECONDS, left))
            await asyncio.sleep(self._rng.uniform(0.01, ASK_AGAIN_SECONDS))

    async def close(self, outcome: str) -> None:
        """Rank 0 ends the run's turn without a commit."""
        writer = self._writer
        await self._write(lambda: writer.close(outcome))

    # load

    async def restore(self) -> Slot | None:
        """The newest commit that every rank could read, None where there never was one."""
        begun = self._host.monotonic()
        while True:
            try:
                return await self._load()
            except StorageRefused:
                raise
            except StorageError:
                if await self._gang.broadcast(self._seat, self._host.monotonic() - begun >= self._settings.rendezvous):
                    raise
                await asyncio.sleep(AGAIN_SECONDS)

    async def _load(self) -> Slot | None:
        skipped, why = 0, ""
        while True:
            number = skipped
            slot: Slot | None
            slot, newest = await self._on_rank0(lambda: self._candidate(number))  # noqa: B023
            if slot is None:
                break
            damage = [words for words in await self._on_all(lambda: self._damage(slot)) if words]  # noqa: B023
            if not damage:
                self.commit = CommitRef(slot.seq, committed_in(slot).step)
                if newest and newest.seq != slot.seq:
                    self.behind = CommitRef(newest.seq, committed_in(newest).step), why or "its manifest is missing"
                return slot
            skipped, why = skipped + 1, why or damage[0]
        if await self._on_rank0(self._has_commits):
            raise Corrupt(f"{self._access.uri} has commits and none can be used")
        return None

    async def _candidate(self, number: int) -> tuple[Slot | None, Slot | None]:
        """The commit after `number` newer ones that has its manifest, and the newest there is."""
        writer, tape = self._writer, self._tape

        def find() -> tuple[Slot | None, Slot | None]:
            commits, newest, left = writer.commits(), None, number
            for slot in commits:
                if (ref := _manifest_of(slot)) is None:
                    continue
                newest = newest or slot
                if not tape.head(ref.key):
                    continue
                if not left:
                    return slot, newest
                left -= 1
            return None, newest

        found: tuple[Slot | None, Slot | None] = await tape.run(find)
        return found

    async def _has_commits(self) -> bool:
        writer = self._writer
        return bool(await self._tape.run(lambda: any(True for _ in writer.commits())))

    async def _damage(self, slot: Slot) -> str:
        """Why this commit cannot be used, if it cannot."""
        committed, tape = committed_in(slot), self._tape
        try:
            whole = await tape.run(lambda: manifest.fetch_manifest(tape, committed))
            for index in whole.indexes:
                shard = index.shard
                data = await tape.run(lambda: objects.fetch(tape, shard.key, shard.size))  # noqa: B023
                if entry.checksum(data) != shard.crc:
                    return f"{shard.key} is damaged"
        except Corrupt as error:
            return str(error)
        return ""

    # saving

    async def until_time_is_up(self, act: Act, left: Callable[[], float | None]) -> None:
        """Try again until the first rank's time is up; then StorageError. StorageRefused at once."""
        while True:
            try:
                await act()
            except StorageRefused:
                raise
            except StorageError:
                given = [seconds for seconds in await self._gang.gather(self._seat, left()) if seconds is not None]
                least = min(given, default=AGAIN_SECONDS)
                if least <= 0:
                    raise
                await asyncio.sleep(min(AGAIN_SECONDS, least))
            else:
                return

    def retire(self) -> None:
        """Deletes everything that newer commits supersede, at one instant: nothing races for it."""
        if self._own_writer is None:
            return
        store = AtOnce(self._access, self._rng, self._host.bucket)
        self._own_writer.log.store = store
        try:
            retire(store, self._own_writer, self._settings.keep)
        except StorageError:
            pass  # the next one does the rest
        finally:
            self._own_writer.log.store = self._tape

    async def complete(self) -> None:
        """Record that the goal is reached."""
        await self._on_rank0(self._record_goal)

    async def _record_goal(self) -> None:
        writer, track = self._writer, self._gang.track
        goal = {"epochs": max(track.epochs, self.goal_before)}
        await self._write(lambda: writer.complete(goal, self._position()))
        self._host.tell("completed", run=self._run, uid=self._settings.uid, step=track.step)

    # save

    async def save(self, reason: str, *, final: bool) -> None:
        """One attempt at a commit; all ranks return or raise alike."""
        step = self._gang.track.step
        begun: dict[str, Any] = await self._on_rank0(lambda: self._begin(step, final=final))
        seq = begun["landed"] or await self._attempt(begun["folder"], reason, final=final)
        self.commit = CommitRef(seq, step)
        if self._seat.rank == 0:
            facts = {"run": self._run, "uid": self._settings.uid, "step": step, "seq": seq}
            self._host.tell("committed", **facts, final=final)

    async def _begin(self, step: int, *, final: bool) -> dict[str, Any]:
        writer = self._writer
        landed = await self._write(lambda: writer.landed(step, final=final))
        folder = f"data/{self._run}/{step}-{self._rng.getrandbits(64):016x}/"
        return {"landed": landed.seq if landed else 0, "folder": folder}

    async def _attempt(self, folder: str, reason: str, *, final: bool) -> int:
        try:
            indexes = await self._on_all(lambda: self._upload(folder))
            seq: int = await self._on_rank0(lambda: self._append(folder, indexes, reason, final=final))
        except StorageError:
            if self._own_writer:
                self._own_writer.abandoned.add(folder)
            raise
        return seq

    async def _upload(self, folder: str) -> dict[str, Any]:
        rank, world = self._settings.rank, self._settings.world
        await asyncio.sleep(self._host.behaviour.save_seconds * self._rng.uniform(0.4, 1.0))
        return await put_part(self._access, folder, self._run, self._position(), (rank, world))

    async def _append(self, folder: str, indexes: list[dict[str, Any]], reason: str, *, final: bool) -> int:
        writer, position, key = self._writer, self._position(), objects.manifest_key(folder)
        data = manifest.write_manifest(indexes, self._run, position)
        await self._access.perform(Call("put", key, data))
        ref = manifest.refer_to(key, data)
        commit: CommitRef = await self._write(lambda: writer.commit(position, ref, final=final, reason=reason))
        return commit.seq

    def _position(self) -> Position:
        return position_of(self._gang.track)

    # together

    async def _on_all(self, act: Act) -> list[Any]:
        """Every rank's result, or the gravest error of any rank on all."""
        reports = await self._gang.gather(self._seat, await _result_of(act))
        failed = [report for report in reports if isinstance(report, PerdureError)]
        if failed:
            raise min(failed, key=_gravity)
        return reports

    async def _on_rank0(self, act: Act) -> Any:
        """Rank 0's result, or its error, on all ranks."""
        told = await _result_of(act) if self._seat.rank == 0 else None
        told = await self._gang.broadcast(self._seat, told)
        if isinstance(told, PerdureError):
            raise told
        return told

    # the writer

    @property
    def _writer(self) -> Writer:
        if self._own_writer is None:
            raise RuntimeError(f"rank {self._settings.rank} has no writer")
        return self._own_writer

    async def _write(self, act: Callable[[], Any]) -> Any:
        def in_order() -> Any:
            with repeatable(writing, self._tape, self._host):
                return act()

        return await self._tape.run(in_order, self._writer)


@dataclass(frozen=True)
class Membership:
    """The rank and the world of a process."""

    settings: Settings
    gang: Gang
    seat: Seat
    checkpoints: Checkpoints


async def _result_of(act: Act) -> Any:
    """What it returns, or the error for the other ranks."""
    try:
        return await act()
    except PeerLost:
        raise
    except PerdureError as error:
        return error


def _gravity(error: PerdureError) -> int:
    return next(place for place, kind in enumerate(GRAVEST) if isinstance(error, kind))


def committed_in(slot: Slot) -> entry.Committed:
    """The commit in a slot that holds one."""
    if slot.entry is None or not isinstance(slot.entry.event, entry.Committed):
        raise RuntimeError(f"entry {slot.seq} is no commit")
    return slot.entry.event


def _manifest_of(slot: Slot) -> entry.ManifestRef | None:
    event = slot.entry.event if slot.entry else None
    return event.manifest if isinstance(event, entry.Committed) else None
