"""Failed checkpoints are reported when the run ends, with the reason, which explains the lost steps."""

from __future__ import annotations

from perdure.wire import ExitKind, Unsaved
from perdure_operator.api.reasons import ConditionType
from tests.support.jobs import job


def test_the_condition_tells_how_many_had_failed_and_why() -> None:
    here = job().running(world=2)
    here = here.all_ended(ExitKind.FAILED, step=40, commit=(4, 20), unsaved=Unsaved(7, "no space left")).settle()
    message = here.condition(ConditionType.SAVED).message
    assert "20 steps lost" in message
    assert "; its last 7 checkpoints had failed: no space left" in message


def test_of_one_alone_and_of_none() -> None:
    here = job().running(world=2)
    one = here.all_ended(ExitKind.FAILED, step=40, commit=(4, 20), unsaved=Unsaved(1)).settle()
    assert "; its last checkpoint had failed" in one.condition(ConditionType.SAVED).message
    none = here.all_ended(ExitKind.FAILED, step=40, commit=(4, 20)).settle()
    assert "checkpoint" not in none.condition(ConditionType.SAVED).message
