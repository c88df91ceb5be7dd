"""How a client reaches the API server: calls that are slow, refused or lose their answer, and watches that lag behind.

A call arrives, is carried out and is answered at three moments. Nothing in between is undone: if a client is killed,
frozen or out of patience, which is the client's own, the server's work stays. Each kind is watched by its own stream,
in order within a kind and in none between kinds, as kopf runs them.
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
from typing import Any, Final

from tests.simulation.answers import CUTS, FORMS, NO_ANSWER, Answer, compact, event, expired, refusal, status_of
from tests.simulation.apiserver import ApiServer, Change
from tests.simulation.clock import Process, VirtualLoop
from tests.simulation.objects import EPOCH, EVICTIONS, LEASES, PODS, Json, Refused, key_of, selected

QUICK: Final = (0.001, 0.02)
"""How long an event of a watch takes."""
LATE_SECONDS: Final = (10.0, 40.0)
"""An API server gives up a request after a minute, whatever its client does."""


@dataclass
class CallFaults:
    """Probabilities of a call's ends, and how long it may take."""

    conflict: float = 0.0
    too_many: float = 0.0
    retry_after: float | None = None
    """The header of the answers to clients with too many requests, and of errors."""
    error: float = 0.0
    statuses: tuple[int, ...] = (500, 502, 503, 504)
    """Of errors."""
    form: str = ""
    """Of the bodies of errors and of the answers to too many requests, a name of `answers.FORMS`; "": a Status."""
    cut: float = 0.0
    """Of answers whose body ends early: half of those of writes that were carried out."""
    forgets_lists: float = 0.0
    """The share of lists that end with 410 after their first page."""
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
    expired: float = 0.0
    """Per event: in its place comes 410, and the connection ends."""
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
        self.asked = 0.0
        """Seconds for which the answer that came last asks its client to wait."""
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

    async def call(self, verb: str, kind: str, what: Callable[[], Answer], *, name: str = "") -> Answer:
        """Carry `what` out on the server. Its answer may be a refusal, or never come."""
        self.calls[verb] += 1
        way, told = f"{verb} {kind}", kind != LEASES
        self.under_way[way] += 1
        if told:
            self.on_call(verb, kind, name)
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._loop.outside(self._trip(kind), self._arrive, _Call(verb, kind, name, what, future))
        wrong, asked = NO_ANSWER, 0.0
        try:
            answer = await future
            wrong, asked = answer.wrong, answer.asked
        finally:
            self.asked = asked
            self.under_way[way] -= 1
            if told:
                self.on_answer(verb, kind, name, wrong)
        return answer

    def forgets_lists(self) -> bool:
        """Whether a list cannot go on."""
        share = self._knobs.calls.forgets_lists
        if not share or self._rng.random() >= share:
            return False
        self._fired["list-expired"] += 1
        return True

    def watch(self, kind: str, namespace: str, name: str, version: str) -> Watched:
        """The server's part when a watch of one name arrives: changes since that version come first."""
        seen, changes = int(version), self.server.changes
        faults = self._knobs.watches
        if too_old(changes, seen) or (faults.gone and self._rng.random() < faults.gone):
            self._fired["watch-gone"] += 1
            raise expired("resource version")
        watched = Watched(self._loop, self.server, faults, self._rng)
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
            elif faults.expired and self._rng.random() < faults.expired:
                self._fired["watch-expired"] += 1
                there.remove(watched)
                watched.expire(change.kind, key_of(change.raw)[1])
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

    def _arrive(self, call: _Call) -> None:
        faults, chance, kind = self._knobs.calls, self._rng.random, call.kind
        writing = call.verb not in ("get", "list", "watch", "dry-run")
        if faults.down or self.cut or (faults.timeout and chance() < faults.timeout):
            self._fired["timeout"] += 1
            return
        if faults.too_many and chance() < faults.too_many:
            words = "too many requests, please try again"
            self._refuse(call, "too-many", Refused(429, "TooManyRequests", words, faults.retry_after))
            return
        if faults.error and chance() < faults.error:
            status = self._rng.choice(faults.statuses)
            words = "etcdserver: leader changed"
            self._refuse(call, "server-error", Refused(status, "InternalError", words, faults.retry_after))
            return
        if writing and faults.conflict and chance() < faults.conflict:
            self._refuse(call, "conflict", Refused(409, "Conflict", "the object has been modified"))
            return
        once = call.verb in ("patch", "status") and kind == faults.late_once
        if once or (writing and faults.late and chance() < faults.late):
            faults.late_once = "" if once else faults.late_once
            self._fired["late-write"] += 1
            self._loop.outside(self._rng.uniform(*LATE_SECONDS), _carry_out, call.what)
            return
        try:
            answer = call.what()
        except Refused as refused:
            answer = refusal(refused, kind, call.name)
        if writing and faults.lost and faults.lost_kind in ("", kind) and chance() < faults.lost:
            self._fired["lost-answer"] += 1
            if chance() < 0.5:
                self._refuse(call, "", Refused(504, "Timeout", "the server was unable to return a response in time"))
            return
        if faults.cut and answer.stream is None and chance() < faults.cut:
            self._fired["lost-answer" if writing else "server-error"] += 1
            self._fired["answer-cut"] += 1
            FORMS[self._rng.choice(CUTS)](answer)
        self._send(call.future, answer, self._trip(kind))

    def _refuse(self, call: _Call, fault: str, refused: Refused) -> None:
        answer, form = refusal(refused, call.kind, call.name), self._knobs.calls.form
        if fault:
            self._fired[fault] += 1
        if form and fault in ("too-many", "server-error"):
            self._fired[f"{fault}-{form}"] += 1
            FORMS[form](answer)
        self._send(call.future, answer, self._trip())

    def _send(self, future: asyncio.Future[Answer], answer: Answer, seconds: float) -> None:
        answer.headers["Date"] = http_date(int(self._loop.time()))
        self._loop.outside(seconds, _settle, future, answer)


