"""What the threads of this process do: their stacks as text, and whether one waits for other ranks.

The text has no lines of source, because reading files may hang as well, and is bounded. Used by `hang_watch`.
"""

from __future__ import annotations

import select
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Final

from perdure.wire.report import Standing
from perdure.wire.truncation import shortened

THREADS_SHOWN: Final = 16
FRAMES_SHOWN: Final = 60
"""Of each thread, the innermost ones."""
STACK_BYTES: Final = select.PIPE_BUF
"""No stack is longer: other output never comes into the middle of one."""
_LINE_CHARACTERS: Final = 240
_COLLECTIVES: Final = ("/torch/distributed/", "/torch/nn/parallel/distributed.py", "/perdure/group/")
"""Code whose innermost call waits for other ranks."""
_BACKWARD: Final = "/torch/autograd/"
"""Where gradients are computed, and where they are averaged over the ranks: only the second takes no CPU time."""


def stacks(frames: Mapping[int, FrameType], names: Mapping[int, str], first: int) -> Iterator[str]:
    """A text of at most STACK_BYTES for each thread, each with the innermost call first; `first` is the thread of the
    session, which comes first."""
    threads = sorted(frames, key=lambda thread: thread != first)
    for thread in threads[:THREADS_SHOWN]:
        yield _stack(names.get(thread, "a thread that Python does not know"), frames[thread])
    if len(threads) > THREADS_SHOWN:
        yield f"  and {len(threads) - THREADS_SHOWN} more threads\n"


def standing(frame: FrameType | None, waits: str, *, runs: bool, alone: bool, moves: bool = False) -> Standing | None:
    """In which kind of place the session's thread stands; None if it has ended.

    `waits` is what the session itself waits for; `runs`: the thread takes CPU time; `alone`: there are no other ranks;
    `moves`: it was seen in several calls, so the ranks that it waits for answer.
    """
    if frame is None:
        return None
    collective = _is_collective(frame) or (_BACKWARD in _file(frame) and not runs)
    if not alone and (waits or (collective and not moves)):
        return Standing.WAITS_FOR_RANKS
    return Standing.RUNS if runs else Standing.STANDS


class SeenCalls:
    """Whether a thread goes on from one call to another, as far as looks at its frames show that.

    A collective is one call, whatever it calls itself: a wait may look again and again.
    """

    def __init__(self, frame: FrameType | None) -> None:
        """Keeps the frame, and with it what its variables hold, for as long as this object lives: then no other frame
        can be taken for it."""
        self._first = frame and _call(frame)
        self._at = self._first and self._first.f_lasti
        self.moves = False
        """Whether another call was seen."""

    def look(self, frame: FrameType | None) -> None:
        """The thread's innermost frame now."""
        call = frame and _call(frame)
        self.moves |= call is not self._first
        if call and not _is_collective(call):
            self.moves |= call.f_lasti != self._at


def _call(frame: FrameType) -> FrameType:
    """The innermost call; of a collective the outermost of its frames."""
    while _is_collective(frame) and frame.f_back and _is_collective(frame.f_back):
        frame = frame.f_back
    return frame


def _is_collective(frame: FrameType) -> bool:
    return any(part in _file(frame) for part in _COLLECTIVES)


def _file(frame: FrameType) -> str:
    return Path(frame.f_code.co_filename).as_posix()


def _stack(name: str, frame: FrameType) -> str:
    lines = [f"thread {shortened(name, 80)}, innermost call first:"]
    inner: FrameType | None = frame
    while inner is not None and len(lines) <= FRAMES_SHOWN:
        code = inner.f_code
        lines.append(shortened(f"  {code.co_filename}:{inner.f_lineno} in {code.co_qualname}", _LINE_CHARACTERS))
        inner = inner.f_back
    if inner is not None:
        lines.append("  ...")
    text, end = "\n".join(lines) + "\n", "\n  ...\n"
    if len(text.encode(errors="replace")) > STACK_BYTES:
        text = text.encode(errors="replace")[: STACK_BYTES - len(end)].decode(errors="ignore").rpartition("\n")[0] + end
    return text
