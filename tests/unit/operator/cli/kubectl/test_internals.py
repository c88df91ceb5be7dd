"""`kubectl perdure explain --internals` tells what the operator keeps for itself, and what it means."""

from __future__ import annotations

import io

from perdure_operator.api.status import TrainingJobStatus
from perdure_operator.cli.kubectl.internals import internals, page
from perdure_operator.cli.kubectl.screen import draw
from tests.support.full_status import FULL
from tests.unit.operator.cli.kubectl.seen import cordoned, seen


def test_each_field_has_its_value_and_its_meaning() -> None:
    stage = cordoned()
    found = {one.field: one for one in internals(seen(stage).status)}
    assert found["current.intent.cause"].value == "node n2 is cordoned"
    assert found["current.plan.members[1].name"].value == stage.names()[1]
    assert found["current.warm"].value == "true"
    assert found["next.members"].value == f'["{stage.names()[2]}"]'
    assert all(one.meaning for one in internals(FULL))


def test_what_is_as_by_default_and_what_people_read_above_is_left_out() -> None:
    found = {one.field for one in internals(seen(cordoned()).status)}
    assert not {"current.outcomes", "current.intent.leave", "stepsLost", "phase"} & found
    assert internals(TrainingJobStatus()) == []


def test_a_terminal_shows_names_whole_and_meanings_in_lines() -> None:
    out = io.StringIO()
    draw(page(internals(seen(cordoned()).status)), out, columns=80)
    assert "current.plan.members[0].name" in out.getvalue()
    out = io.StringIO()
    draw(page([]), out)
    assert out.getvalue() == "The operator keeps nothing of this job.\n"
