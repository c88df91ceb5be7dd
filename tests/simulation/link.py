"""How a client reaches the API server: calls that are slow, refused or lose their answer, and watches that lag behind.

A call arrives, is carried out and is answered at three moments. Nothing in between is undone: if a client is killed,
frozen or out of patience, the server's work stays. Each kind is watched by its own stream, in order within a kind and
in none between kinds, as kopf runs them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, TypeVar

from tests.simulation.apiserver import ApiServer, Change
from tests.simulation.clock import Process, VirtualLoop
from tests.simulation.objects import EPOCH, EVICTIONS, LEASES, PODS, Json, Refused, key_of, selected

T = TypeVar("T")

TIMEOUT_SECONDS: Final = 10.0
QUICK: Final = (0.001, 0.02)
"""How long an event of a watch takes."""
LATE_SECONDS: Final = (10.0, 40.0)
"""An API server gives up a request after a minute, whatever its client does."""


class NoAnswer(Exception):
    """The client has waited long enough."""


@dataclass
class CallFaults:
    """Probabilities of a call's ends, and how long it may take."""

    conflict: float = 0.0
    too_many: float = 0.0
    retry_after: float | None = None
    """The answer to clients with too many requests."""
    error: float = 0.0
    timeout: float = 0.0
    lost: float = 0.0
    """Of writes that happen and whose answer does not come."""
    lost_kind: str = ""
    """Only answers about this kind."""
    slow: float = 0.0
    """Of calls that take up to `slow_seconds`."""
    slow_seconds: float = 8.0
    slow_kind: str = ""
    """Only calls about this kind: its storage, or a webhook for it, is slow."""
    late: float = 0.0
    """Of writes that the server carries out long after the client has given up on them."""
    late_once: str = ""
    """The next patch, or write of the status, of this kind is carried out that late."""
    down: bool = False


@dataclass
class WatchFaults:
    """What happens to a watch's events."""

    delay: float = 0.0
    """At most this much later than `QUICK`, drawn for each stream and changed now and then."""
    drop: float = 0.0
    """Per event: the connection ends, and is made again after a moment from the last version seen."""
    gone: float = 0.0
    """The share of reconnections answered 410: list again."""
    duplicate: float = 0.0
    silent: bool = False
    """No event arrives, and no error."""


@dataclass
class Knobs:
    """The faults of one history's network, shared by all links; faults turn them."""

    calls: CallFaults = field(default_factory=CallFaults)
    watches: WatchFaults = field(default_factory=WatchFaults)
    lagging: dict[str, float] = field(default_factory=dict)
    """By kind: this stream is so many seconds behind for all."""


