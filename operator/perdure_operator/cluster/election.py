"""One leader among the operator's replicas: whoever holds a Lease and renews it in time.

The client library's own election neither bounds a renewal by a timeout nor gives the Lease back, so this is a small
one. What is due is decided by `next_step`, which is pure, about the Lease as this process knows it: a candidate follows
it by one watch, and takes it when it was given back, or when nothing new of it has been seen for its duration, measured
by its own monotonic clock, never by the times another machine wrote into it. Each write names the version that it rests
on: what is known may be old, and the write is then refused.

The leader stops writing when its newest renewal is too old, which is before another may lead: whoever writes for it
asks `still_leading` first. It goes on trying, and leads again where nobody else has meanwhile; it ends where somebody
has, or as the last resort. Called by `loop.leader`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final, TypeVar

from perdure_operator.cluster.clock import since_boot
from perdure_operator.cluster.protocol import LEASES, AlreadyExists, ApiError, ClusterApi, Conflict, Json, NotFound
from perdure_operator.cluster.read import parse

logger = logging.getLogger(__name__)

T = TypeVar("T")

RENEWALS: Final = 7
"""How often a Lease is renewed within its duration."""

_FENCE: Final = 6
"""Periods after the newest renewal was sent in which the leader may write; the seventh is for what is on its way."""

LAST_RESORT: Final = 8
"""Leases without a renewal after which the process ends, though nobody else may lead: a new one reads its certificates
and its token anew. A node without CPU time, or an API server that starts again, takes less."""

_WAITS: Final = 2
"""Periods in which a call may be answered, each waited for by itself: of a process that was late itself, the answer has
come meanwhile, and it is read before the second one is over."""

_WATCH_SECONDS: Final = 300.0

_FIRST_PAUSE: Final = 0.1
"""After a watch that has told nothing; doubled up to a period."""


class LeaseLost(Exception):
    """Somebody else holds the Lease, or it could not be renewed for very long: the process must end."""


@dataclass(frozen=True)
class Settings:
    """Where the Lease is and how long it lasts."""

    namespace: str
    name: str = "perdure-operator"
    seconds: int = 15

    @property
    def period(self) -> float:
        """Between two renewals."""
        return self.seconds / RENEWALS


def identity(pod: str) -> str:
    """This process: a restarted container of the same pod is another candidate."""
    return f"{pod}_{secrets.token_hex(4)}"


@dataclass(frozen=True)
class Seen:
    """A state of the Lease, and since when nothing newer has been seen, by one's own clock."""

    holder: str = ""
    """Nobody, where it was given back or is not there."""
    seconds: float = 0.0
    since: float = 0.0
    exists: bool = True

    @property
    def free_at(self) -> float:
        """When somebody else than its holder may take it."""
        return self.since + self.seconds if self.holder else self.since


class Step(Enum):
    """What a process has to do about the Lease."""

    WAIT = auto()
    CREATE = auto()
    TAKE = auto()
    """Or renew: the same write."""
    END = auto()


def next_step(seen: Seen, me: str, now: float, *, leading: bool) -> Step:
    """Pure; `leading` says whether this process has led."""
    if not seen.exists:
        return Step.CREATE
    if seen.holder == me:
        return Step.TAKE
    if leading:
        return Step.END
    return Step.TAKE if now >= seen.free_at else Step.WAIT


