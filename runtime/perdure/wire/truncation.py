"""Long texts made short: the head says what failed and what to do about it, the end where it failed; both are kept.

Used wherever an error has to fit: into a report, an outcome, a status. Pure.
"""

from __future__ import annotations

import json
from typing import Final

CUT: Final = "\n[...]\n"
"""Stands where something was left out."""

_ESCAPED: Final = 12
"""An escaped character is at most this many bytes long."""


def shortened(text: str, characters: int) -> str:
    """`text` in at most so many characters."""
    if len(text) <= characters:
        return text
    room = characters - len(CUT)
    if room <= 0:
        return text[-characters:] if characters > 0 else ""
    return text[: room // 3] + CUT + text[-(room - room // 3) :]


def fitting(text: str, room: int) -> str:
    """`text` in at most `room` bytes once JSON has escaped it."""
    if _size(text) <= room:
        return text
    left = room - _size(CUT)
    if left <= 0:
        return _end(text, room)
    head = _end(text[::-1], left // 3)[::-1]
    return head + CUT + _end(text, left - _size(head))


def _end(text: str, room: int) -> str:
    """The longest end that fits."""
    kept = text[-room:] if room > 0 else ""
    while (excess := _size(kept) - room) > 0:
        kept = kept[-(-excess // _ESCAPED) :]
    return kept


def _size(text: str) -> int:
    return len(json.dumps(text)) - 2
