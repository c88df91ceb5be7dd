"""Whether a disturbed training was the same as its undisturbed twin, by the scripts' diaries.

Pure: lines in, the first contradiction out. The steps, loops and epochs in a line distinguish it from all others, so a
later run continues where its first line stands in the twin's diary. Lines that run again in every resumed epoch (those
above the batch loop) are left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from tests.property.grammar import Program

SLACK = 2
"""Steps that a save may come later than it is due: the ranks agree on it."""


@dataclass(frozen=True)
class Run:
    """One rank's diary of one run, and how the run has ended: complete, left, left before a step, killed."""

    lines: Sequence[str]
    ended: str


@dataclass(frozen=True)
class Reached:
    """Where a rank stands in the twin's diary: lines written, and the first one that may be written again."""

    lines: int = 0
    safe: int = 0


def told_apart(program: Program, runs: Sequence[Run], twin: Run) -> str | None:
    """The first contradiction between one rank's runs and its twin, in words; None where there is none."""
    expected = _counting(twin.lines)
    where = {line: number for number, line in enumerate(expected)}
    if len(where) < len(expected):
        return "the twin has written a line twice"
    reached = Reached()
    for number, run in enumerate(runs, 1):
        lines = _counting(run.lines)
        if lines:
            begun = where.get(lines[0])
            if begun is None:
                return f"run {number} begins with {lines[0]}, which its twin never wrote"
            if not reached.safe <= begun <= reached.lines:
                return _resumed_wrongly(number, expected, begun, reached)
            for offset, line in enumerate(lines):
                if begun + offset >= len(expected) or line != expected[begun + offset]:
                    wanted = expected[begun + offset] if begun + offset < len(expected) else "nothing"
                    return f"run {number} wrote {line} where its twin wrote {wanted}"
            reached = Reached(begun + len(lines), max(reached.safe, begun))
        reached = Reached(reached.lines, _safe(program, expected, reached, run))
    if reached.lines != len(expected):
        return f"the training ended before {expected[reached.lines]}"
    return _exports(runs, twin)


def _resumed_wrongly(number: int, expected: Sequence[str], begun: int, reached: Reached) -> str:
    if begun > reached.lines:
        return f"run {number} begins with {expected[begun]} and nobody wrote {expected[reached.lines]}"
    return f"run {number} goes back to {expected[begun]}, {expected[reached.safe]} need not be done again"


def _safe(program: Program, expected: Sequence[str], reached: Reached, run: Run) -> int:
    """Lines that no later run may repeat: all of them after an announced exit, those before the last due save after a
    kill."""
    written = expected[: reached.lines]
    if run.ended == "left" and not any(_kind(line) == "step" for line in run.lines):
        return reached.safe  # nothing that took long is lost: it leaves at once, without a save
    if run.ended == "left before a step":
        return reached.safe
    if run.ended == "left":
        return max(reached.safe, _left(written))
    if run.ended == "complete":
        return reached.lines
    often = min((n for n in (program.every_steps, program.save_every) if n), default=0)
    steps = [number for number, line in enumerate(written) if _kind(line) == "step"]
    if often and len(steps) > often + SLACK:
        return max(reached.safe, steps[-(often + SLACK) - 1])
    return reached.safe


def _left(written: Sequence[str]) -> int:
    """An exit in an evaluation below the batch loop has that repeated."""
    return len(written) - (bool(written) and _kind(written[-1]) == "rest")


def _exports(runs: Sequence[Run], twin: Run) -> str | None:
    """What stands below the loops is run by each run that gets there."""
    wanted = _outside(twin)
    for number, run in enumerate(runs, 1):
        for line in _outside(run):
            if line not in wanted:
                return f"run {number} wrote {line} outside of the loops, its twin {wanted}"
    return None


def _outside(run: Run) -> list[str]:
    return [line for line in run.lines if _kind(line) in ("outside", "final")]


def _counting(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if _kind(line) not in ("head", "outside", "final", "end")]


def _kind(line: str) -> str:
    return str(json.loads(line)[0])
