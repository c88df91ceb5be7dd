"""One simulated trainer process: what `perdure.session` does for one rank, as a coroutine.

Real: the settings read from the environment, the reports to the agent, the plan of samples, when a save is due, and
what `checkpoints` and `driving` list. Modelled, because the real code blocks or needs torch: the order of the session's
calls, rendezvous and collectives (see `gang`), how an exception becomes an ending.

`member` starts it and stands for the agent's pipes and signals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from perdure.checkpoint.schedule import CheckpointSchedule
from perdure.errors import PeerLost, PerdureError, StorageError
from perdure.loop.failures import ended_by, outcome_of
from perdure.wire import ExitKind, Leave, Train
from perdure.wire.channel import Attached, CommitDone, Exiting, Imaged, Request, SessionOpened, StepDone, TrainerReport
from perdure.wire.settings import Settings
from tests.simulation.checkpoints import LOOK_AGAIN_SECONDS, Checkpoints, Membership, committed_in
from tests.simulation.gang import LOADER, Fabric, Gang, ScriptError, Seat, Told
from tests.simulation.handing import LiveHandover
from tests.simulation.images import LEAVING_SECONDS, Image
from tests.simulation.interface import MemberHost
from tests.simulation.store import OUTSIDE
from tests.simulation.witness import Asked as WasAsked
from tests.simulation.witness import Resumed, TakenOver, Trouble, Witness

GOAL_SECONDS: Final = 600.0
EARLY_SECONDS: Final = 1.0
KILLED: Final = -9
TERMINATED: Final = -15
NOT_LIVE: Final = "process groups of the script's own: mesh_dp"
NO_SESSION: Final = "python: can't open file 'nosuch.py'\n"


class Stop(Exception):
    """The session leaves the script with status 0: its ending is reported."""


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
        tell: Callable[[TrainerReport], None],
        ended: Callable[[int, str], None],
        out_of_memory: Callable[[], None],
        held: Image | None = None,
        keep: Callable[[Image], None] = lambda _: None,
    ) -> None:
        """`held` is an earlier trainer's image in this pod; `keep` leaves one there."""
        self.over = False
        self.failed: BaseException | None = None
        """A mistake of the simulation itself."""
        self.host, self.settings, self.pid, self._run = host, settings, pid, settings.run or 0
        cadence = replace(settings.cadence, steps=settings.cadence.steps or host.behaviour.every_steps)
        self.schedule = CheckpointSchedule(cadence, rank=settings.rank, now=host.monotonic)
        self.save_seconds = 0.0
        """The duration of a save; 0: unknown."""
        self.membership: Membership | None = None
        self._tell_agent, self._ended, self._out_of_memory = tell, ended, out_of_memory
        self._held, self._keep = held, keep
        self._fabric = Fabric.of(host.network)
        self._witness = Witness.of(host.network, settings.root)
        if settings.handover is None:  # a newcomer is of no run before it is installed
            self._witness.started.setdefault((settings.uid, self._run), asyncio.get_running_loop().time())
        self._request: Asked | None = None
        self._attached = self._opened = self._restored = self._before_first_step = False
        self._ending: Exiting | None = None
        self._step = 0
        self._told_step: int | None = None
        self._handing = LiveHandover(self)
        self._failures = 0
        """Of saves, in a row."""
        self._frozen = False
        self._seconds: dict[str, float] = {}
        self._gang: Gang | None = None
        self._seat: Seat | None = None
        self._met: Gang | None = None
        """The gang that rank 0 has listened for."""
        self._checkpoints: Checkpoints | None = None
        self._task = asyncio.get_running_loop().create_task(self._live())

    # the agent's actions

    def ask(self, request: Request, *, signal: bool) -> None:
        """The request file is there; SIGTERM comes with the first one."""
        if self.over:
            return
        if not self._attached:
            if signal:
                self.kill(TERMINATED)
            return
        at = self._request.at if self._request else self.host.monotonic()
        if self._told_step is not None and not self._ending:
            self._witness.asked.append(self._asked(request.deadline - self.host.monotonic()))
        self._request = Asked(at, request.cause, request.deadline)
        self._handing.requested(request)
        self._act_before_first_step()

    def offer(self, assignment: Train | Leave) -> None:
        """The offer's file is there: the ranks look for it when they check."""
        self._handing.offer(assignment)
        if self._gang:
            self._gang.offered = True

    def ask_for_save(self) -> None:
        """The file is there: one rank that was asked is enough, and training goes on."""
        if self._gang and not self.over:
            self._gang.save_asked = True

    def ask_for_image(self) -> None:
        """Its run is lost; a thread does it, for the script may hang."""
        if not self.over:
            seconds = self.host.rng.uniform(*LEAVING_SECONDS)
            asyncio.get_running_loop().call_later(seconds, self._leave_image, context=OUTSIDE)

    def acknowledge(self, run: int) -> None:
        """The agent knows of the vote; it tells by a file that is looked for all the time."""
        loop, seconds = asyncio.get_running_loop(), self.host.rng.uniform(0.001, 0.02)
        loop.call_later(seconds, self._handing.acknowledged, run, context=OUTSIDE)

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later."""
        if self.over:
            return
        self.host.tell("frozen", seconds=seconds)
        self._witness.trouble.append(Trouble(self._now, "a process is stopped", until=self._now + seconds))
        self._still(True)
        self._handing.freeze(seconds)
        asyncio.get_running_loop().call_later(seconds, self._still, False, context=OUTSIDE)

    def _still(self, frozen: bool) -> None:
        self._frozen = frozen
        if self._seat:
            self._seat.frozen = frozen

    def kill(self, status: int = KILLED) -> None:
        """It is gone at once; the agent learns of it a moment later."""
        if not self.over:
            self._end("SIGKILL" if status == KILLED else "SIGTERM")
            self._is_missed(status)

    def be_killed(self) -> None:
        """By another process."""
        if not self.over:
            self._witness.trouble.append(Trouble(self._now, "a process is killed"))
            self._end("killed")
            self._is_missed(KILLED)

    def _is_missed(self, status: int) -> None:
        seconds = self.host.rng.uniform(0.005, 0.05)
        asyncio.get_running_loop().call_later(seconds, self._ended_with, status, "", context=OUTSIDE)

    def vanish(self) -> None:
        """The whole container is gone, the agent with it."""
        if not self.over:
            self._witness.trouble.append(Trouble(self._now, "a container dies"))
            self._end("container")

    def _asked(self, seconds: float) -> WasAsked:
        behaviour = self.host.behaviour
        needed = 3 * behaviour.save_seconds + 5 * behaviour.step_seconds + 5.0
        return WasAsked(self.settings.uid, self._run, self._now, seconds, needed)

    @property
    def _now(self) -> float:
        """Of the history, not of this node."""
        return asyncio.get_running_loop().time()

    # the image

    def _leave_image(self) -> None:
        if self.over or self._frozen or self._ending:
            return
        image = self._image()
        if image is None:
            self._tell(Imaged(None, "nothing is ahead of the newest commit"))
            return
        self._keep(image)
        self.host.tell("imaged", run=image.run, rank=image.rank, uid=image.uid, step=image.step)
        self._tell(Imaged(image.step, of=image.run))

    def _image(self) -> Image | None:
        """Of the last step that all have finished, if it is in no commit; a newcomer with its state has one, too."""
        settings = self.settings
        if self._restored and self._gang:
            track, commit = self._gang.track, self._own.commit
            ahead = track.step > (commit.step if commit else 0)
            return Image(settings.uid, self._run, settings.rank, settings.world, replace(track)) if ahead else None
        return self._handing.image()

    def _end(self, how: str) -> None:
        self.over = True
        self._task.cancel()
        settings = self.settings
        self._witness.ended[settings.uid, self._run] = self._now
        self.host.tell("trainer-ended", run=self._run, rank=settings.rank, uid=settings.uid, how=how)
        if self._met:
            self._fabric.close(self._met)
        if self._gang and self._seat:
            self._gang.leave(self._seat)
        self._handing.vanish()

    def _ended_with(self, status: int, tail: str) -> None:
        if self._told_step is not None and self._step > self._told_step:
            self._tell_agent(StepDone(self._step))
        self._ended(status, tail)

    # the process

    async def _live(self) -> None:
        status, tail = 0, ""
        try:
            tail = await self._script()
        except Stop:
            pass
        except (PerdureError, ScriptError) as error:
            status, own = 1, isinstance(error, PeerLost) and self.host.behaviour.blames_itself
            await self._fail(ScriptError("connection reset") if own else error)
        except Exception as error:  # noqa: BLE001  (the member raises it)
            self.failed = error
        if self._attached:
            await asyncio.sleep(self.host.rng.uniform(0.02, 0.3))
        self._exit(status, tail)

    async def _fail(self, error: PerdureError | ScriptError) -> None:
        """As perdure.session.core tells of an error."""
        outcome, joining, came = outcome_of(error, _is_lost_peer), self.settings.handover is not None, False
        if outcome[0] is ExitKind.PEER_LOST:
            self._leave_image()
            came = not joining and await self._came_early()
        now = self._exiting(ExitKind.HANDOVER_FAILED if joining else ExitKind.FAILED)
        self._tell(ended_by(error, outcome, now, lambda: came))

    async def _came_early(self) -> bool:
        """Whether a request came before the first step, or comes soon: not every rank learns of it at one moment."""
        if self._told_step is None and self._request is None:
            await asyncio.sleep(EARLY_SECONDS)
        return self._told_step is None and self._request is not None

    def _exit(self, status: int, tail: str) -> None:
        self._end(self._ending.outcome.value if self._ending else "exit")
        self._ended_with(status, tail)

    async def _script(self) -> str:
        """Returns its stderr."""
        host, settings = self.host, self.settings
        host.tell("trainer-started", run=self._run, rank=settings.rank, uid=settings.uid)
        await asyncio.sleep(host.behaviour.import_seconds * host.rng.uniform(0.7, 1.5))
        if host.behaviour.exits_without_session:
            return NO_SESSION
        self._attached = True
        self._tell(Attached(self.pid, host.behaviour.live, "" if host.behaviour.live else NOT_LIVE, images=True))
        due = await self._handing.join()
        if due is not None:
            await self._save_if_due(due)
        else:
            await self._begin()
        await self._train()
        return ""

    async def _begin(self) -> None:
        """The run is one of its own: its ranks meet, and go on from the newest commit."""
        started = None if self.settings.handover else self.settings.started  # the older run has just begun to save
        self.settings = settings = replace(self.settings, handover=None, started=started)
        self._witness.started.setdefault((settings.uid, self._run), self._now)
        gang, seat = await self._meet()
        self._checkpoints = checkpoints = Checkpoints(self.host, settings, gang, seat)
        self.membership = Membership(settings, gang, seat, checkpoints)
        await checkpoints.open(self._give_up, self._held)
        self._opened = True
        self._tell(SessionOpened(self._run))
        rescued, of = await checkpoints.inherit()  # before it trains, or ends
        self._before_first_step = True
        self._act_before_first_step()
        await self._restore(gang, checkpoints)
        self._restored = True
        begun = SessionOpened(self._run, checkpoints.commit, rescued, of, step=self._step)
        if checkpoints.behind:
            commit, why = checkpoints.behind
            begun = replace(begun, behind=commit, behind_why=why)
        self._tell(begun)

    # session.membership

    def tell(self, report: TrainerReport) -> None:
        """To the agent, at once: an attempt's result."""
        self._tell(report)

    def abort(self, run: int) -> None:
        """The older run's later entries say that this one never opens."""
        if self._checkpoints:
            self._checkpoints.abort(run)

    def place(self) -> tuple[Gang, Seat]:
        """In the run that it trains."""
        if self._gang is None or self._seat is None:
            raise RuntimeError("this process is a rank of nothing")
        return self._gang, self._seat

    def seat(self, rank: int) -> Seat:
        """A place in a run."""
        return Seat(
            rank,
            self.host.ip,
            self.host.rng,
            requested=lambda: self._request is not None or self._handing.exit_wanted,
            stepped=self._stepped,
            out_of_memory=self._out_of_memory,
            ready_for=self._handing.look,
            frozen=self._frozen,
        )

    def told(self, settings: Settings) -> Told:
        """What rank 0 of a run tells of it."""
        return Told(settings.uid, settings.run or 0, self._due, self._witness, self._tell_step)

    def become(self, membership: Membership, before: int, age: float, pause: float) -> None:
        """It is a rank of the newer run from here on, in the same process."""
        settings, track = membership.settings, membership.gang.track
        came = self.membership is None
        if not came:
            self._witness.ended[settings.uid, before] = self._now
        self.membership, self.settings, self._run = membership, settings, settings.run or 0
        self._gang, self._seat, self._checkpoints = membership.gang, membership.seat, membership.checkpoints
        self._opened, self._restored, self._before_first_step = True, True, False
        self._step = track.step
        self.schedule.take_over(settings.rank, age)
        self._witness.started.setdefault((settings.uid, self._run), self._now)
        told = {"run": self._run, "before": before, "rank": settings.rank, "uid": settings.uid, "step": track.step}
        self.host.tell("took-over", **told, came=came, pause=pause)
        if settings.rank == 0:
            self._witness.taken.append(TakenOver(settings.uid, self._run, before, track.step))
            self.host.tell("opened", run=self._run, uid=settings.uid, step=track.step)
        if self._request:  # it is one to this run
            self._witness.asked.append(self._asked(self._request.deadline - self.host.monotonic()))

    def hand_over(self) -> NoReturn:
        """The older run goes on without this process."""
        self._tell(self._exiting(ExitKind.HANDED_OVER))
        raise Stop

    def _tell(self, report: TrainerReport) -> None:
        if not self._ending:
            self._ending = report if isinstance(report, Exiting) else None
            self._tell_agent(report)

    def _exiting(self, outcome: ExitKind) -> Exiting:
        commit = self._checkpoints.commit if self._checkpoints else None
        highest = max(self._run if self._opened else 0, self._handing.opened)
        seconds, attempt = dict(self._seconds), self._handing.known
        return Exiting(outcome, self._step, commit, highest, seconds, attempt=attempt)

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
        return self._request.deadline - self.host.monotonic() if self._request else None

    # exit.rendezvous

    async def _meet(self) -> tuple[Gang, Seat]:
        settings, host = self.settings, self.host
        begun = host.monotonic()
        deadline = begun + settings.rendezvous
        name = f"{settings.uid}/{settings.run}/{settings.world}"
        gang = await (self._listen(name, deadline) if settings.rank == 0 else self._find(name, deadline))
        seat = self.seat(settings.rank)
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
        settings, host, fabric = self.settings, self.host, self._fabric
        gang = self._met = Gang(name, settings.world, host.network, host.behaviour, self.told(settings))
        port = settings.master[1] if settings.master else 0
        while settings.world > 1 and not fabric.listen(host.ip, port, gang):
            self._check(deadline)
            await fabric.changed.wait(LOOK_AGAIN_SECONDS)
        return gang

    async def _find(self, name: str, deadline: float) -> Gang:
        ip, port = self.settings.master or ("", 0)
        while True:
            self._check(deadline)
            gang = self._fabric.find(ip, port, name)
            if gang and self.host.network.reachable(self.host.ip, ip) and not gang.holds(self.settings.rank):
                return gang
            await self._fabric.changed.wait(LOOK_AGAIN_SECONDS)

    def _check(self, deadline: float) -> None:
        self._give_up()
        if self.host.monotonic() >= deadline:
            raise PeerLost(f"waited {self.settings.rendezvous:g} s for the other ranks")

    # session

    async def _restore(self, gang: Gang, checkpoints: Checkpoints) -> None:
        """All ranks put the same position; the witness hears it once."""
        begun, settings = self.host.monotonic(), self.settings
        slot = await checkpoints.restore()
        self._seconds["restore"] = self.host.monotonic() - begun
        if slot:
            committed = committed_in(slot)
            gang.track.resume(committed.step, committed.epoch, committed.cursors[LOADER])
            self._step = committed.step
        if settings.rank == 0:
            resumed = Resumed(settings.uid, self._run, slot.seq if slot else 0, self._step)
            self._witness.resumed.append(resumed)
            self.host.tell("opened", run=self._run, uid=settings.uid, step=self._step)
        self.schedule.saved()

    async def _train(self) -> None:
        while True:
            gang, seat = self.place()
            checkpoints = self._own
            if gang.track.at_goal or checkpoints.goal_before >= gang.track.epochs:
                break
            verdict = await gang.train(seat)
            if verdict.exit or (verdict.attempt and await self._handing.hand_over(verdict.save)):
                await self._leave(gang, seat, checkpoints)
            await self._save_if_due(verdict.save)
        self._handing.goal_reached()
        await self._complete(gang, seat, checkpoints)

    @property
    def _own(self) -> Checkpoints:
        if self._checkpoints is None:
            raise RuntimeError("this process is a rank of nothing")
        return self._checkpoints

    async def _save_if_due(self, due: str) -> None:
        gang, _ = self.place()
        if due and not gang.track.saved:
            await self._save_periodically(gang, self._own, due)

    def _due(self, step: int) -> bool:
        """By the cadence of the job's spec, or the script's own."""
        return self.schedule.after_step(step) or self.schedule.by_the_clock()

    def _tell_step(self, step: int) -> None:
        self.host.tell("step", run=self._run, rank=0, step=step, uid=self.settings.uid)

    def _stepped(self, step: int) -> None:
        """The agent needs the first step at once; the newest one only when the process ends."""
        self._before_first_step, self._step = False, step
        if self._told_step is None:
            self._told_step = step
            self._tell(StepDone(step))

    async def _save(self, checkpoints: Checkpoints, reason: str, *, final: bool) -> None:
        begun = self.host.monotonic()
        await checkpoints.save(reason, final=final)
        self.save_seconds = self.host.monotonic() - begun
        if checkpoints.commit:
            self._tell(CommitDone(checkpoints.commit))

    async def _save_periodically(self, gang: Gang, checkpoints: Checkpoints, reason: str) -> None:
        begun = self.host.monotonic()
        try:
            await self._save(checkpoints, reason, final=False)
        except StorageError:  # training goes on
            self._failures += 1
            self.schedule.failed(self._failures, self.host.monotonic() - begun)
            return
        self._failures = 0
        gang.track.saved = True
        self.schedule.saved()
        checkpoints.retire()

    async def _leave(self, gang: Gang, seat: Seat, checkpoints: Checkpoints) -> None:
        """All ranks save and leave, at one step."""
        self._handing.leaving()
        if self._request:
            self._seconds["agree"] = self.host.monotonic() - self._request.at
        causes = await gang.gather(seat, self._request.cause if self._request else "")
        cause = next((cause for cause in causes if cause), "a rank was asked to exit")
        await checkpoints.until_time_is_up(lambda: self._save(checkpoints, cause, final=True), self._left)
        self._tell(self._exiting(ExitKind.CHECKPOINTED))
        await self._handing.saved()
        raise Stop

    async def _complete(self, gang: Gang, seat: Seat, checkpoints: Checkpoints) -> None:
        """The goal is reached, and that beats a request to leave."""
        begun, track = self.host.monotonic(), gang.track

        def left() -> float:
            asked = self._left()
            return GOAL_SECONDS - (self.host.monotonic() - begun) if asked is None else asked

        await gang.gather(seat, None)
        self._before_first_step = False
        if checkpoints.goal_before < track.epochs:
            track.begin_epoch()
            if not track.saved:
                await checkpoints.until_time_is_up(lambda: self._save(checkpoints, "goal", final=True), left)
        await checkpoints.until_time_is_up(checkpoints.complete, left)
        self._tell(self._exiting(ExitKind.COMPLETED))
        checkpoints.retire()


def _is_lost_peer(error: BaseException) -> bool:
    return isinstance(error, PeerLost)
