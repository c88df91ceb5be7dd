"""The object storage of a history: one process's way to the bucket, with everything that may go wrong on it.

A request travels for a while, takes effect at the server, and its answer travels back: the sender may be dead by then,
and the effect still happens. Conditional PUTs have exactly one winner and listings are current, as S3 promises;
everything else may fail: no connection, an error, an answer that never comes, a PUT that arrives long after its sender
has given up. Limits and tries are those of `perdure.store.s3`.

`Access` is for coroutines; `Tape` and `AtOnce` put the real, synchronous log code on top of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.errors import PerdureError, StorageError, StorageRefused
from perdure.log.entry import PREFIX, checksum
from perdure.store import KeyExists, NoSuchKey, ObjectInfo, every_key
from tests.simulation.interface import Bucket, Network
from tests.simulation.witness import Trouble, Witness

CONNECT_SECONDS: Final = 3.0
READ_SECONDS: Final = 5.0
TRIES: Final = 2
QUICK: Final = (0.004, 0.03)
"""The time of a request, and of an answer, on a good day."""
LATE_SHARE: Final = 0.25
"""The share of unanswered writes that arrive only when they are no longer awaited."""
LATE: Final = (5.0, 90.0)
SLOW_SECONDS: Final = 1.0
"""A request that takes longer may be what a save did not have time for."""
OUTSIDE: Final = Context()
"""The share of requests that continue although their process was killed or frozen."""


@dataclass(frozen=True)
class Call:
    """One request."""

    verb: str
    key: str = ""
    data: bytes = b""
    if_absent: bool = False
    start: int = 0
    length: int | None = None
    after: str = ""
    limit: int | None = None
    keys: tuple[str, ...] = ()

    @property
    def writes(self) -> bool:
        """Whether it changes anything."""
        return self.verb in ("put", "delete")


@dataclass
class Changes:
    """Wakes those that wait for another rank's entry: the real code polls five times a second instead."""

    waiting: dict[asyncio.Future[None], None] = field(default_factory=dict)
    """In the order in which they came: a set of futures would have the order of their addresses."""

    def tell(self) -> None:
        """Something was appended."""
        waiting, self.waiting = self.waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Return at the next change, or when time is up."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self.waiting[future] = None
        timer = loop.call_later(seconds, _settle, future, None)
        try:
            await future
        finally:
            timer.cancel()
            self.waiting.pop(future, None)


class Access:
    """One process's calls."""

    def __init__(self, bucket: Bucket, uri: str, network: Network, ip: str, rng: random.Random) -> None:
        self.uri = uri.rstrip("/")
        self.appended: Changes = network.shared.setdefault(("appended", self.uri), Changes())
        self._bucket, self._network, self._ip, self._rng = bucket, network, ip, rng
        self._base = f"{self.uri}/"
        self._witness = Witness.of(network, uri)
        self._unordered = network.shared.setdefault(("unordered", self.uri), rng.random() < 0.1)

    @property
    def connected(self) -> bool:
        """Whether the server can be reached from here, and answers."""
        return not self._bucket.down and self._network.storage_reachable(self._ip)

    async def perform(self, call: Call) -> Any:
        """The answer; PerdureError as `perdure.store` has it."""
        for _ in range(TRIES):
            try:
                return await self._attempt(call)
            except TimeoutError:
                self._witness.trouble.append(Trouble(asyncio.get_running_loop().time(), "storage"))
        raise StorageError(f"cannot {call.verb} {call.key} of {self.uri}: no answer: check that it can be reached")

    async def _attempt(self, call: Call) -> Any:
        """One request; TimeoutError if it should be retried."""
        if not self.connected:
            await asyncio.sleep(CONNECT_SECONDS)
            raise TimeoutError
        loop, rng = asyncio.get_running_loop(), self._rng
        answer: asyncio.Future[Any] = loop.create_future()
        there = rng.uniform(*QUICK) + rng.uniform(0, self._bucket.slow_seconds)
        if there >= READ_SECONDS:
            loop.call_later(there, self._arrive, call, None, context=OUTSIDE)
            await asyncio.sleep(READ_SECONDS)
            raise TimeoutError
        if there > SLOW_SECONDS:
            self._witness.trouble.append(Trouble(loop.time(), "slow storage"))
        loop.call_later(there, self._arrive, call, answer, context=OUTSIDE)
        result = await answer
        if result is _NO_ANSWER:
            await asyncio.sleep(READ_SECONDS)
            raise TimeoutError
        if isinstance(result, Exception):
            raise result
        return result

    def _arrive(self, call: Call, answer: asyncio.Future[Any] | None) -> None:
        """The request reaches the server, awaited or not."""
        loop, rng, bucket = asyncio.get_running_loop(), self._rng, self._bucket
        lost = call.writes and rng.random() < bucket.lost_answer_rate
        result: Any = _NO_ANSWER
        if lost and answer is not None and rng.random() < LATE_SHARE:
            loop.call_later(rng.uniform(*LATE), self._arrive, call, None, context=OUTSIDE)
        elif self.connected:
            # A 5xx is tried again by the client, as no answer is.
            result = TimeoutError() if rng.random() < bucket.error_rate else self.effect(call)
        if answer is not None:
            loop.call_later(rng.uniform(*QUICK), _settle, answer, _NO_ANSWER if lost else result)

    def effect(self, call: Call) -> Any:
        """The server's effect and answer: a value or an exception."""
        objects, key = self._bucket.objects, self._base + call.key
        if self.uri in self._bucket.refused:
            self._witness.trouble.append(Trouble(asyncio.get_running_loop().time(), "storage"))
            return StorageRefused(
                f"cannot {call.verb} {call.key} of {self.uri}: 403 AccessDenied: give its keys rights"
            )
        match call.verb:
            case "put":
                if call.if_absent and key in objects:
                    return KeyExists(f"{self.uri} has {call.key} already")
                objects[key] = call.data
                if call.key.startswith(PREFIX):
                    self.appended.tell()
                return None
            case "get":
                found = objects.get(key)
                if found is None:
                    return NoSuchKey(f"{self.uri} has no {call.key}")
                return found[call.start : None if call.length is None else call.start + call.length]
            case "head":
                found = objects.get(key)
                return None if found is None else ObjectInfo(len(found), checksum(found))
            case "list":
                return self._list(call, key)
            case _:
                for gone in call.keys:
                    objects.pop(self._base + gone, None)
                return None

    def _list(self, call: Call, prefix: str) -> list[str]:
        cut = len(self._base)
        keys = sorted(key[cut:] for key in self._bucket.objects if key.startswith(prefix) and key[cut:] > call.after)
        if self._unordered:
            keys = [*keys[1::2], *keys[0::2]]
        return keys[: call.limit]


