"""The inside of a pod: the real agent machine, its shell and its trainers as coroutines in one loop.

Real: `perdure.agent` but for its shell and its processes (the machine, the state, the verdict, the trainer's
environment), the contract's reading and writing, and what `trainer` lists. Modelled: the shell's loop (an event wakes
it, where the real one also looks every 50 ms), starting and killing processes, pipes without delay, the preStop hook,
a SIGTERM that is lost if it comes before the agent's first line.

The simulated kubelet runs `run_member` and cancels it for SIGKILL; nothing of it is left then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Final, assert_never

from perdure.agent.environ import ProcessIdentity, process_environment
from perdure.agent.machine import react
from perdure.agent.memory import OutOfMemory
from perdure.agent.stage import due
from perdure.agent.state import (
    Acknowledge,
    Action,
    AgentState,
    Ask,
    AskForSave,
    AssignmentRead,
    CommitImage,
    Event,
    Finish,
    ForgetImages,
    Kill,
    MarkWarm,
    OfferAssignment,
    PrintLine,
    ProcessEnded,
    ReportReceived,
    Rescued,
    SigtermReceived,
    Start,
    Tick,
    Unreadable,
)
from perdure.cli.main import settings_from
from perdure.wire import (
    CLEAN,
    ContractError,
    Env,
    Outcome,
    Train,
    UnsupportedVersion,
    read_assignment,
    write_outcome,
)
from perdure.wire.channel import Request, TrainerReport
from perdure.wire.settings import read_settings
from tests.simulation.images import Image, rescue
from tests.simulation.interface import MemberExit, MemberHost
from tests.simulation.objects import trainer_of
from tests.simulation.trainer import Process

POLL_SECONDS: Final = 0.05
DEAF_SECONDS: Final = (0.02, 0.15)
"""From the container's start to the first line of PID 1: the kernel drops a signal that comes meanwhile."""
HOOK_SECONDS: Final = (0.08, 0.6)
"""What `perdure stop` takes until the agent sees its marker."""
MEMORY_BYTES: Final = 512 * 2**20
CONTAINER_DIES_SHARE: Final = 0.8
"""Of the kills for lack of memory those that take the whole container: with cgroups v2 the kubelet asks for it."""


async def run_member(host: MemberHost) -> MemberExit:
    """One container, from its start to its end."""
    return await _Agent(host).run()


