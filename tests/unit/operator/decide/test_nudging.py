"""A member that shows no effect of its assignment is touched, so that its kubelet shows it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from perdure.wire import ExitKind
from perdure_operator.decide import nudging
from perdure_operator.state.decision import Mark
from tests.support.jobs import PATIENT, Job, job

NEWCOMER = "digits-ab12-2"


def _offered(ready_before: float | None = 0.5) -> Job:
    """A live hand-over is offered; the newcomer had been Ready for so long when it was planned."""
    here = job(disruption=PATIENT).running(world=2).cordon("n2").settle().after(1).settle().ready()
    if ready_before is not None:
        here = here.pod(2, ready_since=here.snapshot.now - timedelta(seconds=ready_before))
    here = here.settle()
    assert here.now.next is not None
    assert here.now.next.plan is not None
    return here


def _touched(here: Job) -> list[str]:
    return [action.name for action in here.plan().actions if isinstance(action, Mark)]


def _mark_of(here: Job) -> str:
    return next(pod.nudge for pod in here.snapshot.pods if pod.name == NEWCOMER)


def _when_touched(here: Job) -> dict[str, list[int]]:
    """After how many seconds each is, within the next minute."""
    seconds: dict[str, list[int]] = {}
    for second in range(1, 60):
        here = here.after(1)
        for name in _touched(here):
            seconds.setdefault(name, []).append(second)
        here = here.settle()
    return seconds


def test_who_had_just_become_ready_is_touched_after_1_2_4_8_and_16_seconds_and_no_more() -> None:
    assert _when_touched(_offered())[NEWCOMER] == [1, 2, 4, 8, 16]


def test_who_stays_or_leaves_may_have_missed_it_as_well_and_is_touched_twice() -> None:
    """Any other change of a pod, a mark of the operator's own too, has it synced as becoming Ready does."""
    touched = _when_touched(_offered())
    del touched[NEWCOMER]
    assert touched == {"digits-ab12-0": [4, 16], "digits-ab12-1": [4, 16]}


def test_each_touch_is_another_value_and_the_next_one_is_scheduled() -> None:
    here = _offered()
    values, waits = [], []
    for wait in (1, 1, 2, 4, 8):
        waits.append(here.plan().requeue_after)
        here = here.after(wait).settle()
        values.append(_mark_of(here))
    assert waits == [1, 1, 2, 4, 8]
    assert len(set(values)) == 5


def test_from_the_fourth_on_an_event_reports_it() -> None:
    here = _offered()
    for wait, count in ((1, 0), (1, 0), (2, 0), (4, 1), (8, 1)):
        here = here.after(wait)
        told = [event.reason for event in here.plan().events]
        assert told.count("AssignmentNudged") == count
        here = here.settle()


@pytest.mark.parametrize("ready_before", [None, 11.0, 3600.0])
def test_so_is_a_newcomer_that_had_been_ready_for_a_while_or_tells_no_time(ready_before: float | None) -> None:
    assert _when_touched(_offered(ready_before))[NEWCOMER] == [4, 16]


def _asked_to_leave() -> Job:
    here = job(disruption={"exit_timeout_seconds": 600, "replacement_timeout_seconds": 0}).running(world=2)
    return here.leaving("n1").settle()


def test_members_that_are_asked_to_leave_are_touched_twice_while_they_have_not_ended() -> None:
    """Where all save together, one that has missed it holds its seat and the next run for a minute."""
    assert _when_touched(_asked_to_leave()) == {"digits-ab12-0": [4, 16], "digits-ab12-1": [4, 16]}


def test_who_has_left_is_left_alone_and_who_has_not_is_touched() -> None:
    here = _asked_to_leave().after(1).ended(1, ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
    assert _when_touched(here) == {"digits-ab12-0": [3, 15]}


def test_a_member_that_saves_for_long_is_not_reported() -> None:
    here = _asked_to_leave()
    for _ in range(60):
        here = here.after(1)
        assert "AssignmentNudged" not in [event.reason for event in here.plan().events]
        here = here.settle()


def test_at_a_start_who_had_been_ready_for_a_while_is_left_alone() -> None:
    here = job().starting(world=2).ready()
    for number in (0, 1):
        here = here.pod(number, ready_since=here.snapshot.now - timedelta(seconds=60))
    assert _when_touched(here.settle()) == {}


def test_once_the_effect_has_shown_no_pod_is_touched() -> None:
    here = _offered().after(2).settle()
    over = here.ended(1, ExitKind.HANDED_OVER, run=1, step=20, commit=(4, 20), opened=2).settle()
    assert over.now.current is not None
    assert over.now.current.run == 2
    for wait in (2, 4, 8):
        over = over.after(wait)
        assert _touched(over) == []


@pytest.mark.parametrize("seconds", [3, 30])
def test_a_member_with_an_early_assignment_is_touched_after_it_has_become_ready(seconds: int) -> None:
    """What it missed as its containers started, it may miss again in the sync that its readiness brings."""
    here = job().starting(world=1).pod(0, ready=False, phase="Running", ip="10.0.0.1").settle()
    assert here.now.current is not None
    here = here.after(seconds)
    assert _touched(here) == []
    here = here.pod(0, ready=True, ready_since=here.snapshot.now).settle()
    assert _when_touched(here)["digits-ab12-0"] == list(nudging.UNSEEN_SECONDS)


def test_at_a_start_where_nothing_shows_it_is_touched_a_few_times() -> None:
    here = job().starting(world=2)
    here = here.ready()
    for number in (0, 1):
        here = here.pod(number, ready_since=here.snapshot.now)
    here = here.settle()
    assert here.now.current is not None
    seconds = []
    for second in range(1, 60):
        here = here.after(1)
        seconds += [second] * bool(_touched(here))
        here = here.settle()
    assert seconds == list(nudging.UNSEEN_SECONDS)


def test_who_is_being_deleted_is_left_alone() -> None:
    here = _offered().deleted(2).after(2)
    assert NEWCOMER not in _touched(here)
