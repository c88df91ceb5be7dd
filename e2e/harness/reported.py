"""What kubectl showed of a training while it trained, compared with what its ranks traced and its log has. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from e2e.harness import observed
from e2e.harness.evidence import Entry, TracedStep
from e2e.harness.watching import Seen

LAG: Final = 30.0
"""Seconds by which a report may lag behind the training on a busy machine. Rank 0 reports every 5 s."""
RESOLUTION: Final = 1.0
"""Seconds by which a time in a status may be cut."""
STANDS: Final = 10.0
"""A run whose ranks have made a step within so many seconds makes progress."""
UNHEARD: Final = 60.0
"""By so many seconds after its first step rank 0 of a run has reported one, and status has shown it."""


def statuses(history: Sequence[Seen]) -> list[Mapping[str, Any]]:
    """Each status that the job had."""
    return [seen.object.get("status", {}) for seen in history if seen.kind == "TrainingJob"]


def shown(history: Sequence[Seen]) -> list[int]:
    """The steps that status showed while the job trained, in order."""
    steps = [int(status["progress"]["step"]) for status in statuses(history) if "progress" in status]
    return [step for number, step in enumerate(steps) if number == 0 or step != steps[number - 1]]


def untrue(
    history: Sequence[Seen], entries: Sequence[Entry], trace: Sequence[TracedStep], *, reports: bool = True
) -> list[str]:
    """Everything in a status that the traces and the log contradict; one line each.

    With `reports`, status has shown a step of a training that went on for a while: else nothing was compared.
    """
    lines = [line for status in statuses(history) for line in _untrue(status, entries, trace)]
    unheard = _unheard(trace) if reports and not shown(history) else []
    return [*unheard, *dict.fromkeys(lines)]


def _unheard(trace: Sequence[TracedStep]) -> Iterator[str]:
    """Runs that trained for so long that something was to be heard of them."""
    of_rank_0 = [one for one in trace if one.rank == 0]
    for run in sorted({one.run for one in of_rank_0}):
        times = [one.time for one in of_rank_0 if one.run == run]
        if (trained := max(times) - min(times)) > UNHEARD:
            yield f"rank 0 of run {run} trained for {trained:.0f} s, and no status had a step of it: did it report?"


def _untrue(status: Mapping[str, Any], entries: Sequence[Entry], trace: Sequence[TracedStep]) -> Iterator[str]:
    if progress := status.get("progress"):
        yield from _progress(progress, trace)
    if save := status.get("lastSave"):
        seen = _time(save["observedAt"]) + RESOLUTION
        commits = [one for one in entries if one.kind == "Committed" and int(one.body["step"]) == int(save["step"])]
        if not any(_time(one.time) <= seen for one in commits):
            yield f"lastSave says step {save['step']} at {save['observedAt']}, and the log had no such commit"
    progressing = observed.condition(status, "Progressing")
    if progressing.get("status") == "False":
        at = _time(progressing["lastTransitionTime"])
        near = [one.step for one in trace if at - STANDS < one.time <= at]
        if near:
            yield f"Progressing became False within {STANDS:.0f} s after step {max(near)} was done"


def _progress(progress: Mapping[str, Any], trace: Sequence[TracedStep]) -> Iterator[str]:
    """A step is shown only once it was done, and soon."""
    run, step, at = int(progress["run"]), int(progress["step"]), _time(progress["observedAt"])
    done = [one for one in trace if one.rank == 0 and one.run <= run]
    by_then = max((one.step for one in done if one.time <= at + RESOLUTION), default=0)
    before = max((one.step for one in done if one.run == run and one.time <= at - LAG), default=0)
    if not before <= step <= by_then:
        yield (
            f"progress says step {step} of run {run} at {progress['observedAt']}, and rank 0 had done {by_then}, "
            f"{before} of them {LAG:.0f} s before"
        )


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