class Election:
    """`lead()` returns as the leader, `hold()` renews until it fails, `release()` gives the Lease back."""

    def __init__(
        self,
        api: ClusterApi,
        settings: Settings,
        me: str,
        *,
        monotonic: Callable[[], float] = since_boot,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self._api = api
        self._settings = settings
        self._me = me
        self._monotonic = monotonic
        self._sleep = sleep
        self._now = now or api.server_time
        self._lease: Json = {}
        self._seen = Seen()
        self._known = False
        """Whether nothing says that the Lease has changed since it was seen."""
        self._tried = 0.0
        self._renewed = 0.0
        self.leading = False

    def still_leading(self) -> bool:
        """Whether nobody else can lead yet: to be asked right before each write."""
        return self.leading and self._monotonic() - self._renewed < _FENCE * self._settings.period

    async def lead(self) -> None:
        """Wait until this process is the leader."""
        pause = _FIRST_PAUSE
        while not await self._attempt():
            if await self._follow():
                pause = _FIRST_PAUSE
            else:
                await self._sleep(pause)
                pause = min(2 * pause, self._settings.period)
        self.leading = True
        logger.info("leading as %s", self._me)

    async def hold(self) -> None:
        """Renew for ever, a period after each try began; raises LeaseLost."""
        while True:
            await self._sleep(max(0.0, self._tried + self._settings.period - self._monotonic()))
            before = self._renewed
            renewed, age = await self._attempt(), self._monotonic() - before
            if renewed and age >= _FENCE * self._settings.period:
                logger.warning("leading again: the lease was not renewed for %.1f s, and nobody else has led", age)
            if not renewed and age >= LAST_RESORT * self._settings.seconds:
                self.leading = False
                raise LeaseLost(f"{self._where} could not be renewed for {age:.0f} s")

    async def release(self) -> None:
        """Give the Lease back, so that the next leader need not wait for its end. Best effort."""
        if not self.leading:
            return
        self.leading = False
        try:
            lease = await self._api.get(LEASES, self._settings.namespace, self._settings.name)
            if _holder(lease) == self._me:
                await self._replace(lease, holder="", seconds=1)
                logger.info("lease released")
        except ApiError as error:
            logger.warning("lease not released: %s", error)

    @property
    def _where(self) -> str:
        return f"lease {self._settings.namespace}/{self._settings.name}"

    async def _attempt(self) -> bool:
        """Take or renew the Lease; False where that is not due, or not possible now. Raises LeaseLost."""
        self._tried = self._monotonic()
        try:
            return await self._take_or_renew()
        except (AlreadyExists, Conflict):
            return False  # another candidate was faster: look again
        except (ApiError, TimeoutError) as error:
            logger.warning("%s: %s", self._where, str(error) or "no answer in time")
            return False

    async def _take_or_renew(self) -> bool:
        if self._known:  # half of all calls would be reads of what a write or the watch has told
            with suppress(AlreadyExists, Conflict, NotFound):
                return await self._do_what_is_due()
        try:
            self._see(await self._patiently(self._api.get(LEASES, self._settings.namespace, self._settings.name)))
        except NotFound:
            self._see(None)
        return await self._do_what_is_due()

    async def _do_what_is_due(self) -> bool:
        match next_step(self._seen, self._me, self._monotonic(), leading=self.leading):
            case Step.WAIT:
                return False
            case Step.END:
                self.leading = False
                raise LeaseLost(f"{self._where} is held by {self._seen.holder}")
            case Step.CREATE:
                write = self._api.create(LEASES, self._settings.namespace, self._body({}, self._me))
            case Step.TAKE:
                write = self._replace(self._lease, holder=self._me, seconds=self._settings.seconds)
        self._known = False  # whatever the answer is, and where there is none: look the next time
        sent = self._monotonic()
        self._see(await self._patiently(write))
        self._renewed = sent
        return True

    async def _patiently(self, call: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(call)
        try:
            for _ in range(_WAITS):
                await asyncio.wait((task,), timeout=self._settings.period)
                if task.done():
                    return task.result()
            raise TimeoutError
        finally:
            task.cancel()

    async def _follow(self) -> bool:
        """Until the Lease is free, or its watch ends; False where that has told nothing."""
        if not self._known:
            return False
        loop, told = asyncio.get_running_loop(), False

        def tell(lease: Json | None) -> None:
            nonlocal told
            told = True
            self._see(lease)
            if not patience.expired():
                patience.reschedule(loop.time() + self._left())

        try:
            async with asyncio.timeout(self._left()) as patience:
                await self._api.follow(
                    LEASES,
                    self._settings.namespace,
                    self._settings.name,
                    version=_version(self._lease),
                    seconds=_WATCH_SECONDS,
                    told=tell,
                )
            self._known = told
        except TimeoutError:
            return True
        except ApiError as error:
            self._known = False
            logger.debug("%s cannot be watched: %s", self._where, error)
        return told

    def _left(self) -> float:
        return max(0.0, self._seen.free_at - self._monotonic())

    def _see(self, lease: Json | None) -> None:
        """The same version again is nothing new: what has been waited already counts."""
        self._known = True
        if lease is None:
            self._lease, self._seen = {}, Seen(exists=False)
        elif _version(lease) != _version(self._lease):
            seconds = (lease.get("spec") or {}).get("leaseDurationSeconds") or self._settings.seconds
            self._lease, self._seen = lease, Seen(_holder(lease), seconds, self._monotonic())

    async def _replace(self, lease: Json, *, holder: str, seconds: int) -> Json:
        body = self._body(lease, holder) | {"metadata": lease["metadata"]}
        body["spec"]["leaseDurationSeconds"] = seconds
        return await self._api.replace(LEASES, self._settings.namespace, self._settings.name, body)

    def _body(self, old: Json, holder: str) -> Json:
        spec = old.get("spec") or {}
        now = self._now().isoformat(timespec="microseconds").replace("+00:00", "Z")
        taken = holder != spec.get("holderIdentity")
        return {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": {"name": self._settings.name, "namespace": self._settings.namespace},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": self._settings.seconds,
                "acquireTime": now if taken else spec.get("acquireTime", now),
                "renewTime": now,
                "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (1 if taken and holder else 0),
            },
        }


def _holder(lease: Json) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def _version(lease: Json) -> str:
    return str(parse.meta(lease).get("resourceVersion") or "")
