"""A pod template is tried in a dry run when it is edited, and not when the next drain needs it."""

from __future__ import annotations

from perdure.contract import ExitKind
from perdure_operator.api.reasons import ConditionType
from perdure_operator.state.decision import CheckTemplate
from perdure_operator.state.snapshot import TemplateCheck, TemplateVerdict
from tests.support.jobs import Job, job, written

WRONG = "Pod is invalid: spec.containers[0].image: Required value"


def _edited(verdict: TemplateVerdict = TemplateVerdict.BAD) -> Job:
    """A running job whose template was edited, and tried."""
    here = job().running(world=2).having(template_hash="t2")
    check = TemplateCheck(hash="t2", verdict=verdict, message=WRONG, time=here.snapshot.now)
    return here.having(template_check=check)


def test_an_edit_under_a_run_is_tried_at_once() -> None:
    assert written(job().running(world=2).having(template_hash="t2").plan()) == (CheckTemplate(),)


def test_an_invalid_edit_is_told_while_training_goes_on() -> None:
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


def test_a_correction_is_told_too() -> None:
    here = _edited().settle().having(template_hash="t3").settle()
    assert here.condition(ConditionType.TEMPLATE_ACCEPTED).status == "True"


def test_an_invalid_edit_keeps_the_next_run_waiting_with_the_reason() -> None:
    left = _edited().settle().leaving("n1").all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
    running = left.condition(ConditionType.RUNNING)
    assert (running.status, running.reason) == ("False", "TemplateInvalid")
