"""A thread that watches its own process: one that hangs writes the stacks of all its threads to its log, once.

The decision is that of `hanging`. This thread takes no lock of the script's: it reads what the session has counted,
and writes to the file descriptor of stderr. It needs the GIL, so it says nothing while an extension holds that forever;
then the operator hears nothing of this process's standstill, and says so. docs/decisions/073 says why faulthandler's
timer is no way out. Made by perdure.session.core.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Final

from perdure.console import spoken
from perdure.loop.current_call import waited_for
from perdure.loop.hanging import Hang, HangDetector, HangOver, HowFar
from perdure.loop.run import Run
from perdure.loop.stacks import stacks, standing
from perdure.wire.channel import Hangs, write_report
from perdure.wire.report import Standing, TrainerPhase

SAMPLES: Final = 10
"""A thread runs if it is found so in half of them: on a CPU, or waiting for one on a busy machine."""
SAMPLE_SECONDS: Final = 0.1
"""The time between two of them."""
_STDERR: Final = 2
_WORDS: Final = {
    Standing.WAITS_FOR_RANKS: "its script waits for other ranks",
    Standing.RUNS: "its script computes, and waits for no rank",
    Standing.STANDS: "its script stands still, and not in a call that is known to wait for ranks",
    None: "the thread of its session has ended",
}


def how_far(run: Run) -> HowFar:
    """How far this process is in its run. From any thread."""
    step = run.progress.step
    return HowFar(_phase(run, step), step, run.progress.other_calls)


def _phase(run: Run, step: int) -> TrainerPhase:
    if run.joining:
        return TrainerPhase.HANDING_OVER
    if run.opened_checkpointer is None:
        return TrainerPhase.RESTORING if hasattr(run, "heartbeat") else TrainerPhase.CONNECTING
    return run.figures.phase(step)


class HangWatch:
    """Watches the process of one session; the thread that makes it is the one that is looked at."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._detector = HangDetector(run.settings.hang_seconds)
        self._thread, self._native = threading.get_ident(), threading.get_native_id()
        self._stopped = threading.Event()
        self._told = False
        """Whether this process was said to hang, and not yet to go on."""

    def start(self) -> None:
        """Starts the thread, unless the settings forbid it. It does not keep the process from ending, and a forked
        child has none."""
        if self._run.settings.hang_seconds != 0:
            threading.Thread(target=self._watch, name="perdure-hang-watch", daemon=True).start()

    def stop(self) -> None:
        """The session is closed."""
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self._detector.interval):
            match self._detector.look(how_far(self._run), time.monotonic()):
                case Hang() as hang:
                    self._hangs(hang)
                case HangOver(seconds) if self._told:
                    self._told = False
                    self._tell(Hangs(None))
                    _write(spoken(f"progress again, after {seconds:.0f} s without any") + "\n")

    def _hangs(self, hang: Hang) -> None:
        runs = self._runs()
        if how_far(self._run) != hang.mark or self._stopped.is_set():
            return
        frames, alone = sys._current_frames(), self._run.world == 1  # noqa: SLF001 - the documented way
        place = standing(frames.get(self._thread), waited_for(self._run), runs=runs, alone=alone)
        frames.pop(threading.get_ident())
        self._told = True
        self._tell(Hangs(hang.seconds, place))
        _write(_first_line(hang, place, len(frames)))
        names = {thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None}
        for text in stacks(frames, names, self._thread):
            _write(text)

    def _tell(self, hangs: Hangs) -> None:
        """Past the event stream, whose sinks belong to the script's thread."""
        if (fd := self._run.settings.report_fd) is not None:
            write_report(fd, hangs)

    def _runs(self) -> bool:
        running = 0
        for _ in range(SAMPLES):
            self._stopped.wait(min(SAMPLE_SECONDS, self._detector.interval / SAMPLES))
            running += _is_running(self._native)
        return 2 * running >= SAMPLES


def _first_line(hang: Hang, place: Standing | None, threads: int) -> str:
    at = f"at step {hang.mark.step}, in phase {hang.mark.phase}"
    stands = f"no progress for {hang.seconds:.0f} s {at}, where {hang.allowed:.0f} s are usual"
    follow = "the stack of its thread follows" if threads == 1 else f"the stacks of its {threads} threads follow"
    return spoken(f"{stands}: {_WORDS[place]}: {follow}") + "\n"


def _is_running(thread: int) -> bool:
    """Whether the kernel runs a thread of this process, or would. It has the GIL meanwhile, because reading a file
    releases that."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0] == "R"
    return False


def _write(text: str) -> None:
    """As a whole, and past sys.stderr, whose lock the script's thread may hold."""
    with contextlib.suppress(OSError):
        os.write(_STDERR, text.encode(errors="replace"))
