"""Virtual time: an event loop that never sleeps, and processes in it that can be killed, frozen and thawed.

Time jumps to the next timer; callbacks of one moment run in the order of their requests, so a seed always gives the
same history. Everything that a task starts belongs to its process, by its context: a killed process runs not one more
instruction, not even its `finally`; a frozen one gets its timers and answers late.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_PROCESS: Final[ContextVar[Process | None]] = ContextVar("process", default=None)


class Stuck(Exception):
    """Nothing will ever happen again, or something goes round without time passing."""


class Process:
    """All code that runs on behalf of one simulated process."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.crash_in: int | None = None
        """Steps between two awaits until the process dies of itself; None: it does not."""
        self.on_death: Callable[[], object] = _nothing
        self._loop = loop
        self._frozen = False
        self._backlog: list[events.Handle] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self.context = Context()
        self.context.run(_PROCESS.set, self)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` as a part of this process."""
        return self._loop.create_task(work, context=self.context.copy())

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Have the process do something as soon as it runs."""
        self._loop.call_soon(function, *args, context=self.context.copy())

    def kill(self) -> None:
        """The process is gone, between two instructions."""
        self.alive = False
        self._backlog.clear()
        self.on_death()

    def freeze(self, seconds: float) -> None:
        """It does not run for a while; meanwhile answers and timers pile up."""
        self._frozen = True
        self._loop.outside(seconds, self._thaw)

    def _thaw(self) -> None:
        self._frozen = False
        self._loop.enqueue(self._backlog)
        self._backlog = []

    def admits(self, handle: events.Handle) -> bool:
        """Whether the handle may run now; otherwise keeps it for later, or forever."""
        if not self.alive:
            return False
        if self._frozen:
            self._backlog.append(handle)
            return False
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0:
                self.kill()
                return False
        return True


class _Handle(events.Handle):
    """Skips its base's constructor, which takes longer than the rest of a call."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: VirtualLoop, context: Context | None
    ) -> None:
        self._callback, self._args, self._loop = callback, args, loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._repr = self._source_traceback = None


class _Timer(events.TimerHandle):
    """Skips its bases' constructors, and their work at a cancellation."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: VirtualLoop,
        context: Context | None,
    ) -> None:
        self._when, self._callback, self._args, self._loop = when, callback, args, loop
        self._context = copy_context() if context is None else context
        self._cancelled = self._scheduled = False
        self._repr = self._source_traceback = None

    def cancel(self) -> None:
        """It stays in the heap, and is passed over."""
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]  # as the base has it


class VirtualLoop(asyncio.BaseEventLoop):
    """One history's loop. `run` it to the end of a coroutine; nothing in it takes real time."""

    _MOST_WITHOUT_TIME: Final = 200_000

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._same_time = 0
        self.handles = 0
        self._outside = Context()
        self._left: list[asyncio.Task[Any]] = []
        self.at_end: list[Callable[[], object]] = []
        """Called when the history is over."""
        self._ready: deque[events.Handle]
        self._stopping: bool
        self._timers: list[tuple[float, int, events.TimerHandle]] = []
        self._asked = itertools.count()

    def time(self) -> float:
        """Virtual seconds since the history began."""
        return self._now

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> events.TimerHandle:
        """As in every loop; of one moment's timers the first requested runs first."""
        timer = _Timer(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._asked), timer))
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> events.TimerHandle:
        """As in every loop."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_soon(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> events.Handle:
        """As in every loop."""
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def outside(self, delay: float, function: Callable[..., object], *args: Any) -> events.TimerHandle:
        """Call something that belongs to no process: the network, the API server, a node."""
        return self.call_at(self._now + max(delay, 0.0), function, *args, context=self._outside)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that belongs to no process."""
        return self.create_task(work, context=self._outside.copy())

    def enqueue(self, handles: list[events.Handle]) -> None:
        """Run these now, in this order."""
        self._ready.extend(handles)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run until `work` is done; unfinished work of others is dropped.

        The garbage collector is off meanwhile: its runs depend on the earlier work of the process, and it may close
        coroutines and log errors that were never retrieved.
        """
        events.set_event_loop(None)
        self.set_task_factory(self._remember)
        collecting = gc.isenabled()
        gc.disable()
        try:
            return self.run_until_complete(work)
        finally:
            self._drop()
            if collecting:
                gc.enable()

    def _remember(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **options)
        self._left.append(task)
        if len(self._left) > 4096:
            self._left = [one for one in self._left if not one.done()]
        return task

    def _drop(self) -> None:
        """End the rest: its coroutines are closed, not cancelled, and no callback runs."""
        for end in list(self.at_end):
            end()
        for task in self._left:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(RuntimeError):  # one that awaits something while it is closed
                    task.get_coro().close()
        self._ready.clear()
        self._timers.clear()
        self._left.clear()
        self.close()

    def _run_once(self) -> None:
        """Run everything that is ready, or becomes so, until the loop is stopped."""
        while not self._stopping:
            if not self._ready:
                self._advance()
            self._run_ready(len(self._ready))

    def _advance(self) -> None:
        """Time jumps to the next timer."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Stuck("nothing is scheduled any more")
        now = self._now = max(self._now, timers[0][0])
        self._same_time = 0
        while timers and timers[0][0] <= now:
            ready.append(heapq.heappop(timers)[2])

    def _run_ready(self, count: int) -> None:
        """The first so many; `events.Handle._run` is not called for each, because half of its time is the call."""
        ready = self._ready
        self.handles += count
        self._same_time += count
        if self._same_time > self._MOST_WITHOUT_TIME:
            raise Stuck(f"no rest at {self._now:.3f} s: {ready[0]!r}")
        for _ in range(count):
            handle: Any = ready.popleft()
            if handle._cancelled:
                continue
            context = handle._context
            process = context.get(_PROCESS)
            if process is None or process.admits(handle):
                try:
                    context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as `events.Handle._run` has it
                    self.call_exception_handler({"message": f"Exception in {handle!r}", "exception": error})

    def _write_to_self(self) -> None:
        """Nothing else runs, so there is nothing to wake."""

    def _process_events(self, event_list: Any) -> None:
        """There is no selector."""


def _nothing() -> None:
    """Does nothing."""
