"""The texts that tell members what to do."""

from __future__ import annotations

import pytest

from perdure.wire import Train, read_assignment
from perdure_operator.api.status import Assigned, RunPlan
from perdure_operator.decide.assignments import train

MEMBER = Assigned(name="digits-ab12-0", uid="u1", rank=0, node="n1")


@pytest.mark.parametrize("letter", ["x", "ü", '"', "\n", "\U0001f600"])
@pytest.mark.parametrize("count", [100, 160, 161, 500])
def test_a_cause_in_any_letters_leaves_room_for_the_rest_of_an_assignment(letter: str, count: int) -> None:
    plan = RunPlan(
        run=1, world=4, master="10.0.0.1:29501", cause=letter * count, members=(MEMBER,), seconds=60, wait=0, lost=()
    )
    told = read_assignment(train(plan, MEMBER))
    assert isinstance(told, Train)
    assert told.cause == letter * count or told.cause.endswith("...")


def test_a_cause_that_fits_is_reported_in_full() -> None:
    plan = RunPlan(
        run=1, world=4, master="10.0.0.1:29501", cause="x" * 160, members=(MEMBER,), seconds=60, wait=0, lost=()
    )
    told = read_assignment(train(plan, MEMBER))
    assert isinstance(told, Train)
    assert told.cause == plan.cause
