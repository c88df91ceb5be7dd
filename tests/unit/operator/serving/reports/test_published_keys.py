"""When the API server is asked for its keys, and what is known without them."""

from __future__ import annotations

import asyncio

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

from perdure_operator.cluster.protocol import Json
from perdure_operator.serving.reports.published_keys import CONFIGURATION_PATH, KEYS_PATH, OLD_SECONDS, PublishedKeys
from tests.support.reporting import ISSUER, Reviews, SigningKey, published

FIRST, SECOND = (SigningKey(name, generate_private_key(65537, 2048)) for name in ("first", "second"))
CLAIMS = {"iss": ISSUER, "sub": "someone"}
LOOK = [CONFIGURATION_PATH, KEYS_PATH]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_keys_are_read_once_and_again_for_a_token_with_another_one_but_once_a_minute() -> None:
    clock, server = Clock(), Reviews(published=published(FIRST))
    keys = PublishedKeys(server, monotonic=clock)

    async def scene() -> None:
        assert await asyncio.gather(*(keys.claims(FIRST.sign(CLAIMS)) for _ in range(3))) == [CLAIMS] * 3
        assert server.looked == LOOK
        server.published = published(FIRST, SECOND)
        clock.now = 59.0
        assert await keys.claims(SECOND.sign(CLAIMS)) is None
        assert server.looked == LOOK
        clock.now = 60.0
        assert await keys.claims(SECOND.sign(CLAIMS)) == CLAIMS
        assert await keys.claims(FIRST.sign(CLAIMS)) == CLAIMS
        assert server.looked == 2 * LOOK

    asyncio.run(scene())


def test_a_key_that_was_withdrawn_counts_for_an_hour_at_most() -> None:
    clock, server = Clock(), Reviews(published=published(FIRST))
    keys = PublishedKeys(server, monotonic=clock)
    assert asyncio.run(keys.claims(FIRST.sign(CLAIMS))) == CLAIMS
    server.published = published(SECOND)
    clock.now = OLD_SECONDS
    assert asyncio.run(keys.claims(FIRST.sign(CLAIMS))) is None


def test_while_the_keys_cannot_be_read_again_a_known_one_counts_for_two_hours_at_most() -> None:
    clock, server = Clock(), Reviews(published=published(FIRST))
    keys = PublishedKeys(server, monotonic=clock)
    assert asyncio.run(keys.claims(FIRST.sign(CLAIMS))) == CLAIMS
    server.published = {}
    clock.now = 2 * OLD_SECONDS - 1
    assert asyncio.run(keys.claims(FIRST.sign(CLAIMS))) == CLAIMS
    clock.now = 2 * OLD_SECONDS
    assert asyncio.run(keys.claims(FIRST.sign(CLAIMS))) is None
    server.published = published(FIRST)
    clock.now += 60
    assert asyncio.run(keys.claims(FIRST.sign(CLAIMS))) == CLAIMS


@pytest.mark.parametrize("shown", [{}, published()], ids=["it publishes nothing", "no key"])
def test_an_api_server_without_keys_is_one_line_in_the_log_until_it_has_some(
    shown: dict[str, Json], caplog: pytest.LogCaptureFixture
) -> None:
    clock, server = Clock(), Reviews(published=shown)
    keys = PublishedKeys(server, monotonic=clock)
    for minute in range(3):
        clock.now = 60.0 * minute
        assert asyncio.run(keys.claims(FIRST.sign(CLAIMS))) is None
    assert len(caplog.records) == 1
    assert "it is asked about each member's token" in caplog.text
    server.published, clock.now = published(FIRST), 180.0
    assert asyncio.run(keys.claims(FIRST.sign(CLAIMS))) == CLAIMS
