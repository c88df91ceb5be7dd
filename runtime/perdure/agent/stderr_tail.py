"""The end of what a process has written to stderr, without what libraries write on the way to any end.

c10d answers a closed socket with a warning and a stack of kilobytes: quoted as the reason of an end it hides the line
that matters above it. The pod's log keeps everything; only the outcome's tail is filtered. Pure.
"""

from __future__ import annotations

import re
from typing import Final

TAIL_BYTES: Final = 4096
"""How much is kept for the outcome."""

_NOISE: Final = re.compile(
    rb"(\[rank\d+\]:)?\[[WI]\d{4} [^\]]*\] "  # warnings of torch's C++ log
    rb"|\[E\d{4} [^\]]*\] \[c10d\]"  # a socket's end; its consequence is raised as an exception
    rb"|[WI]\d{4} \d\d:\d\d:\d\d\S* \d+ .*torch"  # warnings of torch's Python log
    rb"|\[Gloo\] Rank \d+"
    rb"|Exception raised from \S+ at .*\(most recent call first\)"  # the stack of any of these
    rb"|frame #\d+: |<omitting python frames>"
)


class Tail:
    """Takes text as it comes, in pieces that end anywhere."""

    def __init__(self) -> None:
        self._kept = b""
        self._line = b""
        """The beginning of a line whose end has not come."""

    def add(self, text: bytes) -> None:
        """More of it."""
        *lines, line = (self._line + text).split(b"\n")
        new = b"".join(line + b"\n" for line in lines if not _NOISE.match(line))
        self._kept = (self._kept + new)[-TAIL_BYTES:]
        self._line = line[-TAIL_BYTES:]

    def text(self) -> str:
        """What may tell why the process has ended."""
        last = b"" if _NOISE.match(self._line) else self._line
        return (self._kept + last)[-TAIL_BYTES:].decode(errors="replace")
