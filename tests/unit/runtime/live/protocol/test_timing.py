"""When the alarms of a hand-over go off."""

from __future__ import annotations

import pytest

from perdure.live.protocol.events import Alarm
from perdure.live.protocol.timing import Timetable

TABLE = Timetable(limit=100.0, deadline=200.0, save=4.0)


@pytest.mark.parametrize(
    ("alarm", "moment"),
    [
        (Alarm.LIMIT, 100.0),
        (Alarm.QUIET, 110.0),
        (Alarm.LAST_CALL, 92.0),
        (Alarm.DEADLINE, 199.0),
        (Alarm.ACK, None),
        (Alarm.SILENCE, None),
    ],
)
def test_each_alarm_has_its_moment_once_it_has_begun(alarm: Alarm, moment: float | None) -> None:
    assert TABLE.at(alarm) == moment


def test_the_vote_and_the_stop_have_alarms_of_their_own() -> None:
    stopped = Timetable(100.0, 200.0, stopped=50.0, informed=51.0)
    assert (stopped.at(Alarm.SILENCE), stopped.at(Alarm.ACK)) == (60.0, 53.0)


def test_what_is_settled_is_settled_before_the_own_deadline() -> None:
    assert Timetable(limit=100.0, deadline=106.0).at(Alarm.QUIET) == 101.0


def test_a_request_at_a_leaver_leaves_time_to_settle_and_moves_nothing_back() -> None:
    shorter = TABLE.shortened(80.0)
    assert (shorter.limit, shorter.at(Alarm.QUIET), shorter.at(Alarm.DEADLINE)) == (70.0, 75.0, 79.0)
    assert TABLE.shortened(500.0) == TABLE


def test_alarms_are_reported_in_the_order_of_their_moments() -> None:
    assert TABLE.due(50.0) == ()
    assert TABLE.due(120.0) == (Alarm.LAST_CALL, Alarm.LIMIT, Alarm.QUIET)
    assert TABLE.next(105.0) == 110.0
    assert TABLE.next(1000.0) is None


@pytest.mark.parametrize(
    ("seconds", "deadline"), [(0, 100 + 30 + 60 + 10), (20, 100 + 30 + 10), (45, 100 + 45 + 10)], ids=str
)
def test_an_old_rank_has_time_for_the_attempt_and_for_its_exit_save(seconds: float, deadline: float) -> None:
    found = Timetable.of_old_rank(100.0, limit=30.0, seconds=seconds, save=4.0)
    assert found == Timetable(limit=130.0, deadline=deadline, save=4.0)


def test_a_newcomer_stays_until_all_others_have_settled() -> None:
    newcomer, old = (
        Timetable.of_newcomer(100.0, limit=30.0),
        Timetable.of_old_rank(100.0, limit=30.0, seconds=0, save=4),
    )
    ends, settles = newcomer.at(Alarm.DEADLINE), old.at(Alarm.QUIET)
    assert newcomer.limit == old.limit
    assert ends is not None
    assert settles is not None
    assert ends > settles