@lru_cache(maxsize=4096)
def http_date(second: int) -> str:
    """As in a Date header; each history asks for the same ones."""
    return (EPOCH + timedelta(seconds=second)).strftime("%a, %d %b %Y %H:%M:%S GMT")


@dataclass(frozen=True)
class _Call:
    """A request on its way."""

    verb: str
    kind: str
    name: str
    what: Callable[[], Answer]
    future: asyncio.Future[Answer]


def _carry_out(what: Callable[[], Any]) -> None:
    """The answer is no longer awaited."""
    with suppress(Refused):
        what()


def _settle(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)


def too_old(changes: deque[Change], seen: int) -> bool:
    """Whether changes after that version may be forgotten."""
    return bool(changes) and changes[0].version > seen + 1 and len(changes) == changes.maxlen


class Watched:
    """The events of a watch of one name, on their way to the one client that waits for them."""

    def __init__(self, loop: VirtualLoop, server: ApiServer, faults: WatchFaults, rng: random.Random) -> None:
        self._loop, self._server, self._rng = loop, server, rng
        self._lag = rng.uniform(0.0, faults.delay) if faults.delay else 0.0
        self._arrival = 0.0
        self._arrived: asyncio.Queue[bytes | None] = asyncio.Queue()

    def send(self, change: Change) -> None:
        """It arrives after all that was sent before."""
        self._put(event(change.event, self._server.text(change.raw)))

    def expire(self, kind: str, name: str) -> None:
        """The last event is an error."""
        self._put(event("ERROR", compact(status_of(expired("resource version"), kind, name))))

    def break_off(self) -> None:
        """The client learns that nothing more comes."""
        self._put(None)

    def end(self) -> None:
        """The server has kept it for as long as it was asked to."""
        self._arrived.put_nowait(b"")

    def _put(self, line: bytes | None) -> None:
        self._arrival = max(self._arrival, self._loop.time() + self._rng.uniform(*QUICK) + self._lag)
        self._loop.outside(self._arrival - self._loop.time(), self._arrived.put_nowait, line)

    async def line(self) -> bytes | None:
        """The next event; nothing after the last one, and None where the connection has broken."""
        return await self._arrived.get()


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
        self._connected = self._expired = False
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
        if faults.expired and chance() < faults.expired:
            self._lose("watch-expired", expired=True)
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

    def _lose(self, fault: str, *, expired: bool = False) -> None:
        self._link._fired[fault] += 1
        self._connected, self._expired = False, expired
        self._loop.outside(self._rng.choice((0.1, 1.0, 5.0, 20.0)) * self._rng.random(), self._reconnect)

    def _reconnect(self) -> None:
        faults = self._knobs.watches
        if self._closed:
            return
        if faults.silent or self._link.cut or self._knobs.calls.down:
            self._loop.outside(1.0, self._reconnect)
            return
        changes = self._link.server.changes
        if self._expired or too_old(changes, self._seen) or self._rng.random() < faults.gone:
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
