"""Where one policy's answer is the next one's premise."""

from __future__ import annotations

from datetime import timedelta

from perdure.wire import ExitKind
from perdure_operator.api.reasons import ConditionType
from perdure_operator.state.snapshot import TemplateCheck, TemplateVerdict
from tests.support.jobs import Job, creates, job, leaves, raised


def _killed_for_memory(here: Job, step: int, seq: int) -> Job:
    """The kernel kills all of rank 1's container, agent included; rank 0 tells how far the run came."""
    here = here.exited(here.members[1], code=137, reason="OOMKilled").settle()
    return here.ended(here.members[0], ExitKind.PEER_LOST, step=step, commit=(seq, step)).settle()


def test_out_of_memory_kills_that_leave_no_outcome_are_no_row_while_the_runs_commit_further_steps() -> None:
    here = job(failure={"maxOutOfMemoryFailures": 2}).running(world=2)
    for index in range(1, 5):
        here = _killed_for_memory(here, step=1000 * index, seq=10 * index)
        assert not here.now.finished_at, here.condition(ConditionType.FAILED).message
        here = here.after(600).settle().ready().settle()


def test_the_blamed_member_keeps_the_last_lines_it_left_whatever_its_rank() -> None:
    here = job().running(world=2)
    here = here.ended(1, ExitKind.FAILED, error=raised("ValueError", "Traceback of the cause")).after(3)
    here = here.ended(0, ExitKind.FAILED, error=raised("RuntimeError", "Traceback of the consequence")).settle()
    message = here.condition(ConditionType.SAVED).message
    assert "digits-ab12-1" in message
    assert "Traceback of the cause" in message


def test_a_template_that_is_put_back_is_no_longer_called_refused() -> None:
    here = job().running(world=2).having(template_hash="t2")
    check = TemplateCheck(hash="t2", verdict=TemplateVerdict.BAD, message="no image", time=here.snapshot.now)
    here = here.having(template_check=check).settle()
    assert here.condition(ConditionType.TEMPLATE_ACCEPTED).status == "False"
    here = here.having(template_hash="t1").settle()
    assert here.condition(ConditionType.TEMPLATE_ACCEPTED).status == "True"


def test_a_quiet_second_ends_although_the_next_leaders_clock_is_behind() -> None:
    here = job().running(world=2).cordon("n1").settle().after(-600).settle()
    assert set(leaves(here.after(1).plan())) == {"digits-ab12-0", "digits-ab12-1"}


def test_a_pause_after_a_failure_does_not_grow_because_the_next_leaders_clock_is_behind() -> None:
    here = job().running(world=2).all_ended(ExitKind.FAILED, error=raised()).settle().after(-600).settle()
    assert creates(here.after(2).plan())


def test_the_time_to_save_does_not_grow_because_the_next_leaders_clock_is_behind() -> None:
    here = job().running(world=2).leaving("n1").after(-3600).settle()
    intent = here.intent
    assert intent is not None
    assert intent.deadline is not None
    assert intent.deadline - here.snapshot.now <= timedelta(seconds=intent.seconds + 30)


def test_with_completion_by_exit_code_one_rank_that_is_done_does_not_complete_the_job() -> None:
    here = job(completion="ExitCode").running(world=2).ended(0, ExitKind.COMPLETED).settle()
    assert not here.now.finished_at
    here = here.ended(1, ExitKind.FAILED, error=raised()).settle()
    assert here.now.failures.code == 1


def test_standbys_do_not_hold_their_nodes_after_a_job_that_needs_them_no_more() -> None:
    here = job().running(world=2).node("n1", ready=False).settle().after(60).settle()
    here = here.ended(1, ExitKind.PEER_LOST).settle().after(5).settle()
    assert "digits-ab12-2" in here.members
    here = here.node("n1", ready=True).ended(0, ExitKind.COMPLETED, run=1).settle()
    assert here.now.finished_at
    idle = [pod.name for pod in here.living() if not pod.deleting]
    assert idle == []


def test_runs_that_end_by_deletion_before_their_first_step_are_paced_as_replacements_are() -> None:
    here = job().running(world=2)
    for _ in range(6):
        here = here.deleted(here.members[0]).settle().all_ended(ExitKind.STOPPED).settle()
        if not here.living():
            return
        here = here.ready().settle()
    raise AssertionError(f"run {here.now.run} after no time at all")


def test_the_cause_of_the_next_run_names_the_member_that_died_first() -> None:
    here = job().running(world=2)
    here = here.ended(1, ExitKind.FAILED, error=raised("ValueError")).after(3)
    here = here.ended(0, ExitKind.PEER_LOST).settle()
    assert here.now.next is not None
    assert "ValueError" in here.now.next.cause


def test_a_completed_job_does_not_keep_the_verdict_on_an_earlier_run() -> None:
    here = job().running(world=2).all_ended(ExitKind.FAILED, error=raised(), step=5).settle()
    here = here.after(5).settle().ready().settle()
    here = here.ended(here.members[0], ExitKind.COMPLETED, step=20, commit=(3, 20)).settle()
    assert here.now.finished_at
    assert here.condition(ConditionType.SAVED).status == "True"
