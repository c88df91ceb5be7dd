"""Which authorities members trust, which one signs, and when each certificate is due. Pure; see decision 081.

Members have the certificates of all authorities. An authority lives for a year, and the next one is made 30 days before
its end. It signs once all members are known to have had it for 24 hours, or when the older one has a day left. It is
dropped when its last certificate has ended. There are never more than two. Called by `loop.keys`, which reads and
writes the Secret.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

from perdure_operator.serving.certificate import Pair

AUTHORITY_LIFE: Final = timedelta(days=365)
NEXT_AUTHORITY_BEFORE: Final = timedelta(days=30)
TRUSTED_FOR: Final = timedelta(hours=24)
"""How long all members must have had an authority before it signs: a kubelet that is well brings it in minutes."""
LAST_DAY: Final = timedelta(days=1)
"""Of an authority: it does not sign any more if another one can."""
CERTIFICATE_LIFE: Final = timedelta(days=90)
RENEW_BEFORE: Final = timedelta(days=30)
WORTH_IT: Final = timedelta(days=1)
"""A renewal that gains less is none."""


@dataclass(frozen=True)
class Authority:
    """One that signs the operator's certificates."""

    name: str
    """Unlike any other's; it is in its certificate, too."""
    pair: Pair
    ends: datetime
    trusted_since: datetime | None = None
    """When all living members were first known to have it; None until then."""
    signed_until: datetime | None = None
    """The end of the last certificate that it has signed."""


@dataclass(frozen=True)
class Serving:
    """The certificate with which the operator answers."""

    authority: str
    """The name of the one that signed it."""
    host: str
    pair: Pair
    ends: datetime


@dataclass(frozen=True)
class Keys:
    """All that the Secret holds."""

    authorities: tuple[Authority, ...] = ()
    """In the order in which they were made."""
    serving: Serving | None = None

    @property
    def bundle(self) -> str:
        """The certificates that members trust."""
        return "".join(one.pair.certificate for one in self.authorities)


@dataclass(frozen=True)
class Trusted:
    """All living members have these authorities."""

    names: frozenset[str]


@dataclass(frozen=True)
class Drop:
    """Members need not trust it any more."""

    name: str


@dataclass(frozen=True)
class Make:
    """A new authority, valid until then."""

    ends: datetime


@dataclass(frozen=True)
class Sign:
    """A new certificate for the operator."""

    authority: str
    ends: datetime


KeyStep = Trusted | Drop | Make | Sign


class KeyMaker(Protocol):
    """Makes keys, which is not pure."""

    def name(self) -> str:
        """Unlike any before."""

    def authority(self, name: str, ends: datetime, /) -> Pair:
        """A new one's."""

    def signed(self, host: str, ends: datetime, authority: Pair, /) -> Pair:
        """For a server of that name."""


def next_step(keys: Keys, host: str, now: datetime, trusted: Collection[str] = ()) -> KeyStep | None:
    """What is due now for the certificate of that host; None: nothing. `trusted` are the authorities that each living
    member has."""
    return _trusted(keys, now, trusted) or _drop(keys, now) or _make(keys, now) or _sign(keys, host, now)


def carried_out(keys: Keys, step: KeyStep, host: str, now: datetime, maker: KeyMaker) -> Keys:
    """The keys after that step."""
    match step:
        case Trusted(names):
            return _with(keys, *(replace(one, trusted_since=now) for one in keys.authorities if one.name in names))
        case Drop(name):
            return replace(keys, authorities=tuple(one for one in keys.authorities if one.name != name))
        case Make(ends):
            name = maker.name()
            return replace(keys, authorities=(*keys.authorities, Authority(name, maker.authority(name, ends), ends)))
        case Sign(authority, ends):
            by = next(one for one in keys.authorities if one.name == authority)
            serving = Serving(by.name, host, maker.signed(host, ends, by.pair), ends)
            until = max(by.signed_until or ends, ends)
            return replace(_with(keys, replace(by, signed_until=until)), serving=serving)


def signer(keys: Keys, now: datetime) -> Authority | None:
    """The authority that signs now: the newest that members have had for long enough, else the oldest that lives."""
    alive = [one for one in keys.authorities if one.ends > now]
    alive = [one for one in alive if one.ends > now + LAST_DAY] or alive
    return next((one for one in reversed(alive) if _may_sign(one, now)), alive[0] if alive else None)


def _may_sign(one: Authority, now: datetime) -> bool:
    return one.trusted_since is not None and one.trusted_since + TRUSTED_FOR <= now


def _trusted(keys: Keys, now: datetime, trusted: Collection[str]) -> KeyStep | None:
    """A time to come was written by a clock that was wrong."""
    new = (one for one in keys.authorities if one.trusted_since is None or one.trusted_since > now)
    names = frozenset(one.name for one in new if one.name in trusted)
    return Trusted(names) if names else None


def _drop(keys: Keys, now: datetime) -> KeyStep | None:
    chosen = signer(keys, now)
    for place, one in enumerate(keys.authorities):
        over = one.signed_until is None or one.signed_until <= now
        replaced = chosen is not None and any(later.name == chosen.name for later in keys.authorities[place + 1 :])
        if one.ends <= now or (over and replaced):
            return Drop(one.name)
    return None


def _make(keys: Keys, now: datetime) -> KeyStep | None:
    if any(one.ends - now > NEXT_AUTHORITY_BEFORE for one in keys.authorities):
        return None
    return Make(now + AUTHORITY_LIFE)


def _sign(keys: Keys, host: str, now: datetime) -> KeyStep | None:
    chosen, serving = signer(keys, now), keys.serving
    if chosen is None:
        return None
    ends = min(now + CERTIFICATE_LIFE, chosen.ends)
    if serving is None or (serving.authority, serving.host) != (chosen.name, host):
        return Sign(chosen.name, ends)
    due = serving.ends - now <= RENEW_BEFORE and ends - serving.ends >= WORTH_IT
    return Sign(chosen.name, ends) if due else None


def _with(keys: Keys, *changed: Authority) -> Keys:
    news = {one.name: one for one in changed}
    return replace(keys, authorities=tuple(news.get(one.name, one) for one in keys.authorities))
