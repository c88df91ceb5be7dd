"""One leader among the operator's replicas: whoever holds a Lease and renews it in time.

The client library's own election neither bounds a renewal by a timeout nor gives the Lease back, so this is a small
one: a candidate takes a Lease that it has not seen renewed for its duration, measured by its own monotonic clock from
first sight, never by the times another machine wrote into it. A Lease that is given back it learns of at once. The
leader stops when it could not renew for a while, so that it has stopped before another may start; whoever writes for it
asks `still_leading` first: a process that was frozen does not know how old its Lease is. Called by `loop.leader`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from perdure_operator.cluster.clock import since_boot
from perdure_operator.cluster.protocol import LEASES, AlreadyExists, ApiError, ClusterApi, Conflict, Json, NotFound
from perdure_operator.cluster.read import parse

logger = logging.getLogger(__name__)

RENEWALS: Final = 7
"""How often a Lease is renewed within its duration."""

PATIENCE: Final = 4
"""Periods without a renewal after which the leader stops. It looks at that when a renewal has failed, so the last look
may come one period of sleep and one hanging call later: after six of seven periods at most."""


_FENCE: Final = 6
"""Periods after the newest renewal was sent in which the leader may write; the seventh is for what is on its way."""

_BREATH_SECONDS: Final = 0.05
"""Between two looks of a candidate, however often the Lease changes."""


class Deposed(Exception):
    """The Lease could not be renewed in time, or somebody else holds it: the process must end."""


@dataclass(frozen=True)
class Settings:
    """Where the Lease is and how long it lasts."""

    namespace: str
    name: str = "perdure-operator"
    seconds: int = 15

    @property
    def period(self) -> float:
        """Between two renewals, and the longest that one may take."""
        return self.seconds / RENEWALS


def identity(pod: str) -> str:
    """This process: a restarted container of the same pod is another candidate."""
    return f"{pod}_{secrets.token_hex(4)}"


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
        self._seen: tuple[str, float] = ("", 0.0)
        self._held: Json | None = None
        """The Lease as this process has written it last, while nothing says that it has changed since."""
        self._renewed = 0.0
        self.leading = False

    def still_leading(self) -> bool:
        """Whether nobody else can lead yet: to be asked right before each write."""
        return self.leading and self._monotonic() - self._renewed < _FENCE * self._settings.period

    async def lead(self) -> None:
        """Wait until this process is the leader."""
        while not await self._attempt():
            await self._wait()
        self.leading = True
        logger.info("leading as %s", self._me)

    async def hold(self) -> None:
        """Renew for ever; raises Deposed."""
        while True:
            await self._sleep(self._settings.period)
            renewed = await self._attempt()
            if not renewed and self._monotonic() - self._renewed >= PATIENCE * self._settings.period:
                self.leading = False
                raise Deposed(f"lease {self._settings.namespace}/{self._settings.name} could not be renewed in time")

    async def _wait(self) -> None:
        """Until the Lease changes, for a period at most."""
        lease = (self._settings.namespace, self._settings.name)
        try:
            await self._api.changed(LEASES, *lease, version=self._seen[0], seconds=self._settings.period)
            await self._sleep(_BREATH_SECONDS)
        except ApiError as error:
            logger.debug("lease %s/%s cannot be watched: %s", *lease, error)
            await self._sleep(self._settings.period)

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

    async def _attempt(self) -> bool:
        """Take or renew the Lease; False where that is not possible now. Raises Deposed if it was taken from us."""
        sent = self._monotonic()
        try:
            async with asyncio.timeout(self._settings.period):
                taken = await self._take_or_renew()
        except (AlreadyExists, Conflict):
            return False  # another candidate was faster: look again
        except (ApiError, TimeoutError) as error:
            logger.warning(
                "lease %s/%s: %s", self._settings.namespace, self._settings.name, str(error) or "no answer in time"
            )
            return False
        if taken:
            self._renewed = sent
        return taken

    async def _take_or_renew(self) -> bool:
        if self._held is not None and await self._renew_unseen(self._held):
            return True
        try:
            lease = await self._api.get(LEASES, self._settings.namespace, self._settings.name)
        except NotFound:
            self._held = await self._api.create(LEASES, self._settings.namespace, self._lease({}, self._me))
            return True
        if _holder(lease) != self._me:
            if self.leading:
                raise Deposed(f"lease {self._settings.namespace}/{self._settings.name} is held by {_holder(lease)}")
            if not self._has_ended(lease):
                return False
        self._held = await self._replace(lease, holder=self._me, seconds=self._settings.seconds)
        return True

    async def _renew_unseen(self, held: Json) -> bool:
        """Half of the calls that a leader makes by itself would be reads of what it has written: a write tells, too."""
        self._held = None  # whatever the answer is, and where there is none: read it the next time
        try:
            self._held = await self._replace(held, holder=self._me, seconds=self._settings.seconds)
        except (Conflict, NotFound):
            return False
        return True

    def _has_ended(self, lease: Json) -> bool:
        version, now = str(parse.meta(lease).get("resourceVersion")), self._monotonic()
        if version != self._seen[0]:
            self._seen = (version, now)
        seconds = (lease.get("spec") or {}).get("leaseDurationSeconds") or self._settings.seconds
        return not _holder(lease) or now - self._seen[1] >= seconds

    async def _replace(self, lease: Json, *, holder: str, seconds: int) -> Json:
        body = self._lease(lease, holder) | {"metadata": lease["metadata"]}
        body["spec"]["leaseDurationSeconds"] = seconds
        return await self._api.replace(LEASES, self._settings.namespace, self._settings.name, body)

    def _lease(self, old: Json, holder: str) -> Json:
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
