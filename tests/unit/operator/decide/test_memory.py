"""Out of memory is named, and a run that dies of it at the same place again and again is given up."""

from __future__ import annotations

from perdure.wire import ErrorKind, ErrorName, ExitKind
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import Phase
from tests.support.jobs import Job, job

OUT_OF_MEMORY = (ErrorKind.SIGNAL, ErrorName.OUT_OF_MEMORY, "")


def _killed(here: Job, step: int) -> Job:
    first, second = here.members
    here = here.ended(first, ExitKind.FAILED, error=OUT_OF_MEMORY, step=step).settle()
    return here.ended(second, ExitKind.PEER_LOST, step=step).settle().after(300).settle().ready().settle()


def test_it_is_named() -> None:
    here = _killed(job().running(world=2), 12)
    assert here.condition(ConditionType.SAVED).reason == "OutOfMemory"
    assert here.now.failures.infrastructure == 1


def test_a_container_killed_whole_is_named_too() -> None:
    here = job().running(world=2).exited(0, "", code=137, reason="OOMKilled").settle()
    here = here.ended(1, ExitKind.PEER_LOST).settle()
    assert here.condition(ConditionType.SAVED).reason == "OutOfMemory"


def test_the_fourth_in_a_row_at_the_same_place_ends_the_job() -> None:
    here = job().running(world=2)
    for _ in range(3):
        here = _killed(here, 12)
        assert here.now.phase is Phase.RUNNING
    failed = _killed(here, 12)
    assert failed.condition(ConditionType.FAILED).reason == "TooManyOutOfMemoryFailures"
    assert "memory limit" in failed.condition(ConditionType.FAILED).message


def test_one_that_comes_further_begins_a_new_row() -> None:
    here = job().running(world=2)
    for step in (12, 20, 30, 40, 50, 60):
        here = _killed(here, step)
    assert here.now.phase is Phase.RUNNING
    assert here.now.failures.out_of_memory == 1


def test_another_failure_between_ends_the_row() -> None:
    here = _killed(_killed(job().running(world=2), 12), 12)
    here = here.ended(here.members[0], ExitKind.FAILED, error=(ErrorKind.STORAGE, "x", ""), step=12).settle()
    here = here.ended(here.members[1], ExitKind.PEER_LOST, step=12).settle()
    assert here.now.failures.out_of_memory == 0
