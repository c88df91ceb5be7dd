"""The demo as a picture: a row for each member, a tick for each step, the drain across them. Pure.

The file stands for itself: no script, no font, no reference to anything outside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from e2e.harness import observed
from e2e.harness.drain import Drained
from e2e.harness.evidence import Gap, TracedStep
from e2e.harness.watching import Seen

_BEFORE: Final = 4.0
"""Seconds of training that are shown before the drain, and after the later of drain and pause."""
_WIDTH: Final = 960.0
_LEFT: Final = 190.0
_TOP: Final = 64.0
_ROW: Final = 56.0
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#222}.small{font-size:11px;fill:#666}.row{stroke:#ddd}"
    ".start{fill:#e8e8e8}.warm{fill:#cfe3f7}.drain{fill:#f6c6b8;opacity:.45}.pause{fill:#ffe9a8;opacity:.7}"
    ".r0{stroke:#1f6fb2}.r1{stroke:#2b8a3e}.r2{stroke:#9c36b5}.end{fill:#222}"
)


@dataclass(frozen=True)
class Row:
    """One member, as the watch and the trace have it; times are seconds since the epoch."""

    name: str
    created: float
    warm: float | None
    gone: float | None
    """When it had ended."""
    steps: tuple[TracedStep, ...]


def rows(history: Sequence[Seen], steps: Sequence[TracedStep]) -> list[Row]:
    """Every pod that was ever a rank, in the order of their first being seen."""
    return [_row(name, history, steps) for name in _members(history)]


def drawn(history: Sequence[Seen], steps: Sequence[TracedStep], gap: Gap, drain: Drained) -> str:
    """The picture, an SVG document."""
    first, last = drain.started - _BEFORE, max(drain.ended, gap.resumed) + _BEFORE
    scale = _Scale(first, last)
    found = rows(history, steps)
    height = _TOP + _ROW * len(found) + 40
    width = _LEFT + _WIDTH + 20
    title = f"kubectl drain {drain.node}: {drain.seconds:.1f} s; training paused {gap.seconds:.2f} s"
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text x="12" y="24">{escape(title)}</text>',
        _span("drain", scale, (drain.started, drain.ended), (_TOP - 24, height - 40), "kubectl drain"),
        _span("pause", scale, (gap.stopped, gap.resumed), (_TOP - 24, height - 40), "no rank trains"),
        *(line for number, row in enumerate(found) for line in _drawn(row, _TOP + _ROW * number, scale)),
        *_axis(scale, height - 20, drain.started),
        "</svg>",
    ]
    return "\n".join(body) + "\n"


@dataclass(frozen=True)
class _Scale:
    first: float
    last: float

    def x(self, time: float) -> float:
        part = (time - self.first) / (self.last - self.first)
        return _LEFT + _WIDTH * min(1.0, max(0.0, part))

    def shows(self, time: float) -> bool:
        return self.first <= time <= self.last


def _members(history: Sequence[Seen]) -> list[str]:
    ranked = (seen.name for seen in history if seen.kind == "Pod" and "rank" in observed.assignment(seen.object))
    members = set(ranked)
    return list(dict.fromkeys(seen.name for seen in history if seen.kind == "Pod" and seen.name in members))


def _row(name: str, history: Sequence[Seen], steps: Sequence[TracedStep]) -> Row:
    own = [seen for seen in history if seen.kind == "Pod" and seen.name == name]
    given = (observed.assignment(seen.object) for seen in own)
    ranks = {(int(one["run"]), int(one["rank"])) for one in given if "rank" in one}
    warm = next((seen.time for seen in own if observed.ready(seen.object)), None)
    gone = next((seen.time for seen in own if observed.outcome_of(seen.object) or seen.type == "DELETED"), None)
    return Row(name, own[0].time, warm, gone, tuple(step for step in steps if (step.run, step.rank) in ranks))


def _drawn(row: Row, top: float, scale: _Scale) -> Iterator[str]:
    middle = top + _ROW / 2
    runs = sorted({step.run for step in row.steps})
    ranks = ", ".join(f"rank {rank} of run {run}" for run, rank in sorted({(s.run, s.rank) for s in row.steps}))
    yield f'<text x="12" y="{middle - 4:.1f}">{escape(row.name)}</text>'
    yield f'<text class="small" x="12" y="{middle + 12:.1f}">{escape(ranks)}</text>'
    yield f'<line class="row" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{middle:.1f}" y2="{middle:.1f}"/>'
    warm = scale.last if row.warm is None else row.warm
    yield _bar("start", scale, (row.created, warm), middle, "starts and imports")
    yield _bar("warm", scale, (warm, scale.last if row.gone is None else row.gone), middle, "is warm")
    for step in row.steps:
        if scale.shows(step.time):
            x, color = scale.x(step.time), runs.index(step.run) % 3
            yield f'<path class="r{color}" d="M{x:.2f} {middle - 12:.1f}v24"><title>step {step.step}</title></path>'
    if row.gone is not None and scale.shows(row.gone):
        yield f'<circle class="end" cx="{scale.x(row.gone):.2f}" cy="{middle:.1f}" r="4"><title>ended</title></circle>'


def _bar(kind: str, scale: _Scale, span: tuple[float, float], middle: float, words: str) -> str:
    return _span(kind, scale, span, (middle - 7, middle + 7), words)


def _span(kind: str, scale: _Scale, span: tuple[float, float], height: tuple[float, float], words: str) -> str:
    left, right = map(scale.x, span)
    size = (
        f'x="{left:.2f}" y="{height[0]:.1f}" width="{max(0.0, right - left):.2f}" height="{height[1] - height[0]:.1f}"'
    )
    return f"<rect class={quoteattr(kind)} {size}><title>{escape(words)}</title></rect>"


def _axis(scale: _Scale, y: float, zero: float) -> Iterator[str]:
    for second in range(round(scale.first - zero), round(scale.last - zero) + 1):
        if second % 2 == 0 and scale.shows(zero + second):
            yield f'<text class="small" x="{scale.x(zero + second):.1f}" y="{y:.1f}">{second} s</text>'
