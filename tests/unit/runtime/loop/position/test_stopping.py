"""Stop conditions: what ends a loop, what is recorded, and when a finished job is finally finished."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import UserError
from perdure.loop.position.stopping import (
    Goal,
    Limit,
    StopCondition,
    Stopping,
    TrainingClock,
    agreed,
    max_seconds,
    max_steps,
    read_goal,
)


def plateau() -> bool:
    return True


def never() -> bool:
    return False


def test_of_limits_given_twice_the_lower_counts() -> None:
    stop: list[StopCondition | Limit] = [max_steps(1000), max_seconds(60), plateau]
    assert read_goal(10, stop, max_steps=500, max_seconds=3600.5) == Goal(10, 500, 60)


def test_a_goal_may_have_no_number_of_epochs() -> None:
    assert read_goal(None, [max_steps(7)]) == Goal(None, 7)


@pytest.mark.parametrize("epochs", [0, -1, 2.5, True, "3"], ids=repr)
def test_a_number_of_epochs_that_is_none_is_refused(epochs: Any) -> None:
    with pytest.raises(UserError, match=r"epochs is .*: give a whole number of 1 or more"):
        read_goal(epochs, [])


@pytest.mark.parametrize("limit", [max_steps, max_seconds])
def test_a_limit_that_is_no_limit_is_refused(limit: Any) -> None:
    with pytest.raises(UserError, match=f"{limit.__name__} is 0"):
        limit(0)


def test_a_loop_that_nothing_could_end_is_refused_with_what_could() -> None:
    with pytest.raises(UserError, match=r"nothing would ever end.*max_seconds, max_progress, stop=\[condition\]"):
        Stopping().begin(Goal(), [])


def test_a_condition_for_all_loops_is_enough_to_end_one() -> None:
    stopping = Stopping()
    stopping.when("good enough", plateau)
    stopping.begin(Goal(), [])
    assert stopping.reasons(1) == ["good enough"]


def test_every_reason_is_reported_and_every_condition_asked() -> None:
    asked: list[str] = []

    def loss() -> bool:
        asked.append("loss")
        return True

    def last() -> None:
        asked.append("last")

    stopping = Stopping()
    stopping.when("loss", loss)
    stopping.begin(read_goal(9, [], max_steps=5, max_seconds=100), [plateau, never, lambda: True, last])
    stopping.ask("by hand")
    stopping.ask("by hand")
    assert stopping.requested == ["by hand"]
    assert stopping.reasons(6) == ["max_steps", "loss", "plateau", "condition 3", "by hand"]
    assert asked == ["loss", "last"]


def test_limits_count_from_the_moment_they_are_reached() -> None:
    now = 0.0
    stopping = Stopping(lambda: now)
    stopping.begin(Goal(max_steps=5, max_seconds=10), [])
    stopping.clock.start()
    now = 9.9
    assert stopping.reasons(4) == []
    now = 10.0
    assert stopping.reasons(5) == stopping.limits_reached(5) == ["max_steps", "max_seconds"]


def test_progress_is_a_limit_in_samples_that_need_not_be_whole() -> None:
    stopping = Stopping()
    stopping.begin(read_goal(None, [], max_progress=80.5), [])
    assert stopping.reasons(5, 80.4) == []
    assert stopping.reasons(5, 80.5) == ["max_progress"]
    assert read_goal(3, [], max_progress=80.5).limits() == {"epochs": 3, "max_progress": 80.5}
    with pytest.raises(UserError, match="max_progress is 0: give samples, more than 0"):
        read_goal(3, [], max_progress=0)


def test_the_next_loop_has_conditions_of_its_own() -> None:
    stopping = Stopping()
    stopping.begin(Goal(epochs=2), [plateau])
    stopping.ask("by hand")
    assert stopping.reasons(1) == ["plateau", "by hand"]
    stopping.end()
    stopping.begin(Goal(epochs=3), [])
    assert stopping.reasons(1) == []


def test_two_conditions_of_one_name_are_refused() -> None:
    stopping = Stopping()
    stopping.when("loss", never)
    with pytest.raises(UserError, match=r"stop_when\('loss'\).*already"):
        stopping.when("loss", plateau)


@pytest.mark.parametrize("thing", [True, "plateau", max_steps(3)], ids=["a value", "a word", "a limit"])
def test_a_condition_that_cannot_be_called_is_refused(thing: Any) -> None:
    with pytest.raises(UserError, match=r"stop_when\('loss'\).*give a function"):
        Stopping().when("loss", thing)
    if isinstance(thing, bool | str):
        with pytest.raises(UserError, match=r"stop=\[...\] holds .*give functions"):
            Stopping().begin(Goal(epochs=1), [thing])  # type: ignore[list-item]


@pytest.mark.parametrize("stop", [plateau, max_steps(3), {"loss": plateau}], ids=["function", "limit", "mapping"])
def test_conditions_that_are_no_list_are_refused(stop: Any) -> None:
    with pytest.raises(UserError, match=r"give a list of conditions, stop=\[condition\]"):
        read_goal(3, stop)


def test_an_empty_reason_is_refused() -> None:
    with pytest.raises(UserError, match="a reason to stop is ''"):
        Stopping().ask("")


def test_what_one_rank_finds_ends_the_loop_for_all_and_each_reason_is_reported_once() -> None:
    assert agreed([[], ["max_seconds"], ["plateau", "max_seconds"]]) == ("max_seconds", "plateau")
    assert agreed([[], []]) == ()


@pytest.mark.parametrize(
    ("goal", "recorded", "within"),
    [
        (Goal(10), {"epochs": 10}, True),
        (Goal(8), {"epochs": 10}, True),
        (Goal(12), {"epochs": 10}, False),
        (Goal(None, 100), {"epochs": 10}, False),
        (Goal(10, 100), {"epochs": 10}, True),
        (Goal(10, 100), {"epochs": 10, "max_steps": 100, "stop": ["max_steps"]}, True),
        (Goal(10, 200), {"epochs": 10, "max_steps": 100, "stop": ["max_steps"]}, False),
        (Goal(10), {"epochs": 10, "max_steps": 100, "stop": ["max_steps"]}, False),
        (Goal(), {"stop": ["plateau"]}, True),
    ],
    ids=str,
)
def test_a_finished_job_goes_on_where_a_limit_is_raised_or_gone(
    goal: Goal, recorded: dict[str, Any], within: bool
) -> None:
    assert goal.within(recorded) is within


def test_time_counts_in_loops_alone_and_goes_on_from_earlier_runs() -> None:
    now = 100.0
    clock = TrainingClock(lambda: now)
    clock.resume(30.0)
    now = 110.0
    assert clock.seconds == 30.0
    clock.start()
    now = 115.0
    assert clock.seconds == 35.0
    clock.stop()
    now = 200.0
    assert clock.seconds == 35.0
    clock.start()
    now = 201.0
    assert clock.seconds == 36.0


def test_what_was_asked_for_in_an_epoch_is_still_asked_for_when_the_epoch_is_resumed() -> None:
    before, after = Stopping(), Stopping()
    before.begin(Goal(epochs=2), [])
    before.clock.resume(7.0)
    before.ask("plateau")
    after.begin(Goal(epochs=2), [])
    after.load_state_dict(before.state_dict())
    assert (after.reasons(1), after.clock.seconds) == (["plateau"], 7.0)
