"""A bench's figures as a table and as JSON. Does not know what was measured."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "build" / "bench"
MOST_OUTSIDE = 0.05
"""How often the true median may be outside the reported interval."""


@dataclass(frozen=True)
class Figure:
    """One measured quantity: all its samples, and its baseline."""

    name: str
    unit: str
    samples: tuple[float, ...]
    baseline: float | None = None
    baseline_is: str = ""
    """The meaning of the baseline, in words."""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The confidence interval of the median, at least 19 times in 20; None if there are too few samples."""
        ordered, count = sorted(self.samples), len(self.samples)
        outside, below = 0, 0.0
        while (below := below + math.comb(count, outside) / 2**count) <= MOST_OUTSIDE / 2:
            outside += 1
        return (ordered[outside - 1], ordered[-outside]) if outside else None

    def body(self) -> dict[str, Any]:
        """As stored."""
        body = {"name": self.name, "unit": self.unit, "median": self.median, "samples": list(self.samples)}
        body |= {"least": min(self.samples), "most": max(self.samples), "interval": self.interval}
        return body | {"baseline": self.baseline, "baselineIs": self.baseline_is}


def table(title: str, figures: Sequence[Figure]) -> str:
    """For people."""
    rows = [("", "median", "95 % of medians", "least", "most", "unit", "n", "baseline", "")]
    for figure in figures:
        within = " to ".join(f"{value:.4g}" for value in figure.interval or ())
        least, most = (f"{value:.4g}" for value in (min(figure.samples), max(figure.samples)))
        baseline = "" if figure.baseline is None else f"{figure.baseline:.4g}"
        count = str(len(figure.samples))
        row = (figure.name, f"{figure.median:.4g}", within, least, most, figure.unit, count)
        rows.append((*row, baseline, figure.baseline_is))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([title, "-" * len(title), *lines, ""])


def write(name: str, figures: Sequence[Figure], facts: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Stores the figures as build/bench/NAME.json."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    body = {"bench": name, "facts": facts, "figures": [figure.body() for figure in figures]}
    path.write_text(json.dumps(body, indent=2) + "\n")
    return path
