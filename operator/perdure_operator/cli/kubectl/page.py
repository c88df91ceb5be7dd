"""What a command shows, without how it is drawn: tables and lines of plain text. Pure.

Texts come from users and nodes: `screen` draws each by `printable`, and reads no markup in it.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode's categories of what a terminal could obey, and of what could reorder a line."""


@dataclass(frozen=True)
class Table:
    """Columns with heads; a table without rows is not drawn."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    cut: bool = False
    """Whether a terminal shows one line for each row, and cuts the TEXTS that are too long for it."""


@dataclass(frozen=True)
class Facts:
    """Labels with their texts, one below the other; a text that is "" is left out."""

    facts: tuple[tuple[str, str], ...]


TEXTS: Final = frozenset(
    {
        *("DISRUPTED BY", "WAITS FOR", "STATE", "BECAUSE", "WHY NOT BETTER", "MESSAGE", "DETAILS", "VALUE", "MEANING"),
        *("IF NEW MEMBERS FIND ROOM", "IF THEY FIND NONE", "EVICTIONS"),
    }
)
"""Heads of columns that may take several lines on a terminal, or be cut. Names, which people copy, never are."""

Page = tuple[Table | Facts | str, ...]
"""Shown from the top, with an empty line between its parts."""


def printable(text: str) -> str:
    """The text in one line, without what a terminal would obey."""
    return " ".join("".join(" " if unicodedata.category(one) in _UNPRINTABLE else one for one in text).split())


_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""Colours, moves of the cursor, titles: sequences of a terminal, with all of their letters."""


def printable_line(text: str) -> str:
    """A line of a program's output with its spaces: of one that was overwritten, as of a progress bar, what is left."""
    left = text.rstrip("\r\n").rpartition("\r")[2]
    return "".join(
        one for one in _ESCAPES.sub("", left) if one == "\t" or unicodedata.category(one) not in _UNPRINTABLE
    )


def first_part(message: str) -> str:
    """The first part of an operator's message: its parts are set off by semicolons."""
    return message.partition("; ")[0]


def ago(moment: datetime | None, now: datetime) -> str:
    """How long ago that was, as kubectl writes it; "" if unknown."""
    return duration((now - moment).total_seconds()) if moment else ""


def duration(seconds: float) -> str:
    """Such as 45s, 12m, 3h5m, 2d."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole}s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if hours < 3:
        return f"{minutes}m"
    return f"{hours}h{minutes % 60}m" if hours < 48 else f"{days}d"


def clock(moment: datetime | None, now: datetime) -> str:
    """The time of day, UTC, with the date if it is another day; "" for None."""
    if moment is None:
        return ""
    there = moment.astimezone(UTC)
    return there.strftime("%H:%M:%SZ" if there.date() == now.astimezone(UTC).date() else "%Y-%m-%d %H:%M:%SZ")


OVERDUE: Final = 60
"""Seconds after a deadline before it is shown as missed: the operator needs some time, and clocks differ."""


def deadline(moment: datetime | None, now: datetime, *, whom: str = "") -> str:
    """The end of a wait and how long until then; if it has passed without effect, who should act. "" for None."""
    if moment is None:
        return ""
    left = (moment - now).total_seconds()
    if left < -OVERDUE:
        return f"{clock(moment, now)}, {duration(-left)} ago" + (f": is {whom} running?" if whom else "")
    return f"{clock(moment, now)}, in {duration(left)}" if left > 0 else f"{clock(moment, now)}, now"
