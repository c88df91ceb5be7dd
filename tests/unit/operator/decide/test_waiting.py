"""Invariant I9: whenever the job does not train, a condition says why, and what ends the wait."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest

from perdure.wire import (
    CommitRef,
    ErrorName,
    ExitKind,
    Leave,
    Outcome,
    Standby,
    write_assignment,
    write_outcome,
)
from perdure_operator.api import names
from perdure_operator.api.reasons import CONDITION_TYPES, REASONS, ConditionType, Reason
from perdure_operator.api.status import Disruption, Phase
from perdure_operator.decide.placement import IDLE_GRACE_SECONDS
from perdure_operator.state.decision import CheckTemplate, DeletePod
from perdure_operator.state.snapshot import PodView, RefusalKind, TemplateCheck, TemplateVerdict, Terminated, Zone
from tests.support.jobs import PATIENT, START, Job, creates, deletes, job, raised, written

INVALID = 'Pod "digits-ab12-dry-run" is invalid: spec.containers[0].image: Required value'
NO_AGENT = 'failed to create containerd task: exec: "perdure": executable file not found in $PATH: unknown'


def _waits(here: Job) -> tuple[str, str]:
    running = here.settle().condition(ConditionType.RUNNING)
    assert running.status == "False"
    return running.reason, running.message


def _checked(verdict: TemplateVerdict, message: str = "") -> Job:
    check = TemplateCheck(hash="t1", verdict=verdict, message=message, time=START)
    return job().having(template_check=check)


def _predecessor(**fields: object) -> PodView:
    given = {"name": "digits-0000-0", "uid": "old", "owner_uid": "0000", "node": "n1", "phase": "Running"}
    return PodView.model_validate({**given, "assignment": write_assignment(Standby()), **fields})


def _down(here: Job, zone: Zone) -> Job:
    return here.node("n2", ready=False).having(zones=(zone,)).settle()


WAITS: dict[Reason, tuple[Callable[[], Job], str]] = {
    Reason.CHECKING_TEMPLATE: (lambda: _checked(TemplateVerdict.UNKNOWN), "the pod template"),
    Reason.TEMPLATE_INVALID: (lambda: _checked(TemplateVerdict.BAD, "image: Required value"), "image: Required value"),
    Reason.QUOTA_EXCEEDED: (
        lambda: job().refused("digits-ab12-0").step().step(),
        'digits-ab12-0 was refused: exceeded quota: "q"',
    ),
    Reason.POD_REFUSED: (
        lambda: job().refused("digits-ab12-0", message='webhook "w" denied').step().step(),
        'digits-ab12-0 was refused: webhook "w" denied',
    ),
    Reason.WAITING_FOR_PREDECESSOR: (
        lambda: job().having(pods=(_predecessor(deleting=True, deletion_deadline=START),)),
        "digits-0000-0 (node n1)",
    ),
    Reason.SHARED_ROOT: (lambda: job().having(same_uri=("default/other",)), "default/other"),
    Reason.BEING_DELETED: (lambda: job().having(deleting=True), "a finalizer"),
    Reason.BACKOFF: (
        lambda: job().running(world=1).ended(0, ExitKind.FAILED, error=raised()).settle(),
        "1 of code",
    ),
    Reason.STARTING_MEMBERS: (lambda: job().starting(), "all 2 are Ready: digits-ab12-0, digits-ab12-1"),
    Reason.UNSCHEDULABLE: (lambda: job().starting().pod(1, unschedulable="0/3 nodes"), "digits-ab12-1"),
    Reason.IMAGE_PULL_FAILED: (lambda: job().starting().pod(1, waiting_reason="ErrImagePull"), "digits-ab12-1"),
    Reason.AGENT_MISSING: (
        lambda: job().starting().pod(1, waiting_reason="RunContainerError", waiting_message=NO_AGENT),
        "digits-ab12-1",
    ),
    Reason.CONTAINER_NOT_CREATED: (
        lambda: job().starting().pod(1, waiting_reason="CreateContainerConfigError", waiting_message='secret "s"'),
        'digits-ab12-1 (node n2) waits: CreateContainerConfigError: secret "s"',
    ),
    Reason.CONTAINER_ENDED: (
        lambda: job().starting().pod(1, waiting_reason="Error", waiting_message="it ended", waiting_container="helper"),
        "container helper of digits-ab12-1 (node n2) waits: Error: it ended",
    ),
    Reason.GANG_RELEASED: (
        lambda: job().starting().pod(1, node="", unschedulable="0/3 nodes").settle().after(600).settle(),
        "all members were deleted",
    ),
    Reason.REPLACING_MEMBERS: (
        lambda: job().starting().pod(1, gone=True).settle().pod(2, gone=True).settle(),
        "2 times in a row members could not train and were replaced: digits-ab12-2 was deleted",
    ),
    Reason.ASSIGNING: (lambda: job().starting().ready().step(writes=1), "the members of run 1"),
    Reason.NODE_UNREACHABLE: (
        lambda: job().running().node("n2", ready=False).pod(1, ready=False),
        "digits-ab12-1 (node n2)",
    ),
    Reason.MEMBER_NOT_READY: (lambda: job().running().pod(1, ready=False), "digits-ab12-1 (node n2)"),
    Reason.MASS_OUTAGE: (
        lambda: _down(job().running(), Zone(ready=2, not_ready=3)).pod(1, ready=False),
        "digits-ab12-1 (node n2)",
    ),
    Reason.LOG_LOST: (
        lambda: job().running(1).ended(0, ExitKind.FAILED, error=raised(ErrorName.LOG_LOST, "no log")),
        "digits-ab12-0: failed (exception LogLost)\nno log",
    ),
    Reason.STORAGE_REFUSED: (
        lambda: job().running(1).ended(0, ExitKind.FAILED, error=raised(ErrorName.STORAGE_REFUSED, "make it")),
        "digits-ab12-0: failed (exception StorageRefused)\nmake it",
    ),
    Reason.CHECKPOINTS_DAMAGED: (
        lambda: job().running(1).ended(0, ExitKind.FAILED, error=raised(ErrorName.CORRUPT, "restore it")),
        "digits-ab12-0: failed (exception Corrupt)\nrestore it",
    ),
    Reason.EXIT_SAVE: (lambda: job().running().leaving("n1"), "digits-ab12-0 (node n1), digits-ab12-1 (node n2)"),
    Reason.STOPPING: (lambda: job().running().exited(1), "digits-ab12-0 (node n1)"),
    Reason.DELETING_MEMBERS: (
        lambda: job().running().leaving("n1").after(630).settle(),
        "digits-ab12-0 (node n1), digits-ab12-1 (node n2)",
    ),
    Reason.MEMBER_STUCK: (
        lambda: job().running().deleted(0).settle().after(151),
        "digits-ab12-0 (node n1); it may still train",
    ),
    Reason.PATCH_REFUSED: (
        lambda: (
            job()
            .starting()
            .ready()
            .refused("digits-ab12-1", message='webhook "w" denied', kind=RefusalKind.PATCH_REFUSED)
            .step(writes=1)
        ),
        'digits-ab12-1 (node n2) cannot be given its rank in run 1: webhook "w" denied',
    ),
    Reason.DELETION_REFUSED: (
        lambda: (
            job()
            .running()
            .leaving("n1")
            .after(630)
            .refused(1, message='webhook "w" denied', kind=RefusalKind.DELETION_REFUSED)
        ),
        'digits-ab12-1 (node n2) cannot be deleted: webhook "w" denied',
    ),
    Reason.SUSPENDED: (lambda: job(suspend=True), "spec.suspend is true"),
}
"""For every reason to wait: how a job comes to it, and what it waits for, or why."""


@pytest.mark.parametrize("reason", WAITS)
def test_a_wait_says_for_whom_and_why_until_when_and_what_to_do(reason: Reason) -> None:
    reached, awaited = WAITS[reason]
    plan = reached().plan()
    assert plan.status is not None or reached().history
    running = (plan.status or reached().now).find(ConditionType.RUNNING)
    assert running is not None
    assert (running.status, running.reason) == ("False", reason)
    assert awaited in running.message
    known = REASONS[reason]
    assert known.remedy
    timed = re.search(r"(until|at|from) \d\d:\d\d:\d\dZ", running.message)
    assert bool(timed) is not bool(known.ends), running.message
    assert running.message.count("no time limit: ") == bool(known.ends)


def test_every_reason_without_a_time_limit_is_in_the_table() -> None:
    assert {reason for reason in Reason if REASONS[reason].ends} <= set(WAITS)


class TestTemplate:
    def test_an_invalid_one_waits_for_a_correction_and_creates_nothing(self) -> None:
        here = _checked(TemplateVerdict.BAD, f"pods/digits-ab12-dry-run: {INVALID}")
        assert here.plan().actions == ()
        reason, message = _waits(here)
        assert reason == "TemplateInvalid"
        assert message.startswith("spec.template.spec.containers[0].image: Required value; ")

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            (
                'Pod "d" is invalid: [spec.volumes[0].name: Required value, metadata.labels: Invalid value: "spec.x"]',
                '[spec.template.spec.volumes[0].name: Required value, spec.template.metadata.labels: Invalid value: "',
            ),
            (
                'pods "d" is forbidden: violates PodSecurity "restricted:v1": runAsNonRoot != true',
                'violates PodSecurity "restricted:v1": runAsNonRoot != true',
            ),
            ("Pod in version v1 cannot be handled as a Pod", "Pod in version v1 cannot be handled as a Pod"),
        ],
        ids=["two-fields", "pod-security", "another-answer"],
    )
    def test_the_field_comes_first_by_its_path_in_the_job(self, answer: str, words: str) -> None:
        assert _waits(_checked(TemplateVerdict.BAD, answer))[1].startswith(words)

    def test_a_correction_is_tried_at_once(self) -> None:
        here = _checked(TemplateVerdict.BAD).having(template_hash="t2")
        assert written(here.plan()) == (CheckTemplate(),)

    def test_an_invalid_one_is_tried_again_after_a_minute(self) -> None:
        here = _checked(TemplateVerdict.BAD)
        assert here.plan().requeue_after == 60
        assert written(here.after(60).plan()) == (CheckTemplate(),)

    def test_a_quota_is_not_the_templates_fault_and_is_asked_again(self) -> None:
        here = _checked(TemplateVerdict.WAIT, 'exceeded quota: "q"')
        plan = here.plan()
        assert (plan.actions, plan.requeue_after) == ((), 10)
        assert plan.status is not None
        assert 'exceeded quota: "q"' in str(plan.status.conditions)
        assert written(here.after(10).plan()) == (CheckTemplate(),)

    def test_another_refusal_of_the_dry_run_is_not_called_a_quota(self) -> None:
        reason, message = _waits(_checked(TemplateVerdict.WAIT, 'admission webhook "w" denied the request'))
        assert reason == "PodRefused"
        assert 'admission webhook "w" denied the request' in message

    def test_an_answer_without_a_time_does_not_make_status_change_with_the_clock(self) -> None:
        check = TemplateCheck(hash="t1", verdict=TemplateVerdict.WAIT, message="exceeded quota")
        here = job().having(template_check=check).step()
        written = here.having(template_check=check)
        assert written.after(7).plan().status is None

    def test_a_good_one_is_not_tried_again(self) -> None:
        here = job().running(world=2).having(template_check=TemplateCheck())
        assert here.missing(0).settle().now.template_checked == "t1"


class TestPods:
    @pytest.mark.parametrize(
        ("fields", "reason", "words"),
        [
            ({"unschedulable": "0/3 nodes: Insufficient cpu"}, "Unschedulable", "Insufficient cpu"),
            (
                {"waiting_reason": "ImagePullBackOff", "waiting_message": "no such tag"},
                "ImagePullFailed",
                "no such tag",
            ),
            (
                {"waiting_reason": "CreateContainerConfigError", "waiting_message": 'secret "s" not found'},
                "ContainerNotCreated",
                'secret "s" not found',
            ),
            (
                {"waiting_reason": "RunContainerError", "waiting_message": NO_AGENT},
                "AgentMissing",
                "the image of the trainer in digits-ab12-1 has no perdure",  # a mesh may have put its proxy first
            ),
            (
                {"terminated": Terminated(exit_code=128, reason="StartError", message=NO_AGENT)},
                "AgentMissing",
                "perdure",
            ),
            (
                {"waiting_reason": "RunContainerError", "waiting_message": 'exec: "other": executable file not found'},
                "ContainerNotCreated",
                "other",
            ),
            (
                {"waiting_reason": "ErrImagePull", "waiting_message": "no such tag", "waiting_container": "fetch"},
                "ImagePullFailed",
                "container fetch of digits-ab12-1 (node n2) waits: ErrImagePull: no such tag",
            ),
            (
                {"waiting_reason": "RunContainerError", "waiting_message": NO_AGENT, "waiting_container": "fetch"},
                "ContainerNotCreated",
                "container fetch of digits-ab12-1",
            ),
            (
                {"waiting_reason": "CrashLoopBackOff", "waiting_message": "back-off", "waiting_container": "logs"},
                "ContainerEnded",
                "container logs of digits-ab12-1 (node n2) waits: CrashLoopBackOff: back-off",
            ),
            (
                {"initializing": "fetch"},
                "StartingMembers",
                "; init container fetch of digits-ab12-1 (node n2) is still running",
            ),
            ({}, "StartingMembers", "digits-ab12-1"),
        ],
    )
    def test_the_reason_says_what_keeps_a_member_from_starting(
        self, fields: dict[str, object], reason: str, words: str
    ) -> None:
        here = job().starting(world=2).pod(1, **fields)
        got, message = _waits(here)
        assert got == reason
        assert words in message
        assert creates(here.plan()) == []

    def test_a_container_that_cannot_start_for_another_reason_is_a_failure(self) -> None:
        ended = Terminated(exit_code=128, reason="StartError", message='exec: "perdure": permission denied')
        here = job().starting(world=1).pod(0, terminated=ended, phase="Failed").settle()
        assert here.now.failures.infrastructure == 1

    @pytest.mark.parametrize(
        ("ended", "fields", "infrastructure", "words"),
        [
            (Terminated(exit_code=1, reason="Error", message="no bucket"), {}, 0, "Error (exit code 1)"),
            (Terminated(exit_code=128, reason="StartError", message=NO_AGENT), {}, 0, "StartError (exit code 128)"),
            (Terminated(exit_code=137, reason="Error"), {}, 1, "Error (exit code 137)"),
            (
                Terminated(exit_code=1, reason="Error"),
                {"reason": "Evicted", "message": "The node was low on resource: memory."},
                1,
                "Evicted on node n1: The node was low on resource: memory.; Error (exit code 1)",
            ),
            (Terminated(exit_code=137, reason="OOMKilled"), {}, 1, "OutOfMemory"),
        ],
    )
    def test_an_init_containers_exit_is_a_failure_of_the_code_and_its_kill_one_of_infrastructure(
        self, ended: Terminated, fields: dict[str, object], infrastructure: int, words: str
    ) -> None:
        here = job().starting(world=1).pod(0, terminated=ended, init_failed="fetch", phase="Failed", **fields).settle()
        failures = here.now.failures
        assert (failures.code, failures.infrastructure) == (1 - infrastructure, infrastructure)
        assert failures.out_of_memory == int(ended.reason == "OOMKilled")
        row = here.now.next.replacements if here.now.next else None
        assert row
        assert row.cause == f"digits-ab12-0 ended in init container fetch: {words}"

    def test_a_job_that_ends_of_its_init_container_says_which_and_its_last_words(self) -> None:
        ended = Terminated(exit_code=1, reason="Error", message="no bucket")
        here = job(failure={"maxCodeFailures": 0}).starting(world=1)
        here = here.pod(0, terminated=ended, init_failed="fetch", phase="Failed").settle()
        failed = here.now.find(ConditionType.FAILED)
        assert failed
        assert failed.message.endswith("init container fetch ended: Error (exit code 1)\nno bucket")

    def test_an_init_container_tells_no_outcome(self) -> None:
        """A container writes its own termination message."""
        lie = write_outcome(
            Outcome(ExitKind.COMPLETED, run=1, rank=0, step=9, commit=CommitRef(seq=3, step=9), opened=1)
        )
        ended = Terminated(exit_code=1, reason="Error", message=lie)
        here = job().starting(world=1).pod(0, terminated=ended, init_failed="fetch", phase="Failed").settle()
        assert here.now.completion_time is None
        assert here.now.failures.code == 1

    def test_without_the_agent_a_corrected_template_is_tried_at_once(self) -> None:
        ended = Terminated(exit_code=128, reason="StartError", message=NO_AGENT)
        here = job().starting(world=1).pod(0, terminated=ended, phase="Failed").settle()
        after = here.having(template_hash="t2").settle()
        assert after.members == ("digits-ab12-1",)
        assert after.now.failures.infrastructure == 0

    def test_a_refused_name_is_tried_again_and_not_burnt(self) -> None:
        after = job().refused("digits-ab12-0").step().step().step()
        running = after.condition(ConditionType.RUNNING)
        assert running.reason == "QuotaExceeded"
        assert "exceeded quota" in running.message
        assert creates(after.plan()) == ["digits-ab12-0", "digits-ab12-1"]
        assert after.plan().status is None

    def test_another_refusal_names_who_refused(self) -> None:
        here = job().step().refused("digits-ab12-0", message='admission webhook "w" denied').step()
        assert here.condition(ConditionType.RUNNING).reason == "PodRefused"

    def test_a_name_in_use_is_not_tried_again(self) -> None:
        here = job().refused("digits-ab12-0", message="exists", kind=RefusalKind.NAME_TAKEN).step().step()
        assert creates(here.plan()) == ["digits-ab12-1", "digits-ab12-2"]

    def test_a_warning_is_sent_once(self) -> None:
        here = job().starting(world=2).pod(1, unschedulable="no node").step()
        assert [event.reason for event in here.history[-1].events] == ["Unschedulable"]
        assert here.pod(1, unschedulable="no node, still").plan().events == ()


class TestPredecessor:
    def test_a_living_pod_of_an_earlier_job_is_waited_for(self) -> None:
        here = job().having(pods=(_predecessor(),))
        reason, message = _waits(here)
        assert reason == "WaitingForPredecessor"
        assert "digits-0000-0 (node n1)" in message
        assert deletes(here.plan()) == []

    @pytest.mark.parametrize(
        "fields", [{"phase": "Succeeded"}, {"terminated": Terminated(exit_code=0)}, {"gone": True}]
    )
    def test_one_that_is_over_is_not(self, fields: dict[str, object]) -> None:
        assert job().having(pods=(_predecessor(**fields),)).settle().members != ()

    def test_one_on_an_unreachable_node_is_given_up_after_lost_node_seconds(self) -> None:
        here = job().having(pods=(_predecessor(),)).node("n1", ready=False).settle()
        assert here.members == ()
        assert here.plan().requeue_after == 60
        assert here.after(60).settle().members != ()

    def test_one_that_is_being_deleted_is_waited_for_until_a_time(self) -> None:
        here = job().having(pods=(_predecessor(deleting=True, deletion_deadline=START + timedelta(seconds=120)),))
        reason, message = _waits(here)
        assert reason == "WaitingForPredecessor"
        assert "; known at 12:02:30Z; to do: " in message
        assert here.plan().requeue_after == 150

    def test_one_without_an_owner_is_deleted_and_gets_a_short_grace_only_where_it_has_nothing_to_save(self) -> None:
        idle = _predecessor(owner_uid="")
        leaves = write_assignment(Leave(1, "x", 5, ()))
        trains = _predecessor(owner_uid="", name="digits-0000-1", uid="other", assignment=leaves)
        plan = job().having(pods=(idle, trains)).plan()
        graces = {action.name: action.grace for action in plan.actions if isinstance(action, DeletePod)}
        assert graces == {"digits-0000-0": IDLE_GRACE_SECONDS, "digits-0000-1": None}

    def test_a_pod_without_a_deletion_is_distinguished_from_one_on_its_way(self) -> None:
        old = (_predecessor(), _predecessor(name="digits-0000-1", deleting=True, deletion_deadline=START))
        _, message = _waits(job().having(pods=old))
        assert "nothing ends digits-0000-0 (node n1) at a known time: look with kubectl describe pod -n def" in message

    def test_one_that_outlives_its_deletion_is_named_with_what_a_person_has_to_do(self) -> None:
        here = job().having(pods=(_predecessor(deleting=True, deletion_deadline=START),)).after(30)
        reason, message = _waits(here)
        assert reason == "MemberStuck"
        assert message.startswith("of an earlier job of this name: deleted, and not ended 30 s after the grace")
        assert "kubectl delete pod -n default digits-0000-0 --grace-period=0 --force" in message
        assert [event.reason for event in here.plan().events] == ["MemberStuck"]
        assert here.after(100_000).settle().members == ()

    def test_while_no_node_is_ready_nothing_is_said_of_a_time(self) -> None:
        old = (_predecessor(deleting=True, deletion_deadline=START),)
        here = job().having(pods=old, zones=(Zone(not_ready=3),)).after(30).node("n1", ready=False)
        assert _waits(here)[0] == "WaitingForPredecessor"
        assert "no time limit: nothing ends digits-0000-0 (node n1)" in _waits(here)[1]

    def test_a_pod_on_an_unreachable_node_is_not_called_stuck(self) -> None:
        here = job().having(pods=(_predecessor(deleting=True, deletion_deadline=START),)).after(30)
        reason, message = _waits(here.node("n1", ready=False).settle())
        assert reason == "WaitingForPredecessor"
        assert "known at 12:01:30Z" in message

    @pytest.mark.parametrize(
        "fields",
        [
            {"name": "debug", "assignment": ""},
            {"name": "digits-0000-0", "assignment": ""},
            {"name": "digits-7d9f4c6b5-0"},
            {"name": "digits-0"},
            {"name": "other-0000-0"},
            {"name": "digits-0000-x"},
            {"name": "digits-0000-00"},
            {"name": "a-digits-0000-0"},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("owner", ["", "a ReplicaSet's", "ours"])
    @pytest.mark.parametrize("running", [False, True])
    def test_a_pod_of_anybodys_is_neither_touched_nor_waited_for(
        self, fields: dict[str, str], owner: str, *, running: bool
    ) -> None:
        """A user labels it, to let it through the job's NetworkPolicy say; or has it deleted with the job."""
        here = job().running(world=2) if running else job()
        owner = here.snapshot.uid if owner == "ours" else owner
        theirs = _predecessor(owner_uid=owner, role="member", **fields)
        beside = here.having(pods=(*here.snapshot.pods, theirs))
        assert deletes(beside.plan()) == []
        assert beside.settle().now == here.settle().now
        moved = beside.cordon("n1").settle().after(1).settle().after(700).settle()
        assert theirs in moved.snapshot.pods

    @pytest.mark.parametrize("owner", ["", "a ReplicaSet's"])
    @pytest.mark.parametrize("running", [False, True])
    def test_a_members_name_alone_makes_a_pod_nobodys(self, owner: str, *, running: bool) -> None:
        here = job().running(world=2) if running else job()
        theirs = _predecessor(owner_uid=owner, role="member", name="digits-ab12-9", assignment="")
        beside = here.having(pods=(*here.snapshot.pods, theirs))
        assert deletes(beside.plan()) == []
        assert beside.settle().now == here.settle().now
        moved = beside.cordon("n1").settle().after(1).settle().after(700).settle()
        assert theirs in moved.snapshot.pods

    def test_an_ownerless_one_is_deleted(self) -> None:
        here = job().having(pods=(_predecessor(owner_uid=""),))
        assert deletes(here.plan()) == ["digits-0000-0"]
        assert _waits(here)[0] == "WaitingForPredecessor"


