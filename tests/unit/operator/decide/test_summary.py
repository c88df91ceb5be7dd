"""What status says to people claims no more than is known, and says first what they look for."""

from __future__ import annotations

import pytest

from perdure.wire import ErrorKind, ExitKind
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.spec import S3, CheckpointPolicy, Elastic
from perdure_operator.api.status import Phase
from perdure_operator.decide.draft import MESSAGE_LENGTH
from perdure_operator.state.snapshot import TemplateCheck, TemplateVerdict
from tests.support.jobs import PATIENT, START, UID, Job, job, raised


def _running(here: Job) -> tuple[str, str, str]:
    condition = here.condition(ConditionType.RUNNING)
    return condition.status, condition.reason, condition.message


class TestRunning:
    """Members report when they end: until then it is unknown whether the storage answers or a rank hangs."""

    def test_members_with_ranks_are_assigned_and_what_is_unknown_is_said(self) -> None:
        here = job().running(world=2)
        assert here.now.phase is Phase.RUNNING
        assert _running(here) == (
            "True",
            "Assigned",
            "run 1: 2 members have their ranks, 2 processes in all; whether they train is not known until they end: "
            "see kubectl logs digits-ab12-0; no commit is known yet",
        )

    def test_the_last_commit_known_is_said(self) -> None:
        here = job().running(world=2).leaving("n1").all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20))
        assert _running(here.settle().ready().settle())[2].endswith("; the last commit known is of step 20")


class TestLeft:
    @pytest.mark.parametrize(
        ("outcome", "words"),
        [
            (ExitKind.CHECKPOINTED, "has saved and left"),
            (ExitKind.HANDED_OVER, "has handed over and left"),
            (ExitKind.STOPPED, "has left with nothing to save"),
        ],
    )
    def test_a_member_that_left_unasked_is_said_to_have_done_what_it_did(self, outcome: ExitKind, words: str) -> None:
        here = job(disruption=PATIENT).running(world=2).ended(0, outcome, run=1, step=20, commit=(4, 20)).settle()
        assert here.condition(ConditionType.DISRUPTED).message.startswith(f"digits-ab12-0 {words}")


class TestWithoutMembers:
    """Statements about a run are not made about a job without one."""

    @staticmethod
    def _elastic() -> Job:
        return job(elastic=Elastic(min_replicas=2, max_replicas=4, spares=1)).running(world=2)

    def test_a_finished_job_has_no_size_and_once_its_budget_is_gone_no_protection(self) -> None:
        here = self._elastic().all_ended(ExitKind.COMPLETED, step=100, commit=(9, 100)).settle()
        assert here.snapshot.budget is None
        told = {condition.type for condition in here.now.conditions if condition.status == "True"}
        assert told == {"Saved", "Completed"}
        assert here.now.find(ConditionType.SIZED) is None
        assert here.now.find(ConditionType.PROTECTED) is None

    def test_as_long_as_members_are_on_their_way_out_they_are_protected(self) -> None:
        here = self._elastic().ended(0, ExitKind.COMPLETED, step=100, commit=(9, 100)).settle()
        assert here.condition(ConditionType.PROTECTED).status == "True"

    def test_nor_has_one_that_is_suspended(self) -> None:
        here = self._elastic().spec(suspend=True).settle()
        assert here.condition(ConditionType.SIZED).status == "True", "they train until they have saved"
        here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
        assert here.now.phase is Phase.SUSPENDED
        assert here.now.find(ConditionType.SIZED) is None


