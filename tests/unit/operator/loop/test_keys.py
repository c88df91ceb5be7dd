"""The Secret with the operator's certificates: who writes it, who reads it, and what is used when that fails."""

from __future__ import annotations

import asyncio
import errno
import logging
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.wire.report import read_channel
from perdure_operator.cluster.protocol import SECRETS, ApiError, Conflict, Forbidden, Json, Resource, Unavailable
from perdure_operator.loop.keys import ENTRY, LOOK_SECONDS, SOON_SECONDS, KeyKeeper
from perdure_operator.serving.certificate import Maker
from perdure_operator.serving.reports.keys_document import read_keys, write_keys
from perdure_operator.serving.reports.rotation import (
    AUTHORITY_LIFE,
    CERTIFICATE_LIFE,
    NEXT_AUTHORITY_BEFORE,
    RENEW_BEFORE,
    TRUSTED_FOR,
    Keys,
)
from tests.support.memory_cluster import MemoryCluster
from tests.unit.operator.serving.test_certificate import checked

HOST = "perdure-operator-reports.perdure-system.svc"
SECRET = ("perdure-system", "perdure-operator-keys")
MORE = b64encode(b"a user's own").decode()


class Refusing(MemoryCluster):
    """Its next writes fail, or their answers are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.refusal: ApiError | None = None
        self.lost = False
        self.now = datetime.now(UTC)
        self.time = lambda: self.now
        secret = {"metadata": {"name": SECRET[1], "labels": {"a": "b"}}, "type": "Opaque", "data": {"more": MORE}}
        asyncio.run(self.create(SECRETS, SECRET[0], secret))
        self.writes.clear()

    async def replace(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        if self.refusal is not None:
            raise self.refusal
        written = await super().replace(resource, namespace, name, body)
        if self.lost:
            raise Unavailable("no answer")
        return written

    @property
    def keys(self) -> Keys:
        """Those in the Secret."""
        return read_keys(b64decode(asyncio.run(self.get(SECRETS, *SECRET))["data"][ENTRY]).decode())

    def put(self, text: str | None) -> None:
        """Another client writes the Secret."""
        data = {} if text is None else {ENTRY: text}
        self.change(SECRETS, *SECRET, lambda raw: raw.update(data=data))


class Replica:
    """One operator's process."""

    def __init__(self, cluster: Refusing) -> None:
        self.cluster = cluster
        self.asked: list[str] = []
        self.keeper = KeyKeeper(cluster, SECRET, f"https://{HOST}:8444", Maker())

    def look(self, *, leads: bool = True, all_have: bool = True) -> None:
        def have(channel: str) -> bool:
            self.asked.append(channel)
            return all_have

        asyncio.run(self.keeper.look(have if leads else None))

    @property
    def bundle(self) -> str:
        return read_channel(self.keeper.channel()).ca

    def serves(self, bundle: str) -> None:
        """A member that trusts this bundle can check the operator."""
        checked(asyncio.run(self.keeper.contexts()), bundle)


@pytest.fixture
def cluster() -> Refusing:
    return Refusing()


def test_the_leader_fills_an_empty_secret_and_every_replica_serves_with_what_is_in_it(cluster: Refusing) -> None:
    leader, follower = Replica(cluster), Replica(cluster)
    follower.look(leads=False)
    assert follower.keeper.channel() == ""
    leader.look()
    follower.look(leads=False)
    assert leader.keeper.channel() == follower.keeper.channel()
    assert read_channel(leader.keeper.channel()).url == f"https://{HOST}:8444"
    for one in (leader, follower):
        one.serves(leader.bundle)
    assert cluster.writes == [f"replace secrets {SECRET[1]}"]
    secret = asyncio.run(cluster.get(SECRETS, *SECRET))
    assert (secret["type"], secret["metadata"]["labels"], secret["data"]["more"]) == ("Opaque", {"a": "b"}, MORE)


def test_a_second_leader_goes_on_with_the_keys_of_the_first(cluster: Refusing) -> None:
    first, second = Replica(cluster), Replica(cluster)
    first.look(all_have=False)
    second.look(all_have=False)
    assert first.keeper.channel() == second.keeper.channel()
    assert len(cluster.writes) == 1


def test_that_all_members_have_the_bundle_is_asked_for_what_was_read_and_written_down(cluster: Refusing) -> None:
    leader = Replica(cluster)
    leader.look()
    assert cluster.keys.authorities[0].trusted_since is None
    leader.look(all_have=False)
    assert cluster.keys.authorities[0].trusted_since is None
    assert leader.asked[-1] == leader.keeper.channel()
    leader.look()
    assert cluster.keys.authorities[0].trusted_since == cluster.now