class _Agent:
    """The shell: makes the events, carries out the actions, decides nothing."""

    def __init__(self, host: MemberHost) -> None:
        self._host = host
        env = trainer_of(host.pod).get("env", [])
        self._environ: dict[str, str] = {each["name"]: each["value"] for each in env if "value" in each}
        self._state = AgentState(settings_from(self._environ))
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._processes: list[Process] = []
        self._exit: MemberExit | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pids = 1
        self._memory_short: OutOfMemory | None = None
        """The cgroup's count since the trainer was started."""
        self._failed: BaseException | None = None
        """A mistake of the simulation itself."""
        self._own_images: dict[int, Image] = {}
        self._held_images: dict[int, Image] = {}
        """What the last trainer has left in this pod, and what earlier ones have, by local rank."""
        self._rescuing: asyncio.Task[Rescued] | None = None

    async def run(self) -> MemberExit:
        host, loop = self._host, asyncio.get_running_loop()
        deletion = loop.create_task(self._follow_deletion())
        followers = [deletion]
        try:
            await asyncio.sleep(host.behaviour.warm_seconds * host.rng.uniform(0.6, 1.4))
        except asyncio.CancelledError:
            deletion.cancel()
            raise
        followers.append(loop.create_task(self._follow_assignment()))
        for task in followers:
            task.add_done_callback(self._follower_ended)
        try:
            end = await self._serve()
        except (asyncio.CancelledError, Exception):
            # Not in a `finally`: a history that ends drops its coroutines where they are, and its loop is closed then.
            self._leave_nothing(followers)
            raise
        self._leave_nothing(followers)
        return end

    async def _serve(self) -> MemberExit:
        while True:
            if not self._host.hung:
                self._react()
            if self._exit:
                return self._exit
            if not self._host.hung:  # a stopped process lets its timers pass
                self._set_timer()
            await self._wake.wait()
            self._wake.clear()

    def _leave_nothing(self, followers: list[asyncio.Task[None]]) -> None:
        if self._timer:
            self._timer.cancel()
        for task in followers:
            task.cancel()
        if self._rescuing:
            self._rescuing.cancel()
        for process in self._processes:
            process.vanish()

    # learning

    def _learn(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()

    async def _follow_assignment(self) -> None:
        while True:
            text = self._host.read_assignment()
            if text:
                self._learn(_read(text))
            await self._host.assignment_changed()
            await asyncio.sleep(self._host.rng.uniform(0, POLL_SECONDS))

    async def _follow_deletion(self) -> None:
        """The preStop hook's marker is found however early it came; a signal counts once PID 1 blocks or handles it."""
        host = self._host
        lifecycle = trainer_of(host.pod).get("lifecycle") or {}
        if "preStop" in lifecycle:
            await host.sigterm.wait()
            began = host.monotonic()
            await asyncio.sleep(host.rng.uniform(*HOOK_SECONDS))
            self._learn(SigtermReceived(began))
            return
        await asyncio.sleep(host.rng.uniform(*DEAF_SECONDS))
        if not host.sigterm.is_set():
            await host.sigterm.wait()
            self._learn(SigtermReceived())

    def _follower_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception():
            self._failed = task.exception()
            self._wake.set()

    def _set_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        at = due(self._state)
        if at is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, at - self._host.monotonic()), self._learn, Tick())

    # acting

    def _react(self) -> None:
        for failed in (self._failed, *(process.failed for process in self._processes)):
            if failed:
                raise failed
        while self._events and self._exit is None:
            self._state, actions = react(self._state, self._events.popleft(), self._host.monotonic())
            for action in actions:
                self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case PrintLine(line):
                self._host.tell("agent", line=line)
            case MarkWarm():
                self._host.mark_ready()
            case Start(train):
                self._start(train)
            case Finish(outcome):
                self._finish(outcome)
            case ForgetImages() | CommitImage():
                self._act_on_images(action)
            case Ask() | AskForSave() | OfferAssignment() | Acknowledge() | Kill():
                for process in self._processes:
                    _act_on(process, action)
            case _:
                assert_never(action)

    def _start(self, train: Train) -> None:
        self._processes.clear()
        self._memory_short = None
        self._held_images |= self._own_images
        self._own_images.clear()
        processes = self._state.settings.processes
        for local_rank in range(processes):
            self._start_process(train, local_rank, processes)

    def _start_process(self, train: Train, local_rank: int, processes: int) -> None:
        rank, now = train.rank + local_rank, self._host.monotonic()
        place = ProcessIdentity(local_rank, processes, 0, Path("request.json"), Path("handover.json"), now, None)
        settings = read_settings(process_environment(self._environ, train, place))
        explicit = any(name in self._environ for name in (Env.EVERY_STEPS, Env.EVERY_SECONDS, Env.EVERY_EPOCHS))
        cadence = settings.cadence if explicit else replace(settings.cadence, seconds=None)
        self._pids += 1

        def tell(report: TrainerReport) -> None:
            self._learn(ReportReceived(rank, report))

        def ended(status: int, tail: str) -> None:
            self._learn(ProcessEnded(rank, status, tail, out_of_memory=self._memory_short))

        settings = replace(settings, started=now, cadence=cadence)
        process = Process(
            self._host,
            settings,
            pid=self._pids,
            tell=tell,
            ended=ended,
            out_of_memory=lambda: self._out_of_memory(process),
            held=self._held_images.get(local_rank),
            keep=lambda image: self._own_images.update({local_rank: image}),
        )
        self._processes.append(process)

    def _out_of_memory(self, process: Process) -> None:
        """The kernel kills the largest process, and usually everything beside it."""
        if self._host.rng.random() < CONTAINER_DIES_SHARE:
            self._exit = MemberExit(137, "OOMKilled")
            self._wake.set()
            for each in self._processes:
                each.vanish()
        else:
            self._memory_short = OutOfMemory(MEMORY_BYTES)
            process.kill()

    def _act_on_images(self, action: ForgetImages | CommitImage) -> None:
        if isinstance(action, CommitImage):
            self._rescue(action)
        else:
            self._held_images.clear()

    def _rescue(self, action: CommitImage) -> None:
        """A process of its own; its result is an event."""
        images = list((self._own_images or self._held_images).values())
        if not images:
            self._learn(Rescued(why="no image is whole"))
            return
        work = rescue(self._host, self._environ[Env.ROOT], action, images)
        self._rescuing = asyncio.get_running_loop().create_task(work)
        self._rescuing.add_done_callback(self._rescued)

    def _rescued(self, task: asyncio.Task[Rescued]) -> None:
        if not task.cancelled() and not (error := task.exception()):
            self._learn(task.result())
        elif not task.cancelled():
            self._failed = error
            self._wake.set()

    def _finish(self, outcome: Outcome) -> None:
        code = 0 if outcome.outcome in CLEAN else 1
        self._exit = MemberExit(code, "Error" if code else "Completed", write_outcome(outcome))


def _act_on(process: Process, action: Ask | AskForSave | OfferAssignment | Acknowledge | Kill) -> None:
    match action:
        case Ask(image=True):
            process.ask_for_image()
        case Ask(_, cause, deadline, _, again):
            process.ask(Request(cause, deadline), signal=not again)
        case AskForSave():
            process.ask_for_save()
        case OfferAssignment(_, assignment):
            process.offer(assignment)
        case Acknowledge(_, run):
            process.acknowledge(run)
        case Kill():
            process.kill()


def _read(text: str) -> AssignmentRead | Unreadable:
    try:
        return AssignmentRead(read_assignment(text))
    except UnsupportedVersion as error:
        return Unreadable(str(error), unsupported=True)
    except ContractError as error:
        return Unreadable(str(error))
