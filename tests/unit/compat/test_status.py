"""Status as an operator has once written it is read by every later one: a job outlives an upgrade, and a roll-back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.wire import ExitKind
from perdure_operator.api.spec import Elastic
from perdure_operator.api.status import Phase, TrainingJobStatus
from perdure_operator.decide import Stage, stage_of
from tests.support.full_status import FULL
from tests.support.jobs import Job, job
from tests.unit.compat import status_defaults

RECORDED = Path(__file__).parent / "recorded" / "status"
STAGES = {
    "between": Stage.BETWEEN,
    "starting": Stage.STARTING,
    "running": Stage.RUNNING,
    "quiet": Stage.QUIET,
    "leaving": Stage.LEAVING,
    "completed": Stage.FINISHED,
}


def recorded(name: str) -> TrainingJobStatus:
    """The status in that file."""
    return TrainingJobStatus.model_validate(json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8")))


def reached(name: str) -> Job:
    """The job that had this status, with its pods."""
    running = job().running(world=2)
    saved = {"step": 20, "commit": (4, 20)}
    return {
        "between": lambda: running.spec(suspend=True).settle().all_ended(ExitKind.CHECKPOINTED, **saved).settle(),
        "starting": lambda: job().starting(world=2),
        "running": lambda: running,
        "quiet": lambda: running.cordon("n1").settle(),
        "leaving": lambda: running.leaving("n1"),
        "completed": lambda: running.all_ended(ExitKind.COMPLETED, **saved).settle(),
    }[name]()


@pytest.mark.parametrize("name", STAGES)
def test_a_recorded_status_is_in_the_stage_it_was_written_in(name: str) -> None:
    assert stage_of(recorded(name)) is STAGES[name]


@pytest.mark.parametrize("name", STAGES)
def test_nothing_that_was_recorded_is_forgotten(name: str) -> None:
    text = (RECORDED / f"{name}.json").read_text(encoding="utf-8")
    again = recorded(name).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert _without_defaults(json.loads(text), again) == {}


@pytest.mark.parametrize("name", ["starting", "running", "quiet", "leaving"])
def test_a_job_goes_on_from_a_recorded_status(name: str) -> None:
    here = reached(name)
    here = here.having(status=recorded(name))
    if name == "starting":
        here = here.ready().settle()
    if name == "quiet":
        here = here.after(1).settle()
    if name in ("quiet", "leaving"):
        here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle().ready().settle()
    assert here.settle().now.phase is Phase.RUNNING


def test_a_job_of_before_gets_spares_once_it_asks_for_them() -> None:
    elastic = Elastic(min_replicas=2, max_replicas=2, spares=1)
    here = reached("running").having(status=recorded("running")).spec(elastic=elastic).settle().after(60).settle()
    assert here.spares() == ("digits-ab12-2",)
    assert here.now.phase is Phase.RUNNING


def test_what_is_at_its_default_is_not_stored_but_for_what_people_read() -> None:
    told = job().running(world=2).now.stored()
    assert "logLooks" not in told
    assert "outcomes" not in told["current"]
    assert (told["stepsLost"], told["failures"]) == (0, {"code": 0, "infrastructure": 0, "outOfMemory": 0})
    assert [(one["run"], one["stepsLost"], "why" in one) for one in told["history"]] == [(1, 0, False)]


@pytest.mark.parametrize("status", [FULL, TrainingJobStatus()], ids=["full", "empty"])
def test_a_status_is_read_as_it_was_stored(status: TrainingJobStatus) -> None:
    assert TrainingJobStatus.model_validate_json(json.dumps(status.stored())) == status


def test_a_default_stays_as_it_was_when_it_was_left_out_of_a_status() -> None:
    before, now = status_defaults.recorded(), status_defaults.defaults()
    assert {name: value for name, value in before.items() if name in now and now[name] != value} == {}
    assert now.keys() - before.keys() == set(), "`make generate` records what it stands for"


def _without_defaults(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What was written then and is not written now; a field added since is no difference."""
    found = {}
    for name, value in old.items():
        if isinstance(value, dict) and isinstance(new.get(name), dict):
            value = _without_defaults(value, new[name])  # noqa: PLW2901
            if value:
                found[name] = value
        elif new.get(name) != value:
            found[name] = value
    return found
