"""A timeline as a picture: lanes on one axis of time. Pure.

It stands for itself: no script, no font, nothing outside it. Moves take seconds and lie days apart, so longer times are
drawn shorter than they were, and each that has room says how long it was.
"""

from __future__ import annotations

import html
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Final

from perdure_operator.api.status import Takeover
from perdure_operator.cli.kubectl.page import clock, duration, printable
from perdure_operator.cli.kubectl.status_page import seconds
from perdure_operator.cli.kubectl.timeline import EntryKind, RunSpan, Timeline

LIGHT: Final[Mapping[str, str]] = {
    "ground": "#ffffff",
    "ink": "#1f2328",
    "muted": "#59636e",
    "line": "#d1d9e0",
    "start": "#59636e",
    "live": "#1a7f37",
    "in-place": "#0969da",
    "recreate": "#8a5a00",
    "loss": "#cf222e",
}
DARK: Final[Mapping[str, str]] = {
    "ground": "#0d1117",
    "ink": "#f0f6fc",
    "muted": "#9198a1",
    "line": "#3d444d",
    "start": "#9198a1",
    "live": "#3fb950",
    "in-place": "#58a6ff",
    "recreate": "#d29922",
    "loss": "#ff7b72",
}


def palette(colors: Mapping[str, str]) -> str:
    """The colors as variables of a style sheet."""
    return "".join(f"--{name}:{color};" for name, color in colors.items())


_STYLE: Final = (
    f".timeline{{{palette(LIGHT)}background:var(--ground);font:13px system-ui,sans-serif}}"
    f"@media(prefers-color-scheme:dark){{.timeline{{{palette(DARK)}}}}}"
    ".timeline text{fill:var(--ink)}.timeline .small{font-size:11px;fill:var(--muted);"
    "paint-order:stroke;stroke:var(--ground);stroke-width:3px}"
    ".timeline .on-bar{fill:var(--ground);font-size:12px}.timeline .grid{stroke:var(--line)}"
    ".timeline .start{fill:var(--start)}.timeline .live{fill:var(--live)}.timeline .in-place{fill:var(--in-place)}"
    ".timeline .recreate{fill:var(--recreate)}.timeline .until-unknown{fill-opacity:.35;stroke-dasharray:4 3}"
    ".timeline .never{fill:none;stroke:var(--muted);stroke-dasharray:4 3}"
    ".timeline .mark{fill:var(--ink)}.timeline .loss,.timeline .warning{fill:var(--loss)}"
)
_CLASSES: Final = {
    Takeover.START: "start",
    Takeover.LIVE: "live",
    Takeover.IN_PLACE: "in-place",
    Takeover.RECREATE: "recreate",
    Takeover.NEVER: "never",
    Takeover.UNKNOWN: "start",
}
_LEGEND: Final = (
    (Takeover.START, "first, or not reported how"),
    (Takeover.LIVE, "took over live"),
    (Takeover.IN_PLACE, "in place"),
    (Takeover.RECREATE, "all pods new"),
)
_LEFT: Final = 120.0
_RIGHT: Final = 40.0
_NARROWEST: Final = 960.0
_STEP: Final = 16.0
"""The least distance of two moments."""
_LANE: Final = 40.0
_BAR: Final = 22.0
_LETTER: Final = 6.6
"""About the width of a letter of 11 or 12 pixels."""
_LEAST_LETTERS: Final = 8
"""A cause of which fewer would fit is left to its tooltip."""


def picture(found: Timeline, now: datetime) -> str:
    """An SVG document; "" for a timeline on which nothing has happened."""
    if not found.entries:
        return ""
    axis = _axis(found, now)
    bottom = 8 + _LANE * len(_LANES)
    width, height = _LEFT + axis.width + _RIGHT, bottom + 74
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" role="img" '
        'aria-labelledby="timeline-title" aria-describedby="timeline-words">',
        f'<title id="timeline-title">{_text(f"Timeline of {found.namespace}/{found.name}")}</title>',
        f'<desc id="timeline-words">{_text(_in_words(found.runs))}</desc><style>{_STYLE}</style>',
        *_grid(axis, bottom, now),
    ]
    for number, (name, lane) in enumerate(_LANES.items()):
        middle = 8 + _LANE * (number + 0.5)
        drawn = list(lane(found, axis, middle))
        body.append(f'<text x="12" y="{middle + 4:.1f}">{name}</text>')
        body += drawn or [_beside("none known", _LEFT, middle)]
    return "\n".join([*body, *_legend(bottom + 62), "</svg>"]) + "\n"


