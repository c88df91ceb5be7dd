"""The keys with which the API server signs tokens, as it publishes them to every ServiceAccount. A token that names
another key makes this look again, at most once a minute; and so does an hour, because a key may be withdrawn. Keys that
cannot be read again count for an hour more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from perdure_operator.cluster.protocol import ApiError, Json
from perdure_operator.serving.pacing import OnceAMinute
from perdure_operator.serving.reports.signatures import Issuer, key_id, read_issuer, signed_claims

CONFIGURATION_PATH: Final = "/.well-known/openid-configuration"
KEYS_PATH: Final = "/openid/v1/jwks"
ANSWER_SECONDS: Final = 5.0
OLD_SECONDS: Final = 3600.0
"""As long as the API server lets others keep its keys."""

logger = logging.getLogger(__name__)


class Publisher(Protocol):
    """The part of the API server that publishes its keys."""

    async def document(self, path: str) -> Json:
        """What is there, which is no object of the API. Raises ApiError."""


class PublishedKeys:
    """Belongs to one event loop."""

    def __init__(self, api: Publisher, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._api, self._monotonic = api, monotonic
        self._looks = OnceAMinute(monotonic=monotonic)
        self._looking = asyncio.Lock()
        self._issuer = Issuer("", {})
        self._read_at = float("-inf")
        self._works = True
        """Whether the last look has found keys."""

    async def claims(self, token: str) -> Json | None:
        """What the token says, if the API server has signed it; None if that is not known here. Raises Forged."""
        if self._misses(token):
            async with self._looking:  # others wait for the look that is under way
                if self._misses(token) and self._looks.due():
                    await self._look()
        if self._age() >= 2 * OLD_SECONDS:
            self._issuer = Issuer("", {})
        return signed_claims(token, self._issuer)

    def _misses(self, token: str) -> bool:
        return key_id(token) not in self._issuer.keys or self._age() >= OLD_SECONDS

    def _age(self) -> float:
        return self._monotonic() - self._read_at

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                configuration = await self._api.document(CONFIGURATION_PATH)
                found = read_issuer(configuration, await self._api.document(KEYS_PATH))
        except (ApiError, TimeoutError) as error:
            self._note(str(error) or f"no answer in {ANSWER_SECONDS:g} s")
            return
        self._note("" if found.keys else "it publishes no key that is known here")
        self._issuer, self._read_at = found, self._monotonic()

    def _note(self, why: str) -> None:
        """One line for each change."""
        if why and self._works:
            words = "the keys of the API server are not known, so it is asked about each member's token: %s"
            logger.warning(words, why)
        self._works = not why
