"""One seeded history: a scene, a swarm of faults for some minutes, then peace until every job is settled."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.checks import Checks, Violation
from tests.simulation.clock import Stuck
from tests.simulation.faults import FAULTS, Fault
from tests.simulation.interface import RunMember
from tests.simulation.member import run_member
from tests.simulation.objects import Refused
from tests.simulation.patience import WORK_SECONDS, Overtime, patience
from tests.simulation.pool import Pool, draw, drawn
from tests.simulation.scene import Scene
from tests.simulation.world import Fact, World

DISTURBED_SECONDS: Final = (60.0, 200.0)
"""So long faults come about."""
LAST_SECONDS: Final = 20.0
"""After the last of them begins."""
QUIET_SECONDS: Final = 30.0
"""At least this long after the last fault: suspicions are examined for as long again."""
SETTLE_SECONDS: Final = 900.0
"""I6: so long after the last fault every job trains or is finished; where jobs wait for the room of others every one of
them is finished so long after the one before it."""
FINISH_SECONDS: Final = 300.0
"""By this time after the stop every job is finished and holds nothing."""
LOOK_SECONDS: Final = 5.0
SHARED_SHARE: Final = 0.5
"""Of the faults of what jobs share, where they do."""
EVICTIONS_SHARE: Final = 0.25
"""Of the histories: Kubernetes has EvictionRequests there."""
ASKED_SHARE: Final = 0.6
"""Of the faults that make them, where it has."""
AIMED_SECONDS: Final = 60.0
"""Where only some kinds of faults are played, each comes about so often."""


@dataclass(frozen=True)
class Request:
    """Which history: a seed, and the parts left out of it."""

    seed: int
    without: tuple[str, ...] = ()
    """Kinds of faults, or single ones as kind#number."""
    only: tuple[str, ...] = ()
    """Nothing but these kinds; for looking for one defect."""
    everything: bool = False
    """Also faults that wait for a defect to be mended."""
    until: float | None = None
    """No fault begins after this moment."""

    def pool(self) -> Pool | None:
        """What the jobs share; faults aimed at a job have the machines that they need."""
        if not self.only:
            return drawn(self.seed)
        if not any(FAULTS[name].shared for name in self.only):
            return None
        return draw(random.Random(f"{self.seed}/pool"))  # noqa: S311

    def evictions(self) -> bool:
        """Whether the API server has objects that ask for evictions."""
        if self.only:
            return any(FAULTS[name].asks for name in self.only)
        return random.Random(f"{self.seed}/evictions").random() < EVICTIONS_SHARE  # noqa: S311

    def command(self) -> str:
        """The command that replays it."""
        parts = ["python -m tests.simulation replay", str(self.seed)]
        parts += ["--all"] if self.everything else []
        parts += [f"--only {' '.join(self.only)}"] if self.only else []
        parts += [f"--without {' '.join(self.without)}"] if self.without else []
        parts += [f"--until {self.until:g}"] if self.until is not None else []
        return " ".join(parts)


@dataclass
class Result:
    """Its result."""

    request: Request
    violation: Violation | None
    seconds: float
    rounds: int
    events: int
    fired: Counter[str]
    planned: tuple[str, ...]
    """kind#number of every fault that the seed has planned."""
    facts: list[Fact] = field(default_factory=list)
    digest: str = ""
    """Of the trace, if requested."""


def planned(request: Request) -> list[tuple[float, Fault, int]]:
    """Moments of all faults of a seed, in order; a swarm: some kinds often, most not at all."""
    rng = random.Random(f"{request.seed}/swarm")  # noqa: S311
    length = rng.uniform(*DISTURBED_SECONDS)
    names = [name for name, one in FAULTS.items() if name in request.only or _may_be_drawn(one, request)]
    share = rng.choice((0.05, 0.1, 0.2, 0.4))
    drawn_here = [name for name, one in FAULTS.items() if not (one.shared or one.apart or one.asks)]
    chosen = [name for name in drawn_here if rng.random() < share]
    chosen += [name for name, one in FAULTS.items() if one.apart and _is_chosen(name, request, share)]
    if request.evictions():
        chosen += [name for name, one in FAULTS.items() if one.asks and _is_chosen(name, request, ASKED_SHARE)]
    if request.pool():
        crowd = random.Random(f"{request.seed}/crowd")  # noqa: S311
        chosen += [name for name, one in FAULTS.items() if one.shared and crowd.random() < SHARED_SHARE]
    found = []
    for name in sorted(set(request.only or chosen) & set(names)):
        times = random.Random(f"{request.seed}/times/{name}")  # noqa: S311
        every = min(FAULTS[name].every, AIMED_SECONDS) if request.only else FAULTS[name].every
        at, number = 5.0 + times.expovariate(1 / every), 0
        while at < length:
            if not {name, f"{name}#{number}"} & set(request.without) and (request.until is None or at <= request.until):
                found.append((at, FAULTS[name], number))
            at += times.expovariate(1 / every)
            number += 1
    return sorted(found, key=lambda one: (one[0], one[1].name))


