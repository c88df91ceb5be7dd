"""The next members start while the others save and leave; what keeps new members back keeps these, and no leaver."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from perdure.wire import ExitKind, Standby, write_assignment
from perdure_operator.api.status import (
    Failures,
    LostLog,
    Phase,
    Replacements,
    RootProblem,
)
from perdure_operator.decide import Stage, stage_of
from perdure_operator.state.snapshot import PodView, RefusalKind, TemplateCheck, TemplateVerdict
from tests.support.jobs import START, Job, assigns, creates, deletes, job, killed, leaves, trains

MEMBERS = {"digits-ab12-0", "digits-ab12-1"}
NEXT = ("digits-ab12-2", "digits-ab12-3")
SAVED = {"step": 20, "commit": (4, 20)}
PREDECESSOR = PodView(
    name="digits-0000-0",
    uid="old",
    owner_uid="0000",
    node="n3",
    phase="Running",
    assignment=write_assignment(Standby()),
)


def _due() -> Job:
    """A node is cordoned, and the quiet second is over: all are about to be asked to leave."""
    return job().running(world=2).cordon("n1").settle().after(1)


def _left(here: Job) -> Job:
    for name in sorted(MEMBERS):
        here = here.ended(name, ExitKind.CHECKPOINTED, **SAVED)
    return here


def test_they_are_created_in_the_round_in_which_the_others_are_asked_to_leave_and_after_these_are() -> None:
    plan = _due().plan()
    assert set(leaves(plan)) == MEMBERS
    assert tuple(creates(plan)) == NEXT
    kinds = [action.kind for action in plan.actions]
    assert kinds.index("CreatePod") > max(place for place, kind in enumerate(kinds) if kind == "Assign")


def test_they_get_no_rank_before_the_last_has_ended_and_then_begin_at_once() -> None:
    here = _due().settle().ready().settle()
    assert [type(here.assignment(name)) for name in NEXT] == [Standby, Standby]
    one = here.ended(0, ExitKind.CHECKPOINTED, **SAVED).settle()
    assert assigns(one.plan()) == {}
    plan = one.ended(1, ExitKind.CHECKPOINTED, **SAVED).plan()
    assert set(trains(plan)) == set(NEXT)
    assert set(deletes(plan)) == MEMBERS


def test_so_it_is_for_a_deletion() -> None:
    assert len(creates(job().running(world=2).deleted(0).plan())) == 2


def test_the_budget_of_a_larger_run_is_there_before_it_is_planned() -> None:
    here = job().running(world=2).cordon("n1").spec(replicas=4).settle().after(1).settle()
    assert here.now.next is not None
    assert here.now.next.plan is None
    assert here.snapshot.budget is not None
    assert here.snapshot.budget.min_available == 4


def test_after_a_failure_they_are_created_once_it_is_counted_for_then_the_pause_is_known() -> None:
    here = job().running(world=3).ended(1, ExitKind.FAILED, error=killed())
    plan = here.plan()
    assert set(leaves(plan)) == {"digits-ab12-0", "digits-ab12-2"}
    assert creates(plan) == []


def _check(verdict: TemplateVerdict) -> Callable[[Job], Job]:
    check = TemplateCheck(hash="t2", verdict=verdict, message="no image", time=START + timedelta(seconds=1))
    return lambda here: here.having(template_hash="t2", template_check=check, kept=())


@pytest.mark.parametrize(
    "gate",
    [
        _check(TemplateVerdict.BAD),
        _check(TemplateVerdict.WAIT),
        lambda here: here.having(template_hash="t2"),
        _check(TemplateVerdict.GOOD),
        lambda here: here.having(pods=(*here.snapshot.pods, PREDECESSOR)),
        lambda here: here.having(same_uri=("default/other",)),
        lambda here: here.status(
            root_problem=RootProblem(message="no", time=here.snapshot.now, generation=here.snapshot.generation)
        ),
        lambda here: here.status(
            log_lost=LostLog(message="no", time=here.snapshot.now, generation=here.snapshot.generation)
        ),
        lambda here: here.status(failures=Failures(code=1, consecutive=9, last_time=here.snapshot.now)),
    ],
    ids=[
        "the template is refused",
        "its dry run is refused",
        "it was not tried",
        "it is another, whose root may be another",
        "a predecessor lives",
        "another job has the root",
        "the store refuses",
        "the log lost commits",
        "a failure is paced",
    ],
)
def test_what_keeps_new_members_back_keeps_these_and_no_member_from_leaving(gate: Callable[[Job], Job]) -> None:
    here = gate(_due())
    plan = here.plan()
    assert creates(plan) == []
    assert set(leaves(plan)) == MEMBERS
    assert plan.status is not None
    assert [one.reason for one in plan.status.conditions if one.type == "Running"] == ["ExitSave"]
    after = _left(here.settle()).settle()
    assert stage_of(after.now) in (Stage.BETWEEN, Stage.STARTING)


def test_a_run_that_was_itself_paced_is_followed_once_it_is_over() -> None:
    here = _due()
    assert here.now.current is not None
    row = Replacements(count=3, last_time=START)
    here = here.status(current=here.now.current.model_copy(update={"replacements": row}))
    assert creates(here.plan()) == []


def test_whom_a_quota_refuses_is_not_tried_again_before_the_others_have_left() -> None:
    """Every round would fail, and a failing job learns later which members have saved."""
    here = _due().refused(*NEXT).step()
    assert creates(here.plan()) == []
    assert set(leaves(here.plan())) <= MEMBERS
    left = _left(here.settle())
    assert tuple(creates(left.plan())) == NEXT


def test_a_name_in_use_is_not_made_up_for_before_the_others_have_left() -> None:
    here = _due().refused(2, kind=RefusalKind.NAME_TAKEN).step()
    assert creates(here.settle().plan()) == []
    assert "digits-ab12-2" not in _left(here.settle()).settle().members


@pytest.mark.parametrize("reason", ["suspension", "deletion", "deadline"])
def test_where_none_follows_any_more_they_go_and_the_others_leave(reason: str) -> None:
    here = job(active_deadline_seconds=60).running(world=2).cordon("n1").settle().after(1).settle()
    assert set(here.names()) == {"0", "1", "2", "3"}
    match reason:
        case "suspension":
            here = here.spec(suspend=True)
        case "deletion":
            here = here.having(deleting=True)
        case _:
            here = here.after(60)
    assert set(deletes(here.plan())) == set(NEXT)
    after = here.settle()
    assert stage_of(after.now) is Stage.LEAVING
    assert creates(_left(after).plan()) == []


def test_a_job_that_completes_meanwhile_lets_them_go() -> None:
    here = _due().settle().ended(0, ExitKind.COMPLETED, step=100, commit=(9, 100)).settle()
    assert here.now.phase is Phase.COMPLETED
    assert {pod.name for pod in here.snapshot.pods if pod.deleting} >= set(NEXT)


def test_there_are_as_many_as_the_newest_size_wants() -> None:
    here = _due().settle()
    assert deletes(here.spec(replicas=1).plan()) == ["digits-ab12-3"]
    assert creates(here.spec(replicas=3).plan()) == ["digits-ab12-4"]