class TestFlags:
    def test_an_older_live_job_with_the_same_root_keeps_this_one_from_starting(self) -> None:
        reason, message = _waits(job().having(same_uri=("default/other",)))
        assert reason == "SharedRoot"
        assert "default/other" in message

    def test_the_other_job_is_looked_at_again_even_if_its_end_makes_no_event_here(self) -> None:
        here = job().having(same_uri=("default/other",)).settle()
        assert here.plan().requeue_after == 10
        assert here.after(10).having(same_uri=()).settle().members != ()

    def test_a_second_budget_over_the_members_is_a_conflict(self) -> None:
        here = job().running(world=2).having(foreign_budgets=("mine",))
        assert [event.reason for event in here.plan().events] == ["PDBConflict"]
        protected = here.settle().condition(ConditionType.PROTECTED)
        assert (protected.status, protected.reason) == ("False", "PDBConflict")
        assert "mine" in protected.message

    def test_the_owner_of_the_budgets_name_is_to_be_deleted(self) -> None:
        here = job().running(world=2)
        taken = names.budget(here.snapshot.name, here.snapshot.uid)
        protected = here.having(foreign_budgets=(taken,), budget=None).settle().condition(ConditionType.PROTECTED)
        assert (protected.status, protected.reason) == ("False", "PDBConflict")
        assert f"{taken} has the name" in protected.message
        assert "delete it" in protected.message

    def test_a_foreign_pod_that_the_budget_counts_is_counted_on_top_and_reported(self) -> None:
        here = job().running(world=2).having(foreign_pods=("thief",))
        assert [event.reason for event in here.plan().events] == ["ForeignPods"]
        settled = here.settle()
        assert settled.snapshot.budget is not None
        assert settled.snapshot.budget.min_available == 3
        protected = settled.condition(ConditionType.PROTECTED)
        assert (protected.status, protected.reason) == ("True", "ForeignPods")
        assert "minAvailable is raised by 1" in protected.message
        assert "thief" in protected.message
        assert settled.plan().events == ()

    def test_when_it_is_gone_the_budget_is_lowered_again(self) -> None:
        here = job().running(world=2).having(foreign_pods=("thief",)).settle().having(foreign_pods=()).settle()
        assert here.snapshot.budget is not None
        assert here.snapshot.budget.min_available == 2
        assert here.condition(ConditionType.PROTECTED).reason == "BudgetInPlace"

    def test_an_old_refusal_of_a_budget_that_is_there_holds_no_member_up(self) -> None:
        here = job().starting(world=2).refused("digits-ab12").ready()
        assert here.settle().run_plan is not None

    def test_a_refusal_of_one_that_is_missing_does(self) -> None:
        here = job().starting(world=2).refused("digits-ab12").having(budget=None).ready()
        assert here.step().run_plan is None

    def test_a_deleted_budget_comes_back(self) -> None:
        here = job().running(world=2).having(budget=None).settle()
        assert here.snapshot.budget is not None


