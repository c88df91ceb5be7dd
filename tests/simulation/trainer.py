"""One simulated trainer process: what `perdure.session` does for one rank, as a coroutine.

Real: the settings read from the environment, the writer with all its rules, the log and its commits, entries,
manifests, retention, the plan of samples and its cursors. Modelled, because the real code blocks or needs torch: the
order of the session's calls, rendezvous and collectives (see `gang`), shards (a few bytes per rank), `together`,
`save`, `load`, `opening` and `saving` (each here under its own name), how an exception becomes an ending.

`member` starts it and stands for the agent's pipes and signals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final

import perdure.checkpoint.writer as writing
from perdure.channel import Attached, Committed, Exiting, Opened, Report, Request, Stepped
from perdure.checkpoint import entry, manifest
from perdure.checkpoint.log import Log, Slot
from perdure.checkpoint.retention import retire
from perdure.checkpoint.state import Position
from perdure.checkpoint.writer import NotYet, Writer
from perdure.contract import CommitRef, ErrorKind, ExitKind, Failure
from perdure.errors import Corrupt, Fenced, PeerLost, PerdureError, RootTakenOver, StorageError, UserError
from perdure.settings import Settings
from tests.simulation.gang import LOADER, Fabric, Gang, ScriptError, Seat, Told
from tests.simulation.interface import MemberHost
from tests.simulation.store import OUTSIDE, Access, AtOnce, Call, Tape
from tests.simulation.witness import Resumed, Witness

ASK_AGAIN_SECONDS: Final = 0.2
LOOK_AGAIN_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 1.0
GOAL_SECONDS: Final = 600.0
KILLED: Final = -9
TERMINATED: Final = -15
GRAVEST: Final = (RootTakenOver, Fenced, UserError, StorageError, Corrupt)
EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Stop(Exception):
    """The session leaves the script with status 0: its ending is told."""


@dataclass
class Asked:
    """A request, as this process has noticed it."""

    at: float
    cause: str
    deadline: float


class Process:
    """One rank's process, from exec to exit."""

    def __init__(
        self,
        host: MemberHost,
        settings: Settings,
        *,
        pid: int,
        tell: Callable[[Report], None],
        ended: Callable[[int, str], None],
        out_of_memory: Callable[[], None],
    ) -> None:
        self.over = False
        self.failed: BaseException | None = None
        """A mistake of the simulation itself."""
        self.request: Asked | None = None
        self._host, self._settings, self._pid = host, settings, pid
        self._tell_agent, self._ended, self._out_of_memory = tell, ended, out_of_memory
        self._rng = host.rng
        self._access = Access(host.bucket, settings.root, host.network, host.ip, host.rng)
        self._tape = Tape(self._access)
        self._fabric = Fabric.of(host.network)
        self._attached = self._told_ending = False
        self._before_first_step = False
        self._how = "exit"
        self._opened = 0
        self._commit: CommitRef | None = None
        self._step = self._told_step = 0
        self._stepped_once = False
        self._saved_at = 0.0
        self._goal_before = 0
        self._seconds: dict[str, float] = {}
        self._gang: Gang | None = None
        self._seat: Seat | None = None
        self._writer: Writer | None = None
        self._task = asyncio.get_running_loop().create_task(self._live())

    # what the agent does to it

    def ask(self, request: Request, *, signal: bool) -> None:
        """The request file is there; SIGTERM comes with the first one."""
        if self.over:
            return
        if not self._attached:
            if signal:
                self.kill(TERMINATED)
            return
        at = self.request.at if self.request else self._host.monotonic()
        self.request = Asked(at, request.cause, request.deadline)
        self._act_before_first_step()

    def kill(self, status: int = KILLED) -> None:
        """It is gone at once; the agent learns of it a moment later."""
        if not self.over:
            self._end("SIGKILL" if status == KILLED else "SIGTERM")
            seconds = self._rng.uniform(0.005, 0.05)
            asyncio.get_running_loop().call_later(seconds, self._ended_with, status, "", context=OUTSIDE)

    def vanish(self) -> None:
        """The whole container is gone, the agent with it."""
        if not self.over:
            self._end("container")

    def _end(self, how: str) -> None:
        self.over = True
        self._task.cancel()
        settings = self._settings
        self._host.tell("trainer-ended", run=self._run, rank=settings.rank, uid=settings.uid, how=how)
        if self._gang and self._seat:
            if self._seat.rank == 0:
                self._fabric.close(self._gang)
            self._gang.leave(self._seat)

    def _ended_with(self, status: int, tail: str) -> None:
        if self._step > self._told_step:
            self._tell_agent(Stepped(self._step))
        self._ended(status, tail)

    @property
    def _run(self) -> int:
        return self._settings.run or 0

    # the process

    async def _live(self) -> None:
        status, tail = 0, ""
        try:
            tail = await self._script()
        except Stop:
            pass
        except (PerdureError, ScriptError) as error:
            status = 1
            self._tell(self._ending(*_classified(error), opened=getattr(error, "opened", 0)))
        except Exception as error:  # noqa: BLE001  (the member raises it)
            self.failed = error
        if self._attached:
            await asyncio.sleep(self._rng.uniform(0.02, 0.3))
        self._end(self._how)
        self._ended_with(status, tail)

    async def _script(self) -> str:
        host, settings = self._host, self._settings
        names = {"run": settings.run, "rank": settings.rank, "uid": settings.uid}
        host.tell("trainer-started", **names)
        await asyncio.sleep(host.behaviour.import_seconds * self._rng.uniform(0.7, 1.5))
        if host.behaviour.exits_without_session:
            return "python: can't open file 'nosuch.py'"
        self._attached = True
        self._tell(Attached(self._pid))
        gang, seat = await self._meet()
        await self._open(gang, seat)
        self._opened = self._run
        self._tell(Opened(self._run))
        self._before_first_step = True
        self._act_before_first_step()
        await self._restore(gang, seat)
        self._tell(Opened(self._run, self._commit))
        self._saved_at = host.monotonic()
        await self._train(gang, seat)
        return ""

    def _tell(self, report: Report) -> None:
        if not self._told_ending:
            self._told_ending = isinstance(report, Exiting)
            self._how = report.outcome.value if isinstance(report, Exiting) else self._how
            self._tell_agent(report)

    def _ending(self, outcome: ExitKind, error: Failure | None = None, *, opened: int = 0) -> Exiting:
        return Exiting(outcome, self._step, self._commit, max(self._opened, opened), dict(self._seconds), error)

    # exit.request

    def _act_before_first_step(self) -> None:
        """Nothing was trained, so nothing can be saved: rank 0 closes the log, whatever its script does meanwhile."""
        if self.request and self._before_first_step and self._settings.rank == 0 and self._seat:
            self._before_first_step = False
            self._seat.leaving = True
            self._task.cancel()
            self._task = asyncio.get_running_loop().create_task(self._stop_without_step())

    async def _stop_without_step(self) -> None:
        try:
            writer = self._pen()
            await self._write(lambda: writer.close("no-step"))
        except PerdureError:
            pass
        except Exception as error:  # noqa: BLE001  (the member raises it)
            self.failed = error
        self._tell(self._ending(ExitKind.STOPPED))
        self._end(self._how)
        self._ended_with(0, "")

    def _give_up(self) -> None:
        if self.request:
            self._tell(self._ending(ExitKind.STOPPED))
            raise Stop

    @property
    def _left(self) -> float | None:
        return self.request.deadline - self._host.monotonic() if self.request else None

    # exit.rendezvous

    async def _meet(self) -> tuple[Gang, Seat]:
        settings, host = self._settings, self._host
        begun = host.monotonic()
        name = f"{settings.uid}/{settings.run}/{settings.world}"
        gang = await self._find(name, begun + settings.rendezvous)
        seat = Seat(
            settings.rank, host.ip, self._rng, lambda: self.request is not None, self._stepped, self._out_of_memory
        )
        self._gang, self._seat = gang, seat
        gang.join(seat)
        while not gang.complete:
            self._check_deadline(begun + settings.rendezvous)
            if gang.lost_by(seat):
                raise PeerLost("a rank left while the others met")
            await gang.arrived.wait(LOOK_AGAIN_SECONDS)
        await gang.gather(seat, None)
        self._seconds["rendezvous"] = host.monotonic() - begun
        return gang, seat

    async def _find(self, name: str, deadline: float) -> Gang:
        settings, host, fabric = self._settings, self._host, self._fabric
        ip, port = settings.master or (host.ip, 0)
        if settings.rank == 0:
            witness = Witness.of(host.network, settings.root)
            told = Told(settings.uid, self._run, self._due, witness, self._tell_step)
            gang = Gang(name, settings.world, host.network, host.behaviour, told)
            while settings.world > 1 and not fabric.listen(host.ip, port, gang):
                self._check_deadline(deadline)
                await fabric.changed.wait(LOOK_AGAIN_SECONDS)
            return gang
        while True:
            self._check_deadline(deadline)
            found = fabric.find(ip, port, name)
            if found and host.network.reachable(host.ip, ip):
                return found
            await fabric.changed.wait(LOOK_AGAIN_SECONDS)

    def _check_deadline(self, deadline: float) -> None:
        self._give_up()
        if self._host.monotonic() >= deadline:
            raise PeerLost(f"waited {self._settings.rendezvous:g} s for the other ranks")

    def _tell_step(self, step: int) -> None:
        self._host.tell("step", run=self._run, rank=0, step=step, uid=self._settings.uid)

    def _stepped(self, step: int) -> None:
        """The agent needs the first step at once; the newest one only when the process ends."""
        self._before_first_step, self._step = False, step
        if not self._stepped_once:
            self._stepped_once, self._told_step = True, step
            self._tell(Stepped(step))

    # opening

    async def _open(self, gang: Gang, seat: Seat) -> None:
        answer = await self._on_rank0(gang, seat, self._wait_for_turn)
        self._goal_before = answer

    async def _wait_for_turn(self) -> int:
        """The goal that was reached before, in epochs."""
        settings, host = self._settings, self._host
        with self._repeatable():
            self._writer = Writer(Log(self._tape), uid=settings.uid, run=settings.run, lost=settings.lost)
        writer, begun = self._writer, host.monotonic()
        started = settings.started or begun
        while True:
            self._give_up()
            over = host.monotonic() - started >= settings.wait
            try:
                answer = await self._write(lambda: writer.try_open(settings.world, wait_over=over))  # noqa: B023
            except StorageError:
                if host.monotonic() - begun >= settings.rendezvous:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            if not isinstance(answer, NotYet):
                goal = answer.completed.goal if answer.completed else {}
                return int(goal.get("epochs", 0))
            left = max(0.0, started + settings.wait - host.monotonic())
            await self._access.appended.wait(min(LOOK_AGAIN_SECONDS, left))
            await asyncio.sleep(self._rng.uniform(0.01, ASK_AGAIN_SECONDS))

    # load

    async def _restore(self, gang: Gang, seat: Seat) -> None:
        begun = self._host.monotonic()
        while True:
            try:
                await self._load(gang, seat)
            except StorageError:
                over = self._host.monotonic() - begun >= self._settings.rendezvous
                if await gang.broadcast(seat, over):
                    raise
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            self._seconds["restore"] = self._host.monotonic() - begun
            return

    async def _load(self, gang: Gang, seat: Seat) -> None:
        skipped = 0
        while True:
            number = skipped
            slot = await self._on_rank0(gang, seat, lambda: self._candidate(number))  # noqa: B023
            if slot is None:
                break
            if not any(await self._on_all(gang, seat, lambda: self._damage(slot))):  # noqa: B023
                self._go_on_from(gang, slot)
                return
            skipped += 1
        if await self._on_rank0(gang, seat, self._has_commits):
            raise Corrupt(f"{self._access.uri} has commits and none can be used")
        self._go_on_from(gang, None)

    async def _candidate(self, number: int) -> Slot | None:
        writer = self._pen()

        def find() -> Slot | None:
            there = (slot for slot in writer.commits() if (ref := _manifest_of(slot)) and self._tape.head(ref.key))
            return next(islice(there, number, None), None)

        found: Slot | None = await self._tape.run(find)
        return found

    async def _has_commits(self) -> bool:
        writer = self._pen()
        return bool(await self._tape.run(lambda: any(True for _ in writer.commits())))

    async def _damage(self, slot: Slot) -> str:
        """Why this commit cannot be used, if it cannot."""
        committed = _committed(slot)
        try:
            whole = await self._tape.run(lambda: manifest.fetch_manifest(self._tape, committed))
            for index in whole.indexes:
                shard = index.shard
                data = await self._tape.run(lambda: manifest.fetch(self._tape, shard.key, shard.size))  # noqa: B023
                if entry.checksum(data) != shard.crc:
                    return f"{shard.key} is damaged"
        except Corrupt as error:
            return str(error)
        return ""

    def _go_on_from(self, gang: Gang, slot: Slot | None) -> None:
        """All ranks put the same position; the witness hears it once."""
        settings, track = self._settings, gang.track
        if slot:
            committed = _committed(slot)
            track.step, track.epoch, track.saved = committed.step, committed.epoch, True
            track.consumed = track.plan.resume(committed.cursors[LOADER], committed.epoch)
            self._commit, self._step = CommitRef(slot.seq, committed.step), committed.step
            self._told_step = committed.step
        if settings.rank == 0:
            resumed = Resumed(settings.uid, self._run, slot.seq if slot else 0, track.step)
            Witness.of(self._host.network, settings.root).resumed.append(resumed)
            self._host.tell("opened", run=self._run, uid=settings.uid, step=track.step)

    # session

    def _due(self, step: int) -> bool:
        """The cadence of the job's spec, or the script's own."""
        cadence, host = self._settings.cadence, self._host
        if cadence.seconds and host.monotonic() - self._saved_at >= cadence.seconds:
            return True
        return step % (cadence.steps or host.behaviour.every_steps) == 0

    async def _train(self, gang: Gang, seat: Seat) -> None:
        track = gang.track
        while not (track.at_goal or self._goal_before >= track.epochs):
            verdict = await gang.train(seat)
            if verdict.exit:
                await self._leave(gang, seat)
            if verdict.save and not track.saved:
                await self._save_periodically(gang, seat, verdict.save)
        await self._complete(gang, seat)

    async def _save_periodically(self, gang: Gang, seat: Seat, reason: str) -> None:
        try:
            await self._save(gang, seat, reason=reason, final=False)
        except StorageError:
            return
        gang.track.saved = True
        self._saved_at = self._host.monotonic()
        if self._writer:
            self._retire(self._writer)

    async def _leave(self, gang: Gang, seat: Seat) -> None:
        if self.request:
            self._seconds["agree"] = self._host.monotonic() - self.request.at
        causes = await gang.gather(seat, self.request.cause if self.request else "")
        cause = next((cause for cause in causes if cause), "a rank was asked to exit")
        await self._until_time_is_up(
            gang, seat, lambda: self._save(gang, seat, reason=cause, final=True), self._time_left
        )
        self._tell(self._ending(ExitKind.CHECKPOINTED))
        raise Stop

    async def _complete(self, gang: Gang, seat: Seat) -> None:
        begun, track = self._host.monotonic(), gang.track

        def left() -> float:
            return self._left if self._left is not None else GOAL_SECONDS - (self._host.monotonic() - begun)

        await gang.gather(seat, None)
        self._before_first_step = False
        if self._goal_before < track.epochs:
            track.begin_epoch()
            if not track.saved:
                await self._until_time_is_up(
                    gang, seat, lambda: self._save(gang, seat, reason="goal", final=True), left
                )
        await self._until_time_is_up(
            gang, seat, lambda: self._on_rank0(gang, seat, lambda: self._record_goal(gang)), left
        )
        self._tell(self._ending(ExitKind.COMPLETED))
        if self._writer:
            self._retire(self._writer)

    async def _record_goal(self, gang: Gang) -> None:
        writer, track = self._pen(), gang.track
        goal = {"epochs": max(track.epochs, self._goal_before)}
        await self._write(lambda: writer.complete(goal, _position(gang)))
        self._host.tell("completed", run=self._run, uid=self._settings.uid, step=track.step)

    # saving

    def _time_left(self) -> float | None:
        return self._left

    async def _until_time_is_up(
        self, gang: Gang, seat: Seat, act: Callable[[], Any], left: Callable[[], float | None]
    ) -> None:
        while True:
            try:
                await act()
            except StorageError:
                given = [seconds for seconds in await gang.gather(seat, left()) if seconds is not None]
                least = min(given, default=AGAIN_SECONDS)
                if least <= 0:
                    raise
                await asyncio.sleep(min(AGAIN_SECONDS, least))
            else:
                return

    def _retire(self, writer: Writer) -> None:
        store = AtOnce(self._access, self._rng, self._host.bucket)
        writer.log.store = store
        try:
            retire(store, writer, self._settings.keep)
        except StorageError:
            pass
        finally:
            writer.log.store = self._tape

    # save

    async def _save(self, gang: Gang, seat: Seat, *, reason: str, final: bool) -> None:
        step = gang.track.step
        begun: dict[str, Any] = await self._on_rank0(gang, seat, lambda: self._begin(step, final=final))
        if "landed" in begun:
            self._commit = CommitRef(begun["landed"], step)
        else:
            folder = begun["folder"]
            try:
                indexes = await self._on_all(gang, seat, lambda: self._upload(gang, folder))
                seq = await self._on_rank0(gang, seat, lambda: self._append(gang, folder, indexes, final, reason))
            except StorageError:
                if self._writer:
                    self._writer.abandoned.add(folder)
                raise
            self._commit = CommitRef(seq, step)
        if seat.rank == 0:
            facts = {"run": self._run, "uid": self._settings.uid, "step": step, "seq": self._commit.seq}
            self._host.tell("committed", **facts, final=final)
        self._tell(Committed(self._commit))

    async def _begin(self, step: int, *, final: bool) -> dict[str, Any]:
        writer = self._pen()
        landed = await self._write(lambda: writer.landed(step, final=final))
        if landed:
            return {"landed": landed.seq}
        return {"folder": f"data/{self._run}/{step}-{self._rng.getrandbits(64):016x}/"}

    async def _upload(self, gang: Gang, folder: str) -> dict[str, Any]:
        settings = self._settings
        await asyncio.sleep(self._host.behaviour.save_seconds * self._rng.uniform(0.4, 1.0))
        data = f"{self._run} {gang.track.step} {settings.rank}".encode()
        key, crc = manifest.shard_key(folder, settings.rank, settings.world), entry.checksum(data)
        shard = manifest.Shard(key, len(data), crc, 8 << 20, (crc,), ())
        index = manifest.index_body(manifest.Index(settings.rank, shard, None, None))
        await self._access.perform(Call("put", key, data))
        text = manifest.write_index(index, self._run, _position(gang))
        await self._access.perform(Call("put", manifest.index_key(folder, settings.rank), text))
        return index

    async def _append(self, gang: Gang, folder: str, indexes: list[dict[str, Any]], final: bool, reason: str) -> int:
        writer, position = self._pen(), _position(gang)
        data, key = manifest.write_manifest(indexes, self._run, position), manifest.manifest_key(folder)
        await self._access.perform(Call("put", key, data))
        ref = manifest.refer_to(key, data)
        commit: CommitRef = await self._write(lambda: writer.commit(position, ref, final=final, reason=reason))
        return commit.seq

    # together

    async def _on_all(self, gang: Gang, seat: Seat, act: Callable[[], Any]) -> list[Any]:
        """Every rank's result, or the gravest error of any rank on all."""
        try:
            told = await act()
        except PeerLost:
            raise
        except PerdureError as error:
            told = error
        reports = await gang.gather(seat, told)
        failed = [report for report in reports if isinstance(report, PerdureError)]
        if failed:
            raise min(failed, key=_gravity)
        return reports

    async def _on_rank0(self, gang: Gang, seat: Seat, act: Callable[[], Any]) -> Any:
        """Rank 0's result, or its error, on all ranks."""
        told: Any = None
        if seat.rank == 0:
            try:
                told = await act()
            except PeerLost:
                raise
            except PerdureError as error:
                told = error
        told = await gang.broadcast(seat, told)
        if isinstance(told, PerdureError):
            raise told
        return told

    # the writer

    def _pen(self) -> Writer:
        if self._writer is None:
            raise RuntimeError(f"rank {self._settings.rank} has no writer")
        return self._writer

    async def _write(self, act: Callable[[], Any]) -> Any:
        def in_order() -> Any:
            with self._repeatable():
                return act()

        return await self._tape.run(in_order, self._pen())

    @contextmanager
    def _repeatable(self) -> Iterator[None]:
        """The writer's clock and its random numbers are the history's."""
        tape, rng = self._tape, self._rng
        moment = EPOCH + timedelta(seconds=self._host.monotonic())
        shims = {
            "datetime": SimpleNamespace(now=lambda _zone: tape.once(lambda: moment)),
            "os": SimpleNamespace(urandom=rng.randbytes),
            "secrets": SimpleNamespace(token_hex=lambda size: tape.once(lambda: rng.randbytes(size).hex())),
        }
        kept = {name: getattr(writing, name) for name in shims}
        vars(writing).update(shims)
        try:
            yield
        finally:
            vars(writing).update(kept)


