"""Whose token it is: the API server's signature says so, and where its keys are not known the API server itself, once
for each token and at most ten times a second.

A token names its audience, its pod and its end itself. Until one of both has confirmed it, this only chooses what to
ask, and spares the question for a pod that is not there. For one pod it is asked every ten seconds at most: forged
tokens of a pod would otherwise use up the questions of all. One confirmed and one refused token are kept for each pod.
A signature outlives its pod; so a token counts only while the pod is one of the job's in the cache. The time is the API
server's; a signed token that is not valid at that time, by minutes, is asked about: the time may be estimated wrongly.
Called by `endpoint`, in the operator's loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final, Protocol

from perdure_operator.api import names
from perdure_operator.cluster.protocol import ApiError, Json, Unavailable
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.records import Key
from perdure_operator.serving.connections import RequestRefused
from perdure_operator.serving.pacing import BoundedRate, OnceAMinute
from perdure_operator.serving.reports.published_keys import PublishedKeys, Publisher
from perdure_operator.serving.reports.signatures import Forged
from perdure_operator.serving.reviews import ANSWER_SECONDS, Reviewer, review_token

REVIEWS_PER_SECOND: Final = 10.0
ONE_POD_SECONDS: Final = 10.0
"""The shortest time between two questions about tokens that name one pod."""
CLOCK_SECONDS: Final = 60.0
"""By how much the clock of an API server may be ahead of this one."""
DOUBTFUL_SECONDS: Final = 600.0
"""A token that begins or has ended within this time is asked about."""
REFUSED_SECONDS: Final = 60.0
"""How long a refusal counts. An API server that has not seen a new pod yet refuses its token too."""

logger = logging.getLogger(__name__)

_POD: Final = "authentication.kubernetes.io/pod-"
_NOT_CONFIRMED: Final = "the API server does not know this token for the audience of its job"


@dataclass(frozen=True)
class Claim:
    """What a token says about itself."""

    audience: str
    pod: str
    """The pod's uid."""
    until: float
    """When it ends, as Unix time."""


@dataclass(frozen=True)
class ReportingPod:
    """A pod whose token the API server has confirmed."""

    job: Key
    job_uid: str
    name: str
    """The pod's name."""
    uid: str
    """The pod's uid."""


@dataclass(frozen=True)
class _Known:
    digest: bytes
    until: float
    sender: ReportingPod


@dataclass(frozen=True)
class _Asked:
    """The newest question about a token that names a pod."""

    job: Key
    at: float
    refused: bytes = b""
    """The digest of the newest token that the API server did not confirm."""


def claim(token: str) -> Claim | None:
    """What the token says about itself; None if it is no pod's token for one audience."""
    try:
        payload: Any = json.loads(urlsafe_b64decode(token.split(".")[1] + "=="))
        (audience,) = payload["aud"]
        return Claim(str(audience), str(payload["kubernetes.io"]["pod"]["uid"]), float(payload["exp"]))
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError):
        return None


class TokenApi(Reviewer, Publisher, Protocol):
    """The part of the API server that knows tokens."""

    def server_time(self) -> datetime:
        """See ClusterApi. Raises Unavailable while it is not known."""


