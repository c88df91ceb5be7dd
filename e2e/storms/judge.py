"""Judges a storm by its evidence: log, traces, polled status, faults and drains, as files. Pure, except for `read`.

It knows formats and words from the documentation, and imports nothing of Perdure or the harness: it compares what the
product and a scenario believe with what was trained and stored.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

GAP_SECONDS: Final = 20.0
"""The longest gap in training, while no process is frozen."""
DRAIN_SECONDS: Final = 60.0
"""The longest drain, once the fault is over."""
SLACK_SECONDS: Final = 1.0
"""The difference of two clocks for the same event."""
STANDS_SECONDS: Final = 5.0
"""A training rank does a step in less."""
LATE_SECONDS: Final = 10.0
"""Events this old are known to every observer."""
DOWN: Final = frozenset({"store-frozen", "store-cut", "store-mute", "store-500", "store-403"})
"""A store that answers nothing, or only errors; a slow one does its work."""


@dataclass(frozen=True)
class Entry:
    """One entry of the log."""

    kind: str
    run: int
    time: float
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One step that a rank has finished."""

    run: int
    rank: int
    step: int
    time: float


@dataclass(frozen=True)
class Fault:
    """A disturbance, from start to end; `end` of a kill is its start."""

    what: str
    """The first word is the kind: killed, everything-killed, frozen, cut, or the store's."""
    start: float
    end: float
    alone: bool = True
    """Nothing else was wrong."""
    killed: tuple[tuple[int, int], ...] = ()
    """(run, rank) of the killed processes: they take their last second of evidence with them."""
    links: tuple[tuple[str, str], ...] = ()
    """The pods that did not reach each other."""

    @property
    def kind(self) -> str:
        """The disturbance in one word."""
        return self.what.partition(" ")[0]


@dataclass(frozen=True)
class Drain:
    """One `kubectl drain`."""

    node: str
    start: float
    end: float
    status: int


@dataclass(frozen=True)
class Poll:
    """The status at one moment."""

    time: float
    status: Mapping[str, Any]


@dataclass(frozen=True)
class Wrong:
    """A broken promise."""

    promise: str
    time: float
    words: str


