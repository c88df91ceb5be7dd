"""Alerts that an operator's own series fire: its own code decides, writes status and makes the series, each minute.

The cluster is in memory, and Debian's promtool evaluates the chart's rules. What each rule does at its limits is in
test_alerts, over series that are written there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from perdure.wire import ErrorKind, ErrorName, ExitKind, Failure, Outcome, write_outcome
from perdure.wire.report import Standing
from perdure_operator.cluster.protocol import JOBS
from perdure_operator.serving.metrics import jobs
from perdure_operator.serving.pacing import BoundedRate
from tests.api.test_alerts import judged
from tests.support.reporting import job_of
from tests.support.stage import KEY
from tests.unit.operator.loop.test_progress import Scene

JOB = f'namespace="{KEY[0]}", name="{KEY[1]}"'
MISSING = "_"
AT_ONCE = 1e6
"""Writes in a second: the story's minutes pass faster than those of a clock."""


@dataclass
class Scraped:
    """A job with two members that report, and what Prometheus reads of it once a minute."""

    scene: Scene = field(default_factory=lambda: Scene(BoundedRate(AT_ONCE)))
    minutes: int = 0
    seen: dict[str, list[str]] = field(default_factory=dict)
    sequence: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self._begin = self.scene.stage.now.timestamp()

    def passes(self, minutes: int, each: Callable[[], None] = lambda: None) -> None:
        """So many minutes pass; in each, `each` happens, and the operator works."""
        for _ in range(minutes):
            self.scene.stage.wait(60)
            each()
            self.scene.look()
            self.scene.stage.settle()
            self._scrape()

    def reports(self, **fields: Any) -> None:
        """Rank 0 does."""
        self.scene.reports(sequence=next(self.sequence), **fields)

    def advances(self) -> None:
        """A hundred steps a minute, the last of them saved."""
        step = 100 * self.minutes + 100
        self.reports(step=step, commit_step=step, commit_at=self.scene.stage.now.timestamp(), step_seconds=0.6)

    def _scrape(self) -> None:
        self.minutes += 1
        for family in jobs.families([job_of(self.scene.stage)]):
            for sample in family.samples:
                labels = ", ".join(f'{name}="{value}"' for name, value in sample.labels.items())
                since = self._begin if sample.name.endswith("_timestamp_seconds") else 0.0
                values = self.seen.setdefault(f"{sample.name}{{{labels}}}", [])
                values += [MISSING] * (self.minutes - len(values)) + [f"{sample.value - since:f}"]

    @property
    def series(self) -> dict[str, str]:
        """In promtool's notation; time begins with the story."""
        ends = {name: values + [MISSING] * (self.minutes + 1 - len(values)) for name, values in self.seen.items()}
        operator = {"perdure_operator_info": "1", "perdure_operator_leading": "1", "perdure_operator_synced": "1"}
        always = {name: f"{value}x{self.minutes}" for name, value in operator.items()}
        return always | {name: " ".join(values) for name, values in ends.items()}


def fired(alert: str) -> str:
    """Its labels."""
    return f'alertname="{alert}", {JOB}'


def drain_blocked(job: Scraped) -> set[str]:
    """The node of a member is cordoned, and its replacement finds no node."""
    job.scene.stage.cordon("n2")
    job.passes(25, job.advances)
    return {fired("PerdureDrainBlocked")}


def hang(job: Scraped) -> set[str]:
    """Rank 0 says that it makes no progress, and that it waits for no rank."""
    since = job.scene.stage.now.timestamp()
    job.passes(10, lambda: job.reports(step=600, hangs_since=since, hangs_in=Standing.STANDS, watched=True))
    return {fired("PerdureNoProgress")}


def store_down(job: Scraped) -> set[str]:
    """Saves fail while it trains."""
    since, steps = job.scene.stage.now.timestamp(), count(700, 100)
    job.passes(14, lambda: job.reports(step=next(steps), store_failing_since=since, store_why="503 Slow Down"))
    return {fired("PerdureSavesFail")}


def checkpoint_stale(job: Scraped) -> set[str]:
    """It trains on, and the newest commit stays the same."""
    at, steps = job.scene.stage.now.timestamp(), count(700, 100)
    job.passes(20, lambda: job.reports(step=next(steps), commit_step=600, commit_at=at, step_seconds=0.6))
    return {fired("PerdureCheckpointStale")}


def fails(job: Scraped, error: Failure, times: int) -> None:
    """All members of the run end with this error, and the next ones start."""
    for _ in range(times):
        run = job.scene.stage.status().run
        for rank, name in enumerate(job.scene.stage.names()):
            end = write_outcome(Outcome(ExitKind.FAILED, run, rank, 5, error=error, opened=run))
            job.scene.stage.end_pod(name, end, exit_code=1)
        job.passes(3, lambda: job.scene.stage.run_pods(["n1", "n2"]))


RAISES = Failure(ErrorKind.EXCEPTION, "ValueError", "ValueError: no")
REFUSED = Failure(ErrorKind.STORAGE, ErrorName.STORAGE_REFUSED, "cannot list s3://b/digits: create the bucket")
FAILS_OFTEN = {fired("PerdureRunsFailOften"), fired("PerdureStepsLost")}  # at step 5, and 600 were reported


def budget_nearly_spent(job: Scraped) -> set[str]:
    """The script fails three times in a row; at the fourth the operator gives the job up."""
    fails(job, RAISES, 3)
    job.passes(2)
    return {f'alertname="PerdureFailureBudgetNearlySpent", budget="code", {JOB}'} | FAILS_OFTEN


def given_up(job: Scraped) -> set[str]:
    """It fails once more."""
    fails(job, RAISES, 4)
    return {fired("PerdureJobFailed")} | FAILS_OFTEN


def store_refuses(job: Scraped) -> set[str]:
    """The operator tries again ever more rarely, and waits for a person meanwhile."""
    fails(job, REFUSED, 4)
    return {f'alertname="PerdureStorageNeedsYou", reason="StorageRefused", {JOB}', fired("PerdureStepsLost")}


def unreadable(job: Scraped) -> set[str]:
    """Somebody has edited status by hand."""
    job.scene.stage.cluster.change(JOBS, *KEY, lambda raw: raw["status"].update(conditions=7))
    job.passes(8)
    return {fired("PerdureJobUnreadable")}


STORIES = (
    *(drain_blocked, hang, store_down, checkpoint_stale),
    *(budget_nearly_spent, given_up, store_refuses, unreadable),
)


@pytest.mark.parametrize("story", STORIES)
def test_what_goes_wrong_fires_its_alert(promtool: Path, tmp_path: Path, story: Callable[[Scraped], set[str]]) -> None:
    job = Scraped()
    job.passes(6, job.advances)
    alerts = story(job)
    judged(promtool, tmp_path, job.series, {5: set(), job.minutes - 1: alerts})


def test_a_job_that_trains_for_an_hour_fires_nothing(promtool: Path, tmp_path: Path) -> None:
    job = Scraped()
    job.passes(60, job.advances)
    judged(promtool, tmp_path, job.series, {minute: set() for minute in range(1, 60)})
