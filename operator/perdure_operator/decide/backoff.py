"""How long to wait before the next try of what was in vain: twice as long each further time, up to a bound. Pure."""

from __future__ import annotations

from typing import Final

_MOST_DOUBLINGS: Final = 20
"""A number that was counted for months is no reason to compute with thousands of digits."""


def doubled_seconds(times: int, first: int, most: int) -> int:
    """The pause after so many tries, at least one; `first` is that after one, `most` is never passed."""
    pause: int = first * 2 ** min(times - 1, _MOST_DOUBLINGS)
    return min(pause, most)
