"""Which party is silent, and for how long: only the time in which this process was awake counts."""

from __future__ import annotations

from perdure.live.protocol.events import Silent
from perdure.live.protocol.hearing import Hearing
from perdure.live.protocol.timing import LOST_SECONDS, SILENCE_SECONDS


def looked(hearing: Hearing, begin: float, seconds: float) -> list[Silent]:
    """What the last look tells of many, one each half second."""
    found: list[Silent] = []
    for look in range(1, int(2 * seconds) + 1):
        found = list(hearing.silent(begin + look / 2))
    return found


def test_who_says_nothing_is_silent_and_after_long_it_is_lost() -> None:
    hearing = Hearing([1, 2], 100.0)
    assert looked(hearing, 100.0, SILENCE_SECONDS - 0.5) == []
    hearing.heard(2)
    now = 100.0 + SILENCE_SECONDS - 0.5
    assert looked(hearing, now, 0.5) == [Silent(1)]
    assert looked(hearing, now + 0.5, LOST_SECONDS) == [Silent(1, lost=True), Silent(2, lost=True)]


def test_who_is_heard_again_was_never_lost() -> None:
    hearing = Hearing([1], 0.0)
    assert looked(hearing, 0.0, SILENCE_SECONDS) == [Silent(1)]
    hearing.heard(1)
    assert looked(hearing, SILENCE_SECONDS, SILENCE_SECONDS - 0.5) == []


def test_a_party_that_was_stopped_itself_takes_no_other_for_silent() -> None:
    hearing = Hearing([1], 0.0)
    assert list(hearing.silent(1000.0)) == []
    hearing.heard(1)
    assert looked(hearing, 1000.0, SILENCE_SECONDS - 0.5) == []