def _is_chosen(name: str, request: Request, share: float) -> bool:
    return random.Random(f"{request.seed}/chosen/{name}").random() < share  # noqa: S311


def _may_be_drawn(fault: Fault, request: Request) -> bool:
    return not fault.alone and (request.everything or not fault.waits_for)


class History:
    """Plays a request."""

    def __init__(self, request: Request, run: RunMember = run_member, *, work_seconds: float = WORK_SECONDS) -> None:
        self.request = request
        self._work_seconds = work_seconds
        self.world = World(request.seed)
        self._run_member = run
        self._checks: Checks | None = None

    def play(self, *, tell: bool = False) -> Result:
        """Play it to its end; `tell` also keeps the operator's log lines."""
        try:
            with _heard(self.world, logging.INFO if tell else logging.ERROR), patience(self._work_seconds):
                violation = self.world.loop.run(self._live())
        except (Stuck, Overtime) as error:
            violation = Violation(self.world.now, "stuck", str(error))
        checks = self._checks
        return Result(
            request=self.request,
            violation=violation,
            seconds=self.world.now,
            rounds=checks.rounds if checks else 0,
            events=self.world.loop.handles,
            fired=self.world.fired,
            planned=tuple(f"{fault.name}#{number}" for _, fault, number in planned(self.request)),
            facts=self.world.facts,
        )

    async def _live(self) -> Violation | None:
        scene = Scene(self.world, self._run_member, self.request.pool(), evictions=self.request.evictions())
        checks = self._checks = Checks(scene, everything=self.request.everything)
        if await self._disturb(scene):
            return self._first()
        scene.heal()
        quiet = self.world.now
        while True:
            if await self._wait_until(self.world.now + LOOK_SECONDS):
                return self._first()
            unsettled = checks.unsettled()
            if not unsettled and self._is_calm(checks, self.world.now - quiet):
                await self._finish(scene, checks)
                checks.judge()
                return self._first()
            if self.world.now - max(quiet, checks.room_at) >= SETTLE_SECONDS:
                checks.fail("I6", f"{SETTLE_SECONDS:.0f} s after the last fault: {'; '.join(unsettled)}")
                return self._first()

    def _is_calm(self, checks: Checks, seconds: float) -> bool:
        """Whether nothing more is expected."""
        return seconds >= QUIET_SECONDS * (2 if checks.suspect else 1)

    async def _disturb(self, scene: Scene) -> bool:
        """Play all faults; those that last are cut off, but for the long ones. True where something was broken."""
        plan = planned(self.request)
        short, long = list[asyncio.Task[None]](), list[asyncio.Task[None]]()
        for at, fault, number in plan:
            if await self._wait_until(at):
                return True
            rng = self.world.rng(f"fault/{fault.name}/{number}")
            self.world.tell("FAULT", f"{fault.name}#{number}")
            (long if fault.to_its_end else short).append(self.world.spawn(self._do(fault, scene, rng)))
        if await self._wait_until(max((at for at, _, _ in plan), default=0.0) + LAST_SECONDS):
            return True
        while not all(task.done() for task in long):
            if await self._wait_until(self.world.now + LOOK_SECONDS):
                return True
        for task in short:
            task.cancel()
        return False

    async def _finish(self, scene: Scene, checks: Checks) -> None:
        """Users stop the jobs that still train: a finished job has to release its devices."""
        for user in scene.users:
            user.edit(activeDeadlineSeconds=1)
        until = self.world.now + FINISH_SECONDS
        while left := checks.unfinished():
            if self.world.now >= until:
                checks.fail("I6", f"{FINISH_SECONDS:.0f} s after it was asked to stop: {'; '.join(left)}")
            if await self._wait_until(self.world.now + LOOK_SECONDS):
                return

    async def _do(self, fault: Fault, scene: Scene, rng: random.Random) -> None:
        with suppress(Refused):  # admission may refuse this user
            await fault.do(scene, rng)

    async def _wait_until(self, at: float) -> bool:
        """True where something has been broken meanwhile."""
        while self.world.now < at:
            if self._first() is not None:
                return True
            await asyncio.sleep(min(LOOK_SECONDS, at - self.world.now))
        return self._first() is not None

    def _first(self) -> Violation | None:
        if self.world.failed is not None:
            return Violation(self.world.now, "raised", repr(self.world.failed))
        return self._checks.violation if self._checks else None


@contextmanager
def _heard(world: World, level: int) -> Iterator[None]:
    """Sends the operator's log lines from this level on to the world only; afterwards as before."""
    logger, handler = logging.getLogger("perdure_operator"), _Told(world)
    before = logger.level, logger.propagate
    logger.setLevel(level)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class _Told(logging.Handler):
    """The operator's log lines as facts; a traceback among them is a mistake of its own, even if the round is
    repeated."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        words = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            words += f" {record.exc_info[1]!r}"
            self._world.failed = self._world.failed or record.exc_info[1]
        self._world.tell(f"log {record.levelname}", words)
