"""What happened when, for people: watch events, the log's entries, traces and drains in one readable list. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from e2e.harness import observed
from e2e.harness.drain import Drained
from e2e.harness.evidence import Entry, Gap, Mark
from e2e.harness.watching import Object, Seen

_NO_PARTS: Final = frozenset({"connect", "pause"})
"""Of a hand-over: while its ranks connect they train, and the pause is the whole."""
STARTING: Final = ("start", "import", "rendezvous", "restore")
"""What a trainer does before its first step, in order; `import` is all of the script above the Session."""


@dataclass(frozen=True)
class Moment:
    """Something that happened."""

    time: float
    text: str


@dataclass(frozen=True)
class Part:
    """One part of the training pause, and how long it took."""

    name: str
    seconds: float


def moments(
    history: Sequence[Seen], entries: Sequence[Entry], gaps: Iterable[Gap], drains: Iterable[Drained]
) -> list[Moment]:
    """Everything worth telling, in order."""
    found = [*_of_job(history), *_of_pods(history), *_of_log(entries)]
    for gap in gaps:
        found.append(Moment(gap.stopped, f"last step before: step {gap.last_step} (run {gap.before_run})"))
        found.append(Moment(gap.resumed, f"first step after: step {gap.first_step} (run {gap.after_run})"))
    for drain in drains:
        found.append(Moment(drain.started, f"$ kubectl drain {drain.node} --ignore-daemonsets"))
        found.append(Moment(drain.ended, f"kubectl drain came back with status {drain.status}"))
    return sorted(found, key=lambda moment: moment.time)


def _of_job(history: Sequence[Seen]) -> Iterator[Moment]:
    phase = ""
    asked = False
    for seen in history:
        if seen.kind != "TrainingJob":
            continue
        status = seen.object.get("status", {})
        intent = observed.intent(status)
        if intent.get("leave") and not asked:
            yield Moment(seen.time, f"intent in status: run {status['next']['run']} follows, because {intent['cause']}")
        asked = bool(intent.get("leave"))
        if status.get("phase", phase) != phase:
            phase = status["phase"]
            yield Moment(seen.time, f"job is {phase}")


def _of_pods(history: Sequence[Seen]) -> Iterator[Moment]:
    told: dict[tuple[str, str], str] = {}
    for seen in history:
        if seen.kind != "Pod":
            continue
        for topic, text in _of_pod(seen):
            if told.get((seen.uid, topic)) != text:
                told[seen.uid, topic] = text
                yield Moment(seen.time, f"{seen.name} {text}")


def _of_pod(seen: Seen) -> Iterator[tuple[str, str]]:
    pod = seen.object
    if node := pod["spec"].get("nodeName"):
        yield "node", f"placed on {node}"
    if observed.ready(pod):
        yield "ready", "is warm"
    given = observed.assignment(pod)
    if given.get("leave"):
        yield "assignment", "is asked to save and leave"
    elif "rank" in given:
        yield "assignment", f"is rank {given['rank']} of {given['world']} in run {given['run']}"
    if outcome := observed.outcome_of(pod):
        commit = outcome.get("commit")
        saved = f", last commit: step {commit['step']}" if commit else ""
        yield "outcome", f"ended: {outcome['outcome']} at step {outcome['step']}{saved}"
    if seen.type == "DELETED":
        yield "gone", "is gone"


def _of_log(entries: Sequence[Entry]) -> Iterator[Moment]:
    for entry in entries:
        time = datetime.fromisoformat(entry.time).timestamp()
        match entry.kind:
            case "Opened":
                yield Moment(time, f"log: run {entry.run} opened with {entry.body['world']} ranks")
            case "Committed" if entry.body["final"]:
                yield Moment(time, f"log: final commit of run {entry.run} at step {entry.body['step']}")
            case "Closed" | "Completed":
                yield Moment(time, f"log: run {entry.run} {entry.kind.lower()}")


def written(found: Sequence[Moment], start: float) -> str:
    """One line each, with seconds since `start`."""
    return "\n".join(f"  {moment.time - start:8.2f} s  {moment.text}" for moment in found)


def pause_parts(history: Sequence[Seen], gap: Gap, marks: Iterable[Mark] = ()) -> list[Part]:
    """The training pause as the members' outcomes and the watch explain it, in order; the parts add up to it.

    A member that gets its rank before it is warm starts later: if traces show when, that is `warm-up`, and of the parts
    of a start those of the last started rank count.

    `agree` is not among them: while the ranks agree on a step, they train. An unreported part does not count as zero
    seconds: it is in the rest.
    """
    marks = list(marks)
    if told := handover_parts(history, marks, gap.after_run):
        return _with_rest([Part(name, seconds) for name, seconds in told.items() if name not in _NO_PARTS], gap)
    ended = [seen.time for seen in _firsts(history, lambda pod: _ended_in(pod, gap.before_run))]
    ranked = [seen.time for seen in _firsts(history, lambda pod: _ranked_in(pod, gap.after_run))]
    if (
        not ended or not ranked or max(ended) > max(ranked)
    ):  # a member assigned before the others had ended was not started
        return [Part("unknown", gap.seconds)]
    leaving, arriving = seconds_of(history, gap.before_run), seconds_of(history, gap.after_run)
    last = _last_started(marks, gap.after_run)
    warming = [Part("warm-up", max(0.0, _started(last) - max(ranked)))] if last else []
    arriving = last.seconds if last else arriving
    save = sum(leaving.get(name, 0.0) for name in ("stage", "upload", "commit"))
    parts = [
        Part("save", save),
        Part("exit", max(ended) - gap.stopped - save),
        Part("pod start", max(ranked) - max(ended)),
        *warming,
        *(Part(name, arriving[name]) for name in STARTING if name in arriving),
    ]
    return _with_rest(parts, gap)


def in_place_parts(entries: Sequence[Entry], marks: Iterable[Mark], gap: Gap) -> list[Part]:
    """The same of a run that began in the pods of the one before, as the log and the traces tell it.

    Of its ranks that one counts that was started last: the others wait for it.
    """
    saved = [datetime.fromisoformat(one.time).timestamp() for one in entries if _ends(one, gap.before_run)]
    last = _last_started(marks, gap.after_run)
    if not saved or last is None:
        return [Part("unknown", gap.seconds)]
    parts = [
        Part("save", saved[-1] - gap.stopped),
        Part("exit", _started(last) - saved[-1]),
        *(Part(name, last.seconds[name]) for name in STARTING if name in last.seconds),
    ]
    return _with_rest(parts, gap)


def _last_started(marks: Iterable[Mark], run: int) -> Mark | None:
    """Of the run's ranks that reported their start, the last started one."""
    resumed = [mark for mark in marks if (mark.name, mark.run) == ("resumed", run) and mark.seconds]
    return max(resumed, key=_started, default=None)


