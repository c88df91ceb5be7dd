"""A root that cannot be used is a wait with its remedy: it costs no failure, and pods are not made in vain."""

from __future__ import annotations

import pytest

from perdure.wire import ErrorKind, ErrorName, ExitKind
from perdure_operator.api.reasons import ConditionType
from tests.support.jobs import Job, creates, job

NO_BUCKET = (ErrorKind.STORAGE, ErrorName.STORAGE_REFUSED, "cannot list log/ of s3://b/digits: create the bucket")
DAMAGED = (ErrorKind.EXCEPTION, ErrorName.CORRUPT, "s3://b/digits has commits and none can be used: restore them")
LOST = (ErrorKind.EXCEPTION, ErrorName.LOG_LOST, "s3://b/digits has lost commits: there is no log")


def _ended(here: Job, error: object) -> Job:
    return here.all_ended(ExitKind.FAILED, error=error).settle()


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [(NO_BUCKET, "StorageRefused", "create the bucket"), (DAMAGED, "CheckpointsDamaged", "restore them")],
    ids=["refused", "damaged"],
)
def test_the_job_waits_with_the_remedy_and_it_costs_no_failure(error: object, reason: str, words: str) -> None:
    here = _ended(job().running(world=2), error)
    running = here.condition(ConditionType.RUNNING)
    assert (running.status, running.reason) == ("False", reason)
    assert words in running.message
    assert here.condition(ConditionType.SAVED).reason == reason
    assert here.names() == []
    assert (here.now.failures.code, here.now.failures.infrastructure) == (0, 0)


def test_it_is_the_cause_however_other_members_ended() -> None:
    here = job().running(world=2).ended(1, ExitKind.PEER_LOST, step=12).ended(0, ExitKind.FAILED, error=NO_BUCKET)
    assert here.settle().condition(ConditionType.RUNNING).reason == "StorageRefused"


@pytest.mark.parametrize("error", [NO_BUCKET, DAMAGED, LOST], ids=["refused", "damaged", "lost"])
def test_standbys_that_an_end_before_has_called_hold_no_nodes_meanwhile(error: object) -> None:
    """Others may need their room, and only a person ends this wait."""
    here = job(disruption={"replacement_timeout_seconds": 60}).running(world=2)
    here = here.ended(0, ExitKind.PEER_LOST).settle()
    assert _kept(here) == ["digits-ab12-1", "digits-ab12-2"]
    here = _ended(here, error)
    assert _kept(here) == []
    assert len(_kept(here.after(600).settle())) == 2


def _kept(here: Job) -> list[str]:
    return [pod.name for pod in here.living() if not pod.deleting]


def test_a_damaged_root_is_looked_at_every_ten_minutes() -> None:
    here = _ended(job().running(world=2), DAMAGED)
    assert here.after(599).settle().living() == []
    assert len(here.after(600).settle().living()) == 2


def test_a_store_that_refuses_is_tried_ever_more_rarely() -> None:
    here, pauses = job().running(world=2), []
    for _ in range(6):
        here = _ended(here, NO_BUCKET)
        plan = here.plan()
        assert creates(plan) == []
        pauses.append(plan.requeue_after)
        here = here.after(plan.requeue_after or 0).settle().ready().settle()
    assert pauses == [30, 60, 120, 240, 480, 600]
    assert here.condition(ConditionType.RUNNING).reason == "Assigned"


def test_a_new_commit_in_between_resets_the_count() -> None:
    here = _ended(_ended(job().running(world=2), NO_BUCKET).after(30).settle().ready().settle(), NO_BUCKET)
    here = here.after(60).settle().ready().settle()
    here = here.all_ended(ExitKind.FAILED, error=NO_BUCKET, step=20, commit=(4, 20)).settle()
    assert here.plan().requeue_after == 30


def test_an_edit_of_the_spec_tries_at_once() -> None:
    for error in (NO_BUCKET, DAMAGED):
        here = _ended(job().running(world=2), error)
        assert len(here.spec(replicas=2).settle().living()) == 2


@pytest.mark.parametrize("error", [NO_BUCKET, DAMAGED], ids=["refused", "damaged"])
def test_tools_that_edit_the_spec_in_turns_make_no_storm_of_pods(error: object) -> None:
    """Each run that fails at once would be followed by the next edit, and that by the next run."""
    here = _ended(job().running(world=2), error).spec(replicas=2).settle().ready().settle()
    here = _ended(here, error).spec(replicas=2).settle()
    assert here.living() == []
    assert here.plan().requeue_after == 10
    assert len(here.after(10).settle().living()) == 2
