"""What members report reaches status beside the rounds, at a bounded rate, and starts a round where words change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from perdure.wire.report import Standing
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import TrainingPhase, TrainingProgress
from perdure_operator.cluster.protocol import JOBS, Forbidden, Json, Resource, Unavailable
from perdure_operator.cluster.read.records import Key
from perdure_operator.decide.health import SILENT
from perdure_operator.loop.progress import LOOK_SECONDS, PAUSE_SECONDS, REFUSED_SECONDS, ProgressWriter
from perdure_operator.serving.pacing import BoundedRate
from perdure_operator.serving.reports.heard import Received, ReportBoard
from perdure_operator.serving.reports.tokens import Tokens
from tests.support.memory_cluster import MemoryCluster
from tests.support.raw import job
from tests.support.reporting import Reviews, report, sender, trains_as
from tests.support.stage import KEY, Stage


class Scene:
    """A job that trains, and what shows its progress."""

    def __init__(self, pace: BoundedRate | None = None, cluster: MemoryCluster | None = None, members: int = 2) -> None:
        self.stage: Stage = trains_as(members, cluster)
        self.stage.settle()
        self.heard = ReportBoard()
        self.progress = ProgressWriter(
            self.stage.cache, self.heard, Tokens(Reviews(), self.stage.cache), lambda: self.stage.now
        )
        if pace is not None:
            self.progress = replace(self.progress, pace=pace)
        self.stage.cluster.writes.clear()

    def reports(self, rank: int = 0, **fields: Any) -> None:
        told = report(rank=rank, **fields)
        self.heard.take(Received(sender(self.stage, rank), told, rank == 0, self.stage.now))

    def look(self) -> None:
        asyncio.run(self.progress.look(self.stage.actor, self.stage.queue))

    def due(self) -> set[Key]:
        """The jobs that have a round now; they have had it then."""
        queue, keys = self.stage.queue, set[Key]()
        while (key := queue._schedule.pop(self.stage.now.timestamp())) is not None:
            queue.done(key)
            keys.add(key)
        for key in keys:
            queue.add(key)
        self.stage.settle()
        return keys

    @property
    def shown(self) -> TrainingProgress | None:
        return self.stage.status().progress

    @property
    def says(self) -> str:
        running = self.stage.status().find(ConditionType.RUNNING)
        assert running is not None
        return running.message


def at_step(scene: Scene, step: int, began: float = 0.0) -> TrainingProgress:
    """Shown now, by a job that began so many seconds ago."""
    now = scene.stage.now
    first = now - timedelta(seconds=began)
    times: dict[str, Any] = {"step_time": now, "phase_time": first, "began_time": first, "observed_at": now}
    return TrainingProgress(run=1, step=step, phase=TrainingPhase.TRAINING, **times)


def test_a_first_report_is_shown_at_once_and_changes_what_status_says() -> None:
    scene = Scene()
    scene.reports(step=7)
    scene.look()
    assert scene.shown == at_step(scene, 7)
    scene.stage.settle()
    assert "see status.progress" in scene.says


def test_new_numbers_are_one_write_and_no_round() -> None:
    scene = Scene()
    for step in (6, 7):
        scene.reports(step=step)
        scene.look()
        scene.stage.wait(60)
    scene.stage.cluster.writes.clear()
    rounds = sum(scene.stage.worker.counts.outcomes.values())
    scene.reports(step=8)
    scene.look()
    scene.stage.settle()
    assert scene.shown == at_step(scene, 8, began=120)
    assert len(scene.stage.cluster.writes) == 1
    assert sum(scene.stage.worker.counts.outcomes.values()) == rounds


def test_a_training_that_makes_no_step_for_long_is_said_in_conditions_and_so_is_its_next_step() -> None:
    scene = Scene()

    def advances(step: int, after: float) -> tuple[str, str] | None:
        scene.stage.wait(after)
        scene.reports(step=step, step_seconds=1.0)
        scene.look()
        scene.stage.settle()
        found = scene.stage.status().find(ConditionType.PROGRESSING)
        return (found.status, found.reason) if found else None

    assert advances(6, 0) is None
    assert advances(7, 20) == ("True", "StepsReported")
    for _ in range(4):
        assert advances(7, 70) == ("True", "StepsReported")
    assert advances(7, 20) == ("False", "NoProgress")
    assert advances(8, 20) == ("True", "StepsReported")


def test_a_run_that_hangs_while_its_rank_0_is_silent_is_said_by_the_others_and_names_it() -> None:
    """Its pod is frozen, its node is cut off from the operator, or only its reports have ended."""
    scene, kind = Scene(members=3), ConditionType.PROGRESSING
    hangs = {"hangs_in": Standing.WAITS_FOR_RANKS, "hang_may_be_work": False, "watched": True}

    def says() -> tuple[str, str, str]:
        found = scene.stage.status().find(kind)
        assert found
        return found.status, found.reason, found.message

    def goes_on(seconds: int, ranks: Sequence[int], **fields: Any) -> None:
        for _ in range(seconds // 10):
            scene.stage.wait(10)
            for rank in ranks:
                scene.reports(rank, **fields)
            scene.look()
            scene.stage.settle()
            seen.add(says()[:2])

    scene.reports(step=6)
    scene.look()
    seen = set[tuple[str, str]]()
    scene.stage.wait(20)
    scene.reports(step=7)
    scene.look()
    scene.stage.settle()
    goes_on(100, (0, 1, 2), step=7, watched=True)
    goes_on(250, (1, 2), step=7, watched=True)
    assert seen == {("True", "StepsReported")}
    assert says()[2] == "rank 1 reports progress, and rank 0 is silent: see status.progress"
    goes_on(200, (1, 2), step=7, hangs_since=scene.stage.now.timestamp(), **hangs)
    status, reason, message = says()
    assert (status, reason) == ("False", "MemberWaitedFor")
    assert "rank 1 reports no new step since" in message
    assert message.count("rank 0 (") == 1
    goes_on(20, (0, 1, 2), step=8, watched=True)
    assert says()[2] == "rank 0 reports progress: see status.progress"


def test_a_job_that_a_worker_holds_is_left_for_the_next_look() -> None:
    scene = Scene()
    scene.reports()
    scene.stage.queue.add(KEY)
    assert scene.stage.queue._schedule.pop(scene.stage.now.timestamp()) == KEY
    scene.look()
    assert scene.shown is None
    scene.stage.queue.done(KEY)
    scene.look()
    assert scene.shown is not None


def test_a_report_that_a_round_has_dropped_is_not_shown_again() -> None:
    """A member resumed at the step of the newest commit, reported that, and was cut off."""
    scene, shown = Scene(), list[int | None]()

    def look() -> None:
        scene.look()
        shown.append(scene.shown.step if scene.shown else None)

    scene.stage.cluster.change(JOBS, *KEY, lambda raw: raw["status"].update(step=7))
    scene.reports(step=7)
    look()
    scene.stage.wait(SILENT.total_seconds())
    scene.stage.settle()
    look()
    scene.reports(step=8)
    look()
    assert shown == [7, None, 8]


def test_more_writes_than_the_rate_allows_wait_for_a_later_look() -> None:
    now = 0.0
    scene = Scene(BoundedRate(1.0, monotonic=lambda: now))
    assert scene.progress.pace.allows()
    scene.reports()
    scene.look()
    assert scene.shown is None
    now = 1.0
    scene.look()
    assert scene.shown is not None


def test_a_job_that_has_changed_meanwhile_is_shown_at_a_later_look(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.reports()
    watch, scene.stage.cluster.watch = scene.stage.cluster.watch, lambda *_: None
    scene.stage.cluster.change(JOBS, *KEY, lambda raw: raw["metadata"].update(labels={"team": "x"}))
    with caplog.at_level(logging.WARNING):
        scene.look()
    assert (scene.shown, caplog.messages) == (None, [])
    scene.stage.cluster.watch = watch
    scene.stage.cluster.change(JOBS, *KEY, lambda raw: raw["metadata"].update(labels={"team": "y"}))
    scene.look()
    assert scene.shown is not None


def test_a_process_that_does_not_lead_any_more_writes_nothing() -> None:
    scene = Scene()
    scene.reports()
    scene.stage.leading = False
    scene.look()
    assert scene.shown is None


def test_reports_about_an_earlier_job_of_the_name_are_not_shown() -> None:
    scene = Scene()
    earlier = replace(sender(scene.stage), job_uid="earlier")
    scene.heard.take(Received(earlier, report(), True, scene.stage.now))
    scene.look()
    assert scene.shown is None


class Deaf(MemoryCluster):
    """Refuses each status with the error it is given."""

    error: Exception | None = None

    async def replace_status(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        if self.error is not None:
            raise self.error
        return await super().replace_status(resource, namespace, name, body)


@pytest.mark.parametrize("error", [Forbidden("the status is too large"), TypeError("the status is too large")])
def test_a_job_whose_status_is_refused_is_left_out_for_a_minute_and_holds_up_nobody(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Deaf()
    scene, now = Scene(cluster=cluster), 0.0
    scene.progress = replace(scene.progress, monotonic=lambda: now)
    cluster.error = error
    scene.reports()
    for _ in range(3):
        scene.look()
    assert caplog.messages == [
        "trainingjob ns/digits: its progress is not shown, tried again in 60 s: the status is too large"
    ]
    cluster.error = None
    scene.look()
    assert scene.shown is None
    now = REFUSED_SECONDS
    scene.look()
    assert scene.shown is not None


def test_an_api_server_that_does_not_answer_is_a_line_and_a_pause_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Deaf()
    scene, slept = Scene(cluster=cluster), list[float]()
    cluster.error = Unavailable("overloaded")
    scene.reports()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if seconds == PAUSE_SECONDS:
            cluster.error = None
        if len(slept) == 4:
            raise asyncio.CancelledError

    scene.progress = replace(scene.progress, sleep=sleep)
    with caplog.at_level(logging.WARNING), pytest.raises(asyncio.CancelledError):
        asyncio.run(scene.progress.show(scene.stage.actor, scene.stage.queue))
    assert slept == [LOOK_SECONDS, PAUSE_SECONDS, LOOK_SECONDS, LOOK_SECONDS]
    assert len(caplog.messages) == 1
    assert scene.shown is not None


def test_jobs_on_the_node_of_a_member_that_holds_up_the_others_are_looked_at_once_it_is_named() -> None:
    scene = Scene(members=3)
    scene.stage.apply(job("beside"))
    scene.stage.settle()
    scene.stage.run_pods(["n2"])
    scene.stage.settle()
    due: list[set[Key]] = []
    for after in (0, 60, 60):
        scene.stage.wait(after)
        for rank, share in enumerate((0.3, 0.9, 0.3)):
            told = report(rank=rank, step=7 + len(due), own_share=share)
            scene.heard.take(Received(sender(scene.stage, rank), told, rank == 0, scene.stage.now))
        scene.look()
        due.append(scene.due())
    beside = ("ns", "beside")
    assert [beside in keys for keys in due] == [False, True, False]


@pytest.mark.parametrize(("asked", "waited"), [(3.0, PAUSE_SECONDS), (30.0, 30.0), (300.0, 60.0)])
def test_the_pause_is_as_long_as_the_api_server_asks_within_reason(asked: float, waited: float) -> None:
    cluster = Deaf()
    scene, slept = Scene(cluster=cluster), list[float]()
    cluster.error = Unavailable("too many requests", status=429, retry_after=asked)
    scene.reports()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise asyncio.CancelledError

    scene.progress = replace(scene.progress, sleep=sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(scene.progress.show(scene.stage.actor, scene.stage.queue))
    assert slept == [LOOK_SECONDS, waited]