_NO_ANSWER: Final = object()


def _settle(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


class StoreCalls:
    """`perdure.store.Store` in terms of one method."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.uri = access.uri

    def _answer(self, call: Call) -> Any:
        raise NotImplementedError

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        self._answer(Call("put", key, bytes(data), if_absent))

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        data: bytes = self._answer(Call("get", key, start=start, length=length))
        return data

    def get_into(self, key: str, buffer: memoryview, *, start: int = 0) -> int:
        data = self.get(key, start=start, length=len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def head(self, key: str) -> ObjectInfo | None:
        info: ObjectInfo | None = self._answer(Call("head", key))
        return info

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[str]:
        keys: list[str] = self._answer(Call("list", prefix, after=after, limit=limit))
        return keys

    def delete(self, keys: Sequence[str]) -> None:
        self._answer(Call("delete", keys=tuple(keys)))

    def put_stream(
        self,
        key: str,
        blocks: Iterable[memoryview],
        size: int,  # noqa: ARG002
        *,
        if_absent: bool = False,
    ) -> None:
        self.put(key, b"".join(bytes(block) for block in blocks), if_absent=if_absent)

    def sweep(self, older_than: float, where: Callable[[str], bool] = every_key) -> int:  # noqa: ARG002
        return 0


class AtOnce(StoreCalls):
    """Calls that take no time: for the real retention, whose many calls race with nothing."""

    def __init__(self, access: Access, rng: random.Random, bucket: Bucket) -> None:
        super().__init__(access)
        self._rng, self._bucket = rng, bucket

    def _answer(self, call: Call) -> Any:
        if not self.access.connected or self._rng.random() < self._bucket.error_rate:
            raise StorageError(f"cannot {call.verb} {call.key} of {self.uri}")
        result = self.access.effect(call)
        if isinstance(result, PerdureError):
            raise result
        return result


class _Suspended(BaseException):
    """The real code waits for an answer that is not on the tape."""

    def __init__(self, call: Call) -> None:
        super().__init__(call.verb)
        self.call = call


class Tape(StoreCalls):
    """Runs synchronous code over a store that takes time: again from its start at each answer, with the earlier ones.

    So everything between two calls happens at one instant, and between them anything may happen, as with processes. The
    code's own state is restored before it starts again; `once` makes its random draws and clock readings the same each
    time. Code of many calls takes time with their square, but for what `step` passes over.
    """

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self._answers: list[Any] = []
        self._at = 0
        self._waiting: _Suspended | None = None
        self._done: dict[int, tuple[Any, int]] = {}

    async def run(self, act: Callable[[], Any], *kept: object) -> Any:
        """What `act` returns or raises; `kept` are the objects it changes, each with plain attributes."""
        self._answers, self._done = [], {}
        before = [_attributes(thing) for thing in kept]
        while True:
            self._at, self._waiting = 0, None
            for thing, attributes in zip(kept, before, strict=True):
                vars(thing).update(_copied(attributes))
            try:
                return act()
            except _Suspended as suspended:
                call = suspended.call
            try:
                self._answers.append(await self.access.perform(call))
            except PerdureError as error:
                self._answers.append(error)
            except BaseException:
                for thing, attributes in zip(kept, before, strict=True):
                    vars(thing).update(_copied(attributes))
                raise

    def once(self, make: Callable[[], Any]) -> Any:
        """A value that is made the first time only."""
        if self._at == len(self._answers):
            self._answers.append(make())
        self._at += 1
        return self._answers[self._at - 1]

    def step(self, make: Callable[[], Any]) -> Any:
        """What `make` returns; once it has, it is not played again. It changes no object."""
        begun = self._at
        if begun not in self._done:
            result = make()
            self._done[begun] = result, self._at
        result, self._at = self._done[begun]
        return result

    def _answer(self, call: Call) -> Any:
        if self._waiting:  # a `finally` on the way out: it has its turn when the code gets there by itself
            raise self._waiting
        if self._at == len(self._answers):
            self._waiting = _Suspended(call)
            raise self._waiting
        self._at += 1
        result = self._answers[self._at - 1]
        if isinstance(result, BaseException):
            raise result
        return result


def _attributes(thing: object) -> dict[str, Any]:
    return _copied(vars(thing))


def _copied(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value.copy() if isinstance(value, set | dict) else value for name, value in attributes.items()}