def _classified(error: Exception) -> tuple[ExitKind, Failure | None]:
    """The outcome an uncaught exception stands for."""
    name = type(error).__name__
    match error:
        case Fenced():
            return ExitKind.FENCED, Failure(ErrorKind.EXCEPTION, name, str(error))
        case PeerLost():
            return ExitKind.PEER_LOST, None
        case StorageError():
            return ExitKind.FAILED, Failure(ErrorKind.STORAGE, name, str(error))
        case PerdureError():
            return ExitKind.FAILED, Failure(ErrorKind.EXCEPTION, name, str(error))
    return ExitKind.FAILED, Failure(ErrorKind.EXCEPTION, "RuntimeError", f"Traceback ...\nRuntimeError: {error}")


def _gravity(error: PerdureError) -> int:
    return next(place for place, kind in enumerate(GRAVEST) if isinstance(error, kind))


def _committed(slot: Slot) -> entry.Committed:
    if slot.entry is None or not isinstance(slot.entry.event, entry.Committed):
        raise RuntimeError(f"entry {slot.seq} is no commit")
    return slot.entry.event


def _manifest_of(slot: Slot) -> entry.ManifestRef | None:
    event = slot.entry.event if slot.entry else None
    return event.manifest if isinstance(event, entry.Committed) else None


def _position(gang: Gang) -> Position:
    track = gang.track
    return Position(track.step, track.epoch, {LOADER: track.plan.cursor(track.epoch, track.consumed)})
