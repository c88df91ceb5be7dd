"""Random training scripts as values: what a user may combine, drawn from a seed.

A Program is everything that a script, and its disturbances, depend on; its defaults are the plainest script, so that a
failing one is made smaller by setting fields back. Pure: no torch, nothing is run here. Called by the tests of this
folder through `play`; `script` writes a Program out as Python.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, TypeVar

T = TypeVar("T")

WORLDS: Final = (1, 1, 1, 1, 2, 2, 2, 3, 4)
SOURCES: Final = ("loader", "loader", "loader", "in the loop", "one after another", "zip", "steps")
SCHEDULERS: Final = ("", "StepLR", "CosineAnnealingLR", "OneCycleLR", "SequentialLR", "ReduceLROnPlateau")
PLACES: Final = ("before", "after", "epoch")
"""Of a scheduler's step: before or after session.step(), or once an epoch."""
ENDS: Final = ("", "", "", "break", "stop", "max_steps")
MOST_BATCHES: Final = 8
READERS: Final = ("", "", "rewind", "on")
SPOTS: Final = ("above", "between", "outside")
"""Of a pass by itself over the evaluation: above a batch loop, between two of them, and outside of the epoch loops."""
KINDS: Final = ("term", "term", "kill", "term, kill")


@dataclass(frozen=True)
class Evaluation:
    """A pass over other samples; `every` steps within the epoch, or below the batch loop."""

    every: int = 0
    """0: below the batch loop."""
    shared: bool = False
    """By a loader of the session's rather than the script's own."""
    poll: bool = False
    dropout: bool = False
    """It draws random numbers."""


@dataclass(frozen=True)
class Phase:
    """One loop over epochs, and what ends it early: one of ENDS, when epoch `at` is done."""

    epochs: int = 2
    end: str = ""
    at: int = 0


@dataclass(frozen=True)
class Disturbance:
    """What happens to one run, at which of the moments that its script passes."""

    kind: str
    """term: SIGTERM. kill: SIGKILL. Both: the second one `delay` milliseconds after the first."""
    moment: int
    delay: int = 0
    """Milliseconds from the moment to the SIGKILL."""
    rank: int | None = None
    """The rank that gets SIGTERM; None: all."""


@dataclass(frozen=True)
class Program:
    """A script, its surroundings and its misfortunes."""

    world: int = 1
    samples: int = 32
    batch: int = 8
    source: str = "loader"
    shuffle: bool = True
    drop_last: bool = False
    augment: bool = False
    """The dataset draws random numbers."""
    batchnorm: bool = False
    dropout: bool = False
    adam: bool = False
    averaged: bool = False
    scheduler: str = ""
    place: str = "after"
    accumulate: int = 1
    leftovers: bool = False
    """Batches that do not fill a step are left over at the epoch's end, rather than stepped on."""
    cut: int = 0
    """Batches after which the batch loop is left by `break`."""
    noise: bool = False
    """Each step draws from Python's, NumPy's and torch's generators."""
    head_noise: bool = False
    """So does the code above the batch loop."""
    counted: bool = False
    """session.state is written at each step."""
    best: bool = False
    """session.state is written at each epoch's end."""
    hooks: bool = False
    summed: bool = False
    """Accumulators are added to and read above, in, between and below the batch loops, and in evaluations."""
    noise_between: bool = False
    """Code between two loaders draws random numbers."""
    positioned: bool = False
    """Evaluations are by a loader of the session's that goes on where it was broken, and read from an accumulator."""
    spots: tuple[str, ...] = ()
    """Some of SPOTS."""
    reader: str = ""
    """The first loader takes as many samples an epoch of a larger dataset: some of READERS."""
    until: bool = False
    """The loops end by the number of epochs of all of them."""
    asks: bool = False
    """Each batch ends with the question whether to stop."""
    evaluations: tuple[Evaluation, ...] = ()
    phases: tuple[Phase, ...] = (Phase(),)
    save_every: int = 0
    with_: bool = True
    """The session is used as a context manager."""
    restore: bool = False
    """perdure.restore(session) is called before epochs()."""
    every_steps: int = 0
    every_epochs: int = 0
    check_seconds: float = 0.0
    keep: int = 3
    hurried: bool = False
    """SIGKILL is announced for a few seconds after SIGTERM, not for minutes."""
    again: bool = False
    """The finished job is run once more."""
    disturbances: tuple[Disturbance, ...] = ()

    @property
    def batches(self) -> int:
        """Global batches of a whole epoch of the first loader."""
        return self.samples // self.batch if self.drop_last else -(-self.samples // self.batch)

    @property
    def steps(self) -> int:
        """At most, over all epochs."""
        factor = 2 if self.source == "one after another" else 1
        return factor * self.batches * sum(phase.epochs for phase in self.phases)


