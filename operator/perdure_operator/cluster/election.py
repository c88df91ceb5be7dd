"""Elects one leader among the operator's replicas: the one that holds a Lease and renews it in time.

The client library's election neither bounds a renewal by a timeout nor releases the Lease; this one does. The pure
`next_step` decides about the Lease as this process knows it. A candidate watches the Lease, and takes it when it was
released, or when it has not changed for its duration by the candidate's own monotonic clock, never by the times that
another machine wrote. Each write names the version that it replaces, so a write based on an old state is refused.

The leader stops writing when its newest renewal is too old, before another process may lead: callers ask
`still_leading` before each write. It keeps trying, and leads again if no other process has led meanwhile. Otherwise, or
after LAST_RESORT, it ends. Called by `loop.leader`.
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
"""Renewals of a Lease within its duration."""

_FENCE: Final = 6
"""Periods after the newest renewal was sent in which the leader may write. The seventh is for writes in flight."""

LAST_RESORT: Final = 8
"""Durations without a renewal after which the process ends although no other may lead: a new process reads its
certificates and token again. A node without CPU time, or a restarting API server, takes less."""

_WAITS: Final = 2
"""Periods to wait for an answer, one after the other. If this process was delayed itself, the answer is already there
and is read in the second one."""

_OBEYED: Final = 2
"""Periods that an attempt waits at most because the API server asked for it (Retry-After): a leader that waited for
longer would lose its Lease after two refusals."""

_WATCH_SECONDS: Final = 300.0

_FIRST_PAUSE: Final = 0.1
"""The pause after a watch without a change; doubled each time up to a period."""


class LeaseLost(Exception):
    """Another process holds the Lease, or it could not be renewed for very long: this process must end."""


@dataclass(frozen=True)
class LeaseSettings:
    """Where the Lease is and how long it lasts."""

    namespace: str
    name: str = "perdure-operator"
    seconds: int = 15

    @property
    def period(self) -> float:
        """Seconds between two renewals."""
        return self.seconds / RENEWALS


def identity(pod: str) -> str:
    """A name for this process: a restarted container of the same pod is another candidate."""
    return f"{pod}_{secrets.token_hex(4)}"


@dataclass(frozen=True)
class Seen:
    """A state of the Lease, and since when it is the newest one known, by the process's own clock."""

    holder: str = ""
    """"" if the Lease was released or does not exist."""
    seconds: float = 0.0
    since: float = 0.0
    exists: bool = True

    @property
    def free_at(self) -> float:
        """When a process other than its holder may take it."""
        return self.since + self.seconds if self.holder else self.since


class ElectionStep(Enum):
    """The next step of a process."""

    WAIT = auto()
    CREATE = auto()
    TAKE = auto()
    """Take or renew: the same write."""
    END = auto()


def next_step(seen: Seen, me: str, now: float, *, leading: bool) -> ElectionStep:
    """The step that is due; `leading` says whether this process leads. Pure."""
    if not seen.exists:
        return ElectionStep.CREATE
    if seen.holder == me:
        return ElectionStep.TAKE
    if leading:
        return ElectionStep.END
    return ElectionStep.TAKE if now >= seen.free_at else ElectionStep.WAIT


