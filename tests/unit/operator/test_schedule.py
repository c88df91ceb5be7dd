"""Keys are de-duplicated, worked on one at a time, and backed off; time is passed in."""

from __future__ import annotations

from perdure_operator.loop.schedule import Schedule


def test_a_key_added_twice_is_due_once_at_the_earlier_time() -> None:
    schedule = Schedule[str]()
    schedule.add("a", 10)
    schedule.add("a", 5)
    schedule.add("a", 20)
    assert schedule.pop(4.9) is None
    assert schedule.pop(5) == "a"
    schedule.done("a")
    assert schedule.pop(100) is None


def test_a_busy_key_that_is_added_again_is_due_after_the_work() -> None:
    schedule = Schedule[str]()
    schedule.add("a", 0)
    assert schedule.pop(0) == "a"
    schedule.add("a", 1)
    assert schedule.pop(2) is None
    assert schedule.next_at() is None
    schedule.done("a")
    assert schedule.pop(2) == "a"


def test_the_longest_overdue_key_comes_first() -> None:
    schedule = Schedule[str]()
    for key, at in {"c": 3, "a": 1, "b": 2}.items():
        schedule.add(key, at)
    assert [schedule.pop(10) for _ in range(4)] == ["a", "b", "c", None]


def test_failures_of_one_key_double_its_delay_up_to_a_limit() -> None:
    schedule = Schedule[str](first=1, longest=10)
    now, delays = 0.0, []
    schedule.add("a", now)
    for _ in range(6):
        assert schedule.pop(now) == "a"
        delays.append(schedule.failed("a", now))
        now += delays[-1]
    assert delays == [1, 2, 4, 8, 10, 10]


def test_success_ends_the_back_off() -> None:
    schedule = Schedule[str](first=1, longest=10)
    schedule.add("a", 0)
    schedule.pop(0)
    schedule.failed("a", 0)
    schedule.pop(1)
    schedule.done("a")
    schedule.add("a", 2)
    schedule.pop(2)
    assert schedule.failed("a", 2) == 1


def test_news_about_a_key_that_is_backed_off_do_not_wait() -> None:
    schedule = Schedule[str](first=60)
    schedule.add("a", 0)
    schedule.pop(0)
    schedule.failed("a", 0)
    schedule.add("a", 1)
    assert schedule.pop(1) == "a"