@dataclass(frozen=True)
class _Axis:
    places: Mapping[datetime, float]
    """Where each moment is, in their order."""
    width: float
    end: datetime
    """The last moment."""

    def x(self, time: datetime) -> float:
        return self.places[_second(time)]


def _second(time: datetime) -> datetime:
    return time.replace(microsecond=0)


def _axis(found: Timeline, now: datetime) -> _Axis:
    times = [one.time for one in found.entries]
    times += [time for one in found.runs for time in (one.began, one.ended) if time]
    last = max(times)
    times += [max(now, last)] if any(one.on for one in found.runs) else []
    moments = sorted({_second(one) for one in times})
    weights = [math.log2(1 + (later - earlier).total_seconds()) for earlier, later in pairwise(moments)]
    width = max(_NARROWEST, 2 * _STEP * len(weights))
    share = (width - _STEP * len(weights)) / (sum(weights) or 1.0)
    places, x = {moments[0]: _LEFT}, _LEFT
    for moment, weight in zip(moments[1:], weights, strict=True):
        x += _STEP + share * weight
        places[moment] = x
    return _Axis(places, width, moments[-1])


def _grid(axis: _Axis, bottom: float, now: datetime) -> Iterator[str]:
    free = 0.0
    for moment, x in axis.places.items():
        words = clock(moment, now)
        half = len(words) * _LETTER / 2
        if x - half >= free:
            yield f'<path class="grid" d="M{x:.1f} 4V{bottom + 4:.1f}"/>'
            yield _small(words, x, bottom + 18)
            free = x + half + 10
    for (earlier, left), (later, right) in pairwise(axis.places.items()):
        words = duration((later - earlier).total_seconds())
        if right - left > len(words) * _LETTER + 12:
            yield f'<path class="grid" d="M{left + 3:.1f} {bottom + 26:.1f}H{right - 3:.1f}"/>'
            yield _small(words, (left + right) / 2, bottom + 38)


def _legend(y: float) -> Iterator[str]:
    x = _LEFT
    for how, words in _LEGEND:
        yield f'<rect class="{_CLASSES[how]}" x="{x:.1f}" y="{y - 9:.1f}" width="12" height="12" rx="3"/>'
        yield f'<text class="small" x="{x + 18:.1f}" y="{y + 1:.1f}">{words}</text>'
        x += 18 + len(words) * _LETTER + 18


def _runs(found: Timeline, axis: _Axis, middle: float) -> Iterator[str]:
    ends = (*(one.began for one in found.runs[1:]), axis.end)
    for one, end in zip(found.runs, ends, strict=False):  # without a run there is no end
        left, right = axis.x(one.began), axis.x(one.ended or end)
        unknown = " until-unknown" if one.ended is None and not one.on else ""
        yield (
            f'<rect class="{_CLASSES[one.how]}{unknown}" x="{left:.1f}" y="{middle - _BAR / 2:.1f}" rx="3" '
            f'width="{max(3.0, right - left - 1):.1f}" height="{_BAR}">'
            f"<title>{_text(_run_in_words(one))}</title></rect>"
        )
        names = (f"run {one.run}, {one.how}", f"run {one.run}", str(one.run))
        name = next((name for name in names if _fits(name, right - left)), "")
        kind = "small" if unknown or one.how is Takeover.NEVER else "on-bar"
        if name:
            yield f'<text class="{kind}" x="{left + 6:.1f}" y="{middle + 4:.1f}">{name}</text>'


def _causes(found: Timeline, axis: _Axis, middle: float) -> Iterator[str]:
    marks = [(axis.x(one.began), printable(one.cause)) for one in found.runs if one.cause]
    for (x, words), (following, _) in pairwise([*marks, (_LEFT + axis.width + _RIGHT, "")]):
        letters = int((following - x - 18) / _LETTER)
        yield _mark(_dot, "mark", x, middle, words)
        if letters >= _LEAST_LETTERS:
            yield _beside(words if len(words) <= letters else f"{words[: letters - 1]}…", x, middle)


def _fits(words: str, width: float) -> bool:
    return len(words) * _LETTER + 10 <= width


def _pauses(found: Timeline, axis: _Axis, middle: float) -> Iterator[str]:
    marks = [(one.began, seconds(one.pause)) for one in found.runs if one.pause is not None]
    return _marks(marks, axis, middle, _two_bars, words="training stood still for ")


