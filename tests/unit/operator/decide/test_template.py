"""A pod template is tried in a dry run when it is edited, and not when the next drain needs it."""

from __future__ import annotations

from perdure.wire import ExitKind
from perdure_operator.api.reasons import ConditionType
from perdure_operator.state.decision import CheckTemplate, DropTemplate, KeepTemplate
from perdure_operator.state.snapshot import Refusal, TemplateCheck, TemplateVerdict
from tests.support.jobs import Job, creates, deletes, job, written

WRONG = "Pod is invalid: spec.containers[0].image: Required value"


def _edited(verdict: TemplateVerdict = TemplateVerdict.BAD) -> Job:
    """A running job whose template was edited, and tried."""
    here = job().running(world=2).having(template_hash="t2")
    check = TemplateCheck(hash="t2", verdict=verdict, message=WRONG, time=here.snapshot.now)
    return here.having(template_check=check)


def test_an_edit_under_a_run_is_tried_at_once() -> None:
    assert written(job().running(world=2).having(template_hash="t2").plan()) == (CheckTemplate(),)


def test_an_edit_is_tried_at_once_while_members_leave_for_one_of_them_may_be_stuck_for_hours() -> None:
    here = job().running(world=2).leaving("n1").having(template_hash="t2")
    assert written(here.plan()) == (CheckTemplate(),)


def test_an_invalid_edit_is_reported_while_training_goes_on() -> None:
    plan = _edited().plan()
    assert [(event.type, event.reason) for event in plan.events] == [("Warning", "TemplateInvalid")]
    here = _edited().settle()
    accepted = here.condition(ConditionType.TEMPLATE_ACCEPTED)
    assert (accepted.status, accepted.reason) == ("False", "TemplateInvalid")
    assert accepted.message.startswith("spec.template.spec.containers[0].image: Required value; ")
    assert here.condition(ConditionType.RUNNING).status == "True"
    assert here.plan().events == ()


def test_it_is_tried_again_after_a_minute_for_an_administrator_may_be_at_fault() -> None:
    assert written(_edited().settle().after(60).plan()) == (CheckTemplate(),)


def test_a_correction_is_reported_too() -> None:
    here = _edited().settle().having(template_hash="t3").settle()
    assert here.condition(ConditionType.TEMPLATE_ACCEPTED).status == "True"


def test_an_invalid_edit_keeps_the_next_run_waiting_with_the_reason_where_no_earlier_template_is_kept() -> None:
    left = _left(_edited().having(kept=()))
    running = left.condition(ConditionType.RUNNING)
    assert (running.status, running.reason) == ("False", "TemplateInvalid")
    assert creates(left.plan()) == []


def test_the_next_run_is_made_from_the_last_good_template_while_its_edit_is_refused() -> None:
    left = _left(_edited())
    assert {pod.template_hash for pod in left.living()} == {"t1"}
    here = left.ready().settle()
    assert here.run_plan is not None
    assert here.run_plan.run == 2
    accepted = here.condition(ConditionType.TEMPLATE_ACCEPTED)
    assert (accepted.status, accepted.reason) == ("False", "TemplateInvalid")
    assert accepted.message == (
        "spec.template.spec.containers[0].image: Required value; "
        "new members are made from the last one that was accepted: correct spec.template"
    )


def test_a_correction_counts_for_members_that_do_not_train_yet() -> None:
    left = _left(_edited()).having(template_hash="t3").settle()
    assert {pod.template_hash for pod in left.living() if pod.name in left.members} == {"t3"}
    assert left.condition(ConditionType.TEMPLATE_ACCEPTED).status == "True"


def test_members_of_the_last_good_template_stay_while_its_edit_is_tried_and_when_it_is_refused() -> None:
    here = _left(job().running(world=2)).having(template_hash="t2", template_check=TemplateCheck())
    assert deletes(here.plan()) == []
    assert (here.plan().status or here.now).next == here.now.next
    check = TemplateCheck(hash="t2", verdict=TemplateVerdict.BAD, message=WRONG, time=here.snapshot.now)
    refused = here.having(template_check=check)
    assert [event.reason for event in refused.plan().events] == ["TemplateInvalid"]
    assert refused.settle().ready().settle().now.run == 2


def test_before_the_first_run_nothing_is_kept() -> None:
    here = job().starting(world=2)
    assert here.snapshot.kept == ()
    assert [one.name for one in here.ready().settle().snapshot.kept] == ["digits-ab12-t1"]


def test_members_of_an_older_template_do_not_take_the_room_of_those_that_a_quota_refuses() -> None:
    check = TemplateCheck(hash="t2", verdict=TemplateVerdict.WAIT, message="exceeded quota", time=job().snapshot.now)
    here = job().starting(world=2).having(template_hash="t2", template_check=check)
    assert sorted(deletes(here.plan())) == ["digits-ab12-0", "digits-ab12-1"]


def test_a_template_that_passed_is_kept_and_the_one_before_it_then_goes() -> None:
    here = job().running(world=2)
    assert [one.name for one in here.snapshot.kept] == ["digits-ab12-t1"]
    here = here.having(template_hash="t2").step()  # the dry run
    plan = here.plan()
    assert plan.status is not None
    assert plan.status.template_checked == "t2"
    assert written(plan) == (KeepTemplate(name="digits-ab12-t2"),)
    here = here.step()
    assert written(here.plan()) == (DropTemplate(name="digits-ab12-t1", uid="uid-of-digits-ab12-t1"),)
    assert here.settle().plan().actions == ()


def test_the_one_before_stays_until_the_new_one_is_kept() -> None:
    here = job().running(world=2).having(template_hash="t2").step().step(writes=1)
    assert here.now.template_checked == "t2"
    assert [one.name for one in here.snapshot.kept] == ["digits-ab12-t1"]
    assert written(here.plan()) == (KeepTemplate(name="digits-ab12-t2"),)


def test_a_template_that_may_not_be_kept_is_not_offered_again_and_again() -> None:
    here = job().running(world=2).having(template_hash="t2").step().step(writes=1)
    refusal = Refusal(pod="digits-ab12-t2", message="exceeded quota: revisions")
    here = here.having(refusals=(refusal,))
    assert written(here.plan()) == ()
    assert here.settle().condition(ConditionType.RUNNING).status == "True"


def test_a_template_that_another_good_one_has_replaced_never_comes_back() -> None:
    here = job().running(world=2).having(template_hash="t2").step().step(writes=1)  # and t2 is not kept
    check = TemplateCheck(hash="t3", verdict=TemplateVerdict.BAD, message=WRONG, time=here.snapshot.now)
    left = _left(here.having(template_hash="t3", template_check=check))
    assert left.condition(ConditionType.RUNNING).reason == "TemplateInvalid"


def _left(here: Job) -> Job:
    """A node was cordoned, and the run has ended with a commit."""
    return here.settle().leaving("n1").all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