@dataclass(frozen=True)
class Storm:
    """All known facts of one storm."""

    entries: Sequence[Entry]
    steps: Sequence[Step]
    faults: Sequence[Fault]
    drains: Sequence[Drain]
    polls: Sequence[Poll]
    alive: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By name, from when to when each pod has been running."""
    members: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """By run, the pods in which its ranks began."""

    @cached_property
    def times(self) -> Mapping[int, Sequence[float]]:
        """By run, when any of its ranks finished a step."""
        found: dict[int, list[float]] = {}
        for step in sorted(self.steps, key=lambda one: one.time):
            found.setdefault(step.run, []).append(step.time)
        return found

    def trained(self, run: int, start: float, end: float) -> int:
        """How many steps the ranks of this run finished in that time, all together."""
        times = self.times.get(run, ())
        return bisect_right(times, end) - bisect_left(times, start)

    def anybody_trained(self, start: float, end: float) -> bool:
        """Whether a step of any run was finished in that time."""
        return any(self.trained(run, start, end) for run in self.times)

    def opened(self, until: float) -> list[int]:
        """The runs that the log had opened by then."""
        return [one.run for one in self.entries if one.kind == "Opened" and one.time <= until]

    @property
    def killed(self) -> set[tuple[int, int]]:
        """(run, rank) of all that were killed."""
        return {one for fault in self.faults for one in fault.killed}


def judge(storm: Storm) -> list[Wrong]:
    """Every broken promise, in order of time."""
    found = [*_redone(storm), *_gaps(storm), *_drains(storm), *_lies(storm), *_history(storm)]
    return sorted(found, key=lambda one: one.time)


def summed_up(found: Iterable[Wrong], start: float) -> list[str]:
    """One line for all broken promises with the same words."""
    rows: dict[tuple[str, str], list[float]] = {}
    for one in found:
        rows.setdefault((one.promise, one.words), []).append(one.time - start)
    lines = []
    for (promise, words), times in rows.items():
        until = f" to {times[-1]:.0f} s ({len(times)} polls)" if len(times) > 1 else ""
        lines.append(f"{promise}: at {times[0]:.0f} s{until}: {words}")
    return lines


def redone(storm: Storm) -> list[tuple[int, float]]:
    """Steps that a surviving rank had finished in an older run, and when they were finished again."""
    firsts: dict[int, dict[int, float]] = {}
    safe: dict[int, set[int]] = {}
    for one in storm.steps:
        runs = firsts.setdefault(one.step, {})
        runs[one.run] = min(runs.get(one.run, one.time), one.time)
        if (one.run, one.rank) not in storm.killed:
            safe.setdefault(one.step, set()).add(one.run)
    found = []
    for step, runs in sorted(firsts.items()):
        again = [run for run in runs if any(older < run for older in safe.get(step, ()))]
        found += [(step, runs[run]) for run in again]
    return found


def _redone(storm: Storm) -> Iterator[Wrong]:
    """A single fault repeats none."""
    by_fault: dict[Fault | None, list[int]] = {}
    for step, time in redone(storm):
        by_fault.setdefault(_blamed(storm, time), []).append(step)
    for fault, steps in by_fault.items():
        if fault is None or fault.alone:
            words = (
                f"{len(steps)} steps redone ({min(steps)} to {max(steps)}) after {fault.what if fault else 'nothing'}"
            )
            yield Wrong("no finished step is redone", fault.start if fault else 0.0, words)


def _blamed(storm: Storm, time: float) -> Fault | None:
    """The newest fault that had begun."""
    begun = [fault for fault in storm.faults if fault.start <= time]
    return max(begun, key=lambda fault: fault.start, default=None)


def gaps(storm: Storm) -> list[tuple[float, float]]:
    """When no rank finished a new step, though training was possible: the longest stretch of each pause."""
    first: dict[int, float] = {}
    for one in storm.steps:
        first[one.step] = min(first.get(one.step, one.time), one.time)
    pauses = pairwise(sorted(first.values()))
    return [max(_without(one, _excuses(storm, one)), key=_length, default=(one[1], one[1])) for one in pauses]


def _excuses(storm: Storm, pause: tuple[float, float]) -> list[tuple[float, float]]:
    """When training was impossible, in this pause:

    * while a process was frozen
    * while two ranks of one run did not reach each other
    * while the store was down, if a live hand-over was decided in this pause: once all have voted, only the log knows
      who trains

    Any other pause counts: saves back off while the store is down, a slow store is no obstacle to a hand-over, and a
    newcomer that nobody reaches is not waited for.
    """
    decided = any(pause[0] - SLACK_SECONDS <= one.time <= pause[1] + SLACK_SECONDS for one in _decisions(storm))
    return [
        (fault.start, fault.end)
        for fault in storm.faults
        if fault.kind == "frozen" or _between_ranks(storm, fault) or (fault.kind in DOWN and decided)
    ]


def _decisions(storm: Storm) -> list[Entry]:
    """The entries that said which run trains after a live hand-over."""
    return [one for one in storm.entries if one.kind == "Refused" or _took_over(one)]


def _took_over(entry: Entry) -> bool:
    return entry.kind == "Opened" and bool(entry.body.get("takesOver"))


def _between_ranks(storm: Storm, fault: Fault) -> bool:
    """Whether it cut a link between two ranks of a run that was open meanwhile."""
    older = storm.opened(fault.start)[:-1]
    runs = storm.opened(fault.end)[len(older) :]
    return any({one, other} <= set(storm.members.get(run, ())) for run in runs for one, other in fault.links)


def _length(span: tuple[float, float]) -> float:
    return span[1] - span[0]


def _without(span: tuple[float, float], others: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    left = [span]
    for start, end in others:
        cut = [(a, min(b, start)) for a, b in left] + [(max(a, end), b) for a, b in left]
        left = [(a, b) for a, b in cut if a < b]
    return left


def _gaps(storm: Storm) -> Iterator[Wrong]:
    for start, end in gaps(storm):
        if end - start > GAP_SECONDS:
            fault = _blamed(storm, end)
            words = f"no rank trained for {end - start:.1f} s after {fault.what if fault else 'nothing'}"
            yield Wrong("no gap above 20 s where training was possible", start, words)


def drained(storm: Storm) -> list[tuple[Drain, float]]:
    """Each drain, and its duration after the last fault that fell into it was over."""
    found = []
    for one in storm.drains:
        ends = [fault.end for fault in storm.faults if fault.start < one.end and fault.end > one.start]
        found.append((one, one.end - max([one.start, *(min(end, one.end) for end in ends)])))
    return found


def _drains(storm: Storm) -> Iterator[Wrong]:
    for one, seconds in drained(storm):
        if one.status or seconds > DRAIN_SECONDS:
            fault = _blamed(storm, one.end)
            words = f"{seconds:.1f} s (status {one.status}) after {fault.what if fault else 'nothing'}"
            yield Wrong("no drain above 60 s after the fault has ended", one.start, words)


def _lies(storm: Storm) -> Iterator[Wrong]:
    for poll in storm.polls:
        for claim in (_counts, _run_that_is_on, _phase, _conditions):
            for words in claim(storm, poll.status, poll.time):
                yield Wrong("status is true at every poll", poll.time, words)


def _counts(storm: Storm, status: Mapping[str, Any], now: float) -> Iterator[str]:
    """The reported numbers."""
    opened = max(storm.opened(now + SLACK_SECONDS), default=0)
    if (told := int(status.get("opened") or 0)) > opened:
        yield f"opened is {told}, and the log has opened {opened}"
    stored = (one for one in storm.entries if one.kind == "Committed" and one.time <= now + SLACK_SECONDS)
    if (step := status.get("step")) is not None and int(step) not in {int(one.body["step"]) for one in stored}:
        yield f"step is {step}, and no such commit is in the log"
    if code := int((status.get("failures") or {}).get("code") or 0):
        yield f"{code} failures are said to be the script's own"


def _run_that_is_on(storm: Storm, status: Mapping[str, Any], now: float) -> Iterator[str]:
    current: Mapping[str, Any] = status.get("current") or {}
    plan: Mapping[str, Any] = current.get("plan") or {}
    run, older = int(current.get("run") or 0), int(plan.get("takesOver") or 0)
    claimed = plan.get("handover") and not current.get("unconfirmed") and run not in storm.opened(now + SLACK_SECONDS)
    if claimed and storm.trained(older, now + SLACK_SECONDS, now + LATE_SECONDS):
        yield f"run {run} is said to be on, the log has not opened it, and run {older} trains"
    calm = _condition(status, "Disrupted")["status"] == "False" and _condition(status, "Running")["status"] == "True"
    settled = max(storm.opened(now - LATE_SECONDS), default=0)
    if calm and run and settled > run:
        yield f"run {run} is said to be on and undisturbed, and the log has opened {settled}"


def _phase(storm: Storm, status: Mapping[str, Any], now: float) -> Iterator[str]:
    phase = status.get("phase")
    if phase == "Recovering" and (busy := _busy(storm, now)):
        yield f"the phase is Recovering, and run {busy} trains"
    if phase == "Failed":
        yield f"the job has failed: {_condition(status, 'Failed')['message']}"
    if phase == "Completed" and not any(one.kind == "Completed" for one in storm.entries):
        yield "the phase is Completed, and the log does not say so"


def _conditions(storm: Storm, status: Mapping[str, Any], now: float) -> Iterator[str]:
    said = _condition(status, "Disrupted")["message"]
    trains = "the run trains on" in said and "or waits for run" not in said
    if trains and not storm.anybody_trained(now - STANDS_SECONDS, now + STANDS_SECONDS):
        yield f"status says `the run trains on`, and no rank trains: {said}"
    if _condition(status, "Running")["status"] == "True":
        members = ((status.get("current") or {}).get("plan") or {}).get("members", ())
        gone = [str(one["name"]) for one in members if _gone(storm, str(one["name"]), now - STANDS_SECONDS)]
        if gone:
            yield f"Running says that all members have their ranks, and {', '.join(gone)} has ended"


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((one for one in status.get("conditions", ()) if one["type"] == kind), {"status": "", "message": ""})


def _busy(storm: Storm, now: float) -> int:
    """The run that trains without a pause around this moment; 0 if none does."""
    for run, times in storm.times.items():
        if not storm.trained(run, now - 2 * STANDS_SECONDS, now - STANDS_SECONDS):
            continue
        around = times[bisect_left(times, now - STANDS_SECONDS) : bisect_right(times, now + STANDS_SECONDS)]
        ends = [now - STANDS_SECONDS, *around, now + STANDS_SECONDS]
        if around and max(b - a for a, b in pairwise(ends)) < STANDS_SECONDS / 2:
            return run
    return 0


def _gone(storm: Storm, name: str, when: float) -> bool:
    return name in storm.alive and storm.alive[name][1] < when


def lost(storm: Storm) -> dict[int, tuple[int, int]]:
    """By run, how many steps of earlier runs it did not begin with: of surviving ranks, and of all."""
    found: dict[int, tuple[int, int]] = {}
    for entry in (one for one in storm.entries if one.kind == "Opened"):
        start = _begins(storm, entry)
        before = [one for one in storm.steps if one.run < entry.run and one.time <= entry.time + SLACK_SECONDS]
        anybody = max((one.step for one in before), default=0)
        alive = max((one.step for one in before if (one.run, one.rank) not in storm.killed), default=0)
        found[entry.run] = max(0, alive - start), max(0, anybody - start)
    return found


def _begins(storm: Storm, opened: Entry) -> int:
    """The last step that this run need not train."""
    if _took_over(opened):
        return int(opened.body["step"])
    if image := opened.body.get("image"):
        return int(image["step"])
    resumed = opened.body.get("resumes")
    commits = [one for one in storm.entries if one.kind == "Committed" and one.body["seq"] == resumed]
    return int(commits[0].body["step"]) if commits else 0


def _history(storm: Storm) -> Iterator[Wrong]:
    """The final status about how each run began, and about losses."""
    if not storm.polls:
        return
    last = storm.polls[-1]
    live = {one.run for one in storm.entries if _took_over(one)}
    opened, missing = set(storm.opened(last.time)), lost(storm)
    for row in last.status.get("history", ()):
        run, how = int(row["run"]), row["how"]
        if (how == "live") != (run in live) and run in opened:
            yield Wrong(
                "history is true", last.time, f"run {run} took over {how}, and the log has {_word(run in live)}"
            )
        if how == "unknown":
            yield Wrong("history is true", last.time, f"how run {run} took over is unknown")
        told, doubt = int(row.get("stepsLost") or 0), int(row.get("stepsInDoubt") or 0)
        least, most = missing.get(run, (0, 0))
        if run in opened and not (told <= most and least <= told + doubt):
            yield Wrong("history is true", last.time, f"run {run}: stepsLost is {told}, and by the traces {least}")


def _word(live: bool) -> str:
    return "that it took over alive" if live else "that it did not take over alive"


# Reading.


def read(folder: Path) -> Storm:
    """A storm's evidence in its folder."""
    pods = _json_lines(folder / "pods.jsonl")
    entries = sorted(map(_entry, folder.glob("log/*.json")), key=lambda one: int(one.body["seq"]))
    return Storm(
        entries=entries,
        steps=[
            _step(line) for path in folder.glob("trace/*.jsonl") for line in _json_lines(path) if "event" not in line
        ],
        faults=list(map(_fault, _json_lines(folder / "faults"))),
        drains=[Drain(**line) for line in _json_lines(folder / "drains")],
        polls=[Poll(float(line["t"]), line["status"]) for line in _json_lines(folder / "polls.jsonl")],
        alive=_alive(pods),
        members={one.run: _members(folder, one) for one in entries if one.kind == "Opened"},
    )


