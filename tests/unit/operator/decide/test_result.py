"""What a script gives as its result is in the job's status, from the newest run that has ended with one."""

from __future__ import annotations

from perdure.wire import ExitKind
from tests.support.jobs import job

COMPLETED = ExitKind.COMPLETED


def test_status_has_the_result_of_a_completed_job() -> None:
    here = job().running(world=2).all_ended(COMPLETED, step=20, commit=(4, 20), result={"accuracy": 0.93})
    assert here.settle().now.result == {"accuracy": 0.93}


def test_a_job_without_one_has_none() -> None:
    assert job().running(world=2).all_ended(COMPLETED, step=20, commit=(4, 20)).settle().now.result is None


def test_a_run_that_ends_before_its_goal_tells_what_it_has_come_to_and_the_next_one_more() -> None:
    here = job().running(world=2).spec(suspend=True).settle()
    here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20), result={"best": 0.5}).settle()
    assert here.now.result == {"best": 0.5}
    here = here.spec(suspend=False).settle().ready().settle()
    assert here.now.result == {"best": 0.5}
    assert here.all_ended(COMPLETED, step=30, commit=(6, 30), result={"best": 0.7}).settle().now.result == {"best": 0.7}


def test_a_member_that_has_none_takes_nothing_back() -> None:
    here = job().running(world=2).spec(suspend=True).settle()
    here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20), result={"best": 0.5}).settle()
    here = here.spec(suspend=False).settle().ready().settle()
    assert here.all_ended(COMPLETED, step=30, commit=(6, 30)).settle().now.result == {"best": 0.5}


def test_an_outcome_that_knows_less_of_the_log_changes_nothing() -> None:
    here, saved = job().running(world=2).spec(suspend=True).settle(), ExitKind.CHECKPOINTED
    first, second = here.members
    here = here.ended(first, saved, step=30, commit=(6, 30), result={"best": 0.7}).settle()
    here = here.ended(second, saved, step=30, commit=(5, 20), result={"best": 0.5}).settle()
    assert here.now.current is None
    assert here.now.result == {"best": 0.7}


def test_characters_that_utf_8_cannot_hold_are_replaced() -> None:
    here = job().running(world=2).all_ended(COMPLETED, step=20, commit=(4, 20), result={"name": "a\ud800"})
    assert here.settle().now.result == {"name": "a?"}
