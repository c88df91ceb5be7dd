"""What a session is about to do, as frozen values, with a text for people and plain JSON for programs. Pure.

Made by perdure.session.describing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

_INDENT: Final = "  "
_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


@dataclass(frozen=True)
class StartPoint:
    """Where the training stands, or would begin."""

    run: int
    """The run's number; one that is not open yet would have it."""
    opened: bool
    """Whether the run is open in the log: then `step` and `epoch` are those of now."""
    step: int
    """Optimizer steps done, of all runs together."""
    epoch: int
    """Finished epochs, of all loops and runs together."""
    commit: int | None = None
    """The number in the log of the commit that it goes on from, or of the newest one; None without one."""
    uri: str = ""
    """The root of that commit, where it is another one."""
    made: str = ""
    """When that commit was made, UTC; empty where the run is open."""
    goal: Mapping[str, Any] | None = None
    """The goal that an earlier run has recorded as reached."""

    def __str__(self) -> str:
        done = f"step {self.step}, epoch {self.epoch}"
        if self.opened:
            newest = "nothing is committed yet" if self.commit is None else f"the newest commit is entry {self.commit}"
            return f"run {self.run} is on, {done}; {newest}"
        if self.commit is None:
            return f"run {self.run} would start afresh, step 0"
        where = f" of {self.uri}" if self.uri else ""
        from_ = f"entry {self.commit}{where}, {done}, made {self.made}"
        if self.goal is not None:
            return f"already complete: {_listed(self.goal)}; {from_}"
        return f"run {self.run} would resume from {from_}"


@dataclass(frozen=True)
class Loop:
    """An epoch loop."""

    number: int
    """From 1, in the order in which the script makes them."""
    limits: Mapping[str, float]
    """What ends it by a number: epochs, max_steps, max_seconds."""
    conditions: tuple[str, ...]
    """What else does, by name."""
    done: int
    """Its epochs that are finished."""

    def __str__(self) -> str:
        ends = [*(f"{name} {value:g}" for name, value in self.limits.items()), *self.conditions]
        return f"loop {self.number} ends at {' or '.join(ends)}; epochs done: {self.done}"


@dataclass(frozen=True)
class Moment:
    """A moment of the training at which something of the script's own is called, in the order of the moments."""

    name: str
    """As in `session.on(name)`."""
    functions: tuple[str, ...]


@dataclass(frozen=True)
class Handed:
    """What a loader, or `session.steps`, hands out."""

    name: str
    batches: int
    """Of an epoch."""
    samples: int | None
    """Of the dataset; None for numbers of steps."""
    batch: int
    """Samples of a global batch, of all ranks together."""
    shares: tuple[int, ...]
    """Samples of a whole batch that each rank has, by rank."""
    shuffle: bool
    drop_last: bool

    def __str__(self) -> str:
        if self.samples is None:
            return f"{self.batches} an epoch"
        order = f"{', shuffled' if self.shuffle else ''}{', without a ragged end' if self.drop_last else ''}"
        return f"{self.samples:,} samples{order}: {self.batches:,} batches of {self.batch} an epoch, {self._shares()}"

    def _shares(self) -> str:
        if len(self.shares) == 1:
            return "all on the one rank"
        least, most = min(self.shares), max(self.shares)
        if least == most:
            return f"{most} on each of {len(self.shares)} ranks"
        first, world = self.shares.count(most), len(self.shares)
        return f"{most} on the first{f' {first}' if first > 1 else ''} of {world} ranks, {least} on the others"


@dataclass(frozen=True)
class Registered:
    """What belongs to the state of training."""

    name: str
    kind: str
    """The name of its class."""
    tensors: int
    bytes: int
    """Of its tensors as they are now: an optimizer has none before its first step."""
    parameters: int | None = None
    """How many numbers a module's parameters have; None for what is no module."""
    trained: int | None = None
    """Those of them that require a gradient."""
    by_rank: bool = False
    """Whether each rank has its own, which is saved by rank: `register(merge={...})`."""

    def __str__(self) -> str:
        size = f"{self.tensors} tensor{'s' * (self.tensors != 1)}, {_size(self.bytes)}" if self.tensors else "no tensor"
        if self.parameters is None:
            return f"{self.kind}, {size}{', of each rank' * self.by_rank}"
        trained = "" if self.trained == self.parameters else f", {self.trained:,} of them trained"
        return f"{self.kind}, {self.parameters:,} parameters{trained}, {size}"


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with the script."""

    name: str
    """Of the kind, for programs: unregistered-parameters, say."""
    text: str
    """The object, what is wrong with it, and the remedy."""
    certain: bool = True
    """False for what may be meant so."""


@dataclass(frozen=True)
class Description:
    """What a session is about to do. `str` gives the text for people, `plain()` what JSON takes."""

    root: str
    """Where the checkpoints are."""
    rank: int
    """Of the process that describes."""
    world: int
    """How many processes the run has."""
    device: str
    deterministic: bool
    seed: int
    every: Mapping[str, float]
    """How often a checkpoint is made: steps, seconds, epochs."""
    keep: int
    """How many are kept."""
    exits: tuple[str, ...]
    """What asks the run to save and leave."""
    start: StartPoint
    loop: Loop | None
    """The loop that is on, or was the last; None before the first."""
    phases: tuple[Moment, ...]
    """The hooks, in the order of their moments."""
    loaders: tuple[Handed, ...]
    registered: tuple[Registered, ...]
    findings: tuple[Finding, ...] = ()
    """What is wrong, as far as it can be seen."""

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        ranks = f"{self.world} rank{'s' * (self.world > 1)}"
        yield f"{self.root}, {ranks} on {self.device}, seed {self.seed}{', deterministic' * self.deterministic}"
        yield f"{_INDENT}{self.start}"
        yield f"{_INDENT}a checkpoint every {' and every '.join(_every(self.every))}; {self.keep} are kept"
        yield f"{_INDENT}saves and leaves on {', '.join(self.exits)}"
        yield from _block("epochs", [("", str(self.loop) if self.loop else "epochs() is not called yet")])
        yield from _block("hooks", [(phase.name, ", ".join(phase.functions)) for phase in self.phases])
        yield from _block("loaders", [(loader.name, str(loader)) for loader in self.loaders])
        yield from _block("registered", [(thing.name, str(thing)) for thing in self.registered])
        found = [("wrong" if finding.certain else "doubtful", finding.text) for finding in self.findings]
        yield from _block("findings", found)


def _block(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield f"{_INDENT}{title}{'' if rows else ': none'}"
    width = max((len(name) for name, _ in rows), default=0)
    yield from (f"{_INDENT * 2}{name.ljust(width)}{_INDENT if width else ''}{text}" for name, text in rows)


def _every(every: Mapping[str, float]) -> list[str]:
    return [f"{value:g} {name}" for name, value in every.items()]


def _listed(limits: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {', '.join(value) if isinstance(value, list) else value}" for name, value in limits.items()
    )


def _size(count: float) -> str:
    """Bytes, for people."""
    unit = 0
    while count >= 1000 and unit < len(_UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {_UNITS[unit]}" if unit else f"{count} {_UNITS[0]}"