def test_over_a_year_a_member_that_follows_the_bundle_can_always_check_the_operator(cluster: Refusing) -> None:
    leader = Replica(cluster)
    leader.look()
    leader.look()
    begun, first, bundle = cluster.now, cluster.keys, leader.bundle
    cluster.now = begun + CERTIFICATE_LIFE - RENEW_BEFORE
    leader.look()
    assert cluster.keys.serving != first.serving
    assert leader.bundle == bundle
    cluster.now = begun + AUTHORITY_LIFE - NEXT_AUTHORITY_BEFORE
    leader.look()
    old, new = cluster.keys.authorities
    assert leader.bundle == old.pair.certificate + new.pair.certificate
    leader.serves(old.pair.certificate)
    leader.look()
    cluster.now += TRUSTED_FOR
    leader.look()
    leader.serves(new.pair.certificate)
    cluster.now = old.ends
    leader.look()
    assert leader.bundle == new.pair.certificate


@pytest.mark.parametrize("error", [Conflict("other"), Unavailable("down"), Forbidden("no")], ids=repr)
def test_nothing_is_used_that_was_not_written(cluster: Refusing, error: ApiError) -> None:
    leader = Replica(cluster)
    cluster.refusal = error
    with pytest.raises(type(error)):
        leader.look()
    assert leader.keeper.channel() == ""
    cluster.refusal = None
    leader.look()
    before = leader.bundle
    cluster.now += AUTHORITY_LIFE - NEXT_AUTHORITY_BEFORE
    cluster.refusal = error
    with pytest.raises(type(error)):
        leader.look()
    assert leader.bundle == before
    new = Replica(cluster)
    with pytest.raises(type(error)):
        new.look()
    new.serves(before)


def test_a_write_whose_answer_was_lost_is_found_at_the_next_look(cluster: Refusing) -> None:
    leader = Replica(cluster)
    cluster.lost = True
    with pytest.raises(Unavailable):
        leader.look()
    cluster.lost, written = False, cluster.keys
    leader.look(all_have=False)
    assert cluster.keys == written
    assert leader.bundle == written.bundle


def test_of_two_leaders_one_alone_writes(cluster: Refusing) -> None:
    slow, other = Replica(cluster), Refusing()
    Replica(other).look()
    text = b64encode(write_keys(other.keys).encode()).decode()

    def meanwhile(_channel: str) -> bool:
        cluster.put(text)
        return False

    with pytest.raises(Conflict):
        asyncio.run(slow.keeper.look(meanwhile))
    assert cluster.keys == other.keys
    slow.look()
    assert slow.bundle == other.keys.bundle


def damaged(cluster: Refusing) -> dict[str, str | None]:
    """Texts of the Secret's entry that nobody can use."""

    def encoded(text: str) -> str:
        return b64encode(text.encode()).decode()

    keys = write_keys(cluster.keys)
    certificate, serving = cluster.keys.authorities[0].pair.certificate, cluster.keys.serving
    assert serving is not None
    return {
        "emptied": None,
        "no base64": "!",
        "no text": b64encode(b"\xff").decode(),
        "no document": encoded(keys[:-10]),
        "no pair": encoded(keys.replace(_json(serving.pair.certificate), _json(certificate))),
        "too long": encoded(keys.replace(_json(certificate), _json(certificate * 60))),
    }


def _json(text: str) -> str:
    return text.replace("\n", "\\n")


@pytest.mark.parametrize("how", ["emptied", "no base64", "no text", "no document", "no pair", "too long"])
def test_keys_that_nobody_can_use_are_made_again_and_a_follower_keeps_its_own(cluster: Refusing, how: str) -> None:
    leader, follower = Replica(cluster), Replica(cluster)
    leader.look()
    follower.look(leads=False)
    first = leader.bundle
    cluster.put(damaged(cluster)[how])
    follower.look(leads=False)
    follower.serves(first)
    assert follower.bundle == first
    leader.look()
    assert leader.bundle != first
    follower.look(leads=False)
    for one in (leader, follower):
        one.serves(leader.bundle)


def test_an_authority_whose_key_is_lost_is_replaced_once_it_has_to_sign(cluster: Refusing) -> None:
    leader = Replica(cluster)
    leader.look()
    (authority,) = cluster.keys.authorities
    text = write_keys(cluster.keys).replace(_json(authority.pair.key), "gone")
    cluster.put(b64encode(text.encode()).decode())
    leader.look(all_have=False)
    assert leader.bundle == authority.pair.certificate
    cluster.now += CERTIFICATE_LIFE - RENEW_BEFORE
    leader.look(all_have=False)
    assert leader.bundle != authority.pair.certificate
    leader.serves(leader.bundle)


