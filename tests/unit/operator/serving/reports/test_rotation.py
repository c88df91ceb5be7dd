"""Which authorities members trust and which one signs: case by case, and over years in which much goes wrong."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from perdure_operator.serving.certificate import Pair
from perdure_operator.serving.reports.rotation import (
    AUTHORITY_LIFE,
    CERTIFICATE_LIFE,
    LAST_DAY,
    NEXT_AUTHORITY_BEFORE,
    RENEW_BEFORE,
    TRUSTED_FOR,
    Drop,
    Keys,
    KeyStep,
    Make,
    Sign,
    Trusted,
    carried_out,
    next_step,
    signer,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOST = "perdure-operator-reports.perdure-system.svc"
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
LATE = 5
"""Looks, of three hours each."""


@dataclass
class Counted:
    """Makes keys that are words."""

    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def name(self) -> str:
        return f"authority {next(self.numbers)}"

    def authority(self, name: str, _ends: datetime, /) -> Pair:
        return Pair(name, f"secret of {name}")

    def signed(self, host: str, _ends: datetime, authority: Pair, /) -> Pair:
        return Pair(f"{host} by {authority.certificate}", f"secret {next(self.numbers)}")


def steps(keys: Keys, now: datetime, trusted: tuple[str, ...] = (), host: str = HOST) -> tuple[Keys, list[KeyStep]]:
    """All that is due now, and the keys then."""
    taken: list[KeyStep] = []
    while (step := next_step(keys, host, now, trusted)) is not None:
        keys = carried_out(keys, step, host, now, MAKER)
        taken.append(step)
        assert len(taken) < 8, taken
    return keys, taken


MAKER = Counted()


def begun() -> Keys:
    """The keys of a new installation, which all members have at once."""
    keys, _ = steps(Keys(), NOW)
    return steps(keys, NOW, names(keys))[0]


def names(keys: Keys) -> tuple[str, ...]:
    return tuple(one.name for one in keys.authorities)


def with_next() -> tuple[Keys, datetime]:
    """The keys once the second authority is made, and that time."""
    now = NOW + AUTHORITY_LIFE - NEXT_AUTHORITY_BEFORE
    return steps(begun(), now)[0], now


def test_an_empty_secret_gets_an_authority_that_signs_at_once() -> None:
    keys, taken = steps(Keys(), NOW)
    (made,) = keys.authorities
    assert taken == [Make(NOW + AUTHORITY_LIFE), Sign(made.name, NOW + CERTIFICATE_LIFE)]
    assert keys.serving is not None
    assert (keys.serving.authority, keys.serving.host, keys.serving.ends) == (made.name, HOST, NOW + CERTIFICATE_LIFE)
    assert made.signed_until == NOW + CERTIFICATE_LIFE
    assert steps(keys, NOW) == (keys, [])


def test_that_all_members_have_an_authority_is_recorded_once() -> None:
    keys, _ = steps(Keys(), NOW)
    later, taken = steps(keys, NOW + HOUR, names(keys))
    assert taken == [Trusted(frozenset(names(keys)))]
    assert later.authorities[0].trusted_since == NOW + HOUR
    assert steps(later, NOW + 2 * HOUR, names(keys)) == (later, [])


def test_a_certificate_is_renewed_a_month_before_its_end_and_the_bundle_stays() -> None:
    due = NOW + CERTIFICATE_LIFE - RENEW_BEFORE
    assert steps(begun(), due - SECOND)[1] == []
    keys, taken = steps(begun(), due)
    assert taken == [Sign(keys.authorities[0].name, due + CERTIFICATE_LIFE)]


def test_another_address_of_the_service_gets_a_certificate_of_its_own() -> None:
    keys, taken = steps(begun(), NOW + HOUR, host="elsewhere.svc")
    assert [type(step) for step in taken] == [Sign]
    assert keys.serving is not None
    assert keys.serving.host == "elsewhere.svc"


def test_no_certificate_is_valid_for_longer_than_its_authority() -> None:
    now = NOW + AUTHORITY_LIFE - NEXT_AUTHORITY_BEFORE - DAY
    keys, _ = steps(begun(), now)
    assert keys.serving is not None
    assert keys.serving.ends == NOW + AUTHORITY_LIFE


def test_the_next_authority_is_made_a_month_before_the_end_and_does_not_sign() -> None:
    assert not [one for one in steps(begun(), with_next()[1] - SECOND)[1] if isinstance(one, Make)]
    keys, now = with_next()
    old, new = keys.authorities
    assert new.ends == now + AUTHORITY_LIFE
    assert keys.serving is not None
    assert keys.serving.authority == old.name
    assert keys.bundle == old.pair.certificate + new.pair.certificate


def test_it_signs_a_day_after_all_members_have_had_it() -> None:
    keys, now = with_next()
    old, new = keys.authorities
    keys, _ = steps(keys, now + HOUR, (old.name, new.name))
    at = now + HOUR + TRUSTED_FOR
    assert steps(keys, at - SECOND)[1] == []
    keys, taken = steps(keys, at)
    assert taken == [Sign(new.name, at + CERTIFICATE_LIFE)]


def test_a_member_that_never_gets_it_holds_it_up_until_the_last_day_of_the_older_one() -> None:
    keys, _ = with_next()
    old, new = keys.authorities
    last = old.ends - LAST_DAY
    waiting, _ = steps(keys, last - SECOND, (old.name,))
    assert waiting.serving is not None
    assert waiting.serving.authority == old.name
    assert steps(keys, last, (old.name,))[1] == [Sign(new.name, last + CERTIFICATE_LIFE)]


def test_an_authority_stays_until_its_last_certificate_has_ended() -> None:
    keys, now = with_next()
    old, new = keys.authorities
    keys, _ = steps(keys, now, (old.name, new.name))
    keys, _ = steps(keys, now + TRUSTED_FOR)
    until = keys.authorities[0].signed_until
    assert until is not None
    assert until > now + TRUSTED_FOR
    assert steps(keys, until - SECOND)[1] == []
    assert Drop(old.name) in steps(keys, until)[1]


def test_the_end_of_a_longer_certificate_counts_also_after_a_shorter_one() -> None:
    """A replica may serve with the longer one still."""
    keys, _ = steps(begun(), NOW - 20 * DAY, host="elsewhere.svc")
    assert keys.authorities[0].signed_until == NOW + CERTIFICATE_LIFE


def test_a_clock_that_is_set_back_makes_and_drops_nothing() -> None:
    keys, now = with_next()
    keys, _ = steps(keys, now, names(keys))
    keys, _ = steps(keys, now + TRUSTED_FOR)
    back, taken = steps(keys, NOW - 700 * DAY)
    assert all(isinstance(step, Sign) for step in taken)
    assert names(back) == names(keys)


def test_a_time_to_come_since_when_all_have_it_is_none() -> None:
    first = begun()
    again, taken = steps(first, NOW - DAY, names(first))
    assert taken == [Trusted(frozenset(names(first)))]
    assert again.authorities[0].trusted_since == NOW - DAY


def test_a_clock_that_is_set_forward_by_years_makes_an_authority_at_once() -> None:
    keys, taken = steps(begun(), NOW + 3 * AUTHORITY_LIFE)
    assert [type(step) for step in taken] == [Drop, Make, Sign]
    assert len(keys.authorities) == 1


@dataclass
class Member:
    """A pod that reports: what its annotation says, and what its kubelet has written to the file."""

    annotation: frozenset[str]
    file: frozenset[str]
    stuck: bool = False
    """Whether its annotation cannot be changed."""
    late: int = 0
    """For how many looks its kubelet has not looked."""
    refused: int = 0
    """For how many looks to come its annotation cannot be changed."""


@dataclass
class Replica:
    """An operator's process: what it has last read or written."""

    keys: Keys = field(default_factory=Keys)
    late: int = 0
    """For how many looks it has not read the Secret."""


