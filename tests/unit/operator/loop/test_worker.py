"""When a job is looked at again: at once after a write, later after failure, in minutes when there is nothing to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure.wire import LABEL_JOB
from perdure_operator.cluster.protocol import JOBS, PODS, Json, Resource, Unavailable
from perdure_operator.loop.queue import Queue
from perdure_operator.loop.worker import RESYNC_SECONDS
from perdure_operator.serving.metrics.counted import RoundOutcome
from perdure_operator.state.decision import CheckTemplate, Decision, DeletePod
from tests.support.memory_cluster import MemoryCluster
from tests.support.stage import KEY, Stage


class DeafCluster(MemoryCluster):
    """Stops answering while `down`."""

    down = False

    async def list(self, resource: Resource, namespace: str | None = None, *, selector: str = "") -> list[Json]:
        if self.down:
            raise Unavailable("no answer")
        return await super().list(resource, namespace, selector=selector)


def round_of(stage: Stage) -> float:
    """One round; returns after how many seconds the job is due again."""
    stage.queue.add(KEY)
    assert stage.queue._schedule.pop(stage.now.timestamp()) == KEY
    asyncio.run(stage.worker.work(KEY))
    at = stage.queue._schedule.next_at()
    assert at is not None
    return at - stage.now.timestamp()


def test_a_round_that_writes_is_followed_by_another_at_once() -> None:
    stage = Stage()
    stage.apply()
    asyncio.run(stage.observer.sync())
    assert round_of(stage) == 0


def test_a_job_with_nothing_to_do_is_looked_at_again_in_minutes() -> None:
    stage = Stage()
    stage.apply()
    stage.start()
    assert round_of(stage) == pytest.approx(RESYNC_SECONDS)  # jitter is 0.5 of +-20 % here


def test_an_api_server_that_does_not_answer_is_asked_ever_less_often(caplog: pytest.LogCaptureFixture) -> None:
    cluster = DeafCluster()
    stage = Stage(cluster)
    stage.apply()
    asyncio.run(stage.observer.sync())
    stage.observer.distrust(KEY)
    cluster.down = True
    delays = []
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            delays.append(round_of(stage))
            stage.wait(0)
            stage.now = stage.now.__class__.fromtimestamp(stage.now.timestamp() + delays[-1] + 1, stage.now.tzinfo)
    assert delays == pytest.approx([0.2, 0.4, 0.8])
    assert "trainingjob ns/digits: this round did not do all its work, the next one goes on: no answer" in caplog.text


def test_the_server_is_left_alone_for_as_long_as_it_says() -> None:
    class Busy(MemoryCluster):
        async def get(self, *_: object) -> Json:
            raise Unavailable("too many requests", status=429, retry_after=7)

    stage = Stage(Busy())
    stage.apply()
    asyncio.run(stage.observer.sync())
    stage.observer.distrust(KEY)
    assert round_of(stage) == pytest.approx(7)


def test_a_faulty_round_is_logged_and_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage()
    stage.apply()
    asyncio.run(stage.observer.sync())
    monkeypatch.setattr("perdure_operator.loop.worker.decide", lambda _: 1 // 0)
    assert round_of(stage) == pytest.approx(0.2)
    assert "ZeroDivisionError" in caplog.text
    words = "trainingjob ns/digits: an error in the operator ended this round, other jobs are not affected"
    assert f"{words} (next round in 0.2 s)" in caplog.messages


def test_the_log_says_of_a_round_whose_job_changes_why_and_what_is_written(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.apply()
    with caplog.at_level(logging.INFO, "perdure_operator.loop.worker"):
        stage.start()
    assert all(line.startswith("trainingjob ns/digits: ") for line in caplog.messages)
    created = [line for line in caplog.messages if "CreatePod" in line]
    assert created
    assert "; the operator writes: status, " in created[0]
    assert ": ;" not in caplog.text


def test_who_writes_a_job_between_is_named_as_the_cause_of_the_next_look(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.apply()
    asyncio.run(stage.observer.sync())
    stage.leading = False
    with caplog.at_level(logging.DEBUG, "perdure_operator.loop.worker"):
        round_of(stage)
    said = "trainingjob ns/digits: it has changed meanwhile, so it is looked at again: the Lease is too old"
    assert any(line.startswith(said) for line in caplog.messages)


def test_a_job_that_never_comes_to_rest_is_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.apply()
    asyncio.run(stage.observer.sync())
    monkeypatch.setattr("perdure_operator.loop.worker.decide", lambda _: Decision(actions=(CheckTemplate(),)))
    delays = [round_of(stage) for _ in range(8)]
    assert delays == [0] * 8
    assert round_of(stage) > 0


def test_a_time_to_look_again_counts_although_a_write_of_the_round_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoPods(MemoryCluster):
        async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
            if resource == PODS:
                raise Unavailable("failed calling webhook", status=500)
            return await super().create(resource, namespace, body, dry_run=dry_run)

    stage = Stage(NoPods())
    stage.apply()
    asyncio.run(stage.observer.sync())
    decision = Decision(actions=(CheckTemplate(),), requeue_after=20)
    monkeypatch.setattr("perdure_operator.loop.worker.decide", lambda _: decision)
    delays = []
    for _ in range(10):
        delays.append(round_of(stage))
        stage.now += timedelta(seconds=delays[-1] + 1)
    assert delays[:3] == pytest.approx([0.2, 0.4, 0.8])
    assert max(delays) == pytest.approx(20)


def test_a_job_that_is_gone_is_not_looked_at_again() -> None:
    stage = Stage()
    stage.apply()
    stage.start()
    stage.cluster.remove(JOBS, *KEY)
    stage.settle()
    assert stage.queue._schedule.next_at() is None


def test_a_waiting_worker_wakes_up_for_a_job_that_is_due_now() -> None:
    async def play() -> tuple[str, str]:
        queue = Queue()
        queue.add(("ns", "later"), delay=3600)
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.add(("ns", "now"))
        async with asyncio.timeout(10):
            return await waiting

    assert asyncio.run(play()) == ("ns", "now")


def test_a_replica_that_does_not_lead_collects_no_names() -> None:
    queue = Queue(started=False)
    queue.add(KEY)
    assert len(queue._schedule) == 0
    queue.start()
    queue.add(KEY)
    assert len(queue._schedule) == 1


def test_a_delayed_job_comes_by_itself() -> None:
    async def play() -> tuple[str, str]:
        queue = Queue()
        queue.add(("ns", "soon"), delay=0.01)
        async with asyncio.timeout(10):
            return await queue.get()

    assert asyncio.run(play()) == ("ns", "soon")


def late_pod_is_seen_after(stage: Stage, round_: Callable[[], object]) -> bool:
    """Whether a pod that no watch has reported is seen after that round."""
    asyncio.run(stage.observer.sync())
    round_()
    stage.cluster.watch = lambda *_: None
    body: Json = {"metadata": {"name": "late", "labels": {LABEL_JOB: "digits"}}, "spec": {}}
    asyncio.run(stage.cluster.create(PODS, "ns", body))
    seen = asyncio.run(stage.observer.observe(KEY))
    assert seen
    return "late" in [pod.name for pod in seen.pods]


def test_what_was_answered_need_not_be_read_again() -> None:
    stage = Stage()
    stage.apply()
    assert not late_pod_is_seen_after(stage, lambda: round_of(stage))


def test_after_a_deletion_of_ours_the_pods_are_read_live(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.apply()
    pod: Json = {"metadata": {"name": "p", "labels": {LABEL_JOB: "digits"}}, "spec": {}}
    uid = asyncio.run(stage.cluster.create(PODS, "ns", pod))["metadata"]["uid"]
    decision = Decision(actions=(DeletePod(name="p", uid=uid),))
    monkeypatch.setattr("perdure_operator.loop.worker.decide", lambda _: decision)
    assert late_pod_is_seen_after(stage, lambda: round_of(stage))


def test_after_a_write_without_an_answer_the_job_is_read_live(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(MemoryCluster):
        async def replace_status(self, *given: Any) -> Json:
            await super().replace_status(*given)
            raise Unavailable("no answer")

    stage = Stage(Silent())
    stage.apply()
    assert late_pod_is_seen_after(stage, lambda: (round_of(stage), round_of(stage)))  # a dry run, then a status


def test_rounds_and_their_writes_are_counted_by_how_they_ended() -> None:
    cluster = DeafCluster()
    stage = Stage(cluster)
    stage.apply()
    stage.start()
    counts = stage.worker.counts
    wrote = counts.outcomes[RoundOutcome.WROTE]
    assert wrote > 0
    assert counts.writes["Status"] > 0
    assert counts.writes["CreatePod"] == 2
    round_of(stage)
    cluster.down = True
    stage.observer.distrust(KEY)  # so that the next round reads the pods live
    round_of(stage)
    assert counts.outcomes[RoundOutcome.WROTE] == wrote
    assert counts.outcomes[RoundOutcome.REFUSED] == 1
    assert counts.outcomes[RoundOutcome.UNCHANGED] >= 1
    assert sum(counts.buckets) == counts.outcomes.total()
