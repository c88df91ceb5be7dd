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


def standing(frame: FrameType | None, waits: str, *, runs: bool, alone: bool) -> Standing | None:
    """In which kind of place the session's thread stands; None if it has ended.

    `waits` is what the session itself waits for; `runs`: the thread takes CPU time; `alone`: there are no other ranks.
    """
    if frame is None:
        return None
    file = Path(frame.f_code.co_filename).as_posix()
    collective = any(part in file for part in _COLLECTIVES) or (_BACKWARD in file and not runs)
    if not alone and (waits or collective):
        return Standing.WAITS_FOR_RANKS
    return Standing.RUNS if runs else Standing.STANDS


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