class Election:
    """`lead()` returns as the leader, `hold()` renews until it fails, `release()` releases the Lease."""

    def __init__(
        self,
        api: ClusterApi,
        settings: LeaseSettings,
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
        """Whether `_seen` is the newest state as far as this process knows."""
        self._tried = 0.0
        self._asked = 0.0
        """For how many seconds the API server asked to be left alone when it refused the newest call."""
        self._renewed = 0.0
        self.leading = False

    def still_leading(self) -> bool:
        """Whether no other process can lead yet. Ask right before each write."""
        return self.leading and self._monotonic() - self._renewed < _FENCE * self._settings.period

    def age(self) -> float | None:
        """Seconds since the newest successful renewal was sent; None for a process that does not lead."""
        return self._monotonic() - self._renewed if self.leading else None

    async def lead(self) -> None:
        """Wait until this process is the leader."""
        pause = _FIRST_PAUSE
        while not await self._attempt():
            if await self._follow():
                pause = _FIRST_PAUSE
            else:
                await self._sleep(max(pause, self._asked))
                pause = min(2 * pause, self._settings.period)
        self.leading = True
        logger.info("this process is leading as %s: it alone writes until it ends or loses %s", self._me, self._where)

    async def hold(self) -> None:
        """Renew forever, one period after each attempt began; raises LeaseLost."""
        while True:
            pause = max(self._settings.period, self._asked)
            await self._sleep(max(0.0, self._tried + pause - self._monotonic()))
            before = self._renewed
            renewed, age = await self._attempt(), self._monotonic() - before
            if renewed and age >= _FENCE * self._settings.period:
                words = "this process writes again: %s was not renewed for %.1f s, and no other process led meanwhile"
                logger.warning(words, self._where, age)
            if not renewed and age >= LAST_RESORT * self._settings.seconds:
                self.leading = False
                raise LeaseLost(f"{self._where} could not be renewed for {age:.0f} s")

    async def release(self) -> None:
        """Release the Lease, so that the next leader need not wait until it expires. Best effort."""
        if not self.leading:
            return
        self.leading = False
        try:
            lease = await self._api.get(LEASES, self._settings.namespace, self._settings.name)
            if _holder(lease) == self._me:
                await self._replace(lease, holder="", seconds=1)
                logger.info("this process has released %s: another can lead at once", self._where)
        except ApiError as error:
            logger.warning("%s could not be released, another process leads once it expires: %s", self._where, error)

    @property
    def _where(self) -> str:
        return f"lease {self._settings.namespace}/{self._settings.name}"

    async def _attempt(self) -> bool:
        """Take or renew the Lease; False if that is not due or fails for now. Raises LeaseLost."""
        self._tried, self._asked = self._monotonic(), 0.0
        try:
            return await self._take_or_renew()
        except (AlreadyExists, Conflict):
            return False  # another candidate was faster
        except (ApiError, TimeoutError) as error:
            self._obey(error)
            what = "renewed" if self.leading else "taken"
            why = str(error) or "no answer in time"
            logger.warning("%s could not be %s, this is tried again: %s", self._where, what, why)
            return False

    async def _take_or_renew(self) -> bool:
        if self._known:  # saves a read, half of all calls
            with suppress(AlreadyExists, Conflict, NotFound):
                return await self._perform_step()
        try:
            self._record(await self._with_timeout(self._api.get(LEASES, self._settings.namespace, self._settings.name)))
        except NotFound:
            self._record(None)
        return await self._perform_step()

    async def _perform_step(self) -> bool:
        step = next_step(self._seen, self._me, self._monotonic(), leading=self.leading)
        if step is ElectionStep.WAIT:
            return False
        if step is ElectionStep.END:
            self.leading = False
            raise LeaseLost(f"{self._where} is held by {self._seen.holder}")
        self._known = False  # without a good answer, or while the time is not known, read the Lease next time
        if step is ElectionStep.CREATE:
            write = self._api.create(LEASES, self._settings.namespace, self._body({}, self._me))
        else:
            write = self._replace(self._lease, holder=self._me, seconds=self._settings.seconds)
        sent = self._monotonic()
        self._record(await self._with_timeout(write))
        self._renewed = sent
        return True

    async def _with_timeout(self, call: Coroutine[Any, Any, T]) -> T:
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
        """Watch the Lease until it is free or the watch ends; False if the watch showed no change."""
        if not self._known:
            return False
        loop, changed = asyncio.get_running_loop(), False

        def on_change(lease: Json | None) -> None:
            nonlocal changed
            changed = True
            self._record(lease)
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
                    on_change=on_change,
                )
            self._known = changed
        except TimeoutError:
            return True
        except ApiError as error:
            self._known = False
            self._obey(error)
            logger.debug("%s cannot be watched, so it is read now and then: %s", self._where, error)
        return changed

    def _obey(self, error: Exception) -> None:
        asked = error.retry_after if isinstance(error, ApiError) else None
        self._asked = min(asked or 0.0, _OBEYED * self._settings.period)

    def _left(self) -> float:
        return max(0.0, self._seen.free_at - self._monotonic())

    def _record(self, lease: Json | None) -> None:
        """Record a state. The same version again is no change, so the time already waited counts."""
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
