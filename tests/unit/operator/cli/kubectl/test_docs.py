"""The examples of docs/kubectl.md are what the command prints, of a job that the real operator has moved."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from perdure_operator.api import names
from perdure_operator.api.status import TrainingProgress
from perdure_operator.cli.kubectl import timeline, top, what_if
from perdure_operator.cli.kubectl.job import summary
from perdure_operator.cli.kubectl.page import Page
from perdure_operator.cli.kubectl.screen import draw
from perdure_operator.cli.kubectl.status_page import job_page, page_of_job, table_of_jobs
from perdure_operator.cli.kubectl.what_if import DrainSeen
from perdure_operator.cluster.protocol import EVENTS
from tests.support.raw import UID
from tests.support.stage import KEY
from tests.unit.operator.cli.kubectl.seen import moved, moving_again, seen

DOCS = Path(__file__).resolve().parents[5] / "docs" / "kubectl.md"
EXAMPLE = re.compile(r"```console\n\$ (kubectl perdure [^\n]*)\n(.*?)```", re.DOTALL)


def status_of_all() -> tuple[Page, str]:
    told = seen(moving_again())
    return table_of_jobs([summary(told)], told.now, namespaces=False), told.record.uid


def status_of_one() -> tuple[Page, str]:
    told = seen(moving_again())
    return page_of_job(job_page(told), told.now), told.record.uid


def top_of_all() -> tuple[Page, str]:
    told = seen(moved())
    run = told.status.current.run if told.status.current else 0
    heard = TrainingProgress(
        run=run,
        step=1204,
        percent=31,
        remaining_seconds=2400,
        samples_per_second=211.4,
        seconds_per_step=0.303,
        own_percent=45,
        data_wait_percent=3,
        save_stall_seconds=0.02,
        observed_at=told.now - timedelta(seconds=12),
    )
    status = told.status.model_copy(update={"progress": heard})
    reports = replace(told, record=replace(told.record, status=status))
    return top.page([top.pace(reports)], told.now, namespaces=False), told.record.uid


def what_if_drained() -> tuple[Page, str]:
    stage = moved()
    snapshot = asyncio.run(stage.observer.observe(KEY))
    assert snapshot is not None
    return what_if.page(what_if.what_if([DrainSeen(snapshot, (4.2, 5.0))], ["n3"], stage.now, RULES)), snapshot.uid


def timeline_of_one() -> tuple[Page, str]:
    stage = moving_again()
    told = seen(stage)
    story = timeline.timeline(told, asyncio.run(stage.cluster.list(EVENTS, "ns")))
    return timeline.page(story, told.now), told.record.uid


RULES = what_if.Rules("those of ConfigMap perdure-system/perdure-operator-signals", "0.1.0", "0.1.0")
PRINTED: Mapping[str, Callable[[], tuple[Page, str]]] = {
    "kubectl perdure status": status_of_all,
    "kubectl perdure status digits": status_of_one,
    "kubectl perdure top --once": top_of_all,
    "kubectl perdure what-if drain n3": what_if_drained,
    "kubectl perdure timeline digits": timeline_of_one,
}
SHOWN = dict(EXAMPLE.findall(DOCS.read_text()))


def test_each_example_is_printed_by_some_command() -> None:
    assert SHOWN.keys() == PRINTED.keys()


@pytest.mark.parametrize("command", PRINTED)
def test_an_example_is_what_the_command_prints(command: str) -> None:
    page, uid = PRINTED[command]()
    out = io.StringIO()
    draw(page, out, columns=100)
    assert out.getvalue().replace(names.base("digits", uid), names.base("digits", UID)) == SHOWN[command]
