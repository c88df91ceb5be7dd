"""What users, older operators and other controllers may do to the objects of a job."""

from __future__ import annotations

import pytest

from perdure.wire import ExitKind
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import Disruption, Phase, TrainingJobStatus
from perdure_operator.state.decision import SetBudget
from perdure_operator.state.snapshot import RefusalKind, TemplateCheck
from tests.support.jobs import deletes, job, leaves, written


@pytest.mark.parametrize(
    ("least", "altered"),
    [(-1, "minAvailable is '50%'"), (2, "maxUnavailable is 1"), (9, "its selector was changed"), (0, "")],
)
def test_an_edited_budget_is_restored_and_reported(least: int, altered: str) -> None:
    here = job().running(world=2)
    assert here.snapshot.budget is not None
    edited = here.having(budget=here.snapshot.budget.model_copy(update={"min_available": least, "altered": altered}))
    plan = edited.plan()
    assert [action for action in written(plan) if isinstance(action, SetBudget)] == [
        SetBudget(min_available=2, uid="budget")
    ]
    assert [event.reason for event in plan.events] == (["BudgetRestored"] if altered else [])


@pytest.mark.parametrize(("least", "altered"), [(-1, "minAvailable is '50%'"), (2, "maxUnavailable is 1"), (1, "")])
def test_members_are_not_said_to_be_protected_where_the_budget_cannot_be_put_right(least: int, altered: str) -> None:
    here = job().running(world=2)
    budget = here.snapshot.budget
    assert budget is not None
    assert here.condition(ConditionType.PROTECTED).status == "True"
    edited = here.having(budget=budget.model_copy(update={"min_available": least, "altered": altered}))
    refused = edited.refused("digits-ab12", message="denied", kind=RefusalKind.PATCH_REFUSED, seconds=90).step()
    said = refused.condition(ConditionType.PROTECTED)
    assert (said.status, said.reason) == ("False", "BudgetRefused")
    assert "is refused: denied" in said.message
    healed = refused.having(refusals=(), budget=budget).settle()
    assert healed.condition(ConditionType.PROTECTED).status == "True"


def test_a_cordon_is_seen_under_an_edited_budget() -> None:
    here = job().running(world=2)
    assert here.snapshot.budget is not None
    edited = here.snapshot.budget.model_copy(update={"min_available": -1, "altered": "minAvailable is '50%'"})
    here = here.having(budget=edited).cordon("n1").step().after(1)
    assert len(leaves(here.plan())) == 2


def test_suspending_wins_over_a_deadline_that_ends_during_the_save() -> None:
    here = job(active_deadline_seconds=60).running(world=2).after(50).spec(suspend=True).settle().after(20)
    here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
    assert here.now.phase is Phase.SUSPENDED
    assert here.spec(suspend=False).settle().now.phase is Phase.STARTING


def test_a_classic_sidecar_does_not_keep_the_pods_of_a_finished_job() -> None:
    here = job().running(world=2).all_ended(ExitKind.COMPLETED, step=9, commit=(2, 9)).settle()
    assert deletes(here.plan()) == []
    for member in (0, 1):
        here = here.pod(member, phase="Running", others_run=True)
    assert deletes(here.plan()) == ["digits-ab12-0", "digits-ab12-1"]


def test_the_pods_of_a_finished_job_keep_their_logs_though_their_kubelets_still_clear_up_after_them() -> None:
    here = job().running(world=2).all_ended(ExitKind.COMPLETED, step=9, commit=(2, 9))
    for member in (0, 1):
        here = here.pod(member, phase="Running")
    assert deletes(here.plan()) == []
    assert deletes(here.settle().plan()) == []


def test_words_of_a_newer_operator_in_the_status_are_read_and_the_job_goes_on() -> None:
    here = job().running(world=2).leaving("n1")
    raw = here.now.model_dump(by_alias=True, mode="json")
    raw["phase"] = raw["current"]["intent"]["disruption"] = raw["next"]["disruption"] = "HandingOver"
    raw["current"]["plan"]["transfer"] = {"new": True}
    here = here.having(status=TrainingJobStatus.model_validate(raw))
    assert here.intent is not None
    assert here.intent.disruption is Disruption.OTHER
    here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle().ready().settle()
    assert here.now.phase is Phase.RUNNING


def test_a_classic_sidecar_is_warned_of_before_the_first_member() -> None:
    template = {"spec": {"containers": [{"name": "trainer"}, {"name": "proxy"}]}}
    here = job(template=template).step()
    told = [event for event in here.plan().events if event.reason == "ClassicSidecar"]
    assert [event.type for event in told] == ["Warning"]
    assert "proxy" in told[0].message
    again = (
        job(template=template).running(world=2).leaving("n1").all_ended(ExitKind.CHECKPOINTED, step=2, commit=(3, 2))
    )
    assert [event for event in again.plan().events if event.reason == "ClassicSidecar"] == []


def test_a_job_whose_status_is_lost_says_so_in_the_round_that_deletes_what_it_does_not_know() -> None:
    here = job().starting(2)
    lost = here.having(status=TrainingJobStatus(), template_check=TemplateCheck())
    plan = lost.plan()
    assert sorted(deletes(plan)) == [here.name(0), here.name(1)]
    assert plan.status is not None
    assert "CheckingTemplate" in [condition.reason for condition in plan.status.conditions]
