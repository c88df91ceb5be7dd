"""A member that has to end and does not: stuck on its node, or out of reach because its patches are refused."""

from __future__ import annotations

import re

import pytest

from perdure.wire import ExitKind, Role
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import Phase
from perdure_operator.decide import Stage, stage_of
from perdure_operator.decide.placement import IDLE_GRACE_SECONDS
from perdure_operator.state.decision import Assign, DeletePod
from perdure_operator.state.snapshot import RefusalKind, Zone
from tests.support.jobs import PATIENT, Job, deletes, job, killed, leaves, trains

DENIED = 'admission webhook "w" denied the request'


def _running(here: Job) -> tuple[str, str]:
    running = here.step().condition(ConditionType.RUNNING)
    assert running.status == "False"
    return running.reason, running.message


def _denied(here: Job, *members: int) -> Job:
    return here.refused(*members, message=DENIED, kind=RefusalKind.PATCH_REFUSED)


class TestStuck:
    """Member 1 has saved and is gone; member 0 was deleted with 120 s and its container does not end."""

    def _stuck(self, seconds: float) -> Job:
        here = job().running(world=2).deleted(0).settle()
        return here.ended(1, ExitKind.STOPPED).settle().after(seconds).settle()

    @pytest.mark.parametrize("seconds", [0, 100, 114, 116, 119, 121, 144, 146, 149])
    def test_no_time_in_the_message_is_over(self, seconds: float) -> None:
        here = self._stuck(seconds)
        _, message = _running(here)
        (until,) = re.findall(r"(?:until|at) (\d\d:\d\d:\d\d)Z", message)
        assert until >= here.snapshot.now.strftime("%H:%M:%S")

    def test_until_then_the_job_is_looked_at_again(self) -> None:
        assert self._stuck(146).plan().requeue_after == 4

    def test_thirty_seconds_after_its_grace_the_reason_names_what_a_person_has_to_do(self) -> None:
        reason, message = _running(self._stuck(150))
        assert reason == "MemberStuck"
        assert "kubectl describe pod -n default digits-ab12-0; kubectl describe node n1;" in message
        assert "kubectl delete pod -n default digits-ab12-0 --grace-period=0 --force" in message

    def test_on_a_node_that_is_not_ready_the_node_is_waited_for(self) -> None:
        here = self._stuck(150).node("n1", ready=False).settle()
        reason, message = _running(here)
        assert reason == "NodeUnreachable"
        assert message.startswith("waiting for the nodes of digits-ab12-0 (node n1) to be Ready again; given up at ")
        assert _running(here.node("n1", ready=True).settle())[0] == "MemberStuck"

    def test_in_an_outage_the_outage_is_waited_for(self) -> None:
        outage = self._stuck(150).having(zones=(Zone(not_ready=3),)).node("n1", ready=False).settle()
        assert _running(outage)[0] == "MassOutage"

    def test_it_is_warned_of_once(self) -> None:
        here = self._stuck(150)
        assert [
            event.type for decision in here.history for event in decision.events if event.reason == "MemberStuck"
        ] == ["Warning"]
        assert here.after(1000).plan().status is None

    def test_the_job_never_goes_on_while_it_may_train(self) -> None:
        here = self._stuck(100_000)
        assert here.run_plan is not None
        assert here.plan().actions == ()

    @pytest.mark.parametrize("known", ["container 0 ended", "pod is terminal", "pod is gone", "node is gone"])
    def test_it_goes_on_without_it_once_its_container_is_known_to_be_dead(self, known: str) -> None:
        here = self._stuck(150)
        here = {
            "container 0 ended": lambda: here.exited(0).pod(0, phase="Running", deleting=True),
            "pod is terminal": lambda: here.pod(0, phase="Failed"),
            "pod is gone": lambda: here.missing(0),
            "node is gone": lambda: here.node("n1", ready=False).settle().after(60),
        }[known]()
        after = here.settle().after(1).settle()
        assert stage_of(after.now) is Stage.STARTING
        assert len(after.members) == 2