class TestSizes:
    """An autoscaler requests replicas, and the job has members: the two are kept apart."""

    @staticmethod
    def _asked(replicas: int, here: Job | None = None) -> Job:
        elastic = Elastic(min_replicas=2, max_replicas=4, sizes=(2, 4))
        begun = here or job(disruption=PATIENT, elastic=elastic).running(world=2)
        return begun.spec(replicas=replicas).settle().after(1).settle()

    def test_the_cause_names_the_size_that_was_asked_for_in_members(self) -> None:
        said = self._asked(4).condition(ConditionType.DISRUPTED).message
        assert said.startswith("4 members are wanted; the run trains on")

    def test_with_processes_only_where_their_number_changes(self) -> None:
        here = job().running(world=2).spec(processes_per_replica=2).settle()
        assert here.condition(ConditionType.DISRUPTED).message.startswith("2 members of 2 processes are wanted")

    def test_what_is_awaited_is_said_once(self) -> None:
        here = self._asked(4).ready().settle()
        assert here.condition(ConditionType.DISRUPTED).message.count("are wanted") == 1

    def test_a_run_that_is_too_large_awaits_no_member(self) -> None:
        grown = self._asked(4).after(30).settle().ready().settle()
        assert len(grown.now.next.plan.members if grown.now.next and grown.now.next.plan else ()) == 4
        smaller = self._asked(2, grown)
        assert smaller.condition(ConditionType.SIZED).message == "4 members, 2 are wanted: spec.replicas is 2"

    def test_one_member_is_no_all(self) -> None:
        here = job(disruption=PATIENT, elastic=Elastic(min_replicas=2, max_replicas=4)).running(world=2)
        said = self._asked(3, here).condition(ConditionType.DISRUPTED).message
        assert said.endswith("waiting until digits-ab12-2 is Ready")

    def test_a_job_that_begins_small_and_grows_is_starting(self) -> None:
        here = job(disruption=PATIENT, elastic=Elastic(min_replicas=2, max_replicas=4), replicas=4).starting(4)
        for number in (0, 1):
            here = here.pod(number, phase="Running", ip=f"10.0.0.{number + 1}", ready=True)
        here = here.settle().after(10).step()
        for number in (0, 1):
            here = here.pod(number, ready=False)
        here = here.settle().after(1).settle()
        assert here.intent is not None
        assert here.now.phase is Phase.STARTING


class TestUnknownFields:
    """Helm never upgrades a CRD, and a rolled back operator meets a spec of the newer one."""

    def test_they_are_named_with_the_remedy_and_the_job_goes_on(self) -> None:
        here = job().having(unknown_fields=("spec.checkpoint.mirror",)).running(world=2)
        told = here.condition(ConditionType.SPEC_UNDERSTOOD)
        assert (told.status, told.reason) == ("False", "UnknownFields")
        assert "ignores spec.checkpoint.mirror" in told.message
        assert "install the operator that belongs to the CRD" in told.message
        assert here.now.phase is Phase.RUNNING
        assert [event.reason for plan in here.history for event in plan.events].count("UnknownFields") == 1

    def test_an_unknown_name_to_vacate_is_no_matter_of_versions(self) -> None:
        named = "perdure.dev/vacate=nosuch (neither a node nor a member)"
        told = job().having(unknown_fields=(named,)).running(world=2).condition(ConditionType.SPEC_UNDERSTOOD)
        assert "name nodes or pods of this job in perdure.dev/vacate; the other names in it count" in told.message
        assert "CRD" not in told.message
        both = job().having(unknown_fields=("spec.new", named)).running(world=2)
        message = both.condition(ConditionType.SPEC_UNDERSTOOD).message
        assert "belongs to the CRD" in message
        assert "name nodes or pods" in message

    def test_once_none_is_left_that_is_said(self) -> None:
        here = job().having(unknown_fields=("spec.new",)).settle().having(unknown_fields=()).settle()
        assert here.condition(ConditionType.SPEC_UNDERSTOOD).status == "True"

    def test_a_job_that_never_had_any_does_not_have_the_condition(self) -> None:
        assert job().running(world=2).now.find(ConditionType.SPEC_UNDERSTOOD) is None


def test_what_people_look_for_comes_first() -> None:
    here = job().running(world=2).leaving("n1").all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
    assert [condition.type for condition in here.now.conditions] == ["Running", "Disrupted", "Saved", "Protected"]


