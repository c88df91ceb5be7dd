"""Real code that blocks, in virtual time: each thread of a process runs alone, from one wait to the next.

The history's loop gives a thread its turn and stands still until that thread waits, or is done. So a seed always gives
the same order, and nothing between two waits takes time. The threads of a stopped process get their turns when it goes
on. Those of a process that has ended get one more, in which whatever they wait for raises `Ended`.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, TypeVar, cast

from tests.simulation.clock import VirtualLoop

T = TypeVar("T")


class Ended(BaseException):
    """The process is gone. Nothing of the product catches this."""


class ProcessThreads:
    """Those of one process: perdure.host.threads.Threads, as the simulation has them."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """`monotonic` is the clock of its node."""
        self.monotonic = monotonic
        self.loop = cast("VirtualLoop", asyncio.get_running_loop())
        self.loop.at_end.append(self.end)
        self.over = False
        self._still = False
        self._late: list[tuple[_Thread, int]] = []
        """Who got a turn while the process was stopped."""
        self._threads: list[_Thread] = []

    # perdure.host.threads.Threads

    def start(self, name: str, act: Callable[..., None], *arguments: object) -> None:
        """Its first turn comes at once, though not before the caller waits."""
        if not self.over:
            thread = _Thread(self, name, lambda: act(*arguments))
            self._threads = [each for each in self._threads if not each.done] + [thread]
            thread.wake(0)

    def flag(self) -> Flag:
        return Flag()

    def inbox(self) -> Inbox:
        return Inbox()

    # for code of the simulation

    async def run(self, name: str, act: Callable[..., T], *arguments: object) -> T:
        """What `act` returns or raises in a thread of its own."""
        answer: asyncio.Future[T] = self.loop.create_future()

        def whole() -> None:
            try:
                found = act(*arguments)
            except Exception as error:  # noqa: BLE001  (its caller gets it)
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(found)

        self.start(name, whole)
        return await answer

    def until(self, work: Coroutine[Any, Any, T]) -> T:
        """In a thread: the result of a coroutine."""
        thread, task = _here.thread, self.loop.create_task(work)
        try:
            while not task.done():
                turn = thread.next_turn
                task.add_done_callback(lambda _: thread.wake(turn))  # noqa: B023  (each its own)
                thread.wait(None)
            return task.result()
        finally:
            task.cancel()

    def sleep(self, seconds: float) -> None:
        """In a thread."""
        _here.thread.wait(seconds)

    # the process

    def stop(self) -> None:
        """SIGSTOP."""
        self._still = True

    def go_on(self) -> None:
        """SIGCONT."""
        self._still = False
        late, self._late = self._late, []
        for thread, turn in late:
            thread.wake(turn)

    def end(self) -> None:
        """SIGKILL, or its own end."""
        if self.over:
            return
        self.over = True
        self.loop.at_end.remove(self.end)
        threads, self._threads = self._threads, []
        for thread in threads:
            if thread is not getattr(_here, "thread", None):
                thread.take_turn()

    def admits(self, thread: _Thread, turn: int) -> bool:
        """Whether it may have this turn now; otherwise it comes later, or never."""
        if self._still and not self.over:
            self._late.append((thread, turn))
        return not self._still and not self.over


class _Thread:
    """One of them. Its turns are counted: it waits for the next one, and any other is long past."""

    def __init__(self, process: ProcessThreads, name: str, act: Callable[[], None]) -> None:
        self.done = False
        self.next_turn = 0
        self._process, self._act, self._context = process, act, copy_context()
        self._failed: BaseException | None = None
        self._turn, self._rest = threading.Lock(), threading.Lock()
        self._turn.acquire()
        self._rest.acquire()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def wake(self, turn: int) -> None:
        """It gets this turn soon."""
        self._process.loop.call_soon(self._wake, turn)

    def _wake(self, turn: int) -> None:
        if turn == self.next_turn and not self.done and self._process.admits(self, turn):
            self.take_turn()

    def take_turn(self) -> None:
        """Stand still while it runs."""
        if self.done:
            return
        self.next_turn += 1
        self._turn.release()
        self._rest.acquire()
        if self._failed:
            raise self._failed  # a mistake of the simulation, or of the code

    def wait(self, seconds: float | None) -> None:
        """In itself: until somebody wakes it, or time is up."""
        loop, timer = self._process.loop, None
        if not self._process.over:
            timer = None if seconds is None else loop.call_later(seconds, self._wake, self.next_turn)
            self._rest.release()
            self._turn.acquire()
        if timer:
            timer.cancel()
        if self._process.over:
            raise Ended

    def _run(self) -> None:
        self._turn.acquire()
        events._set_running_loop(self._process.loop)
        _here.thread = self
        try:
            if not self._process.over:
                self._context.run(self._act)
        except Ended:
            pass
        except BaseException as error:  # noqa: BLE001  (the loop raises it)
            self._failed = error
        finally:
            self.done = True
            self._rest.release()


class Flag:
    """See perdure.host.threads.Flag."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[tuple[_Thread, int]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for thread, turn in waiting:
            thread.wake(turn)

    def wait(self, timeout: float | None = None) -> bool:
        thread = _here.thread
        if not self._set:
            one = thread, thread.next_turn
            self._waiting.append(one)
            thread.wait(timeout)
            if one in self._waiting:
                self._waiting.remove(one)
        return self._set


class Inbox:
    """See perdure.host.threads.Inbox."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: list[tuple[_Thread, int]] = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        waiting, self._waiting = self._waiting, []
        for thread, turn in waiting:
            thread.wake(turn)

    def get(self) -> Any:
        thread = _here.thread
        while not self._items:
            self._waiting.append((thread, thread.next_turn))
            thread.wait(None)
        return self._items.popleft()


_here = threading.local()
"""`thread` is the one that runs here."""
