"""The end of a process's stderr, without the noise that libraries write at any end.

c10d reacts to a closed socket with a warning and kilobytes of stack, which would hide the relevant line above it. Only
the outcome's tail is filtered; the pod's log keeps everything. Pure.
"""

from __future__ import annotations

import re
from typing import Final

TAIL_BYTES: Final = 4096
"""Bytes kept for the outcome."""

_NOISE: Final = re.compile(
    rb"(\[rank\d+\]:)?\[[WI]\d{4} [^\]]*\] "  # warnings of torch's C++ log
    rb"|\[E\d{4} [^\]]*\] \[c10d\]"  # a socket's end; its consequence is raised as an exception
    rb"|[WI]\d{4} \d\d:\d\d:\d\d\S* \d+ .*torch"  # warnings of torch's Python log
    rb"|\[Gloo\] Rank \d+"
    rb"|Exception raised from \S+ at .*\(most recent call first\)"  # the stack of any of these
    rb"|frame #\d+: |<omitting python frames>"
)


class Tail:
    """Collects text in arbitrary pieces."""

    def __init__(self) -> None:
        self._kept = b""
        self._line = b""
        """The beginning of an incomplete line."""

    def add(self, text: bytes) -> None:
        """Add more text."""
        *lines, line = (self._line + text).split(b"\n")
        new = b"".join(line + b"\n" for line in lines if not _NOISE.match(line))
        self._kept = (self._kept + new)[-TAIL_BYTES:]
        self._line = line[-TAIL_BYTES:]

    def text(self) -> str:
        """The end of the text, which may explain the process's end."""
        last = b"" if _NOISE.match(self._line) else self._line
        return (self._kept + last)[-TAIL_BYTES:].decode(errors="replace")
