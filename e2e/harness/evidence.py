"""A training run's actions, computed from its log entries and traces: steps and samples lost or repeated, the pause.

Pure functions over the data of `e2e.harness.root`. A run's *turn* is the span of steps that the log counts as its own:
from the commit it resumed, or the step at which it took over the living run before it, or that of a lost run's image,
to the earliest place where a later run began, or the last commit of all. A step trained beyond its run's turn is lost
work; a sample that no turn consumed is lost, one consumed twice is repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Final

NO_STEP: Final = 2**63
"""Later than any."""


class NoEvidence(AssertionError):
    """The log or the trace lacks necessary data; the message names it."""


@dataclass(frozen=True)
class Entry:
    """One entry of the log, from its JSON."""

    seq: int
    kind: str
    uid: str
    run: int
    time: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class TracedStep:
    """One optimizer step of one rank: when it was done, and the samples found in the batch it trained on."""

    uid: str
    run: int
    rank: int
    step: int
    epoch: int
    time: float
    """Seconds since the epoch: all members share this machine's clock."""
    ids: tuple[int, ...]
    alone: bool = False
    """Whether the rank had lost another one, so that it is no finished step of the run unless a next run begins behind
    it."""


@dataclass(frozen=True)
class Mark:
    """Another record in a rank's trace: when it saw an exit request, for example."""

    uid: str
    run: int
    rank: int
    name: str
    time: float
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Of the preceding parts, if recorded."""


@dataclass(frozen=True)
class Turn:
    """The steps the log counts as this run's: after `start`, up to and including `end`, if that is not before it."""

    uid: str
    run: int
    start: int
    end: int


@dataclass(frozen=True)
class Samples:
    """How the ids of all turns compare with one permutation per epoch."""

    lost: int
    repeated: int
    foreign: int
    """Ids or epochs outside the data set and the goal."""


@dataclass(frozen=True)
class Gap:
    """The pause between two runs that trained."""

    before_run: int
    after_run: int
    last_step: int
    first_step: int
    stopped: float
    """When the last step before was done."""
    resumed: float
    """When the first step after was done, on the first rank."""

    @property
    def seconds(self) -> float:
        """The training pause; it includes the time of the first step itself."""
        return self.resumed - self.stopped


def turns(entries: Sequence[Entry], trace: Sequence[TracedStep] = ()) -> list[Turn]:
    """Every opened run with its own span of steps, in the order of the log.

    If a run could not use the newest commit, only the trace shows that it began with an older one.
    """
    opened = [entry for entry in entries if entry.kind == "Opened"]
    if not opened:
        raise NoEvidence("the log has no Opened entry: no run ever started training")
    starts = [min(_first_step(entry, entries), _first_traced(entry, trace) - 1) for entry in opened]
    ends = list(accumulate(reversed([*starts[1:], _last_position(entries)]), min))[::-1]
    return [Turn(entry.uid, entry.run, start, end) for entry, start, end in zip(opened, starts, ends, strict=True)]


def took_over(entries: Sequence[Entry], run: int) -> bool:
    """Whether this run began by taking over a living one, according to the log."""
    return any(entry.kind == "Opened" and entry.run == run and entry.body.get("takesOver") for entry in entries)


def worlds(entries: Sequence[Entry]) -> dict[int, int]:
    """The ranks of each run of a job, by its number."""
    return {entry.run: int(entry.body["world"]) for entry in entries if entry.kind == "Opened"}


def _first_step(opened: Entry, entries: Sequence[Entry]) -> int:
    if opened.body.get("takesOver"):
        return int(opened.body["step"])
    if image := opened.body.get("image"):
        return int(image["step"])
    resumes = opened.body["resumes"]
    if resumes is None:
        return 0
    commit = next((entry for entry in entries if entry.seq == resumes and entry.kind == "Committed"), None)
    if commit is None:
        raise NoEvidence(f"run {opened.run} says that it resumed entry {resumes}, which is no commit in the log")
    return int(commit.body["step"])


def _last_position(entries: Sequence[Entry]) -> int:
    steps = [int(entry.body["step"]) for entry in entries if entry.kind in ("Committed", "Completed")]
    return steps[-1] if steps else 0


def steps_lost(entries: Sequence[Entry], trace: Sequence[TracedStep]) -> int:
    """Steps trained and then trained again, or never counted: work beyond each run's turn."""
    return sum(max(0, _last_traced(turn, trace) - max(turn.start, turn.end)) for turn in turns(entries, trace))