class TestRefusedToTellToLeave:
    def _cordoned(self) -> Job:
        """No member was asked: the round that asked them ended with a refusal."""
        here = job().running(world=2).cordon("n1").settle().after(1).step(writes=1)
        return _denied(here, 0, 1)

    def test_the_condition_names_who_refuses_and_what_follows(self) -> None:
        reason, message = _running(self._cordoned())
        assert reason == "PatchRefused"
        assert f"digits-ab12-0 (node n1), digits-ab12-1 (node n2) cannot be asked to leave: {DENIED}" in message
        assert "it deletes members that have to leave after 10 s" in message

    def test_the_remedy_names_webhooks_policies_and_rights_and_quotes_who_refuses(self) -> None:
        _, message = _running(self._cordoned())
        remedy = message.partition("; to do: ")[2]
        for word in ("webhook", "policy", "ServiceAccount", "update pods that have the label perdure.dev/job"):
            assert word in remedy, word

    def test_it_is_tried_again_for_ten_seconds(self) -> None:
        here = self._cordoned()
        assert set(leaves(here.after(9).plan())) == {"digits-ab12-0", "digits-ab12-1"}
        assert deletes(here.after(9).plan()) == []
        assert here.plan().requeue_after == 10

    def test_then_their_deletion_asks_them_with_the_grace_they_have(self) -> None:
        plan = self._cordoned().after(10).plan()
        assert deletes(plan) == ["digits-ab12-0", "digits-ab12-1"]
        assert leaves(plan) == {}
        here = self._cordoned().after(10).settle()
        assert _running(here)[0] == "ExitSave"
        saved = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
        assert saved.now.steps_lost == 0
        assert saved.condition(ConditionType.SAVED).status == "True"

    def test_members_that_were_asked_are_not_deleted_because_they_cannot_be_hurried(self) -> None:
        here = job().running(world=3).leaving("n1").after(11).ended(0, ExitKind.FAILED, run=1, error=killed())
        assert deletes(_denied(here, 1).plan()) == []

    def test_members_that_could_be_asked_are_not_deleted(self) -> None:
        here = job().running(world=2).cordon("n1").settle().after(1).step(writes=2)
        assert deletes(_denied(here, 1).after(10).plan()) == ["digits-ab12-1"]

    @pytest.mark.parametrize("seconds", [10, 1000])
    def test_a_member_without_a_rank_has_nothing_to_save_and_gets_a_short_grace(self, seconds: float) -> None:
        here = _denied(job().starting(world=2).ready().step(writes=1), 0, 1)
        here = here.cordon("n1").step(writes=1).after(1).step(writes=1).after(seconds)
        plan = here.plan()
        assert {action.name: action.grace for action in plan.actions if isinstance(action, DeletePod)} == {
            "digits-ab12-0": IDLE_GRACE_SECONDS,
            "digits-ab12-1": IDLE_GRACE_SECONDS,
        }

    def test_a_refusal_that_is_over_is_forgotten(self) -> None:
        here = job().running(world=2).leaving("n1")
        assert _running(_denied(here, 0, 1))[0] == "ExitSave"


class TestRefusedToTellRanks:
    def test_it_is_tried_again_and_the_refusal_is_named(self) -> None:
        here = _denied(job().starting(world=2).ready().step(writes=1), 1)
        assert set(trains(here.plan())) == {"digits-ab12-0", "digits-ab12-1"}
        plan = here.plan()
        assert plan.status is not None
        assert "digits-ab12-1 (node n2) cannot be given its rank in run 1" in str(plan.status.conditions)
        assert [event.reason for event in plan.events] == ["PatchRefused"]


def test_a_member_on_a_lost_node_is_deleted_though_it_cannot_be_relabelled() -> None:
    here = _denied(job().running(world=2).node("n1", ready=False).settle().after(60), 0)
    plan = here.plan()
    assert deletes(plan) == ["digits-ab12-0"]
    assert [action.name for action in plan.actions if isinstance(action, Assign)] == ["digits-ab12-1"]


def test_a_member_that_keeps_its_label_counts_beside_those_that_get_theirs() -> None:
    here = _denied(job().running(world=2).node("n1", ready=False).settle().after(60), 0).step()
    here = here.ended(1, ExitKind.PEER_LOST).step().after(1).settle().ready()
    assert set(trains(here.plan())) == {"digits-ab12-2", "digits-ab12-3"}
    assert here.snapshot.budget is not None
    assert here.snapshot.budget.min_available == 3


