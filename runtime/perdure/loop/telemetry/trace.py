"""Records what each rank trained on, step by step: evidence for tests, in the store beside the checkpoints.

One JSON line for each step, with the time and the sample ids found in the batch, and one for each event. A thread
writes the collected lines to `trace/<uid>-<run>-<rank>-<part>.jsonl` about every second. They are also written before
each periodic commit and after the final one, so that everything in a commit is on record. A store that fails never
stops training: the lines are kept, and written later.

Made by the session when PERDURE_TRACE=1. Nothing reads it here.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, Protocol

from perdure.console import warn
from perdure.errors import StorageError
from perdure.loop.telemetry.events import Event, GoalReached, Leaving, Reported, RequestSeen, Resumed, Stepped
from perdure.store import Store
from perdure.wire.channel import HandoverEnded, TookOver

FLUSH_SECONDS: Final = 1.0


class Trace(Protocol):
    """Where a session records what happened."""

    def step(self, epoch: int, step: int, ids: Sequence[int], *, alone: bool = False) -> None:
        """One optimizer step, and the ids of the samples it used. `alone`: other ranks may not have done it."""
        ...

    def event(self, name: str, **more: Any) -> None:
        """Any other event."""
        ...

    def take_over(self, run: int, rank: int, world: int) -> None:
        """From now on lines are of this rank of this run."""
        ...

    def flush(self) -> None:
        """Writes the collected lines. StorageError: they are kept, and may be tried again."""
        ...

    def close(self) -> None:
        """Ends the thread. Lines that are collected then are lost unless the caller flushes."""
        ...


class NoTrace:
    """Records nothing."""

    def step(self, epoch: int, step: int, ids: Sequence[int], *, alone: bool = False) -> None:
        pass

    def event(self, name: str, **more: Any) -> None:
        pass

    def take_over(self, run: int, rank: int, world: int) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class StoreTrace:
    """The trace of one rank of one run."""

    def __init__(self, store: Store, *, uid: str, run: int, rank: int, world: int) -> None:
        self._store = store
        self._uid, self._run, self._rank, self._world = uid, run, rank, world
        self._name = f"trace/{uid}-{run}-{rank}"
        """Named after the run in which this process began, so no other process writes there."""
        self._lines: list[str] = []
        self._writing = b""
        self._part = 0
        self._lines_lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._complained = False
        self._closed = threading.Event()
        threading.Thread(target=self._flush_now_and_then, name="perdure-trace", daemon=True).start()

    def step(self, epoch: int, step: int, ids: Sequence[int], *, alone: bool = False) -> None:
        """One optimizer step, and the ids of the samples it used. `alone`: other ranks may not have done it."""
        self._add({"epoch": epoch, "step": step, "ids": list(ids), **({"alone": True} if alone else {})})

    def event(self, name: str, **more: Any) -> None:
        """Any other event."""
        self._add({"event": name, **more})

    def take_over(self, run: int, rank: int, world: int) -> None:
        """From now on lines are of this rank of this run."""
        self._run, self._rank, self._world = run, rank, world

    def flush(self) -> None:
        """Writes the collected lines. StorageError: they are kept, and may be tried again."""
        with self._flush_lock:
            while self._next_part():
                key = f"{self._name}-{self._part:05d}.jsonl"
                self._store.put(key, self._writing)
                self._writing, self._part = b"", self._part + 1

    def close(self) -> None:
        """Ends the thread. Lines that are collected then are lost unless the caller flushes."""
        self._closed.set()

    def _next_part(self) -> bytes:
        """A part keeps its lines until it is written, because a late write must not undo a later one."""
        if not self._writing:
            with self._lines_lock:
                self._writing = "".join(self._lines).encode()
                self._lines.clear()
        return self._writing

    def _add(self, what: dict[str, Any]) -> None:
        line = {"t": time.time(), "uid": self._uid, "run": self._run, "rank": self._rank, "world": self._world, **what}
        with self._lines_lock:
            self._lines.append(json.dumps(line, separators=(",", ":")) + "\n")

    def _flush_now_and_then(self) -> None:
        while not self._closed.wait(FLUSH_SECONDS):
            try:
                self.flush()
            except StorageError as error:
                self._complain(error)

    def _complain(self, error: StorageError) -> None:
        if not self._complained:
            self._complained = True
            warn(f"trace cannot be written, trying again: {error}")


class TraceLines:
    """The sink: one line for each step, and one for each event that tests need."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def take(self, event: Event) -> None:
        """Adds the event's line."""
        match event:
            case Stepped(step, epoch, samples, alone):
                self._trace.step(epoch, step, samples, alone=alone)
            case Resumed(step, seconds):
                self._trace.event("resumed", step=step, seconds=dict(seconds))
            case Reported(step, epoch, values):
                self._trace.event("reported", step=step, epoch=epoch, values=dict(values))
            case RequestSeen(step, cause, at):
                self._trace.event("request-seen", t=at, step=step, cause=cause)
            case Leaving(step):
                self._trace.event("exit", step=step)
            case TookOver(run, rank, world, step, parts):
                self._trace.take_over(run, rank, world)
                self._trace.event("took-over", step=step, parts=dict(parts))
            case HandoverEnded(run, word, why):
                self._trace.event("handover-ended", next=run, word=word.value, why=why)
            case GoalReached(step):
                self._trace.event("completed", step=step)