def drawn(seed: int, without: Iterable[str] = ()) -> Program:
    """The program of a seed, with the named parts set back to their defaults."""
    draw = random.Random(seed)  # noqa: S311
    world = draw.choice(WORLDS)
    program = Program(
        world=world,
        samples=draw.randrange(24, 65),
        batch=world * draw.choice((2, 3, 4, 6)) if world > 1 else draw.choice((7, 8, 12)),
        source=draw.choice(SOURCES),
        shuffle=draw.random() < 0.8,
        drop_last=draw.random() < 0.3,
        augment=draw.random() < 0.3,
        batchnorm=draw.random() < 0.3,
        dropout=draw.random() < 0.5,
        adam=draw.random() < 0.5,
        averaged=draw.random() < 0.3,
        scheduler=draw.choice(SCHEDULERS),
        place=draw.choice(PLACES),
        accumulate=draw.choice((1, 1, 2, 3)),
        leftovers=draw.random() < 0.4,
        cut=draw.choice((0, 0, 0, 0, 3)),
        noise=draw.random() < 0.4,
        head_noise=draw.random() < 0.3,
        counted=draw.random() < 0.4,
        best=draw.random() < 0.4,
        hooks=draw.random() < 0.3,
        evaluations=tuple(_evaluation(draw) for _ in range(draw.choice((0, 1, 1, 2)))),
        phases=tuple(_phase(draw) for _ in range(draw.choice((1, 1, 2)))),
        save_every=draw.choice((0, 0, 0, 3)),
        with_=draw.random() < 0.7,
        restore=draw.random() < 0.2,
        every_steps=draw.choice((0, 0, 0, 2, 5)),
        every_epochs=draw.choice((0, 0, 1)),
        check_seconds=draw.choice((0.0, 0.05)),
        keep=draw.choice((1, 3)),
        hurried=draw.random() < 0.2,
        again=draw.random() < 0.2,
    )
    moments = _moments(program)
    disturbances = tuple(_disturbance(draw, world, moments) for _ in range(draw.choice((1, 1, 2, 3))))
    later = random.Random(f"sums {seed}")  # noqa: S311 - of its own: the values drawn above stay the same
    program = replace(program, summed=later.random() < 0.5, noise_between=later.random() < 0.5)
    last = random.Random(f"positions {seed}")  # noqa: S311 - the same
    program = replace(
        program,
        positioned=last.random() < 0.5,
        spots=tuple(spot for spot in SPOTS if last.random() < 0.5),
        reader=last.choice(READERS),
        until=last.random() < 0.3,
        asks=last.random() < 0.2,
    )
    return sane(plainer(replace(program, disturbances=disturbances), without))


def plainer(program: Program, names: Iterable[str]) -> Program:
    """Without these parts: names of fields, and `disturbances:0` for one of several."""
    plain = Program(world=program.world)
    for name in names:
        field, _, number = name.partition(":")
        value = getattr(plain, field)
        if number:
            value = tuple(one for index, one in enumerate(getattr(program, field)) if index != int(number))
        program = replace(program, **{field: value})
    return program


def parts(program: Program) -> list[str]:
    """What `plainer` can take away, the largest first."""
    names = [
        f"{name}:{number}"
        for name in ("disturbances", "evaluations", "phases")
        for number in reversed(range(len(getattr(program, name))))
        if len(getattr(program, name)) > 1
    ]
    plain = Program(world=program.world)
    return names + [
        field.name
        for field in fields(Program)
        if field.name not in ("world", "disturbances") and getattr(program, field.name) != getattr(plain, field.name)
    ]