class Tokens:
    """Decides about tokens. Belongs to one event loop."""

    def __init__(
        self,
        api: TokenApi,
        cache: Cache,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        reviews_per_second: float = REVIEWS_PER_SECOND,
    ) -> None:
        self._api = api
        self._keys = PublishedKeys(api, monotonic=monotonic)
        self._cache = cache
        self._monotonic = monotonic
        self._pace = BoundedRate(reviews_per_second, monotonic=monotonic)
        self._unanswered = OnceAMinute(monotonic=monotonic)
        self._known: dict[str, _Known] = {}
        self._asked: dict[str, _Asked] = {}
        """The newest question of each pod in the cache, by the pod's uid. The cache bounds it."""

    async def sender(self, token: str, *, seconds: float = ANSWER_SECONDS) -> ReportingPod:
        """The pod that the token was made for. Raises RequestRefused."""
        said = claim(token)
        if said is None:
            raise _unknown("this is no pod's token for one audience")
        digest = hashlib.sha256(token.encode()).digest()
        known, now = self._known.get(said.pod), self._now()
        if known is not None and known.digest == digest and now < known.until:
            return known.sender
        job, job_uid = self._job(said)
        if signed := await self._signed(token):
            sender = _by_signature(signed, said, job, job_uid)
            off = _seconds_off(signed, said, now)
            if sender is None or off > DOUBTFUL_SECONDS:
                raise _unknown("the token was not made for this pod and now")
            if off < 0:
                self._known[said.pod] = _Known(digest, said.until, sender)
                return sender
        self._may_ask(said.pod, job, digest)
        try:
            async with asyncio.timeout(seconds):
                status = await review_token(self._api, token, said.audience)
        except (ApiError, TimeoutError) as error:
            self._asked.pop(said.pod, None)
            if self._unanswered.due():
                words = "the API server does not say whose tokens members report with, so reports are ignored: %s"
                logger.warning(words, str(error) or f"no answer in {seconds:g} s")
            raise _later("the API server did not say whose token this is") from None
        sender = _confirmed(status, said, job, job_uid)
        if sender is None:
            self._asked[said.pod] = _Asked(job, self._monotonic(), digest)
            raise _unknown(_NOT_CONFIRMED)
        self._known[said.pod] = _Known(digest, said.until, sender)
        return sender

    def _now(self) -> float:
        """The API server's time, as Unix time. Raises RequestRefused."""
        try:
            return self._api.server_time().timestamp()
        except Unavailable:
            raise _later("the API server's time is not known") from None

    async def _signed(self, token: str) -> Json | None:
        """What the token says, if it is known here that the API server has signed it. Raises RequestRefused."""
        try:
            return await self._keys.claims(token)
        except Forged:
            raise _unknown("the API server has not signed this token") from None

    def _may_ask(self, pod: str, job: Key, digest: bytes) -> None:
        """Count one more question about a token of this pod. Raises RequestRefused if it may not be asked."""
        asked, now = self._asked.get(pod), self._monotonic()
        if asked is not None and asked.refused == digest and now - asked.at < REFUSED_SECONDS:
            raise _unknown(_NOT_CONFIRMED)
        if asked is not None and now - asked.at < ONE_POD_SECONDS:
            raise _later("the API server was just asked about another token of this pod")
        if not self._pace.allows():
            raise _later("more tokens are asked about than the API server should answer")
        self._asked[pod] = _Asked(job, now, asked.refused if asked else b"")

    def forget_ended(self) -> None:
        """Forget the tokens of pods that are gone."""
        for uid, known in list(self._known.items()):
            pod = self._cache.pod((known.sender.job[0], known.sender.name))
            if pod is None or pod.uid != uid:
                del self._known[uid]
        living = {job: {pod.uid for pod in self._cache.pods(job)} for job in {one.job for one in self._asked.values()}}
        self._asked = {uid: asked for uid, asked in self._asked.items() if uid in living[asked.job]}

    def _job(self, said: Claim) -> tuple[Key, str]:
        """The job that the audience names, if it has that pod."""
        namespace, uid = names.job_of_audience(said.audience)
        job = self._cache.key_of_job(uid)
        if job is None or job[0] != namespace:
            raise _unknown("the token's audience is that of no training job here")
        if not any(pod.uid == said.pod and pod.view.owner_uid == uid for pod in self._cache.pods(job)):
            raise RequestRefused(HTTPStatus.FORBIDDEN, "the token's pod is not one of the job's")
        return job, uid


def _confirmed(status: Json, said: Claim, job: Key, job_uid: str) -> ReportingPod | None:
    user = status.get("user") or {}
    extra = user.get("extra") or {}
    name, uid = (extra.get(f"{_POD}{what}") or [""] for what in ("name", "uid"))
    namespace = str(user.get("username", "")).startswith(f"system:serviceaccount:{job[0]}:")
    audience = said.audience in (status.get("audiences") or [])
    if status.get("authenticated") is not True or not (namespace and audience) or uid[0] != said.pod:
        return None
    return ReportingPod(job, job_uid, name[0], uid[0])


def _by_signature(signed: Json, said: Claim, job: Key, job_uid: str) -> ReportingPod | None:
    """The pod of a token that the API server has signed. `claim` has read its audience."""
    bound = signed["kubernetes.io"]
    account = str(signed.get("sub", "")).startswith(f"system:serviceaccount:{job[0]}:")
    if not account or bound.get("namespace") != job[0]:
        return None
    return ReportingPod(job, job_uid, str(bound["pod"].get("name") or ""), said.pod)


def _seconds_off(signed: Json, said: Claim, now: float) -> float:
    """By how much a signed token is not valid yet, or not any more; negative while it is."""
    begins = signed.get("nbf", 0)
    early = begins - CLOCK_SECONDS - now if isinstance(begins, int | float) else math.inf
    return max(early, now - said.until)


def _unknown(words: str) -> RequestRefused:
    return RequestRefused(HTTPStatus.UNAUTHORIZED, words, "WWW-Authenticate: Bearer")


def _later(words: str) -> RequestRefused:
    return RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, words, "Retry-After: 5")
