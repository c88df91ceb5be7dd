"""Where a request to save and exit comes from: SIGTERM with the agent's request file, Ctrl-C, or what the script names.

A Python signal handler runs only between two bytecodes of the main thread, which may be in a collective for minutes. So
a thread also listens on the signal wakeup pipe. It lets a run end that has not finished a step. Noting a request
changes nothing by itself: the session acts on it at its next check.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import current_process
from multiprocessing.util import register_after_fork
from pathlib import Path
from types import FrameType
from typing import Any, Final

from perdure.loop.asking import WORD, ExitFile
from perdure.wire.channel import SIGTERM, Request, read_request

EARLY_SECONDS: Final = 1.0
"""How far apart the ranks may learn of one request. If no step is done, they are killed 2 s after it."""


@dataclass(frozen=True)
class ExitRequest:
    """A request that this process has noticed."""

    at: float
    """time.monotonic() when it was noticed."""
    cause: str
    deadline: float | None
    """time.monotonic() until which the save may take; None: until it is interrupted."""

    @property
    def left(self) -> float | None:
        """Seconds left; None without a deadline."""
        return None if self.deadline is None else self.deadline - time.monotonic()


class Requests:
    """The sources of requests of one process."""

    def __init__(
        self, file: Path | None, grace: float, *, look_seconds: float = 0.0, launcher_kills: bool = False
    ) -> None:
        """`file` is the agent's request file; `grace` is the time in seconds after a signal without that file.

        A file of the script's own is read every `look_seconds` at most. `launcher_kills`: Ctrl-C comes from a launcher,
        which allows no more time than after SIGTERM, and passes on no second one.
        """
        self._file = file
        self._grace = grace
        self._launcher_kills = launcher_kills
        self._look_seconds = look_seconds
        self._looked = -math.inf
        self._signals: tuple[signal.Signals, ...] = (signal.SIGTERM,)
        self._exit_file: ExitFile | None = None
        self._notes: list[ExitRequest] = []
        """The first one counts. The handler and the thread both append, which is safe without a lock."""
        self._previous: dict[int, Any] = {}
        self._wakeup: tuple[int, int, int] | None = None
        self._lock = threading.Lock()
        self._before_first_step: Callable[[], None] | None = None
        self._early = True
        """True until a step is done; the run may not be open yet."""
        self._listener: Callable[[], None] = lambda: None
        self._image_wanted: Callable[[], None] = lambda: None

    @property
    def sources(self) -> tuple[str, ...]:
        """What requests an exit, for people."""
        file = (f"the file {self._exit_file.path}",) if self._exit_file else ()
        interruption = () if self._ignores_interruption else ("Ctrl-C",)
        return (*(one.name for one in self._signals), *interruption, *file)

    @property
    def _ignores_interruption(self) -> bool:
        """Shells without job control start background commands with SIGINT ignored, and that stays so. Not under a
        launcher: torchrun catches it in any case, passes it on, and kills ranks that do not leave."""
        return signal.getsignal(signal.SIGINT) is signal.SIG_IGN and not self._launcher_kills

    @property
    def seen(self) -> bool:
        """Whether there is a request. It is local: other ranks may not know of it yet."""
        return bool(self._notes)

    @property
    def current(self) -> ExitRequest | None:
        """The request as it is now: the agent may have moved its deadline forward."""
        if not self._notes:
            return None
        first, request = self._notes[0], self._read_request()
        return ExitRequest(first.at, request.cause, request.deadline) if request else first

    def take(self, signals: Sequence[signal.Signals], file: ExitFile | None) -> None:
        """Sets, before `listen`, which signals request an exit, SIGTERM among them, and a file of the script's own."""
        self._signals, self._exit_file = tuple(signals), file

    def look(self) -> None:
        """Reads the script's own file, at a check of the ranks."""
        now = time.monotonic()
        if self._exit_file is None or self._notes or now - self._looked < self._look_seconds:
            return
        self._looked = now
        if self._exit_file.asks():
            self._notes.append(ExitRequest(now, f"{WORD} in {self._exit_file.path}", None))

    def ask(self, cause: str) -> None:
        """Requests an exit of this process, with the time that SIGTERM would leave."""
        self._note_termination(cause)

    def left(self) -> float | None:
        """Seconds until the exit has to be done; None without a request or a deadline."""
        request = self.current
        return request.left if request else None

    def listen(self) -> None:
        """Takes over SIGINT and the signals that request an exit, unless that is done. Only the main thread can; in
        others this does nothing."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._take_interruption()
        if self._wakeup:
            return
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(reader, True)
        for number in self._signals:
            self._previous[number] = signal.signal(number, self._terminated)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._wakeup = reader, writer, before
        in_child = weakref.WeakMethod(self._leave_to_child)
        os.register_at_fork(after_in_child=lambda: (act := in_child()) and act())
        register_after_fork(self, _leave_group_to_parent)
        threading.Thread(target=self._watch, args=(reader,), name="perdure-requests", daemon=True).start()

    def release(self) -> None:
        """Restores the signals' previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()
        if self._wakeup:
            _, writer, before = self._wakeup
            _wake_by(before)
            os.close(writer)  # ends the thread
            self._wakeup = None

    def release_interruption(self) -> None:
        """Restores the handler of Ctrl-C; the other signals are noted as before."""
        if signal.SIGINT in self._previous:
            signal.signal(signal.SIGINT, self._previous.pop(signal.SIGINT))

    def _take_interruption(self) -> None:
        if signal.SIGINT not in self._previous and not self._ignores_interruption:
            self._previous[signal.SIGINT] = signal.signal(signal.SIGINT, self._interrupted)

    def _leave_to_child(self) -> None:
        """A forked child handles SIGTERM by itself, because its parent ends it with that. It ignores Ctrl-C and a batch
        system's signals, which reach the whole process group, because it is needed until the save is done."""
        if self._wakeup is None:
            return
        _wake_by(self._wakeup[2])
        for number in self._wakeup[:2]:
            os.close(number)
        self._wakeup = None
        for number in (*self._signals, signal.SIGINT):
            signal.signal(number, self._previous[number] if number == signal.SIGTERM else signal.SIG_IGN)
        self._previous.clear()

    def on_request(self, act: Callable[[], None]) -> Callable[[], None]:
        """Calls `act` from another thread for each signal that asks this process to leave, instead of the function
        before, which is returned."""
        before, self._listener = self._listener, act
        return before

    def on_image(self, act: Callable[[], None]) -> None:
        """Calls `act` from another thread when the run is lost and this process may leave an image of it."""
        self._image_wanted = act

    def before_first_step(self, act: Callable[[], None] | None) -> None:
        """Calls `act` from another thread when a request comes, until this is called again with None.

        After that call `act` is not running and will not run.
        """
        with self._lock:
            self._before_first_step, self._early = act, act is not None
        if act and self.seen:
            self._act()

    def came_early(self) -> bool:
        """Whether a request came before the first step, or comes within EARLY_SECONDS, because not every rank learns of
        it at the same moment. Waits that long."""
        until = time.monotonic() + EARLY_SECONDS
        while self._early and not self.seen and time.monotonic() < until:
            time.sleep(EARLY_SECONDS / 100)
        return self._early and self.seen

    def _terminated(self, number: int, _frame: FrameType | None) -> None:
        self._note_termination(signal.Signals(number).name)

    def _note_termination(self, name: str) -> None:
        request, now = self._read_request() if name == SIGTERM else None, time.monotonic()
        if not self._notes and not (request and request.image):
            self._notes.append(
                ExitRequest(now, request.cause, request.deadline)
                if request
                else ExitRequest(now, name, now + self._grace)
            )

    def _note_interruption(self) -> None:
        if not self._notes:
            now = time.monotonic()
            self._notes.append(ExitRequest(now, "Ctrl-C", now + self._grace if self._launcher_kills else None))

    def _interrupted(self, _signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._note_interruption()
        again = "" if self._launcher_kills else "; Ctrl-C again to give up"
        print(f"perdure: saving and exiting{again}", file=sys.stderr, flush=True)

    def _watch(self, reader: int) -> None:
        while numbers := os.read(reader, 64):
            for one in self._signals:
                if one in numbers:
                    self._note_termination(one.name)
            if signal.SIGTERM in numbers and (request := self._read_request()) and request.image:
                self._image_wanted()
            if signal.SIGINT in numbers:
                self._note_interruption()
            if self.seen:
                self._listener()
                self._act()
        os.close(reader)

    def _act(self) -> None:
        with self._lock:
            if self._before_first_step:
                self._before_first_step()

    def _read_request(self) -> Request | None:
        return read_request(self._file) if self._file else None


def _leave_group_to_parent(_requests: Requests) -> None:
    """A forked worker of a DataLoader gets a process group of its own: SIGTERM to its parent's would end it, and torch
    would raise that in the save. It ends with its parent, for which it looks by itself."""
    target = getattr(current_process(), "_target", None)
    if getattr(target, "__module__", None) == "torch.utils.data._utils.worker":
        os.setpgid(0, 0)


def _wake_by(fd: int) -> None:
    """The file that Python's signal handling writes to is this one again, unless its owner has closed it meanwhile."""
    try:
        signal.set_wakeup_fd(fd)
    except (OSError, ValueError):
        signal.set_wakeup_fd(-1)