def sane(program: Program) -> Program:
    """What a user would not write, or what the documentation excludes, is taken back."""
    for rule in _RULES:
        program = rule(program)
    return program


def _whole_batches(program: Program) -> Program:
    """A rank with one sample is refused by BatchNorm; one without any has no loss."""
    left = program.samples % program.batch
    if program.batchnorm or (0 < left < program.world):
        return replace(program, drop_last=True)
    return program


def _one_position(program: Program) -> Program:
    """train.batch_index counts the batches of one loader, which accumulation and a cut need."""
    if program.source in ("one after another", "zip"):
        program = replace(program, noise_between=program.noise_between and program.source == "one after another")
        return replace(program, accumulate=1, cut=0)
    program = replace(program, noise_between=False)
    if program.source == "steps":
        return replace(program, averaged=program.averaged and program.world == 1)
    return program


def _a_step_in_each_epoch(program: Program) -> Program:
    least = min(program.batches, program.cut or program.batches)
    return replace(program, accumulate=1) if program.accumulate > least else program


def _few_batches(program: Program) -> Program:
    """But more than one: the second loader has one less."""
    return replace(program, samples=min(max(program.samples, 2 * program.batch), MOST_BATCHES * program.batch))


def _stepped_before_the_cut(program: Program) -> Program:
    """Gradients without a step are left over by a cut as they are at the end: that is the leftovers' case."""
    return replace(program, leftovers=True) if program.cut else program


def _one_plateau(program: Program) -> Program:
    return replace(program, place="epoch") if program.scheduler == "ReduceLROnPlateau" else program


def _positions(program: Program) -> Program:
    """A pass that goes on in its middle is summed up by an accumulator, and the steps of a reader are a loader's."""
    if not program.positioned:
        program = replace(program, spots=())
    elif "between" in program.spots and program.source != "one after another":
        program = replace(program, spots=tuple(spot for spot in program.spots if spot != "between"))
    if program.source in ("in the loop", "steps"):
        program = replace(program, reader="")
    return replace(program, summed=program.summed or program.positioned)


def _time_for_polls(program: Program) -> Program:
    """Where time is short a poll between two steps leaves there, and the rest of that step is not made up for."""
    polled = any(one.every and (one.poll or program.positioned) for one in program.evaluations)
    return (
        replace(program, hurried=False, disturbances=tuple(map(_in_time, program.disturbances))) if polled else program
    )


def _in_time(disturbance: Disturbance) -> Disturbance:
    """Such a poll saves in case no one waits: a run that is killed right then begins behind the rest of the step."""
    return replace(disturbance, kind=disturbance.kind.removesuffix(", kill"), delay=0)


_RULES: Final[Sequence[Callable[[Program], Program]]] = (
    _few_batches,
    _whole_batches,
    _one_position,
    _a_step_in_each_epoch,
    _stepped_before_the_cut,
    _one_plateau,
    _positions,
    _time_for_polls,
)


def _evaluation(draw: random.Random) -> Evaluation:
    every = draw.choice((0, 0, 2, 3))
    return Evaluation(every, draw.random() < 0.4, draw.random() < 0.5, draw.random() < 0.5)


def _phase(draw: random.Random) -> Phase:
    epochs = draw.choice((1, 2, 2, 3))
    return Phase(epochs, draw.choice(ENDS), draw.randrange(epochs))


def _moments(program: Program) -> int:
    """About how many moments a whole undisturbed run passes."""
    return 3 * program.steps + 6 * sum(phase.epochs for phase in program.phases)


def _disturbance(draw: random.Random, world: int, moments: int) -> Disturbance:
    kind = draw.choice(KINDS)
    moment = draw.randrange(1, draw.choice((10, moments // 2, moments)) + 1)
    delay = draw.choice((0, draw.randrange(40))) if "kill" in kind else 0
    rank = draw.choice((None, draw.randrange(world)))
    return Disturbance(kind, moment, delay, draw.randrange(world) if kind == "kill" else rank)