def _losses(found: Timeline, axis: _Axis, middle: float) -> Iterator[str]:
    marks = [(one.began, str(one.steps_lost)) for one in found.runs if one.steps_lost]
    return _marks(marks, axis, middle, _cross, words="steps lost: ", kind="loss")


def _saves(found: Timeline, axis: _Axis, middle: float) -> Iterator[str]:
    marks = [(one.time, str(one.step)) for one in found.entries if one.kind is EntryKind.SAVE]
    return _marks(marks, axis, middle, _diamond, words="saved by then: step ")


def _members(found: Timeline, axis: _Axis, middle: float) -> Iterator[str]:
    return _told(found, axis, middle, EntryKind.MEMBER, EntryKind.END)


def _events(found: Timeline, axis: _Axis, middle: float) -> Iterator[str]:
    return _told(found, axis, middle, EntryKind.START, EntryKind.EVENT)


def _told(found: Timeline, axis: _Axis, middle: float, *kinds: EntryKind) -> Iterator[str]:
    """A mark for each moment at which something of these kinds happened; what, as far as there is room."""
    there = defaultdict[float, list[str]](list)
    warnings = {axis.x(one.time) for one in found.entries if one.kind in kinds and one.warning}
    for one in found.entries:
        if one.kind in kinds:
            there[axis.x(one.time)].append(f"{one.what}: {one.details}")
    for x, lines in there.items():
        form, kind = (_triangle, "warning") if x in warnings else (_dot, "mark")
        yield _mark(form, kind, x, middle, "; ".join(lines))


_LANES: Final[Mapping[str, Callable[[Timeline, _Axis, float], Iterator[str]]]] = {
    "Runs": _runs,
    "Because": _causes,
    "Pauses": _pauses,
    "Lost steps": _losses,
    "Saves": _saves,
    "Members ended": _members,
    "Events": _events,
}


def _marks(
    marks: Sequence[tuple[datetime, str]],
    axis: _Axis,
    middle: float,
    form: Callable[[float, float], str],
    *,
    words: str,
    kind: str = "mark",
) -> Iterator[str]:
    """A mark for each moment, with its text to the right where that has room before the next one."""
    places = [(axis.x(time), text) for time, text in marks]
    for (x, text), (following, _) in pairwise([*places, (math.inf, "")]):
        yield _mark(form, kind, x, middle, f"{words}{text}")
        if _fits(text, following - x):
            yield _beside(text, x, middle)


def _mark(form: Callable[[float, float], str], kind: str, x: float, y: float, words: str) -> str:
    return f'<path class="{kind}" d="{form(x, y)}"><title>{_text(words)}</title></path>'


def _two_bars(x: float, y: float) -> str:
    return f"M{x - 4:.1f} {y - 6:.1f}h3v12h-3zm6 0h3v12h-3z"


def _cross(x: float, y: float) -> str:
    return f"M{x - 6:.1f} {y - 4:.1f}l2-2 4 4 4-4 2 2-4 4 4 4-2 2-4-4-4 4-2-2 4-4z"


def _diamond(x: float, y: float) -> str:
    return f"M{x:.1f} {y - 6:.1f}l6 6-6 6-6-6z"


def _triangle(x: float, y: float) -> str:
    return f"M{x:.1f} {y - 7:.1f}l7 12h-14z"


def _dot(x: float, y: float) -> str:
    return f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0-8 0z"


def _beside(words: str, x: float, middle: float) -> str:
    return f'<text class="small" x="{x + 9:.1f}" y="{middle + 4:.1f}">{_text(words)}</text>'


def _small(words: str, x: float, y: float) -> str:
    return f'<text class="small" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{_text(words)}</text>'


def _in_words(runs: Iterable[RunSpan]) -> str:
    return " ".join(f"{_run_in_words(one)}." for one in runs) or "No run has begun."


def _run_in_words(one: RunSpan) -> str:
    parts = [f"Run {one.run} of {one.size} members, {one.how}"]
    parts += [f"training stood still for {seconds(one.pause)}"] if one.pause is not None else []
    parts += [f"{one.steps_lost} steps lost"] if one.steps_lost else []
    parts += [f"at most {one.steps_in_doubt} steps in doubt"] if one.steps_in_doubt else []
    parts += ["it is on"] if one.on else []
    return "; ".join(parts)


def _text(words: str) -> str:
    return html.escape(printable(words))
