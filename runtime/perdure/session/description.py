"""What a session is about to do, as frozen values, with a text for people and plain JSON for programs. Pure.

Made by perdure.session.describing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from perdure.console import in_bytes

_INDENT: Final = "  "


@dataclass(frozen=True)
class StartPoint:
    """Where the training is, or would begin."""

    run: int
    """The run's number, or the number that it would get."""
    opened: bool
    """Whether the run is open in the log; then `step` and `epoch` are the present ones."""
    step: int
    """Optimizer steps done, of all runs together."""
    epoch: int
    """Finished epochs, of all loops and runs together."""
    commit: int | None = None
    """Number in the log of the commit that the run continues from, or of the newest one; None without a commit."""
    uri: str = ""
    """The root of that commit, if it is another root."""
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
    """The number of the loop, from 1, in the order in which the script makes them."""
    limits: Mapping[str, float]
    """Limits by number: epochs, max_steps, max_seconds."""
    conditions: tuple[str, ...]
    """The other conditions that end it, by name."""
    done: int
    """Finished epochs of it."""

    def __str__(self) -> str:
        ends = [*(f"{name} {value:g}" for name, value in self.limits.items()), *self.conditions]
        return f"loop {self.number} ends at {' or '.join(ends)}; epochs done: {self.done}"


@dataclass(frozen=True)
class Moment:
    """A moment of the training, and the script's functions that are called then."""

    name: str
    """The name of the moment, as in `session.on(name)`."""
    functions: tuple[str, ...]


@dataclass(frozen=True)
class LoaderDescription:
    """What a loader, or `session.steps`, hands out."""

    name: str
    batches: int
    """Batches in an epoch."""
    samples: int | None
    """Samples in the dataset; None for `session.steps`."""
    batch: int
    """Samples in a global batch, of all ranks together."""
    shares: tuple[int, ...]
    """Each rank's samples in a full batch, by rank."""
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
    """An object that belongs to the training state."""

    name: str
    kind: str
    """The name of its class."""
    tensors: int
    bytes: int
    """Size of its tensors now; an optimizer has none before its first step."""
    parameters: int | None = None
    """Numbers in a module's parameters; None for other objects."""
    trained: int | None = None
    """How many of these require a gradient."""
    by_rank: bool = False
    """Whether each rank saves its own, as with `register(merge={...})`."""

    def __str__(self) -> str:
        tensors = f"{self.tensors} tensor{'s' * (self.tensors != 1)}"
        size = f"{tensors}, {in_bytes(self.bytes)}" if self.tensors else "no tensor"
        if self.parameters is None:
            return f"{self.kind}, {size}{', of each rank' * self.by_rank}"
        trained = "" if self.trained == self.parameters else f", {self.trained:,} of them trained"
        return f"{self.kind}, {self.parameters:,} parameters{trained}, {size}"


@dataclass(frozen=True)
class Finding:
    """A mistake in the script."""

    name: str
    """Its kind, for programs, such as `unregistered-parameters`."""
    text: str
    """The object, what is wrong with it, and the remedy."""
    certain: bool = True
    """False if the script may intend it."""


@dataclass(frozen=True)
class Description:
    """What a session is about to do. `str()` gives text for people, `plain()` gives JSON."""

    root: str
    """Where the checkpoints are."""
    rank: int
    """Rank of the process that describes."""
    world: int
    """How many processes the run has."""
    device: str
    deterministic: bool
    seed: int
    every: Mapping[str, float]
    """How often a checkpoint is made, in steps, seconds and epochs."""
    keep: int
    """How many checkpoints are kept."""
    keep_every: int | None
    """The first checkpoint of every so many steps is kept, too; None: none is."""
    exits: tuple[str, ...]
    """What asks the run to save and leave."""
    start: StartPoint
    loop: Loop | None
    """The current loop, or the last one; None before the first."""
    phases: tuple[Moment, ...]
    """The hooks, by moment."""
    loaders: tuple[LoaderDescription, ...]
    registered: tuple[Registered, ...]
    findings: tuple[Finding, ...] = ()
    """Mistakes, as far as they can be seen."""

    def plain(self) -> dict[str, Any]:
        """The description as values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        ranks = f"{self.world} rank{'s' * (self.world > 1)}"
        yield f"{self.root}, {ranks} on {self.device}, seed {self.seed}{', deterministic' * self.deterministic}"
        yield f"{_INDENT}{self.start}"
        kept = f"{self.keep} are kept{f', and the first of every {self.keep_every} steps' if self.keep_every else ''}"
        yield f"{_INDENT}a checkpoint every {' and every '.join(_every(self.every))}; {kept}"
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
