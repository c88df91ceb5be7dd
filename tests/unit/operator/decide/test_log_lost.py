"""A log that holds less than outcomes have reported is never silently trained on."""

from __future__ import annotations

from perdure.wire import CommitRef, ErrorKind, ErrorName, ExitKind, Train
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.spec import CheckpointPolicy
from perdure_operator.decide.facts import EDIT_SECONDS
from tests.support.jobs import Job, creates, job

LOST = (ErrorKind.EXCEPTION, ErrorName.LOG_LOST, "s3://b/digits has lost commits: there is no log")
URI = "s3://b/digits"


def _moved() -> Job:
    """Run 1 has committed step 96 and left; run 2 has its members."""
    here = job().running(world=2).leaving("n1")
    return here.all_ended(ExitKind.CHECKPOINTED, step=96, commit=(8, 96)).settle().ready().settle()


def _lost() -> Job:
    return _moved().all_ended(ExitKind.FAILED, error=LOST).settle()


def test_a_run_gets_the_newest_commit_that_is_known() -> None:
    told = _moved().assignment(2)
    assert isinstance(told, Train)
    assert told.floor == CommitRef(8, 96)


def test_a_first_run_has_no_floor() -> None:
    told = job().running(world=2).assignment(0)
    assert isinstance(told, Train)
    assert told.floor is None


def test_a_lost_log_keeps_the_job_waiting_and_costs_no_failure() -> None:
    here = _lost().after(30).settle()
    running = here.condition(ConditionType.RUNNING)
    assert (running.status, running.reason) == ("False", "LogLost")
    assert "resumeAnyway" in running.message
    assert here.names() == []
    assert (here.now.failures.code, here.now.failures.infrastructure) == (0, 0)


def test_the_log_is_looked_for_again_after_ten_minutes() -> None:
    assert creates(_lost().after(600).settle().plan()) == []
    assert len(_lost().after(600).settle().living()) == 2


def test_an_edit_of_the_spec_looks_at_once() -> None:
    assert len(_lost().spec(replicas=2).settle().living()) == 2


def test_tools_that_edit_the_spec_in_turns_make_no_storm_of_pods() -> None:
    """Each run that finds no log would be followed by the next edit, and that by the next run."""
    here = _lost().spec(replicas=2).settle().ready().settle()
    here = here.all_ended(ExitKind.FAILED, error=LOST).settle().spec(replicas=2).settle()
    assert here.living() == []
    assert here.plan().requeue_after == EDIT_SECONDS
    assert len(here.after(EDIT_SECONDS).settle().living()) == 2


def test_a_new_commit_in_between_resets_the_count() -> None:
    here = _lost().spec(replicas=2).settle().ready().settle()
    here = here.all_ended(ExitKind.CHECKPOINTED, step=120, commit=(12, 120)).settle().ready().settle()
    here = here.all_ended(ExitKind.FAILED, error=LOST).settle()
    assert here.condition(ConditionType.RUNNING).reason == "LogLost"
    assert len(here.spec(replicas=2).settle().living()) == 2


def test_only_what_is_behind_the_commit_that_was_found_is_lost() -> None:
    """Whichever member reported it: rank 0 reads the log, and a member may end without having heard."""
    here = _moved().ended(2, ExitKind.FAILED, error=LOST).ended(3, ExitKind.FAILED, error=LOST, commit=(6, 80))
    here = here.settle().spec(checkpoint=CheckpointPolicy(uri=URI, resume_anyway=True))
    told = [event.message for event in here.plan().events if event.reason == "LogLost"]
    assert told == ["checkpoint.resumeAnyway: going on from step 80; 16 committed steps are given up"]
    assert here.settle().now.steps_lost == 16


def test_going_on_anyway_gives_up_what_is_missing_and_counts_it() -> None:
    here = _lost().spec(checkpoint=CheckpointPolicy(uri=URI, resume_anyway=True)).settle()
    assert (here.now.steps_lost, here.now.commit_seq, here.now.step) == (96, 0, None)
    told = here.ready().settle().assignment(4)
    assert isinstance(told, Train)
    assert told.floor is None