def contradiction(status: Mapping[str, Any], entries: Sequence[Entry], trace: Sequence[TracedStep]) -> str:
    """What is wrong with the lost steps in a finished job's status; "" for nothing.

    A rank may finish a step that others are in when the run is cut off: no other knows of it, or its trace is gone.
    """
    told, doubt, unreported = (int(status.get(name) or 0) for name in ("stepsLost", "stepsInDoubt", "runsUnreported"))
    most, ranks = steps_lost(entries, trace), {one.rank for one in trace}
    least = min(steps_lost(entries, [one for one in trace if one.rank == rank]) for rank in ranks) if ranks else 0
    words = f"status: {told} steps lost, {doubt} in doubt, {unreported} runs unreported; traces: {least} to {most} lost"
    if told > most + _cut_off(entries):
        return words
    return words if not unreported and told + doubt < least else ""


def _cut_off(entries: Sequence[Entry]) -> int:
    """How many runs have neither ended in the log nor been taken over live."""
    opened = [entry for entry in entries if entry.kind == "Opened"]
    taken = {(entry.uid, entry.body["takesOver"]) for entry in opened if entry.body.get("takesOver")}
    ended = {(one.uid, one.run) for one in entries if one.kind in ("Closed", "Completed") or one.body.get("final")}
    return len({(entry.uid, entry.run) for entry in opened} - taken - ended)


def _first_traced(opened: Entry, trace: Sequence[TracedStep]) -> int:
    own = (step.step for step in trace if (step.uid, step.run) == (opened.uid, opened.run))
    return min(own, default=NO_STEP)


def _last_traced(turn: Turn, trace: Sequence[TracedStep]) -> int:
    own = (step for step in trace if (step.uid, step.run) == (turn.uid, turn.run) and not step.alone)
    return max((step.step for step in own), default=0)


def counted(entries: Sequence[Entry], trace: Sequence[TracedStep]) -> list[TracedStep]:
    """The traced steps that became part of the result."""
    spans = {(turn.uid, turn.run): range(turn.start + 1, turn.end + 1) for turn in turns(entries, trace)}
    return [step for step in trace if step.step in spans.get((step.uid, step.run), ())]


def untraced(entries: Sequence[Entry], trace: Sequence[TracedStep]) -> list[tuple[int, int]]:
    """(run, step) of steps that the log counts but not every rank of that run traced: evidence is missing."""
    worlds = {(entry.uid, entry.run): int(entry.body["world"]) for entry in entries if entry.kind == "Opened"}
    seen = Counter((step.uid, step.run, step.step) for step in set(trace))
    return [
        (turn.run, step)
        for turn in turns(entries, trace)
        for step in range(turn.start + 1, turn.end + 1)
        if seen[turn.uid, turn.run, step] != worlds[turn.uid, turn.run]
    ]


def samples(entries: Sequence[Entry], trace: Sequence[TracedStep], *, size: int, epochs: int) -> Samples:
    """Compare the ids of all turns with exactly one permutation of `size` samples in each of `epochs` epochs."""
    seen = Counter((step.epoch, sample) for step in counted(entries, trace) for sample in step.ids)
    wanted = {(epoch, sample) for epoch in range(epochs) for sample in range(size)}
    return Samples(
        lost=len(wanted - seen.keys()),
        repeated=sum(times - 1 for times in seen.values()),
        foreign=len(seen.keys() - wanted),
    )


def batches(entries: Sequence[Entry], trace: Sequence[TracedStep]) -> list[tuple[int, tuple[int, ...]]]:
    """Each counted step with the samples of all its ranks: the global batches, which must not depend on the number of
    ranks."""
    found: dict[int, list[int]] = {}
    for step in counted(entries, trace):
        found.setdefault(step.step, []).extend(step.ids)
    return [(step, tuple(sorted(found[step]))) for step in sorted(found)]


def gaps(trace: Sequence[TracedStep]) -> list[Gap]:
    """The pauses between the runs of one job that trained, in order."""
    runs = sorted({step.run for step in trace})
    return [_gap(before, after, trace) for before, after in pairwise(runs)]


def _gap(before: int, after: int, trace: Sequence[TracedStep]) -> Gap:
    last = max((step for step in trace if step.run == before), key=lambda step: (step.step, step.time))
    first = min((step for step in trace if step.run == after), key=lambda step: (step.step, step.time))
    return Gap(before, after, last.step, first.step, last.time, first.time)