@dataclass
class World:
    """A Secret, two replicas, and members, over years. The clock is the operator's; time itself is `now`."""

    chance: random.Random
    now: datetime = NOW
    off: timedelta = timedelta(0)
    stored: Keys = field(default_factory=Keys)
    version: int = 0
    replicas: tuple[Replica, Replica] = field(default_factory=lambda: (Replica(), Replica()))
    leading: int = 0
    members: list[Member] = field(default_factory=list)
    refusals: float = 0.0
    """How often the change of an annotation is refused for five days."""
    wrong_until: datetime = NOW
    """Until then members may be unable to check the operator, because its clock was wrong, or the Secret was lost."""

    @property
    def leader(self) -> Replica:
        return self.replicas[self.leading]

    def look(self, replica: Replica, *, leads: bool) -> None:
        """As `loop.keys` does."""
        read, version = self.stored, self.version
        replica.keys = read
        if not leads:
            return
        have = frozenset(names(read))
        trusted = names(read) if all(one.annotation == have for one in self.members) else ()
        keys, taken = steps(read, self.now + self.off, trusted)
        if not taken:
            return
        fate = self.chance.random()
        if fate < 0.1:
            return  # the API server did not take the write
        if fate < 0.2:  # another leader was faster, with what it had read
            self.look(self.replicas[1 - self.leading], leads=True)
        if version == self.version:
            self.stored, self.version = keys, self.version + 1
            if fate < 0.9:  # else its answer was lost
                replica.keys = keys

    def spread(self) -> None:
        """The leader changes annotations, and kubelets write files."""
        for one in self.members:
            one.late = one.late + 1 if one.late < LATE and self.chance.random() < 0.5 else 0
            one.file = one.file if one.late else one.annotation
            one.refused = max(0, one.refused - 1) or (40 if self.chance.random() < self.refusals else 0)
            if self.leader.keys.serving is not None and not (one.stuck or one.refused):
                one.annotation = frozenset(names(self.leader.keys))

    def pass_hours(self, *, stuck: float) -> None:
        self.now += 3 * HOUR
        if self.chance.random() < 0.02:
            self.leading = 1 - self.leading
        if self.chance.random() < 0.97:  # else no operator runs meanwhile
            self.look(self.leader, leads=True)
        follower = self.replicas[1 - self.leading]
        follower.late = follower.late + 1 if follower.late < LATE and self.chance.random() < 0.7 else 0
        if not follower.late:
            self.look(follower, leads=False)
        self.spread()
        if self.members and self.chance.random() < 0.05:
            self.members.pop(self.chance.randrange(len(self.members)))
        if len(self.members) < 5 and self.leader.keys.serving is not None and self.chance.random() < 0.2:
            new = frozenset(names(self.leader.keys))
            self.members.append(Member(new, new, self.chance.random() < stuck))

    def check(self) -> None:
        assert len(self.stored.authorities) <= 2
        for replica in self.replicas if self.now > self.wrong_until else ():
            serving = replica.keys.serving
            assert serving is not None
            assert serving.ends > self.now
            assert all(serving.authority in one.file for one in self.members if not one.stuck), self.now


