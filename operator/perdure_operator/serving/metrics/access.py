"""Who may read the metrics: the API server says whose token it is, and whether that user may `get` /metrics.

One answer is kept for a minute, one refusal for ten seconds, at most 64 of them, by the token's hash. Without an answer
every request is refused. Called by `server`, in the operator's loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from perdure_operator.cluster.protocol import ApiError, Resource
from perdure_operator.serving.reviews import ANSWER_SECONDS, Reviewer, review_token, status_of

ACCESS_REVIEWS: Final = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", namespaced=False)

PATH: Final = "/metrics"
KEPT: Final = 64
ALLOWED_SECONDS: Final = 60.0
REFUSED_SECONDS: Final = 10.0


class Access(Enum):
    """What a token may do."""

    ALLOWED = auto()
    UNKNOWN = auto()
    """The API server does not know the token."""
    FORBIDDEN = auto()
    """The API server knows the user, who may not read the metrics."""
    NO_ANSWER = auto()


class Gate:
    """Decides about tokens. Belongs to one event loop."""

    def __init__(self, api: Reviewer, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._monotonic = monotonic
        self._known: dict[bytes, tuple[Access, float]] = {}
        self._one = asyncio.Lock()
        """One review at a time: wrong tokens cost the API server little, however many come."""

    async def access(self, token: str, *, seconds: float = ANSWER_SECONDS) -> Access:
        """What the token may do. Raises nothing."""
        key = hashlib.sha256(token.encode()).digest()
        known = self._remembered(key)
        if known is not None:
            return known
        try:
            async with asyncio.timeout(seconds), self._one:
                known = self._remembered(key)
                if known is None:
                    known = await self._ask(token)
                    self._remember(key, known)
                return known
        except (ApiError, TimeoutError):
            return Access.NO_ANSWER

    def _remembered(self, key: bytes) -> Access | None:
        access, until = self._known.get(key, (None, 0.0))
        return access if self._monotonic() < until else None

    def _remember(self, key: bytes, access: Access) -> None:
        self._known.pop(key, None)
        if len(self._known) >= KEPT:
            del self._known[next(iter(self._known))]
        seconds = ALLOWED_SECONDS if access is Access.ALLOWED else REFUSED_SECONDS
        self._known[key] = (access, self._monotonic() + seconds)

    async def _ask(self, token: str) -> Access:
        status = await review_token(self._api, token)
        user = status.get("user")
        if status.get("authenticated") is not True or not isinstance(user, dict) or not user.get("username"):
            return Access.UNKNOWN
        spec = {
            "user": user["username"],
            "groups": user.get("groups") or [],
            "uid": user.get("uid") or "",
            "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": PATH, "verb": "get"},
        }
        review = {"apiVersion": ACCESS_REVIEWS.api_version, "kind": "SubjectAccessReview", "spec": spec}
        status = status_of(await self._api.review(ACCESS_REVIEWS, review))
        allowed = status.get("allowed") is True and status.get("denied") is not True
        return Access.ALLOWED if allowed else Access.FORBIDDEN
