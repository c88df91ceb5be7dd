"""A process's threads, what they wait for, and their clock. The simulation has others, in virtual time.

Used by code that waits for other processes in several threads.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol


class Flag(Protocol):
    """As a threading.Event."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Inbox(Protocol):
    """As a queue.SimpleQueue."""

    def put(self, item: Any) -> None: ...

    def get(self) -> Any: ...


class Threads(Protocol):
    """All that one process has of it."""

    def monotonic(self) -> float:
        """Seconds, as time.monotonic() has them."""
        ...

    def start(self, name: str, act: Callable[..., None], *arguments: object) -> None:
        """Run `act` in a separate thread, which does not keep the process from ending."""
        ...

    def flag(self) -> Flag: ...

    def inbox(self) -> Inbox: ...


class SystemThreads:
    """Those of the operating system."""

    def monotonic(self) -> float:
        return time.monotonic()

    def start(self, name: str, act: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=act, args=arguments, name=name, daemon=True).start()

    def flag(self) -> threading.Event:
        return threading.Event()

    def inbox(self) -> queue.SimpleQueue[Any]:
        return queue.SimpleQueue()