class Link:
    """One client process's way to the API server."""

    def __init__(
        self,
        loop: VirtualLoop,
        server: ApiServer,
        knobs: Knobs,
        rng: random.Random,
        *,
        name: str,
        fired: Counter[str],
    ) -> None:
        self._loop = loop
        self.server = server
        self._knobs = knobs
        self._rng = rng
        self.name = name
        self._fired = fired
        self.cut = False
        self.date = ""
        """The Date header of the answer that came last."""
        self._watched: dict[tuple[str, str, str], list[Watched]] = {}
        server.observe(self._on_change)
        self.calls: Counter[str] = Counter()
        self.on_call: Callable[[str, str, str], object] = _ignore
        """With verb, kind and name when a request is sent; not for Leases, which are most."""
        self.on_answer: Callable[[str, str, str, str], object] = _ignore
        """The same when its client stops waiting, and what was wrong: an HTTP status, `no answer`, or ""."""
        self.on_write: Callable[[str, str, str, frozenset[str]], object] = _ignore
        """With verb, kind, name and all preconditions of the write, without which it is refused."""
        self.under_way: Counter[str] = Counter()
        """By verb and kind."""

    async def call(self, verb: str, kind: str, what: Callable[[], T], *, name: str = "") -> T:
        """Carry `what` out on the server; raises Refused, or NoAnswer where the answer did not come in time."""
        self.calls[verb] += 1
        way, told = f"{verb} {kind}", kind != LEASES
        self.under_way[way] += 1
        if told:
            self.on_call(verb, kind, name)
        future: asyncio.Future[T] = self._loop.create_future()
        self._loop.outside(self._trip(kind), self._arrive, verb, kind, what, future)
        patience = _Patience(future)
        timer = self._loop.call_later(TIMEOUT_SECONDS, patience.end)
        wrong = "no answer"
        try:
            answer = await future
            if patience.over:
                raise NoAnswer(f"{verb} {kind} {name}: no answer")
            wrong = ""
        except Refused as refused:
            if patience.over:
                raise NoAnswer(f"{verb} {kind} {name}: no answer") from None
            wrong = str(refused.status)
            raise
        finally:
            timer.cancel()
            self.under_way[way] -= 1
            if told:
                self.on_answer(verb, kind, name, wrong)
        return answer

    def watch(self, kind: str, namespace: str, name: str, version: str) -> Watched:
        """The server's part when a watch of one name arrives: changes since that version come first."""
        seen, changes = int(version), self.server.changes
        faults = self._knobs.watches
        if too_old(changes, seen) or (faults.gone and self._rng.random() < faults.gone):
            self._fired["watch-gone"] += 1
            raise Refused(410, "Expired", "too old resource version")
        watched = Watched(self._loop, faults, self._rng)
        for change in changes:
            if change.version > seen and (change.kind, *key_of(change.raw)) == (kind, namespace, name):
                watched.send(change)
        self._watched.setdefault((kind, namespace, name), []).append(watched)
        return watched

    def _on_change(self, change: Change) -> None:
        there = self._watched.get((change.kind, *key_of(change.raw)), []) if self._watched else []
        faults = self._knobs.watches
        for watched in tuple(there):
            if self.cut or faults.silent:
                there.remove(watched)  # no error reports that this connection is dead
            elif faults.drop and self._rng.random() < faults.drop:
                self._fired["watch-drop"] += 1
                there.remove(watched)
                watched.break_off()
            else:
                watched.send(change)
                if faults.duplicate and self._rng.random() < faults.duplicate:
                    self._fired["duplicate-event"] += 1
                    watched.send(change)

    def close(self) -> None:
        """The client is gone."""
        self.server.ignore(self._on_change)

    def _trip(self, kind: str = "") -> float:
        faults = self._knobs.calls
        if faults.slow and faults.slow_kind in ("", kind) and self._rng.random() < faults.slow:
            self._fired["slow-call"] += 1
            return self._rng.uniform(0.2, faults.slow_seconds)
        return self._rng.uniform(0.0005, 0.004)

    def _arrive(self, verb: str, kind: str, what: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        faults, chance = self._knobs.calls, self._rng.random
        writing = verb not in ("get", "list", "watch", "dry-run")
        if faults.down or self.cut or (faults.timeout and chance() < faults.timeout):
            self._fired["timeout"] += 1
            return
        if faults.too_many and chance() < faults.too_many:
            words = "too many requests, please try again"
            self._answer(future, "too-many", Refused(429, "TooManyRequests", words, faults.retry_after))
            return
        if faults.error and chance() < faults.error:
            status = self._rng.choice((500, 502, 503, 504))
            self._answer(future, "server-error", Refused(status, "InternalError", "etcdserver: leader changed"))
            return
        if writing and faults.conflict and chance() < faults.conflict:
            self._answer(future, "conflict", Refused(409, "Conflict", "the object has been modified"))
            return
        once = verb in ("patch", "status") and kind == faults.late_once
        if once or (writing and faults.late and chance() < faults.late):
            faults.late_once = "" if once else faults.late_once
            self._fired["late-write"] += 1
            self._loop.outside(self._rng.uniform(*LATE_SECONDS), _carry_out, what)
            return
        try:
            result, error = what(), None
        except Refused as refused:
            result, error = None, refused
        if writing and faults.lost and faults.lost_kind in ("", kind) and chance() < faults.lost:
            self._fired["lost-answer"] += 1
            if chance() < 0.5:
                self._answer(future, "", Refused(504, "Timeout", "the server was unable to return a response in time"))
            return
        self._loop.outside(self._trip(kind), self._settle, future, result, error, http_date(int(self._loop.time())))

    def _settle(self, future: asyncio.Future[Any], result: Any, error: Exception | None, date: str) -> None:
        self.date = date
        _settle(future, result, error)

    def _answer(self, future: asyncio.Future[Any], fault: str, error: Refused) -> None:
        if fault:
            self._fired[fault] += 1
        self._loop.outside(self._trip(), self._settle, future, None, error, http_date(int(self._loop.time())))


@lru_cache(maxsize=4096)
def http_date(second: int) -> str:
    """As in a Date header; each history asks for the same ones."""
    return (EPOCH + timedelta(seconds=second)).strftime("%a, %d %b %Y %H:%M:%S GMT")


class _Patience:
    """`asyncio.timeout` for one future, at a third of its cost: time that is over counts before a late answer."""

    def __init__(self, awaited: asyncio.Future[Any]) -> None:
        self.over = False
        self._awaited = awaited

    def end(self) -> None:
        """The client waits no longer."""
        self.over = True
        if not self._awaited.done():
            self._awaited.set_result(None)


def _carry_out(what: Callable[[], Any]) -> None:
    """The answer is no longer awaited."""
    with suppress(Refused):
        what()


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def too_old(changes: deque[Change], seen: int) -> bool:
    """Whether changes after that version may be forgotten."""
    return bool(changes) and changes[0].version > seen + 1 and len(changes) == changes.maxlen


class Watched:
    """The events of a watch of one name, on their way to the one client that waits for them."""

    def __init__(self, loop: VirtualLoop, faults: WatchFaults, rng: random.Random) -> None:
        self._loop, self._rng = loop, rng
        self._lag = rng.uniform(0.0, faults.delay) if faults.delay else 0.0
        self._arrival = 0.0
        self._arrived: asyncio.Queue[Change | None] = asyncio.Queue()

    def send(self, change: Change) -> None:
        """It arrives after all that was sent before."""
        self._put(change)

    def break_off(self) -> None:
        """The client learns that nothing more comes."""
        self._put(None)

    def _put(self, what: Change | None) -> None:
        self._arrival = max(self._arrival, self._loop.time() + self._rng.uniform(*QUICK) + self._lag)
        self._loop.outside(self._arrival - self._loop.time(), self._arrived.put_nowait, what)

    async def event(self) -> Change:
        """The next one; raises NoAnswer where the connection has ended."""
        change = await self._arrived.get()
        if change is None:
            raise NoAnswer("the connection has ended")
        return change


TakeIn = Callable[[str, str | None, Json], object]
"""kind, event (None for an object of a list), object."""


class Watches:
    """All streams of one process, as kopf would keep them."""

    def __init__(self, loop: VirtualLoop, link: Link, process: Process, knobs: Knobs, take_in: TakeIn) -> None:
        self._link = link
        self.streams: list[Stream] = []
        self._new: Callable[[str, str], Stream] = lambda kind, selector: Stream(
            loop, link, process, knobs, take_in, kind, selector
        )

    def start(self, selectors: Mapping[str, str]) -> None:
        """Begin with a list of each kind."""
        for kind, selector in selectors.items():
            self.streams.append(self._new(kind, selector))

    def end(self) -> None:
        """The process is gone: the server forgets its streams."""
        self._link.close()
        for stream in self.streams:
            stream.close()


class Stream:
    """One kind's watch: a list first, then events in order."""

    def __init__(  # noqa: PLR0917
        self,
        loop: VirtualLoop,
        link: Link,
        process: Process,
        knobs: Knobs,
        take_in: TakeIn,
        kind: str,
        selector: str,
    ) -> None:
        self._loop, self._link, self._process, self._knobs = loop, link, process, knobs
        self._take_in = take_in
        self._kind, self._selector = kind, selector
        self._rng = link._rng
        self._arrival = 0.0
        self._seen = 0
        self._connected = False
        self._closed = False
        self._lag = 0.0
        link.server.observe(self._on_change, kind)
        loop.outside(self._rng.uniform(0.0, 0.3), self._list)

    def close(self) -> None:
        self._closed = True
        self._link.server.ignore(self._on_change)

    def _list(self) -> None:
        """As a new watch begins: every object with type None, and the version to go on from."""
        if self._closed:
            return
        if self._knobs.calls.down or self._link.cut:
            self._loop.outside(self._rng.uniform(0.5, 3.0), self._list)
            return
        server = self._link.server
        for raw in server.all(self._kind, None, self._selector):
            self._send(None, raw)
        self._seen, self._connected = server.version, True
        self._lag = self._rng.uniform(0.0, self._knobs.watches.delay)

    def _on_change(self, change: Change) -> None:
        if not self._connected:
            return
        event, raw = self._visible(change)
        if event is None:
            return
        faults, chance = self._knobs.watches, self._rng.random
        if faults.silent or self._link.cut:
            self._lose("silent-watch")
            return
        if faults.drop and chance() < faults.drop:
            self._lose("watch-drop")
            return
        self._seen = change.version
        self._send(event, raw)
        if faults.duplicate and chance() < faults.duplicate:
            self._link._fired["duplicate-event"] += 1
            self._send(event, raw)

    def _visible(self, change: Change) -> tuple[str | None, Json]:
        """With a selector an object that begins or stops to match is ADDED or DELETED.

        Of one that stops to match the last state that did is shown, in the version in which it stopped.
        """
        if not self._selector:
            return change.event, change.raw
        now = change.event != "DELETED" and selected(change.raw, self._selector)
        before = change.old is not None and selected(change.old, self._selector)
        if now:
            return "MODIFIED" if before else "ADDED", change.raw
        if not before:
            return None, change.raw
        if change.event == "DELETED" or change.old is None:
            return "DELETED", change.raw
        metadata = change.old["metadata"] | {"resourceVersion": str(change.version)}
        return "DELETED", change.old | {"metadata": metadata}

    def _lose(self, fault: str) -> None:
        self._link._fired[fault] += 1
        self._connected = False
        self._loop.outside(self._rng.choice((0.1, 1.0, 5.0, 20.0)) * self._rng.random(), self._reconnect)

    def _reconnect(self) -> None:
        faults = self._knobs.watches
        if self._closed:
            return
        if faults.silent or self._link.cut or self._knobs.calls.down:
            self._loop.outside(1.0, self._reconnect)
            return
        changes = self._link.server.changes
        if too_old(changes, self._seen) or self._rng.random() < faults.gone:
            self._link._fired["watch-gone"] += 1
            self._list()
            return
        self._connected = True
        for change in list(changes):
            if change.version > self._seen and change.kind == self._kind:
                event, raw = self._visible(change)
                if event is not None:
                    self._send(event, raw)
        self._seen = self._link.server.version

    def _send(self, event: str | None, raw: Json) -> None:
        delay = self._rng.uniform(*QUICK)
        if self._knobs.watches.delay:
            if self._rng.random() < 0.05:
                self._lag = self._rng.random() ** 3 * self._knobs.watches.delay
                self._link._fired["watch-lag"] += 1
            delay += self._lag
        delay += self._knobs.lagging.get(self._kind, 0.0)
        self._arrival = max(self._arrival, self._loop.time() + delay)
        self._loop.outside(self._arrival - self._loop.time(), self._deliver, event, raw)

    def _deliver(self, event: str | None, raw: Json) -> None:
        if not self._closed:
            self._process.call(self._take_in, self._kind, event, raw)


def selectors(job_label: str, *, evictions: bool = False) -> dict[str, str]:
    """The operator's watches: the server selects pods only."""
    always = {"trainingjobs": "", PODS: job_label, "nodes": "", "poddisruptionbudgets": ""}
    return always | ({EVICTIONS: ""} if evictions else {})


def _ignore(*_: object) -> None:
    """Does not count."""
