"""Seeing what happens in a namespace as it happens: `kubectl get -w` and `kubectl logs -f`, each read by a thread.

Everything that waits, waits here: on the next thing a watch reports, with a deadline, and with a message that shows
the state of affairs when the deadline passes. Nothing here changes the cluster.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from e2e.harness.kubectl import Kubectl

T = TypeVar("T")
Object = Mapping[str, Any]


class Late(AssertionError):
    """The awaited event has not come in time; the message says what there was instead."""


@dataclass(frozen=True)
class Seen:
    """One watch event, with the time it arrived here."""

    time: float
    type: str
    """ADDED, MODIFIED or DELETED."""
    object: Object

    @property
    def kind(self) -> str:
        return str(self.object["kind"])

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.object["metadata"]["uid"])


class Stream:
    """The lines of a kubectl that goes on until it is stopped, handed on by a thread."""

    def __init__(
        self, kubectl: Kubectl, words: Sequence[str], line: Callable[[str], None], end: Callable[[], None]
    ) -> None:
        self._process = kubectl.start(*words)
        self._thread = threading.Thread(target=self._read, args=(line, end), daemon=True)
        self._thread.start()

    def _read(self, line: Callable[[str], None], end: Callable[[], None]) -> None:
        if self._process.stdout:
            for text in self._process.stdout:
                line(text)
        self._process.wait()
        end()

    def stop(self) -> None:
        self._process.terminate()
        self._thread.join()
        if self._process.stdout:
            self._process.stdout.close()


class Documents:
    """Reads kubectl's watch events, one JSON document a line."""

    def __init__(self, found: Callable[[Object], None]) -> None:
        self._found = found
        self.complaints: list[str] = []
        """Lines that are none: kubectl's own words."""

    def line(self, text: str) -> None:
        if text.startswith("{"):
            self._found(json.loads(text))
        else:
            self.complaints.append(text.strip())


class Watch:
    """The events of some resources of one namespace, from the first state on; used as a context manager."""

    def __init__(
        self,
        kubectl: Kubectl,
        namespace: str,
        describe: Callable[[], str],
        resources: Sequence[str] = ("trainingjobs", "pods"),
    ) -> None:
        self._kubectl = kubectl
        self._words = ["get", "--namespace", namespace, "--watch", "--output-watch-events", "--output=json"]
        self._resources = resources
        self._describe = describe
        self._changed = threading.Condition()
        self._history: list[Seen] = []
        self._streams: list[Stream] = []
        self._failure: str | None = None

    def __enter__(self) -> Self:
        self._history, self._failure = [], None
        self._streams = [self._stream(resource) for resource in self._resources]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._streams:
            stream.stop()

    def _stream(self, resource: str) -> Stream:
        documents = Documents(self._see)

        def end() -> None:
            with self._changed:
                self._failure = f"kubectl get {resource} --watch has ended: {' '.join(documents.complaints)}"
                self._changed.notify_all()

        return Stream(self._kubectl, [*self._words, resource], documents.line, end)

    def _see(self, document: Object) -> None:
        with self._changed:
            self._history.append(Seen(time.time(), document["type"], document["object"]))
            self._changed.notify_all()

    @property
    def history(self) -> list[Seen]:
        """Everything seen so far."""
        with self._changed:
            return list(self._history)

    def wait(self, what: str, condition: Callable[[Sequence[Seen]], T | None], *, seconds: float) -> T:
        """The condition's first value that is not None; it is asked at every event. Late after `seconds`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while (found := condition(self._history)) is None:
                left = deadline - time.monotonic()
                if self._failure or left <= 0:
                    raise Late(f"{self._failure or f'not within {seconds:g} s'}: {what}\n{self._describe()}")
                self._changed.wait(left)
            return found


class Log:
    """The lines of one pod's log as they come; used as a context manager."""

    def __init__(self, kubectl: Kubectl, namespace: str, pod: str) -> None:
        self._kubectl = kubectl
        self._words = ["logs", "--namespace", namespace, "--follow", pod]
        self._pod = pod
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._over = False

    def __enter__(self) -> Self:
        self._stream = Stream(self._kubectl, self._words, self._add, self._end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.stop()

    def _add(self, line: str) -> None:
        with self._changed:
            self._lines.append(line.rstrip("\n"))
            self._changed.notify_all()

    def _end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def wait(self, pattern: str, *, seconds: float, times: int = 1) -> list[re.Match[str]]:
        """The first `times` lines in which `pattern` is found. Late after `seconds`, or when the log ends before."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while len(found := list(self._found(pattern))) < times:
                left = deadline - time.monotonic()
                if self._over or left <= 0:
                    why = "the log has ended" if self._over else f"not within {seconds:g} s"
                    tail = "\n  ".join(deque(self._lines, 15))
                    raise Late(
                        f"{why}: {times} lines with {pattern!r} in the log of pod {self._pod}; its end:\n  {tail}"
                    )
                self._changed.wait(left)
            return found[:times]

    def count(self, pattern: str) -> int:
        """In how many lines `pattern` has been found so far."""
        with self._changed:
            return len(list(self._found(pattern)))

    def whole(self, *, seconds: float) -> list[str]:
        """Every line, once the log has ended. Late after `seconds`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._over:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Late(f"not within {seconds:g} s: the end of the log of pod {self._pod}")
                self._changed.wait(left)
            return list(self._lines)

    def _found(self, pattern: str) -> Iterator[re.Match[str]]:
        return (found for line in self._lines if (found := re.search(pattern, line)))