def test_a_longer_message_than_a_condition_holds_keeps_both_its_ends() -> None:
    check = TemplateCheck(hash="t1", verdict=TemplateVerdict.BAD, message="y" * 5000, time=START)
    message = job().having(template_check=check).settle().condition(ConditionType.RUNNING).message
    assert message.startswith("yyy")
    assert message.endswith("to do: correct spec.template as the message says")
    assert len(message) == MESSAGE_LENGTH


def test_a_long_message_keeps_its_advice_and_its_end() -> None:
    tail = "cannot list log/: check the keys of Secret s3\n" + "frame\n" * 100 + "ValueError: no"
    here = job(failure={"max_code_failures": 0}).running(world=1).ended(0, ExitKind.FAILED, error=raised(tail=tail))
    for kind in (ConditionType.SAVED, ConditionType.FAILED):
        message = here.settle().condition(kind).message
        assert "check the keys of Secret s3" in message
        assert message.endswith("ValueError: no")


class TestEndOfARun:
    """In steps of the training: a member whose trainer did none in its last run tells 0."""

    def _moved(self) -> Job:
        here = job().running(world=2).leaving("n1").all_ended(ExitKind.CHECKPOINTED, step=72, commit=(4, 72))
        return here.settle().ready().settle()

    def _told(self, here: Job) -> str:
        return here.settle().condition(ConditionType.SAVED).message

    def test_a_run_that_did_no_step_does_not_say_step_0(self) -> None:
        told = self._told(self._moved().leaving("n3").all_ended(ExitKind.STOPPED))
        assert told == "run 2 ended, and no member reported a step; the last commit known is of step 72: 0 steps lost"

    def test_nor_does_a_job_without_a_commit(self) -> None:
        told = self._told(job().running(world=2).leaving("n1").all_ended(ExitKind.STOPPED))
        assert told == "run 1 ended, and no member reported a step; no commit is known: 0 steps lost"

    def test_wrong_keys_name_the_secret_they_come_from(self) -> None:
        checkpoint = CheckpointPolicy(uri="s3://b/digits", s3=S3(credentials_secret="digits-s3"))
        error = (ErrorKind.STORAGE, "S3Error", "403 SignatureDoesNotMatch")
        here = job(checkpoint=checkpoint).running(world=1).ended(0, ExitKind.FAILED, error=error)
        assert self._told(here).endswith(
            "digits-ab12-0: failed (storage S3Error)\n403 SignatureDoesNotMatch\n"
            "The keys for s3://b/digits come from the Secret digits-s3"
        )

    def test_a_lost_member_says_of_what(self) -> None:
        here = job().running(world=2).ended(1, ExitKind.FAILED, error=raised("ValueError")).settle()
        assert here.condition(ConditionType.DISRUPTED).message == "digits-ab12-1 ended: failed ValueError"

    def test_a_pod_deleted_on_a_drained_node_names_the_drain(self) -> None:
        here = job().running(world=2).cordon("n1").deleted(0).settle()
        assert here.intent is not None
        assert here.intent.cause == "deleted: digits-ab12-0 (node n1 is cordoned)"


def test_the_notes_that_torch_leaves_in_every_run_do_not_pass_for_the_cause() -> None:
    tail = (
        "[W1121 12:00:00.123456789 socket.cpp:200] [c10d] The hostname of the client socket cannot be retrieved.\n"
        "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"
        "[rank1]:[W1121 12:00:09.1 ProcessGroupGloo.cpp:72] Warning: no backend\n"
        "[rank1]: ValueError: [W] is a word of the user's\n"
    )
    here = job().running(world=1).ended(0, ExitKind.FAILED, error=raised(tail=tail)).settle()
    message = here.condition(ConditionType.SAVED).message
    assert message.splitlines()[1:] == ["[rank1]: ValueError: [W] is a word of the user's"]


def test_the_scale_subresource_selects_the_members_of_this_very_job() -> None:
    selector = dict(one.split("=") for one in job().running(world=2).now.selector.split(","))
    assert selector == {"perdure.dev/job": "digits", "perdure.dev/job-uid": UID, "perdure.dev/role": "member"}
