"""What copying for an image may take: a pause after too much of it, and another try."""

from __future__ import annotations

from perdure.loop.copy_budget import (
    GOOD_SECONDS,
    LEAST_PAUSE_SECONDS,
    LEAST_SPENT_SECONDS,
    MOST_PAUSE_SECONDS,
    MOST_SPENT,
    CopyBudget,
)

NOW = 1000.0
MUCH = LEAST_SPENT_SECONDS + 0.5


def test_a_little_is_spent_at_once() -> None:
    one = CopyBudget()
    assert not one.pauses(NOW)
    assert one.spend(NOW, NOW + LEAST_SPENT_SECONDS) == 0
    assert not one.pauses(NOW + LEAST_SPENT_SECONDS)


def test_after_too_much_comes_a_pause() -> None:
    one = CopyBudget()
    assert one.spend(NOW, NOW + MUCH) == LEAST_PAUSE_SECONDS
    assert one.pauses(NOW + MUCH)
    assert one.pauses(NOW + MUCH + LEAST_PAUSE_SECONDS - 0.001)
    assert not one.pauses(NOW + MUCH + LEAST_PAUSE_SECONDS)


def test_in_a_long_time_a_share_of_it_may_be_spent() -> None:
    one = CopyBudget()
    one.spend(NOW, NOW)
    for number in range(1, 1000):
        assert one.spend(NOW + number, NOW + number + MOST_SPENT * 0.9) == 0


def test_what_was_spent_before_the_pause_does_not_count_after_it() -> None:
    one = CopyBudget()
    one.spend(NOW, NOW + 100 * MUCH)
    later = NOW + 100 * MUCH + LEAST_PAUSE_SECONDS
    assert not one.pauses(later)
    assert one.spend(later, later + 0.1) == 0


def _in_vain(one: CopyBudget, now: float, times: int) -> tuple[float, float]:
    """The last pause, and its end."""
    pause = 0.0
    for _ in range(times):
        assert not one.pauses(now)
        pause = one.spend(now, now + MUCH)
        now += MUCH + pause
    return pause, now


def test_tries_in_vain_are_made_less_and_less_often_and_never_none() -> None:
    assert _in_vain(CopyBudget(), NOW, 3)[0] == 4 * LEAST_PAUSE_SECONDS
    assert _in_vain(CopyBudget(), NOW, 30)[0] == MOST_PAUSE_SECONDS


def test_a_good_while_makes_the_next_pause_short_again() -> None:
    one = CopyBudget()
    _, now = _in_vain(one, NOW, 5)
    assert not one.pauses(now)
    one.spend(now, now)
    assert one.spend(now + GOOD_SECONDS, now + 2 * GOOD_SECONDS) == LEAST_PAUSE_SECONDS