class TestConditions:
    def test_the_transition_time_changes_only_with_the_status(self) -> None:
        here = job().starting(world=2).after(30).ready().settle()
        assert here.condition(ConditionType.RUNNING).last_transition_time == START + timedelta(seconds=30)
        assert here.condition(ConditionType.DISRUPTED).last_transition_time == START

    def test_status_is_left_alone_when_only_time_has_passed(self) -> None:
        for here in (job().starting(world=2), job().running(world=2), job().running(world=2).leaving("n1")):
            assert here.after(7).plan().status is None

    def test_every_type_and_every_reason_is_explained(self) -> None:
        assert set(CONDITION_TYPES) == set(ConditionType)
        assert set(REASONS) == set(Reason)
        assert {disruption.value for disruption in Disruption} <= {reason.value for reason in Reason}


class TestNotReadyAnyMore:
    """A member of a run that had begun, whose node is well."""

    def _unready(self) -> Job:
        return job().running(world=2).pod(1, ready=False).settle()

    def test_it_is_named_and_the_run_is_not_said_to_start(self) -> None:
        here = self._unready()
        reason, message = _waits(here)
        assert reason == "MemberNotReady"
        assert "digits-ab12-1 (node n2); it is not known whether they train" in message
        assert here.now.phase is not Phase.STARTING

    def test_no_member_is_moved_for_it_however_long_it_lasts(self) -> None:
        here = self._unready().after(7200)
        assert here.plan().actions == ()
        assert here.settle().intent is None

    def test_it_runs_again_once_all_are_ready(self) -> None:
        assert self._unready().ready().settle().condition(ConditionType.RUNNING).status == "True"

    def test_one_that_went_over_from_a_run_was_ready_before(self) -> None:
        here = job(disruption=PATIENT).running(world=2).cordon("n1").settle().after(1).settle().ready().settle()
        here = here.ended(0, ExitKind.HANDED_OVER, run=1).pod(1, ready=False).settle()
        assert here.now.current is not None
        assert (here.now.current.run, here.now.current.warm) == (2, False)
        assert _waits(here)[0] == "MemberNotReady"

    @pytest.mark.parametrize(
        ("node", "reason"), [({"ready": False}, "NodeUnreachable"), ({}, "MemberNotReady")], ids=["dark", "well"]
    )
    def test_where_no_new_member_is_awaited_it_is_named_too(self, node: dict[str, bool], reason: str) -> None:
        """A member was lost, and then the size was lowered: who stays alone is not Ready."""
        here = job(disruption=PATIENT).running(world=3).cordon("n1").settle().after(1).settle()
        here = here.ended(2, ExitKind.FAILED, error=raised()).settle()
        here = here.node("n2", **node).pod(1, ready=False).spec(replicas=1, disruption=PATIENT).settle()
        found, message = _waits(here)
        assert found == reason
        assert "digits-ab12-1 (node n2)" in message

    def test_of_a_run_that_has_not_begun_nothing_else_is_said_than_that_it_starts(self) -> None:
        here = job().starting(world=2).ready().step().pod(1, ready=False).settle()
        assert _waits(here)[0] == "StartingMembers"
