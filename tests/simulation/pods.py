"""The least a member can live in: pods that are started by hand, in virtual time, without any cluster.

For the tests of member and evidence alone; histories have `world` and its kubelets instead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from perdure.wire import Assignment, Env, Outcome, Train, read_outcome, write_assignment
from tests.simulation.clock import VirtualLoop
from tests.simulation.driving import Driver
from tests.simulation.evidence import LogReader
from tests.simulation.interface import Behaviour, Bucket, Json, MemberExit, Network
from tests.simulation.member import run_member
from tests.simulation.store import Changes
from tests.simulation.witness import Witness

T = TypeVar("T")
ROOT = "s3://bucket/job"
UID = "8a6d"
LONGEST_SECONDS = 3600.0
"""A story that takes longer waits for what never comes."""


def in_virtual_time(story: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The story's result; a mistake in a callback that is not awaited is one of the story too."""
    loop, failed = VirtualLoop(), []
    loop.set_exception_handler(lambda _loop, context: failed.append(context))

    async def bounded() -> T:
        async with asyncio.timeout(LONGEST_SECONDS):
            return await story()

    result = loop.run(bounded())
    assert failed == []
    return result


@dataclass
class Wires:
    """See interface.Network; `cut` holds pairs of addresses in both directions."""

    cut: set[tuple[str, str]] = field(default_factory=set)
    stores_cut: set[str] = field(default_factory=set)
    shared: dict[Any, Any] = field(default_factory=dict)

    def reachable(self, here: str, there: str) -> bool:
        return (here, there) not in self.cut

    def storage_reachable(self, here: str) -> bool:
        return here not in self.stores_cut

    def part(self, some: list[str], others: list[str]) -> None:
        """No packet passes between the two sides."""
        self.cut |= {pair for a in some for b in others for pair in ((a, b), (b, a))}


class Host:
    """See interface.MemberHost."""

    def __init__(self, pods: Pods, number: int) -> None:
        self.ip = f"10.0.0.{number}"
        env = {Env.ROOT: ROOT, Env.UID: UID, **pods.env}
        container: Json = {"name": "trainer", "env": [{"name": name, "value": value} for name, value in env.items()]}
        if pods.hook:
            container["lifecycle"] = {"preStop": {"exec": {"command": ["perdure", "stop"]}}}
        self.pod: Json = {"metadata": {"name": f"job-{UID}-{number}"}, "spec": {"containers": [container]}}
        self.behaviour: Behaviour = pods.behaviour
        self.bucket: Bucket = pods.bucket
        self.network: Network = pods.wires
        self.rng = random.Random(f"{pods.seed}/{number}")  # noqa: S311
        self.sigterm = asyncio.Event()
        self.hung = False
        self.ready = False
        self.lines: list[str] = []
        self._pods = pods
        self._text = self._read = ""
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(run_member(self))

    def read_assignment(self) -> str:
        self._read = self._text
        return self._text

    async def assignment_changed(self) -> None:
        while self._text == self._read:
            self._changed.clear()
            await self._changed.wait()

    def mark_ready(self) -> None:
        self.ready = True

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def tell(self, what: str, **facts: Any) -> None:
        self._pods.note(what, facts)
        if what == "agent":
            self.lines.append(str(facts["line"]))

    def assign(self, assignment: Assignment) -> None:
        """The kubelet has swapped the file."""
        self._text = write_assignment(assignment)
        self._changed.set()

    def kill(self) -> None:
        """SIGKILL."""
        self._task.cancel()

    async def exit(self) -> MemberExit:
        """How the container ended."""
        return await self._task

    async def outcome(self) -> Outcome:
        """Its remains."""
        return read_outcome((await self.exit()).termination_message)


@dataclass
class Pods:
    """All members of one job, its bucket and its network."""

    behaviour: Behaviour = field(default_factory=Behaviour)
    seed: int = 1
    env: dict[str, str] = field(default_factory=dict)
    hook: bool = False
    """Whether pods have a preStop hook."""
    bucket: Bucket = field(default_factory=Bucket)
    wires: Wires = field(default_factory=Wires)
    facts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    hosts: list[Host] = field(default_factory=list)
    """All that were ever started."""
    _made: int = 0
    _told: Changes = field(default_factory=Changes)

    def start(self, count: int) -> list[Host]:
        """So many new pods."""
        first, self._made = self._made + 1, self._made + count
        started = [Host(self, number) for number in range(first, self._made + 1)]
        self.hosts += started
        return started

    def host(self, driver: Driver) -> Host:
        """Where a party of a hand-over runs."""
        return next(host for host in self.hosts if host is driver.ground.host)

    def train(self, run: int, hosts: list[Host], **plan: Any) -> None:
        """Give each a rank of this run."""
        for rank, host in enumerate(hosts):
            host.assign(Train(run, rank, len(hosts), f"{hosts[0].ip}:{29500 + run}", **plan))

    def note(self, what: str, facts: dict[str, Any]) -> None:
        """A member has reported this."""
        self.facts.append((what, facts))
        self._told.tell()

    async def reaches(self, step: int) -> None:
        """Return when this step is done."""
        await self.hears("step", step=step)

    async def hears(self, what: str, **wanted: Any) -> None:
        """Return when this is reported, or was already."""
        while not any(told == what and wanted.items() <= facts.items() for told, facts in self.facts):
            await self._told.wait(3600.0)

    @property
    def log(self) -> LogReader:
        """The log as it is now, with nothing wrong in it."""
        reader = LogReader(self.bucket.objects, ROOT)
        assert reader.advance() == []
        return reader

    @property
    def witness(self) -> Witness:
        return Witness.of(self.wires, ROOT)

    def story(self) -> list[str]:
        """The log in short: `Opened 1`, `Committed 1 @20`, `Committed 1 @31!` (final)."""
        words = []
        for line in self.log.lines:
            step = f" @{line.step}" if "step" in line.body else ""
            words.append(f"{line.kind} {line.run[1]}{step}{'!' if line.body.get('final') else ''}")
        return words