@pytest.mark.parametrize("number", range(4))
def test_members_can_check_the_operator_for_years_whatever_is_lost_or_late(seed: int, number: int) -> None:
    """Lost writes, lost answers, changes of leader, hours without an operator, members whose annotation stays."""
    world = World(random.Random(f"{seed} {number}"))  # noqa: S311 - nothing secret
    world.wrong_until, world.refusals = NOW + 2 * DAY, 0.002
    seen = set[str]()
    for _ in range(2 * 365 * 8):
        world.pass_hours(stuck=0.1 if number % 2 else 0.0)
        world.check()
        seen.update(names(world.stored))
    assert len(seen) >= 3


@pytest.mark.parametrize("number", range(4))
def test_after_any_clock_or_a_lost_secret_members_can_check_the_operator_again(seed: int, number: int) -> None:
    world = World(random.Random(f"{seed} {number}"))  # noqa: S311 - nothing secret
    for _ in range(12):
        world.off = timedelta(days=world.chance.choice([0, -900, -300, -1, 1, 40, 200, 340, 366, 900]))
        if world.chance.random() < 0.3:
            world.stored, world.version = Keys(), world.version + 1
        for _ in range(world.chance.randrange(1, 130)):
            world.wrong_until = world.now + 3 * HOUR
            world.pass_hours(stuck=0.0)
            world.check()
        world.off, world.wrong_until = timedelta(0), world.now + 2 * DAY
        for _ in range(world.chance.randrange(20, 130)):
            world.pass_hours(stuck=0.0)
            world.check()


def test_nobody_signs_once_all_have_ended() -> None:
    assert signer(begun(), NOW + AUTHORITY_LIFE) is None