def test_an_idle_pod_that_cannot_be_relabelled_keeps_no_pod_off_and_goes() -> None:
    here = _denied(job().starting(world=2).node("n1", deleting=True), 0)
    assert deletes(here.plan()) == ["digits-ab12-0"]
    assert {pod.role for pod in here.step().snapshot.pods} == {Role.STANDBY}
    assert here.now.phase is Phase.STARTING


class TestADeletionIsRefused:
    """Whatever the job does meanwhile: the pod keeps its devices, and somebody has to act."""

    def _kept(self, here: Job, *members: int, message: str = DENIED) -> Job:
        return here.refused(*members, message=message, kind=RefusalKind.DELETION_REFUSED, seconds=90)

    def _training(self) -> Job:
        """A member of a closed run is to go while its successor trains."""
        here = job(disruption=PATIENT).running(world=2).cordon("n1").settle().after(1).settle().ready().settle()
        return self._kept(here.ended(0, ExitKind.HANDED_OVER), 0).step().step()

    def test_a_run_that_trains_says_so_with_what_to_do(self) -> None:
        here = self._training()
        assert deletes(here.plan()) == ["digits-ab12-0"]
        said = here.condition(ConditionType.DELETIONS_ALLOWED)
        assert (said.status, said.reason) == ("False", "DeletionRefused")
        assert said.message.startswith(f"the API server refuses to delete digits-ab12-0: {DENIED}; ")
        assert "to do: do what the message of the API server says" in said.message
        assert here.condition(ConditionType.RUNNING).status == "True"

    def test_it_is_written_and_warned_of_once_and_looked_at_again(self) -> None:
        here = self._training()
        events = [one.type for decision in here.history for one in decision.events if one.reason == "DeletionRefused"]
        assert events == ["Warning"]
        again = here.after(80).plan()
        assert (again.status, again.events, again.requeue_after) == (None, (), 10)

    def test_it_is_over_when_the_api_server_refuses_no_more(self) -> None:
        here = self._training().having(refusals=()).settle()
        assert here.now.find(ConditionType.DELETIONS_ALLOWED) is None

    def test_a_late_member_that_cannot_be_deleted_is_what_the_job_waits_for(self) -> None:
        here = self._kept(job().running(world=2).leaving("n1").after(630), 0, 1)
        reason, message = _running(here)
        assert reason == "DeletionRefused"
        assert f"digits-ab12-0 (node n1), digits-ab12-1 (node n2) cannot be deleted: {DENIED}; no time limit" in message
        assert here.step().plan().status is None

    def test_a_finished_job_says_so(self) -> None:
        here = job().running(world=2).ended(0, ExitKind.COMPLETED).settle()
        assert here.now.finished_at
        here = self._kept(here.after(700), 1).step()
        assert "digits-ab12-1" in here.condition(ConditionType.DELETIONS_ALLOWED).message


class TestRefusedToTellWhoIsWrittenOff:
    """Member 1 is on a node that was given up; it counts for the budget and the job until its label is gone."""

    def _denied(self) -> Job:
        here = job().running(world=3).node("n2", ready=False).settle().after(60).step(writes=1)
        return here.refused(1, message=DENIED, kind=RefusalKind.PATCH_REFUSED, seconds=90)

    def test_it_is_deleted_all_the_same(self) -> None:
        assert "digits-ab12-1" in deletes(self._denied().plan())

    def test_the_job_is_looked_at_again_when_the_refusal_counts_no_more(self) -> None:
        here = self._denied().settle().refused(1, kind=RefusalKind.PATCH_REFUSED, seconds=7)
        assert here.after(6).settle().plan().requeue_after == 1

    def test_then_it_loses_its_role_although_it_is_being_deleted(self) -> None:
        here = self._denied().settle().after(91).having(refusals=()).settle()
        assert here.snapshot.pods
        assert {pod.role for pod in here.snapshot.pods if pod.name == "digits-ab12-1"} == {Role.FORMER}
