"""A thread that watches its own process: one that hangs writes the stacks of all its threads to its log, once.

The decision is that of `hanging`. This thread takes no lock of the script's: it reads what the session has counted,
and writes to the file descriptor of stderr. It needs the GIL, so it says nothing while an extension holds that forever;
then the operator hears nothing of this process's standstill, and says so. docs/decisions/073 says why faulthandler's
timer is no way out. Made by perdure.session.core.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final

import torch

from perdure.console import spoken
from perdure.loop.current_call import waited_for
from perdure.loop.hanging import AGAIN_SECONDS, Hang, HangDetector, HangOver, HowFar
from perdure.loop.run import Run
from perdure.loop.stacks import SeenCalls, stacks, standing
from perdure.wire.channel import Hangs, Watched, write_report
from perdure.wire.phase_limits import may_be_work
from perdure.wire.report import Standing, TrainerPhase

SAMPLES: Final = 10
"""A thread runs if it is found so in half of them: on a CPU, or waiting for one on a busy machine."""
SAMPLE_SECONDS: Final = 0.1
"""The time between two of them."""
CALL_SECONDS: Final = 10.0
"""One of several ranks is looked at for at most so long, until it is seen in another call: a batch of an evaluation may
take that, on this rank or on one that it waits for."""
STOP_SECONDS: Final = 1.0
"""A closed session waits so long for a look that is under way."""
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
    return HowFar(_phase(run, step), step, run.progress.other_calls, run.settings.run or 0)


def _phase(run: Run, step: int) -> TrainerPhase:
    if run.joining or run.hands_over:
        return TrainerPhase.HANDING_OVER
    if run.opened_checkpointer is None:
        return TrainerPhase.RESTORING if hasattr(run, "heartbeat") else TrainerPhase.CONNECTING
    return run.figures.phase(step)


class HangWatch:
    """Watches the process of one session; the thread that makes it is the one that is looked at."""

    def __init__(self, run: Run) -> None:
        self._run = run
        settings = run.settings
        given = settings.hang_seconds
        self._detector = HangDetector(given, again=AGAIN_SECONDS) if given != 0 else None
        self._ender = HangDetector(training=settings.progress_timeout) if settings.progress_timeout else None
        """Says when the agent is to end this process: by the job's limit, whatever the log's limit is."""
        self._thread, self._native = threading.get_ident(), threading.get_native_id()
        self._stopped = threading.Event()
        self._watcher: threading.Thread | None = None
        self._told = False
        """Whether this process was said to hang, and not yet to go on."""

    def start(self) -> None:
        """Starts the thread, unless the settings forbid it. It does not keep the process from ending, and a forked
        child has none."""
        if self._detector or self._ender:
            self._watcher = threading.Thread(target=self._watch, name="perdure-hang-watch", daemon=True)
            self._watcher.start()

    def stop(self) -> None:
        """The session is closed: what the script does from now on has no limit."""
        self._stopped.set()
        if self._watcher and self._ender and self._watcher is not threading.current_thread():
            self._watcher.join(STOP_SECONDS)  # so that nothing of it comes behind this
            self._tell(Watched(None))
        self._watcher = None

    def _watch(self) -> None:
        while not self._stopped.wait(self._interval):
            self._tell(Watched(self._allowed))
            for detector in filter(None, (self._detector, self._ender)):
                match detector.look(how_far(self._run), time.monotonic()):
                    case Hang() as hang:
                        self._hangs(hang, ends=detector is self._ender)
                    case HangOver(seconds) if self._told:
                        self._told = False
                        self._run.figures.ledger.goes_on()
                        self._tell(Hangs(None))
                        _write(spoken(f"progress again, after {seconds:.0f} s without any") + "\n")

    @property
    def _allowed(self) -> float | None:
        """For how long the job lets this process stand still now. A newcomer waits for as long as the living run
        lets it."""
        allowed = self._ender.allowed if self._ender else math.inf
        return None if self._run.joining or allowed == math.inf else allowed

    @property
    def _interval(self) -> float:
        return min(detector.interval for detector in (self._detector, self._ender) if detector)

    def _hangs(self, hang: Hang, *, ends: bool) -> None:
        runs, moves = self._samples(min(CALL_SECONDS, hang.allowed / 2) if self._run.world > 1 else 0.0)
        if how_far(self._run) != hang.mark or self._stopped.is_set():
            return
        frames, alone = sys._current_frames(), self._run.world == 1  # noqa: SLF001
        place = standing(frames.get(self._thread), waited_for(self._run), runs=runs, alone=alone, moves=moves)
        frames.pop(threading.get_ident())
        written, self._told = self._told, True
        may_be_work = self._may_be_work(hang, place, moves=moves)
        if not may_be_work:
            self._run.figures.ledger.hangs(hang.seconds)
        self._tell(Hangs(hang.seconds, place, ends and self._allowed is not None, may_be_work))
        if written:
            return
        _write(_first_line(hang, place, len(frames)))
        names = {thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None}
        for text in stacks(frames, names, self._thread):
            _write(text)

    def _may_be_work(self, hang: Hang, place: Standing | None, *, moves: bool) -> bool:
        settings = self._run.settings
        if not moves and self._run.world > 1 and torch.cuda.is_initialized():
            return False  # who waits for a device waits for its kernels or, through one of these, for other ranks
        return may_be_work(hang.mark.phase, place, hang.seconds, settings.hang_seconds, settings.progress_timeout)

    def _tell(self, hangs: Hangs | Watched) -> None:
        """Past the event stream, whose sinks belong to the script's thread."""
        if (fd := self._run.settings.report_fd) is not None:
            write_report(fd, hangs)

    def _samples(self, call_seconds: float) -> tuple[bool, bool]:
        """Whether the thread takes CPU time, and whether it goes on from one call to another within `call_seconds`."""
        running, seen, until = 0, SeenCalls(self._frame()), time.monotonic() + call_seconds
        pause = min(SAMPLE_SECONDS, self._interval / SAMPLES)
        for _ in range(SAMPLES):
            self._stopped.wait(pause)
            running += _is_running(self._native)
            seen.look(self._frame())
        while not seen.moves and time.monotonic() < until and not self._stopped.wait(pause):
            seen.look(self._frame())
        return 2 * running >= SAMPLES, seen.moves

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread)  # noqa: SLF001 - the documented way


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
