"""`kubectl perdure top` shows what was reported lately, and nothing that was not."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import timedelta
from typing import Any

from perdure_operator.api.status import Straggler, TrainingProgress
from perdure_operator.cli.kubectl import top
from perdure_operator.cli.kubectl.job import JobSeen
from perdure_operator.cli.kubectl.page import Table
from perdure_operator.cli.kubectl.screen import draw
from tests.api.scene import completed
from tests.support.raw import NOW
from tests.unit.operator.cli.kubectl.seen import seen, training

SLOW = Straggler(name="digits-1", node="n2", rank=1, own_percent=83, others_percent=45, since=NOW, named=True)


def reporting(**progress: Any) -> JobSeen:
    told = seen(training())
    heard = TrainingProgress(run=1, step=450, observed_at=told.now - timedelta(seconds=12), **progress)
    return replace(told, record=replace(told.record, status=told.status.model_copy(update={"progress": heard})))


def row(told: JobSeen) -> dict[str, str]:
    _, table = top.page([top.pace(told)], told.now, namespaces=True)
    assert isinstance(table, Table)
    (cells,) = table.rows
    return dict(zip(table.heads, cells, strict=True))


def test_a_job_that_reports_is_shown_with_all_its_numbers() -> None:
    told = reporting(
        percent=31,
        remaining_seconds=7200,
        samples_per_second=1234.5,
        seconds_per_step=0.254,
        own_percent=45,
        data_wait_percent=3,
        save_stall_seconds=0.25,
        stragglers=(SLOW, SLOW.model_copy(update={"rank": 2, "node": ""})),
    )
    assert row(told) == {
        "NAMESPACE": "ns",
        "NAME": "digits",
        "STAGE": "running",
        "MEMBERS": "2/2",
        "STEP": "450",
        "DONE": "31%",
        "LEFT": "120m",
        "SAMPLES/S": "1234",
        "S/STEP": "0.254",
        "OWN": "45%",
        "DATA": "3%",
        "SAVE STALL": "0.25s",
        "HELD UP BY": "rank 1 on n2, rank 2",
        "HEARD": "12s ago",
    }
    assert top.page([top.pace(told)] * 2, told.now, namespaces=False)[0] == (
        "2 jobs: 4 of 4 members; 2469 samples/s in 2 jobs"
    )


def test_what_was_last_heard_long_ago_is_no_number_of_now() -> None:
    told = reporting(samples_per_second=10.0, own_percent=45)
    late = row(replace(told, now=told.now + timedelta(seconds=181)))
    assert (late["STEP"], late["SAMPLES/S"], late["OWN"], late["HEARD"]) == ("unknown", "", "", "3m ago")


def test_a_job_without_reports_has_only_its_stage_and_its_members() -> None:
    told = seen(training())
    out = io.StringIO()
    draw(top.page([top.pace(told)], told.now, namespaces=False), out)
    assert out.getvalue().splitlines()[0] == "1 job: 2 of 2 members"
    assert out.getvalue().split("\n\n")[1].split() == [
        *("NAME", "STAGE", "MEMBERS", "STEP"),
        *("digits", "running", "2/2", "unknown"),
    ]


def test_a_job_that_is_over_is_left_out() -> None:
    stage = training()
    assert top.goes_on(seen(stage))
    for rank, name in enumerate(stage.names()):
        stage.end_pod(name, completed(1, rank, 3))
    stage.settle()
    stage.wait(2)
    assert not top.goes_on(seen(stage))