def _members(folder: Path, opened: Entry) -> list[str]:
    """Nobody, if the run began without this object."""
    if not (ref := opened.body.get("members")):
        return []
    return [str(member["name"]) for member in json.loads((folder / ref["key"]).read_text())["members"]]


def _fault(line: Mapping[str, Any]) -> Fault:
    return Fault(**{**line, **{name: tuple(map(tuple, line[name])) for name in ("killed", "links")}})


def _alive(lines: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for line in lines:
        if line["running"]:
            start, _ = found.get(line["name"], (float(line["t"]), 0.0))
            found[line["name"]] = start, float("inf")
        elif line["name"] in found and found[line["name"]][1] == float("inf"):
            found[line["name"]] = found[line["name"]][0], float(line["t"])
    return found


def _entry(path: Path) -> Entry:
    body = json.loads(path.read_text())
    return Entry(body["kind"], int(body["run"]), datetime.fromisoformat(body["time"]).timestamp(), body)


def _step(line: Mapping[str, Any]) -> Step:
    return Step(int(line["run"]), int(line["rank"]), int(line["step"]), float(line["t"]))


def _json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def told(storm: Storm) -> list[str]:
    """Figures, for people."""
    pauses = sorted((end - start for start, end in gaps(storm)), reverse=True)
    drains = sorted((seconds for _, seconds in drained(storm)), reverse=True)
    kinds = Counter(fault.kind for fault in storm.faults)
    return [
        f"faults: {len(storm.faults)} ({', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))})",
        f"runs: {len(storm.opened(float('inf')))}, steps: {max((one.step for one in storm.steps), default=0)}",
        f"steps redone: {len(redone(storm))}",
        f"longest pauses while training was possible: {' '.join(f'{one:.1f}' for one in pauses[:5])} s",
        f"longest drains after their faults: {' '.join(f'{one:.1f}' for one in drains[:5])} s of {len(drains)}",
        f"polls: {len(storm.polls)}",
    ]