def test_a_fault_of_this_machine_says_nothing_about_the_keys(
    cluster: Refusing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Replica(cluster).look(all_have=False)
    written, writes = cluster.keys, list(cluster.writes)

    def refuses(_name: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("os.memfd_create", refuses)
    restarted = Replica(cluster)
    assert paused(restarted.keeper, 2) == [LOOK_SECONDS, LOOK_SECONDS]
    assert "Too many open files" in caplog.text
    assert (cluster.keys, cluster.writes) == (written, writes)
    monkeypatch.undo()
    restarted.look(all_have=False)
    restarted.serves(written.bundle)


def test_living_members_are_told_what_the_leader_has_read_as_leader(cluster: Refusing) -> None:
    first, second = Replica(cluster), Replica(cluster)
    first.look()
    second.look(leads=False)
    older = second.keeper.channel()
    cluster.now += AUTHORITY_LIFE - NEXT_AUTHORITY_BEFORE
    first.look()
    assert first.keeper.channel_of_leader() == first.keeper.channel() != older
    assert (second.keeper.channel(), second.keeper.channel_of_leader()) == (older, "")
    second.look()
    assert second.keeper.channel_of_leader() == first.keeper.channel()


class Over(Exception):
    """The test has seen enough."""


def paused(keeper: KeyKeeper, times: int, leads: Callable[[], bool] = lambda: True) -> list[float]:
    """The pauses of so many looks."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == times:
            raise Over

    keeper.sleep = sleep
    with pytest.raises(Over):
        asyncio.run(keeper.keep(leads, lambda _: False))
    return pauses


def test_it_looks_once_a_minute_and_sooner_while_there_are_no_keys(cluster: Refusing) -> None:
    assert paused(Replica(cluster).keeper, 2) == [LOOK_SECONDS, LOOK_SECONDS]
    cluster.put(None)
    assert paused(Replica(cluster).keeper, 2, lambda: False) == [SOON_SECONDS, SOON_SECONDS]


def test_after_another_replica_was_faster_it_looks_again_soon(cluster: Refusing) -> None:
    cluster.refusal = Conflict("it has changed")
    assert paused(Replica(cluster).keeper, 2) == [SOON_SECONDS, SOON_SECONDS]


def test_that_others_are_faster_for_a_minute_is_a_line(cluster: Refusing, caplog: pytest.LogCaptureFixture) -> None:
    cluster.refusal = Conflict("it has changed")
    looks = int(LOOK_SECONDS / SOON_SECONDS)
    paused(Replica(cluster).keeper, looks - 1)
    assert caplog.messages == []
    paused(Replica(cluster).keeper, 2 * looks)
    (line, again) = caplog.messages
    assert line == again == "secret perdure-system/perdure-operator-keys: another client was faster: it has changed"


def test_a_secret_that_is_missing_is_looked_for_more_and_more_seldom_and_is_a_line(
    cluster: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.remove(SECRETS, *SECRET)
    assert paused(Replica(cluster).keeper, 7) == [2.0, 4.0, 8.0, 16.0, 32.0, LOOK_SECONDS, LOOK_SECONDS]
    assert "secret perdure-system/perdure-operator-keys: the certificates for reports are not kept now" in caplog.text


def test_a_bug_of_ours_is_a_line_and_not_the_end(cluster: Refusing, caplog: pytest.LogCaptureFixture) -> None:
    cluster.refusal = RuntimeError("ours")  # type: ignore[assignment]
    assert paused(Replica(cluster).keeper, 2) == [LOOK_SECONDS, LOOK_SECONDS]
    assert "an unexpected error" in caplog.text


def test_no_key_is_ever_logged_or_told_to_members(cluster: Refusing, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    leader, secrets = Replica(cluster), set[str]()

    def look(**how: Any) -> None:
        leader.look(**how)
        pairs = [one.pair for one in cluster.keys.authorities]
        pairs += [cluster.keys.serving.pair] if cluster.keys.serving else []
        secrets.add(asyncio.run(cluster.get(SECRETS, *SECRET))["data"][ENTRY])
        secrets.update(line for pair in pairs for line in pair.key.splitlines() if "-----" not in line)

    look()
    for after in (timedelta(0), CERTIFICATE_LIFE - RENEW_BEFORE, AUTHORITY_LIFE, TRUSTED_FOR):
        cluster.now += after
        look()
    for text in damaged(cluster).values():
        cluster.put(text)
        secrets |= {text} if text and len(text) > 10 else set()
        look()
    swapped, serving = write_keys(cluster.keys), cluster.keys.serving
    assert serving is not None
    swapped = swapped.replace(_json(cluster.keys.authorities[0].pair.key), _json(serving.pair.key))
    cluster.put(b64encode(swapped.encode()).decode())
    cluster.now += CERTIFICATE_LIFE - RENEW_BEFORE
    look()
    assert "an authority's key cannot be used" in caplog.text
    assert len(caplog.records) > 8
    assert len(secrets) > 10
    assert not [one for one in secrets if one in caplog.text or one in leader.keeper.channel()]
