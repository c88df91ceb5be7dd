"""What the runs came to, as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from e2e.bench.pollux import runs
from e2e.bench.pollux.runs import Result, Way

HEAD: Final = ("way", "load", "workloads", "mean s", "of published", "of ours", "p99 of published", "moves a job", "")
Published = Mapping[tuple[str, float, int], tuple[float, float]]


def line(result: Result, published: Published) -> str:
    """One run beside the published one of Pollux."""
    mean, p99 = published["pollux", result.load, result.workload]
    return (
        f"{result.way} load {result.load} workload {result.workload}: mean {result.mean:.0f} s"
        f" ({result.mean / mean:.3f} of the published), p99 {result.p99:.0f} s ({result.p99 / p99:.3f}),"
        f" {result.moves:.1f} moves a job, {result.took:.0f} s of CPU"
    )


def all_of(folder: Path, published: Published) -> str:
    """Each way at each load, as far as it is stored, beside the published runs of Pollux and beside ours of it."""
    rows: list[tuple[str, ...]] = [HEAD]
    for load in runs.LOADS:
        known = ((way, runs.gathered(folder, way, load)) for way in runs.WAYS.values())
        rows.extend(_row(folder, way, load, found, published) for way, found in known if found)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = (" ".join(cell.ljust(width + 1) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(map(str.rstrip, padded))


def _row(folder: Path, way: Way, load: float, found: Sequence[Result], published: Published) -> tuple[str, ...]:
    workloads = [result.workload for result in found]
    theirs = [published["pollux", load, workload] for workload in workloads]
    ours = runs.gathered(folder, runs.WAYS["pollux"], load, workloads)
    mean = fmean(result.mean for result in found)
    beside = f"{mean / fmean(result.mean for result in ours):.3f}" if len(ours) == len(found) else ""
    return (
        way.name,
        f"{load}",
        " ".join(map(str, workloads)),
        f"{mean:.0f}",
        f"{mean / fmean(one for one, _ in theirs):.3f}",
        beside,
        f"{fmean(result.p99 for result in found) / fmean(p99 for _, p99 in theirs):.3f}",
        f"{fmean(result.moves for result in found):.1f}",
        " ".join(f"{result.mean / one:.3f}" for result, (one, _) in zip(found, theirs, strict=True)),
    )
