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


def test_a_key_that_is_taken_is_due_as_before_once_it_is_released() -> None:
    schedule = Schedule[str]()
    schedule.add("a", 1)
    assert schedule.take("a")
    assert not schedule.take("a")
    assert schedule.pop(2) is None
    schedule.release("a")
    assert schedule.pop(2) == "a"
    assert not schedule.take("a")
    schedule.done("a")
    assert schedule.pop(3) is None
    assert schedule.take("b"), "one that nobody waits for"
    schedule.add("b", 0)
    schedule.release("b")
    assert schedule.pop(3) == "b"


def test_a_key_that_fails_is_due_no_sooner_for_being_taken() -> None:
    schedule = Schedule[str](first=10)
    schedule.add("a", 0)
    assert schedule.pop(0) == "a"
    assert schedule.failed("a", 0) == 10
    assert schedule.take("a")
    schedule.release("a")
    assert schedule.pop(9) is None
    assert schedule.pop(10) == "a"
    assert schedule.failed("a", 10) == 20


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


def failing(schedule: Schedule[str], seconds: float, *, at_least: float = 0.0) -> list[float]:
    """When a key is worked on that always fails, while there are news about it 100 times a second."""
    attempts: list[float] = []
    schedule.add("a", 0)
    for tick in range(int(seconds * 100)):
        now = tick / 100
        schedule.add("a", now)
        if schedule.pop(now):
            attempts.append(now)
            schedule.failed("a", now, at_least=at_least)
    return attempts


def test_news_bring_a_key_that_has_failed_forward_soon_and_then_at_a_bounded_rate() -> None:
    attempts = failing(Schedule[str](first=40), 39)
    assert attempts == [0, 0.05, 0.1, 6, 12, 18, 24, 30, 36]


def test_news_after_a_calm_bring_a_key_that_fails_forward_at_once_however_often_it_has_failed() -> None:
    schedule, now = Schedule[str](), 0.0
    schedule.add("a", now)
    for _ in range(12):
        assert schedule.pop(now) == "a"
        now += schedule.failed("a", now)
    assert schedule.pop(now) == "a"
    schedule.failed("a", now)
    for news in (now + 20, now + 21):  # a cordon, and the end of the quiet second after it
        schedule.add("a", news)
        assert schedule.pop(news) == "a"
        schedule.failed("a", news)


def test_attempts_that_news_bring_forward_do_not_make_the_back_off_longer() -> None:
    schedule = Schedule[str](first=30)
    failing(schedule, 29)
    assert schedule.pop(30) == "a"
    assert schedule.failed("a", 30) == 60


def test_a_server_that_refuses_everything_is_not_asked_at_each_of_its_events() -> None:
    """601 LISTs were sent in a minute of 429."""
    assert len(failing(Schedule[str](), 60)) < 20


def test_the_server_says_how_long_it_wants_to_be_left_alone() -> None:
    assert failing(Schedule[str](first=0.2), 9, at_least=2) == [0, 2, 4, 6, 8]


def test_news_that_come_while_a_key_fails_are_not_lost() -> None:
    schedule = Schedule[str](first=60)
    schedule.add("a", 0)
    schedule.pop(0)
    schedule.add("a", 0)
    schedule.failed("a", 1)
    assert schedule.pop(1) is None
    assert schedule.pop(1.05) == "a"


def test_a_key_that_is_due_late_is_not_made_later_by_a_back_off() -> None:
    schedule = Schedule[str](first=1)
    schedule.add("a", 0)
    schedule.pop(0)
    schedule.failed("a", 0)
    schedule.add("a", 100)
    assert schedule.pop(1) == "a"


def test_entries_that_an_earlier_time_has_replaced_are_never_due_twice() -> None:
    schedule = Schedule[str]()
    for at in (9, 7, 5):
        schedule.add("a", at)
    assert [schedule.pop(10), schedule.next_at(), len(schedule)] == ["a", None, 0]
    schedule.add("a", 11)
    schedule.done("a")
    assert [schedule.pop(10), schedule.pop(11)] == [None, "a"]


class Counted(str):
    """A key that counts how often it is compared or looked up."""

    looks = 0

    def __hash__(self) -> int:
        Counted.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)


def test_the_work_for_one_key_does_not_grow_with_the_number_of_keys() -> None:
    def looks(keys: int) -> float:
        schedule = Schedule[str]()
        names = [Counted(number) for number in range(keys)]
        Counted.looks = 0
        for at, name in enumerate(names):
            schedule.add(name, at)
        while key := schedule.pop(keys):
            schedule.done(key)
        return Counted.looks / keys

    assert looks(2_000) == looks(20)


def test_overdue_keys_are_counted_from_the_first_that_is_due_and_those_worked_on_are_not() -> None:
    schedule = Schedule[str]()
    for key, at in (("a", 1), ("b", 3), ("c", 9), ("later", 100)):
        schedule.add(key, at)
    assert schedule.overdue(0) == (0, 0.0)
    assert schedule.overdue(10) == (3, 9.0)
    assert schedule.pop(10) == "a"
    schedule.add("a", 2)
    assert (schedule.overdue(10), schedule.busy) == ((2, 7.0), 1)
    assert schedule.pop(10) == "b"  # looking has changed no turn
