"""Jobs on devices, as time goes by: they train, wait, change their sizes and end. Whoever divides the devices is given.

A policy looks at the jobs at a fixed interval and says which devices each has from now on; a device is told by its
node. What a change costs is a value of its own: a restart, or a live move. Time is in seconds, progress in steps of a
model's initial batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from e2e.bench.pollux.measurements import Model, Noise, StepTime
from e2e.bench.pollux.their_speed import Batch

NODES: Final = 16
DEVICES_OF_NODE: Final = 4
TOO_LONG: Final = 30 * 24 * 3600.0
NO_BATCH: Final = Batch(0, 0)

Devices = tuple[int, ...]
"""The node of each device, in rising order."""


@dataclass
class Job:
    """One training, from its submission to its end."""

    name: str
    model: Model
    submitted: float
    devices: Devices = ()
    """That it was given last; its joiners may still warm up on some."""
    training: Devices = ()
    """Those of its ranks that train, or wait to."""
    trains_on: tuple[int, ...] = ()
    """The number of these on each of its nodes."""
    batch: Batch = NO_BATCH
    waits: float = 0.0
    """Until it trains: the rest of a start, a restart or a pause."""
    joining: float | None = None
    """Until its joiners are warm."""
    unsaved: float = 0.0
    """Seconds that it has trained since its newest commit, or since its start."""
    progress: float = 0.0
    epoch: int = 0
    service: float = 0.0
    """Seconds of devices."""
    starts: int = 0
    """How often it was given other devices, its first ones included."""
    ended: float | None = None
    times: dict[tuple[int, int, int], StepTime] = field(default_factory=dict)
    """All that it has measured, by (nodes, ranks, micro-batch)."""
    noise: Noise | None = None

    @property
    def most_ranks_profiled(self) -> int:
        """The most that it has ever trained with."""
        return max((ranks for _, ranks, _ in self.times), default=0)

    @property
    def moves(self) -> int:
        """How often it was given other devices after its first ones."""
        return max(self.starts - 1, 0)

    def train_on(self, devices: Devices) -> None:
        """Its ranks are on these devices from now on."""
        self.training, self.trains_on, self.joining = devices, placement(devices), None

    def held(self) -> Counter[int]:
        """The devices that nobody else can have, by node."""
        return Counter(self.devices) | Counter(self.training)


class Agent(Protocol):
    """What a job decides for itself."""

    @property
    def saves_every(self) -> float:
        """After so many seconds of training a job makes a commit."""

    def begin(self, job: Job) -> Batch:
        """Its batch where it begins to train on other devices."""

    def go_on(self, job: Job, epoch_ended: bool, saves: bool = False) -> Batch:
        """Its batch at the end of an epoch, where it `saves`, and at each look of the policy."""


class Policy(Protocol):
    """Who divides the devices."""

    def divide(self, now: float, jobs: Sequence[Job]) -> Mapping[str, Devices]:
        """The devices of each job from now on, by its name."""


class Moves(Protocol):
    """What a change of devices costs."""

    @property
    def pause(self) -> float:
        """Where joiners join."""

    def move(self, job: Job) -> None:
        """Begins a change to the devices that it was just given, one at least."""


@dataclass(frozen=True)
class Restarts:
    """Each change stops the job for a while."""

    seconds: float
    pause: float = 0.0

    def move(self, job: Job) -> None:
        """See Moves."""
        job.train_on(job.devices)
        job.waits, job.unsaved = self.seconds, 0.0


@dataclass(frozen=True)
class LiveMoves:
    """Ranks leave after a pause. A job trains on while joiners warm up, with those who leave for them."""

    start: float
    """Of a job that does not train."""
    warm: float
    pause: float

    def move(self, job: Job) -> None:
        """See Moves."""
        if not job.training:
            job.train_on(job.devices)
            job.waits, job.unsaved = self.start, 0.0
        elif Counter(job.devices) - Counter(job.training):
            job.joining = self.warm
        else:
            job.train_on(job.devices)
            job.waits += self.pause


def placement(devices: Devices) -> tuple[int, ...]:
    """The number of devices on each node, in the nodes' order."""
    return tuple(Counter(sorted(devices)).values())


def run(job: Job, agent: Agent, pause: float, now: float, seconds: float) -> None:
    """Lets a job train for this long, from now; `pause` is what joiners cost where they join."""
    left = seconds
    while left > 0 and job.ended is None and job.trains_on:
        span = min(left, job.waits)
        if span > 0:
            job.waits -= span
        else:
            span = _train(job, agent, left if job.joining is None else min(left, job.joining))
        left -= span
        job.service += span * len(job.devices)
        if job.epoch == job.model.epochs:
            job.ended = now + seconds - left
        if job.joining is not None:
            job.joining -= span
            if job.joining <= 1e-9:
                job.train_on(job.devices)
                job.waits += pause
                job.batch = agent.begin(job)


def _train(job: Job, agent: Agent, seconds: float) -> float:
    """Until this time is over, or the epoch, or a commit is due; the seconds that it took."""
    model, ranks, batch = job.model, sum(job.trains_on), job.batch
    seconds = min(seconds, agent.saves_every - job.unsaved)
    time = model.time(job.trains_on, batch.micro)
    samples = batch.of(ranks)
    job.noise = model.noise(samples, job.epoch)
    job.times.setdefault((len(job.trains_on), ranks, batch.micro), time)
    gain = job.noise.gain(samples / model.initial_batch)
    rate = gain / (time.step + batch.accumulation * (time.step - time.sync))
    needs = (model.end(job.epoch) - job.progress) / rate
    if ended := needs <= seconds:
        job.progress, job.epoch = model.end(job.epoch), job.epoch + 1
    else:
        job.progress += rate * seconds
    job.unsaved += min(needs, seconds)
    if saves := job.unsaved > agent.saves_every - 1e-9:
        job.unsaved = 0.0
    if job.epoch < model.epochs:
        job.batch = agent.go_on(job, ended, saves)
    return min(needs, seconds)


@dataclass(frozen=True)
class Cluster:
    """Who decides, what a move costs, and how often the policy looks."""

    policy: Policy
    agent: Agent
    moves: Moves
    interval: float

    def run(self, jobs: Sequence[Job]) -> None:
        """Until each job has ended."""
        now = 0.0
        while any(job.ended is None for job in jobs):
            if now > TOO_LONG:
                raise ValueError("jobs that never end: " + ", ".join(job.name for job in jobs if job.ended is None))
            for job in jobs:
                run(job, self.agent, self.moves.pause, now, self.interval)
            now += self.interval
            if active := [job for job in jobs if job.submitted <= now and job.ended is None]:
                self._divide(now, active)

    def _divide(self, now: float, active: Sequence[Job]) -> None:
        given = self.policy.divide(now, active)
        for job in active:
            devices = given.get(job.name, ())
            if devices == job.devices:
                continue
            job.devices = devices
            if not devices:
                job.train_on(())
                continue
            job.starts += 1
            self.moves.move(job)
            if job.training == devices:
                job.batch = self.agent.begin(job)
        check(active)


def check(jobs: Iterable[Job]) -> None:
    """No device is held twice."""
    used = sum((job.held() for job in jobs), Counter[int]())
    if any(count > DEVICES_OF_NODE or not 0 <= node < NODES for node, count in used.items()):
        raise ValueError(f"more devices than the nodes have: {dict(used)}")
