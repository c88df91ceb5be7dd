"""The operator dies between any two writes of a round, and its successor, who remembers nothing, ends as it would."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure.wire import ExitKind, Leave, Train
from perdure_operator.api.status import Phase
from perdure_operator.state.decision import Assign
from tests.support.jobs import PATIENT, Job, creates, deletes, job, written


def _starting() -> Job:
    return job().step()


def _promoting() -> Job:
    return job().starting(world=2).ready()


def _asking() -> Job:
    return job().running(world=2).cordon("n1").settle().after(1)


def _lost() -> Job:
    return job().running(world=3).ended(1, ExitKind.PEER_LOST)


def _closing() -> Job:
    return job().running(world=2).leaving("n1").all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20))


def _completing() -> Job:
    return job().running(world=2).all_ended(ExitKind.COMPLETED, step=20, commit=(4, 20))


@pytest.mark.parametrize("moment", [_starting, _promoting, _asking, _lost, _closing, _completing])
def test_after_a_crash_between_any_two_writes_the_successor_comes_to_the_same_end(moment: Callable[[], Job]) -> None:
    before = moment()
    undisturbed = before.settle()
    plan = before.plan()
    for writes in range(len(plan.actions) + 2):
        after = before.step(writes=writes).settle()
        assert after.now.phase is undisturbed.now.phase
        assert after.now.run == undisturbed.now.run
        assert after.run_plan == undisturbed.run_plan
        assert len(after.members) == len(undisturbed.members)
        assert after.now.failures == undisturbed.now.failures
        owned = {pod.name for pod in after.snapshot.pods if not pod.deleting}
        ahead = after.now.next.members if after.now.next else ()
        assert owned == {*after.members, *ahead} or after.now.phase is Phase.COMPLETED


def test_a_name_that_may_have_been_used_is_burnt() -> None:
    before = job().step()
    after = before.step(writes=1)
    assert after.members == ("digits-ab12-0", "digits-ab12-1")
    assert creates(after.plan()) == ["digits-ab12-2", "digits-ab12-3"]


def test_numbers_stay_unused_even_if_status_was_rolled_back() -> None:
    here = job().starting(world=2).status(next=None, next_member=0)
    assert creates(here.plan()) == ["digits-ab12-2", "digits-ab12-3"]


def test_a_run_whose_ranks_a_pod_was_given_is_not_planned_again_even_if_status_was_rolled_back() -> None:
    before = job(disruption=PATIENT).running(world=2)
    later = before.cordon("n2").settle().after(1).settle().ready().settle()
    told = later.assignment(0)
    assert isinstance(told, Train)
    assert told.run == 2
    restored = later.having(status=before.now).missing(1).settle().after(1).ready().settle()
    assert restored.now.run == 3


def test_a_member_evicted_between_plan_and_patch_costs_nothing() -> None:
    here = job().starting(world=2).ready().step(writes=1).deleted(1).settle()
    after = here.ended(1, ExitKind.STOPPED, run=0).ended(0, ExitKind.STOPPED, run=0).settle()
    assert after.now.failures.infrastructure == 0
    assert after.members == ("digits-ab12-2", "digits-ab12-3")


def test_a_member_that_never_heard_its_ranks_leaves_without_becoming_a_member() -> None:
    here = job().starting(world=2).ready().step(writes=1).cordon("n1").step(writes=1).after(1).settle()
    assert {type(here.assignment(number)) for number in (0, 1)} == {Leave}
    assert {pod.role for pod in here.snapshot.pods} == {"standby"}


def test_a_member_whose_label_was_removed_gets_it_back_and_trains_on() -> None:
    here = job().running(world=2)
    plan = here.pod(0, labelled=False).plan()
    (told,) = written(plan)
    assert isinstance(told, Assign)
    assert (told.name, told.role, told.old) == ("digits-ab12-0", "member", told.new)
    assert [event.reason for event in plan.events] == ["LabelRestored"]
    assert plan.status is None


def test_a_pod_created_by_a_request_that_came_late_is_deleted() -> None:
    here = job().starting(world=2)
    late = here.snapshot.pods[0].model_copy(update={"name": "digits-ab12-9", "uid": "late"})
    assert deletes(here.having(pods=(*here.snapshot.pods, late)).plan()) == ["digits-ab12-9"]