def _started(resumed: Mark) -> float:
    """When the reporting process was started."""
    return resumed.time - sum(resumed.seconds.get(name, 0.0) for name in STARTING)


def _ends(entry: Entry, run: int) -> bool:
    return entry.run == run and entry.kind == "Committed" and bool(entry.body["final"])


def _with_rest(parts: Sequence[Part], gap: Gap) -> list[Part]:
    return [*parts, Part("rest", gap.seconds - sum(part.seconds for part in parts))]


def handover_parts(history: Sequence[Seen], marks: Iterable[Mark], run: int) -> Mapping[str, float]:
    """The measurements of the member that stood still longest while this run took over; empty if none reported.

    By the traces, or else by the outcomes, which cover only a member's last few hand-overs.
    """
    records = [record for outcome in observed.outcomes(history) for record in outcome.get("handovers", ())]
    parts: list[Mapping[str, float]] = [mark.seconds for mark in marks if (mark.name, mark.run) == ("took-over", run)]
    parts = parts or [record["parts"] for record in records if (record["run"], record["word"]) == (run, "go")]
    nobody: Mapping[str, float] = {}
    return max(parts, key=lambda seconds: float(seconds.get("pause", 0.0)), default=nobody)


def seconds_of(history: Sequence[Seen], run: int) -> Mapping[str, float]:
    """The measurements of the run's lowest reporting rank: a job is over before all its pods are."""
    told = [outcome for outcome in observed.outcomes(history) if outcome["run"] == run and outcome["seconds"]]
    nobody: Object = {"seconds": {}}
    speaker = min(told, key=lambda outcome: int(outcome["rank"]), default=nobody)
    return {name: float(value) for name, value in speaker["seconds"].items()}


def _firsts(history: Sequence[Seen], matches: Callable[[Object], bool]) -> list[Seen]:
    """The first event of each pod that matches."""
    found: dict[str, Seen] = {}
    for seen in history:
        if seen.kind == "Pod" and matches(seen.object):
            found.setdefault(seen.uid, seen)
    return list(found.values())


def _ended_in(pod: Object, run: int) -> bool:
    outcome = observed.outcome_of(pod)
    return outcome is not None and outcome["run"] == run


def _ranked_in(pod: Object, run: int) -> bool:
    given = observed.assignment(pod)
    return given.get("run") == run and "rank" in given
