"""One simulated trainer process: what `perdure.session` does for one rank, as a coroutine.

Real: the settings read from the environment, the reports to the agent, the plan of samples, and what `checkpoints`
lists. Modelled, because the real code blocks or needs torch: the order of the session's calls, rendezvous and
collectives (see `gang`), how an exception becomes an ending.

`member` starts it and stands for the agent's pipes and signals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from perdure.channel import Attached, Committed, Exiting, Opened, Report, Request, Stepped
from perdure.contract import ErrorKind, ExitKind, Failure
from perdure.errors import Fenced, PeerLost, PerdureError, RootTakenOver, StorageError
from perdure.settings import Settings
from tests.simulation.checkpoints import LOOK_AGAIN_SECONDS, Checkpoints, committed_in
from tests.simulation.gang import LOADER, Fabric, Gang, ScriptError, Seat, Told
from tests.simulation.interface import MemberHost
from tests.simulation.store import OUTSIDE
from tests.simulation.witness import Asked as WasAsked
from tests.simulation.witness import Resumed, Trouble, Witness

GOAL_SECONDS: Final = 600.0
KILLED: Final = -9
TERMINATED: Final = -15
NO_SESSION: Final = "python: can't open file 'nosuch.py'\n"


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
        self._host, self._settings, self._pid, self._run = host, settings, pid, settings.run or 0
        self._tell_agent, self._ended, self._out_of_memory = tell, ended, out_of_memory
        self._fabric = Fabric.of(host.network)
        self._witness = Witness.of(host.network, settings.root)
        self._witness.started.setdefault((settings.uid, self._run), asyncio.get_running_loop().time())
        self._request: Asked | None = None
        self._attached = self._opened = self._before_first_step = False
        self._ending: Exiting | None = None
        self._step = 0
        self._told_step: int | None = None
        self._saved_at = 0.0
        self._seconds: dict[str, float] = {}
        self._gang: Gang | None = None
        self._seat: Seat | None = None
        self._checkpoints: Checkpoints | None = None
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
        at = self._request.at if self._request else self._host.monotonic()
        if self._told_step is not None and not self._ending:
            self._witness.asked.append(self._asked(request.deadline - self._host.monotonic()))
        self._request = Asked(at, request.cause, request.deadline)
        self._act_before_first_step()

    def kill(self, status: int = KILLED) -> None:
        """It is gone at once; the agent learns of it a moment later."""
        if not self.over:
            self._end("SIGKILL" if status == KILLED else "SIGTERM")
            seconds = self._host.rng.uniform(0.005, 0.05)
            asyncio.get_running_loop().call_later(seconds, self._ended_with, status, "", context=OUTSIDE)

    def vanish(self) -> None:
        """The whole container is gone, the agent with it."""
        if not self.over:
            self._witness.trouble.append(Trouble(self._now, "a container dies"))
            self._end("container")

    def _asked(self, seconds: float) -> WasAsked:
        behaviour = self._host.behaviour
        needed = 3 * behaviour.save_seconds + 5 * behaviour.step_seconds + 5.0
        return WasAsked(self._settings.uid, self._run, self._now, seconds, needed)

    @property
    def _now(self) -> float:
        """Of the history, not of this node."""
        return asyncio.get_running_loop().time()

    def _end(self, how: str) -> None:
        self.over = True
        self._task.cancel()
        settings = self._settings
        self._witness.ended[settings.uid, self._run] = self._now
        self._host.tell("trainer-ended", run=self._run, rank=settings.rank, uid=settings.uid, how=how)
        if self._gang and self._seat:
            if self._seat.rank == 0:
                self._fabric.close(self._gang)
            self._gang.leave(self._seat)

    def _ended_with(self, status: int, tail: str) -> None:
        if self._told_step is not None and self._step > self._told_step:
            self._tell_agent(Stepped(self._step))
        self._ended(status, tail)

    # the process

    async def _live(self) -> None:
        status, tail = 0, ""
        try:
            tail = await self._script()
        except Stop:
            pass
        except (PerdureError, ScriptError) as error:
            status, opened = 1, getattr(error, "opened", 0)
            own = isinstance(error, PeerLost) and self._host.behaviour.blames_itself
            self._tell(self._exiting(*_classified(ScriptError("connection reset") if own else error), opened=opened))
        except Exception as error:  # noqa: BLE001  (the member raises it)
            self.failed = error
        if self._attached:
            await asyncio.sleep(self._host.rng.uniform(0.02, 0.3))
        self._exit(status, tail)

    def _exit(self, status: int, tail: str) -> None:
        self._end(self._ending.outcome.value if self._ending else "exit")
        self._ended_with(status, tail)

    async def _script(self) -> str:
        """Returns what it has written to stderr."""
        host, settings = self._host, self._settings
        host.tell("trainer-started", run=self._run, rank=settings.rank, uid=settings.uid)
        await asyncio.sleep(host.behaviour.import_seconds * host.rng.uniform(0.7, 1.5))
        if host.behaviour.exits_without_session:
            return NO_SESSION
        self._attached = True
        self._tell(Attached(self._pid))
        gang, seat = await self._meet()
        self._checkpoints = checkpoints = Checkpoints(host, settings, gang, seat)
        await checkpoints.open(self._give_up)
        self._opened = True
        self._tell(Opened(self._run))
        self._before_first_step = True
        self._act_before_first_step()
        await self._restore(gang, checkpoints)
        self._tell(Opened(self._run, checkpoints.commit))
        await self._train(gang, seat, checkpoints)
        return ""

    def _tell(self, report: Report) -> None:
        if not self._ending:
            self._ending = report if isinstance(report, Exiting) else None
            self._tell_agent(report)

    def _exiting(self, outcome: ExitKind, error: Failure | None = None, *, opened: int = 0) -> Exiting:
        commit = self._checkpoints.commit if self._checkpoints else None
        highest = max(opened, self._run if self._opened else 0)
        return Exiting(outcome, self._step, commit, highest, dict(self._seconds), error)

    # exit.request

    def _act_before_first_step(self) -> None:
        """Nothing was trained, so nothing can be saved: rank 0 closes the log, whatever its script does meanwhile."""
        checkpoints, seat = self._checkpoints, self._seat
        if self._request and self._before_first_step and not self._ending and checkpoints and seat and seat.rank == 0:
            self._before_first_step, seat.leaving = False, True
            self._task.cancel()
            self._task = asyncio.get_running_loop().create_task(self._stop_without_step(checkpoints))

    async def _stop_without_step(self, checkpoints: Checkpoints) -> None:
        try:
            await checkpoints.close("no-step")
        except PerdureError:
            pass  # the outcome tells the same
        except Exception as error:  # noqa: BLE001  (the member raises it)
            self.failed = error
        self._tell(self._exiting(ExitKind.STOPPED))
        self._exit(0, "")

    def _give_up(self) -> None:
        if self._request:
            self._tell(self._exiting(ExitKind.STOPPED))
            raise Stop

    def _left(self) -> float | None:
        return self._request.deadline - self._host.monotonic() if self._request else None

    # exit.rendezvous

    async def _meet(self) -> tuple[Gang, Seat]:
        settings, host = self._settings, self._host
        begun = host.monotonic()
        deadline = begun + settings.rendezvous
        name = f"{settings.uid}/{settings.run}/{settings.world}"
        gang = await (self._listen(name, deadline) if settings.rank == 0 else self._find(name, deadline))
        seat = Seat(
            settings.rank,
            host.ip,
            host.rng,
            requested=lambda: self._request is not None,
            stepped=self._stepped,
            out_of_memory=self._out_of_memory,
        )
        self._gang, self._seat = gang, seat
        gang.join(seat)
        while not gang.complete:
            self._check(deadline)
            if gang.lost_by(seat):
                raise PeerLost("a rank left while the others met")
            await gang.arrived.wait(LOOK_AGAIN_SECONDS)
        await gang.gather(seat, None)
        self._seconds["rendezvous"] = host.monotonic() - begun
        return gang, seat

    async def _listen(self, name: str, deadline: float) -> Gang:
        settings, host, fabric = self._settings, self._host, self._fabric
        told = Told(settings.uid, self._run, self._due, self._witness, self._tell_step)
        gang = Gang(name, settings.world, host.network, host.behaviour, told)
        port = settings.master[1] if settings.master else 0
        while settings.world > 1 and not fabric.listen(host.ip, port, gang):
            self._check(deadline)
            await fabric.changed.wait(LOOK_AGAIN_SECONDS)
        return gang

    async def _find(self, name: str, deadline: float) -> Gang:
        ip, port = self._settings.master or ("", 0)
        while True:
            self._check(deadline)
            gang = self._fabric.find(ip, port, name)
            if gang and self._host.network.reachable(self._host.ip, ip):
                return gang
            await self._fabric.changed.wait(LOOK_AGAIN_SECONDS)

    def _check(self, deadline: float) -> None:
        self._give_up()
        if self._host.monotonic() >= deadline:
            raise PeerLost(f"waited {self._settings.rendezvous:g} s for the other ranks")

    # session

    async def _restore(self, gang: Gang, checkpoints: Checkpoints) -> None:
        """All ranks put the same position; the witness hears it once."""
        begun, settings = self._host.monotonic(), self._settings
        slot = await checkpoints.restore()
        self._seconds["restore"] = self._host.monotonic() - begun
        if slot:
            committed = committed_in(slot)
            gang.track.resume(committed.step, committed.epoch, committed.cursors[LOADER])
            self._step = committed.step
        if settings.rank == 0:
            resumed = Resumed(settings.uid, self._run, slot.seq if slot else 0, self._step)
            self._witness.resumed.append(resumed)
            self._host.tell("opened", run=self._run, uid=settings.uid, step=self._step)
        self._saved_at = self._host.monotonic()

    async def _train(self, gang: Gang, seat: Seat, checkpoints: Checkpoints) -> None:
        track = gang.track
        while not track.at_goal and checkpoints.goal_before < track.epochs:
            verdict = await gang.train(seat)
            if verdict.exit:
                await self._leave(gang, seat, checkpoints)
            if verdict.save and not track.saved:
                await self._save_periodically(gang, checkpoints, verdict.save)
        await self._complete(gang, seat, checkpoints)

    def _due(self, step: int) -> bool:
        """The cadence of the job's spec, or the script's own."""
        cadence, host = self._settings.cadence, self._host
        if cadence.seconds and host.monotonic() - self._saved_at >= cadence.seconds:
            return True
        return step % (cadence.steps or host.behaviour.every_steps) == 0

    def _tell_step(self, step: int) -> None:
        self._host.tell("step", run=self._run, rank=0, step=step, uid=self._settings.uid)

    def _stepped(self, step: int) -> None:
        """The agent needs the first step at once; the newest one only when the process ends."""
        self._before_first_step, self._step = False, step
        if self._told_step is None:
            self._told_step = step
            self._tell(Stepped(step))

    async def _save(self, checkpoints: Checkpoints, reason: str, *, final: bool) -> None:
        await checkpoints.save(reason, final=final)
        if checkpoints.commit:
            self._tell(Committed(checkpoints.commit))

    async def _save_periodically(self, gang: Gang, checkpoints: Checkpoints, reason: str) -> None:
        try:
            await self._save(checkpoints, reason, final=False)
        except StorageError:
            return  # training goes on
        gang.track.saved = True
        self._saved_at = self._host.monotonic()
        checkpoints.retire()

    async def _leave(self, gang: Gang, seat: Seat, checkpoints: Checkpoints) -> None:
        """All ranks save and leave, at one step."""
        if self._request:
            self._seconds["agree"] = self._host.monotonic() - self._request.at
        causes = await gang.gather(seat, self._request.cause if self._request else "")
        cause = next((cause for cause in causes if cause), "a rank was asked to exit")
        await checkpoints.until_time_is_up(lambda: self._save(checkpoints, cause, final=True), self._left)
        self._tell(self._exiting(ExitKind.CHECKPOINTED))
        raise Stop

    async def _complete(self, gang: Gang, seat: Seat, checkpoints: Checkpoints) -> None:
        """The goal is reached, and that beats a request to leave."""
        begun, track = self._host.monotonic(), gang.track

        def left() -> float:
            asked = self._left()
            return GOAL_SECONDS - (self._host.monotonic() - begun) if asked is None else asked

        await gang.gather(seat, None)
        self._before_first_step = False
        if checkpoints.goal_before < track.epochs:
            track.begin_epoch()
            if not track.saved:
                await checkpoints.until_time_is_up(lambda: self._save(checkpoints, "goal", final=True), left)
        await checkpoints.until_time_is_up(checkpoints.complete, left)
        self._tell(self._exiting(ExitKind.COMPLETED))
        checkpoints.retire()


def _classified(error: Exception) -> tuple[ExitKind, Failure | None]:
    """The outcome an uncaught exception stands for."""
    name = type(error).__name__
    match error:
        case Fenced():
            kind = ExitKind.ROOT_TAKEN_OVER if isinstance(error, RootTakenOver) else ExitKind.FENCED
            return kind, Failure(ErrorKind.EXCEPTION, name, str(error))
        case PeerLost():
            return ExitKind.PEER_LOST, None
        case StorageError():
            return ExitKind.FAILED, Failure(ErrorKind.STORAGE, name, str(error))
        case PerdureError():
            return ExitKind.FAILED, Failure(ErrorKind.EXCEPTION, name, str(error))
    return ExitKind.FAILED, Failure(ErrorKind.EXCEPTION, "RuntimeError", f"Traceback ...\nRuntimeError: {error}")
