"""Keeps the operator's certificates and their keys in one Secret: the leader writes it, each replica reads it.

`serving.reports.rotation` says what is due, and decision 081 why. A write names the version of the Secret that it
replaces, and nothing is used before it is written. No key is ever part of a message. Used by `operator`.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from perdure.wire.reading import ContractError
from perdure.wire.report import Channel, write_channel
from perdure_operator.cluster.protocol import SECRETS, ApiError, ClusterApi, Conflict, Json
from perdure_operator.cluster.read.records import Key
from perdure_operator.loop.schedule import backoff
from perdure_operator.serving.certificate import Given
from perdure_operator.serving.reports.keys_document import UnreadableKeys, read_keys, write_keys
from perdure_operator.serving.reports.rotation import (
    Drop,
    KeyMaker,
    Keys,
    KeyStep,
    Make,
    Serving,
    Sign,
    Trusted,
    carried_out,
    next_step,
)

ENTRY: Final = "keys.json"
"""The key of the document in the Secret."""
LOOK_SECONDS: Final = 60.0
SOON_SECONDS: Final = 2.0
"""Until the next look while there are no keys yet, and after another client was faster."""
CONFLICTS: Final = 30
"""So many in a row take a minute, and are a line."""

logger = logging.getLogger(__name__)


@dataclass
class KeyKeeper:
    """One replica's. Belongs to one event loop."""

    api: ClusterApi
    secret: Key
    url: str
    """Where members report: https://host:port."""
    maker: KeyMaker
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _contexts: Given | None = None
    _begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with the first certificate."""
    _serving: Serving | None = None
    _channel: str = ""
    _looked_as_leader: bool = False

    def channel(self) -> str:
        """The channel of a new member; "" until there are keys."""
        return self._channel

    def channel_of_leader(self) -> str:
        """The channel that living members should have; "" until this process has looked as the leader: what it read
        before may be older than what the leader before it has told them."""
        return self._channel if self._looked_as_leader else ""

    async def contexts(self) -> Given:
        """What to serve with, once there is a certificate."""
        while self._contexts is None:
            await self._begun.wait()
        return self._contexts

    async def keep(self, leads: Callable[[], bool], all_have: Callable[[str], bool]) -> None:
        """Look every minute, forever; more often until there are keys.

        `leads` says whether this process leads and has read all pods, and `all_have` whether all living members have a
        channel.
        """
        failures = conflicts = 0
        while True:
            try:
                await self.look(all_have if leads() else None)
            except Conflict as error:
                conflicts += 1
                lasts = conflicts % CONFLICTS == 0
                words = "secret %s: another client was faster: %s"
                logger.log(logging.WARNING if lasts else logging.DEBUG, words, self._where, error)
                await self.sleep(SOON_SECONDS)
                continue
            except ApiError as error:
                failures += 1
                wait = backoff(failures, first=SOON_SECONDS, longest=LOOK_SECONDS, at_least=error.retry_after)
                words = "secret %s: the certificates for reports are not kept now, tried again in %g s: %s"
                logger.warning(words, self._where, wait, error)
                await self.sleep(wait)
                continue
            except Exception:
                logger.exception("an unexpected error as certificates for reports were kept: tried again in a minute")
                await self.sleep(LOOK_SECONDS)
                continue
            failures = conflicts = 0
            await self.sleep(LOOK_SECONDS if self._begun.is_set() else SOON_SECONDS)

    async def look(self, all_have: Callable[[str], bool] | None) -> None:
        """Read the Secret and use what it holds; the leader, which knows what members have, then writes what is due.

        Raises ApiError, and OSError for a fault of this machine, which says nothing about the keys.
        """
        raw = await self.api.get(SECRETS, *self.secret)
        try:
            keys = _read(raw)
            self._use(keys)
        except (UnreadableKeys, ContractError, ValueError, ssl.SSLError):
            if all_have is None:
                logger.warning("secret %s: its keys cannot be used, and the leader makes others", self._where)
                return
            logger.warning("secret %s: its keys cannot be used, so others are made", self._where)
            keys = Keys()
        if all_have is not None:
            self._looked_as_leader = True
            await self._rotate(raw, keys, all_have)

    async def _rotate(self, raw: Json, before: Keys, all_have: Callable[[str], bool]) -> None:
        now, host = self.api.server_time(), urlsplit(self.url).hostname or ""
        everywhere = all_have(self._channel_of(before))
        trusted = {one.name for one in before.authorities} if everywhere else set[str]()
        keys, steps = before, list[KeyStep]()
        while (step := next_step(keys, host, now, trusted)) is not None:
            try:
                keys = carried_out(keys, step, host, now, self.maker)
            except ValueError:
                logger.warning("secret %s: an authority's key cannot be used, so all are made again", self._where)
                keys = Keys()
            steps.append(step)
        if steps:
            await self.api.replace(SECRETS, *self.secret, _with_keys(raw, keys))
            logger.info("secret %s: %s", self._where, "; ".join(_words(step) for step in steps))
            self._use(keys)

    def _use(self, keys: Keys) -> None:
        """Raises ValueError, SSLError or ContractError if that is not possible, and OSError as `look` does."""
        serving = keys.serving
        if serving is None:
            return
        if serving != self._serving:
            pair = serving.pair
            if self._contexts is None:
                self._contexts = Given(pair.certificate, pair.key)
                self._begun.set()
            else:
                self._contexts.give(pair.certificate, pair.key)
            self._serving = serving
        self._channel = self._channel_of(keys)

    def _channel_of(self, keys: Keys) -> str:
        return write_channel(Channel(self.url, keys.bundle))

    @property
    def _where(self) -> str:
        return "/".join(self.secret)


def _read(raw: Json) -> Keys:
    """Raises UnreadableKeys or ValueError. A Secret without keys holds none yet."""
    text = (raw.get("data") or {}).get(ENTRY)
    return read_keys(b64decode(text, validate=True).decode()) if text else Keys()


def _with_keys(raw: Json, keys: Keys) -> Json:
    entry = b64encode(write_keys(keys).encode()).decode()
    return {
        "apiVersion": SECRETS.api_version,
        "kind": "Secret",
        "type": raw.get("type"),
        "metadata": raw["metadata"],
        "data": (raw.get("data") or {}) | {ENTRY: entry},
    }


def _words(step: KeyStep) -> str:
    match step:
        case Trusted(names):
            return f"all living members have {', '.join(sorted(names))}"
        case Drop(name):
            return f"members need {name} no more"
        case Make(ends):
            return f"a new authority is made, until {ends:%Y-%m-%d}"
        case Sign(authority, ends):
            return f"{authority} signs the operator's certificate, until {ends:%Y-%m-%d}"
