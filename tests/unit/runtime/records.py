"""What a training leaves in its root, read as plain files: the log and the traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perdure.wire.channel import Figures, SessionOpened, StepDone, TookOver, read_report


def entries(root: Path) -> list[dict[str, Any]]:
    """The log, oldest first."""
    return [json.loads(path.read_text()) for path in sorted((root / "log").glob("*.json"), reverse=True)]


def kinds(root: Path) -> list[str]:
    """Of the log's entries, oldest first."""
    return [entry["kind"] for entry in entries(root)]


def traced(root: Path) -> list[dict[str, Any]]:
    """The lines of all ranks; those that a process has written lie in its own order."""
    return [json.loads(line) for path in sorted(root.glob("trace/*.jsonl")) for line in path.read_text().splitlines()]


def progress(told: str) -> list[tuple[int, int, float]]:
    """Each progress that a process has told its agent in its output, with its run, if it took that over, and step."""
    run, step, found = 0, 0, []
    for report in filter(None, map(read_report, told.encode().splitlines())):
        match report:
            case TookOver():
                run, step = report.run, report.step
            case SessionOpened(step=int(begun)):
                step = begun
            case StepDone():
                step = report.step
            case Figures() if report.progress is not None:
                found.append((run, step, report.progress))
    return found
