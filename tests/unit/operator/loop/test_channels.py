"""Living members learn where to report and whom to trust: an annotation, at a bounded rate, and no round for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from perdure.wire import ANNOTATION_REPORT, LABEL_JOB
from perdure_operator.cluster.protocol import JOBS, PODS, Forbidden, Json, Operation, Resource, Unavailable
from perdure_operator.loop.channels import (
    AT_ONCE,
    FAILED_SECONDS,
    FAILURES,
    GO_ON_SECONDS,
    LOOK_SECONDS,
    PAUSE_SECONDS,
    REFUSED_SECONDS,
    ChannelWriter,
)
from perdure_operator.serving.pacing import BoundedRate
from tests.support.memory_cluster import MemoryCluster
from tests.support.reporting import trains_as
from tests.support.stage import KEY, Stage


class Refusing(MemoryCluster):
    """Refuses changes of these pods. All wait at the gate, if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, Exception] = {}
        self.tried: list[str] = []
        self.gate: asyncio.Event | None = None

    async def patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> Json:
        self.tried.append(name)
        if self.gate is not None:
            await self.gate.wait()
        if name in self.refused:
            raise self.refused[name]
        return await super().patch(resource, namespace, name, operations)


class Scene:
    """A job whose members report over the channel `old`, and what changes that."""

    def __init__(self, members: int = 2, pace: BoundedRate | None = None) -> None:
        self.cluster = Refusing()
        self.stage: Stage = trains_as(members, self.cluster)
        for name in self.names:
            self.has(name, "old")
        self.stage.settle()
        self.channel, self.seconds = "old", 0.0
        self.writer = ChannelWriter(
            self.stage.cache,
            lambda: self.channel,
            pace=pace or BoundedRate(100),
            monotonic=lambda: self.seconds,
        )
        self.cluster.writes.clear()
        self.cluster.tried.clear()

    @property
    def names(self) -> list[str]:
        return self.stage.names()

    def has(self, name: str, channel: str) -> None:
        def change(raw: Json) -> None:
            raw["metadata"]["annotations"][ANNOTATION_REPORT] = channel

        self.cluster.change(PODS, KEY[0], name, change)

    def look(self) -> bool:
        return asyncio.run(self.writer.look(self.stage.actor, self.stage.queue))

    @property
    def told(self) -> list[str]:
        """What the members' annotations say."""
        return [raw["metadata"]["annotations"].get(ANNOTATION_REPORT, "") for raw in self.stage.pods()]


def test_members_get_another_channel_once_and_no_round() -> None:
    scene = Scene()
    scene.look()
    assert scene.cluster.writes == []
    assert scene.writer.all_have("old")
    scene.channel = "new"
    assert not scene.writer.all_have("new")
    scene.look()
    assert scene.told == ["new", "new"]
    assert scene.writer.all_have("new")
    scene.look()
    assert scene.cluster.writes == [f"patch pods {name}" for name in scene.names]
    assert scene.stage.queue._schedule.pop(scene.stage.now.timestamp()) is None


def test_nothing_is_written_while_there_is_no_channel() -> None:
    scene = Scene()
    scene.channel = ""
    scene.look()
    assert scene.cluster.writes == []


@pytest.mark.parametrize("which", ["never reports", "has ended", "is being deleted", "is another's", "is no job's"])
def test_a_pod_that_will_not_report_is_left_alone_and_held_up_by_nobody(which: str) -> None:
    scene = Scene()
    first, second = scene.names

    def change(raw: Json) -> None:
        match which:
            case "never reports":
                del raw["metadata"]["annotations"][ANNOTATION_REPORT]
            case "has ended":
                raw["status"]["phase"] = "Failed"
            case "is being deleted":
                raw["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
            case "is another's":
                raw["metadata"]["ownerReferences"][0]["uid"] = "another"
            case _:
                raw["metadata"]["labels"].pop(LABEL_JOB)

    scene.cluster.change(PODS, KEY[0], second, change)
    scene.channel = "new"
    scene.look()
    assert scene.cluster.writes == [f"patch pods {first}"]
    assert scene.writer.all_have("new")


def test_a_job_that_is_gone_has_no_members() -> None:
    scene = Scene()
    scene.cluster.remove(JOBS, *KEY)
    scene.channel = "new"
    scene.look()
    assert scene.cluster.writes == []


def test_members_are_told_at_a_bounded_rate() -> None:
    seconds = 0.0
    scene = Scene(3, BoundedRate(2, monotonic=lambda: seconds))
    scene.channel = "new"
    assert scene.look()
    assert scene.told == ["new", "new", "old"]
    seconds += 0.5
    assert not scene.look()
    assert scene.told == ["new", "new", "new"]


def test_a_member_whose_change_is_refused_is_tried_again_after_an_hour_and_others_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    first = scene.names[0]
    scene.cluster.refused[first] = Forbidden("no changes of running pods")
    scene.channel = "new"
    scene.look()
    assert scene.told == ["old", "new"]
    assert f"ns/{first}: it keeps the certificates" in caplog.text
    assert not scene.writer.all_have("new")
    scene.cluster.refused.clear()
    scene.seconds = REFUSED_SECONDS - 1
    scene.look()
    assert scene.told == ["old", "new"]
    scene.seconds = REFUSED_SECONDS
    scene.look()
    assert scene.told == ["new", "new"]
    assert scene.writer.put_off == {}


def test_a_pod_of_the_same_name_that_came_later_is_not_changed() -> None:
    scene = Scene()
    (first, _), known = scene.names, scene.stage.cache.pods(KEY)
    scene.cluster.watch = lambda *_: None  # the watch is late
    raw = asyncio.run(scene.cluster.get(PODS, KEY[0], first))
    scene.cluster.remove(PODS, KEY[0], first)
    asyncio.run(scene.cluster.create(PODS, KEY[0], raw))
    assert len(known) == 2
    scene.channel = "new"
    scene.look()
    assert sorted(scene.told) == ["new", "old"]


def test_a_process_that_may_have_lost_its_lease_changes_nothing() -> None:
    scene = Scene()
    scene.stage.leading = False
    scene.channel = "new"
    scene.look()
    assert scene.cluster.writes == []


def test_eight_are_told_at_once_and_another_channel_ends_the_look() -> None:
    scene = Scene(AT_ONCE + 2)

    async def play() -> None:
        scene.cluster.gate = asyncio.Event()
        looking = asyncio.create_task(scene.writer.look(scene.stage.actor, scene.stage.queue))
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(scene.cluster.tried) == AT_ONCE
        scene.channel = "newer"
        scene.cluster.gate.set()
        assert await looking, "there is more to do"

    scene.channel = "new"
    asyncio.run(play())
    assert sorted(scene.told) == ["new"] * AT_ONCE + ["old"] * 2
    scene.cluster.gate = None
    scene.look()
    assert scene.told == ["newer"] * (AT_ONCE + 2)


def test_a_job_that_a_worker_holds_is_left_for_the_next_look() -> None:
    scene = Scene()
    scene.stage.queue.add(KEY)
    assert scene.stage.queue._schedule.pop(scene.stage.now.timestamp()) == KEY
    scene.channel = "new"
    scene.look()
    assert scene.cluster.tried == []
    scene.stage.queue.done(KEY)
    scene.look()
    assert scene.told == ["new", "new"]


@pytest.mark.parametrize("error", [Unavailable("no answer"), RuntimeError("ours")], ids=repr)
def test_a_pod_for_which_there_is_no_answer_is_put_off_for_a_minute_and_the_others_are_told(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(FAILURES + 1)
    silent = scene.names[1:FAILURES]
    for name in silent:
        scene.cluster.refused[name] = error
    scene.channel = "new"
    scene.look()
    assert scene.told == ["new", *["old"] * (FAILURES - 1), "new"]
    assert f"ns/{silent[0]}: it is not told where to report now, tried again in 60 s" in caplog.text
    assert str(error) in caplog.text
    scene.cluster.tried.clear()
    scene.seconds = FAILED_SECONDS - 1
    scene.look()
    assert scene.cluster.tried == []
    scene.cluster.refused.clear()
    scene.seconds = FAILED_SECONDS
    scene.look()
    assert scene.writer.all_have("new")


def test_three_pods_in_a_row_without_an_answer_end_the_look_and_the_next_one_begins_behind_them() -> None:
    scene = Scene(FAILURES + 1)
    *silent, last = scene.names
    for name in silent:
        scene.cluster.refused[name] = Unavailable("no answer")
    scene.channel = "new"
    with pytest.raises(Unavailable):
        scene.look()
    assert scene.cluster.tried == silent
    scene.look()
    assert scene.cluster.tried == [*silent, last]
    assert scene.told == [*["old"] * FAILURES, "new"]


def test_an_annotation_that_is_changed_back_is_written_once_an_hour_and_is_a_line_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As by a second release for the namespace; a webhook does it before the answer."""
    scene = Scene()
    first, second = scene.names
    scene.channel = "new"
    for hour in range(2):
        scene.seconds = hour * REFUSED_SECONDS
        scene.look()
        assert scene.told == ["new", "new"]
        scene.has(first, "another's")
        for _ in range(3):
            scene.look()
        assert scene.told == ["another's", "new"]
        assert len(caplog.messages) == hour + 1
    assert f"ns/{first}: its annotation {ANNOTATION_REPORT} was changed back" in caplog.messages[0]
    assert scene.cluster.tried == [first, second, first]
    assert not scene.writer.all_have("new")
    scene.channel = "newest"
    scene.seconds += REFUSED_SECONDS
    scene.look()
    assert scene.told == ["newest", "newest"]


class Over(Exception):
    """The test has seen enough."""


def pauses(scene: Scene, times: int) -> list[float]:
    """Those after so many looks, and the one before the first."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        scene.seconds += seconds
        if len(slept) > times:
            raise Over

    scene.writer.sleep = sleep
    with pytest.raises(Over):
        asyncio.run(scene.writer.follow(scene.stage.actor, scene.stage.queue))
    return slept


def test_while_there_is_more_than_the_rate_allows_it_looks_each_second() -> None:
    scene = Scene(5)
    scene.writer.pace = BoundedRate(2, monotonic=lambda: scene.seconds)
    scene.channel = "new"
    assert pauses(scene, 2) == [LOOK_SECONDS, GO_ON_SECONDS, GO_ON_SECONDS]
    assert pauses(scene, 2) == [LOOK_SECONDS, LOOK_SECONDS, LOOK_SECONDS]
    assert scene.writer.all_have("new")


@pytest.mark.parametrize(
    ("error", "pause", "words"),
    [
        (Unavailable("no answer", retry_after=30), 30, "tried again in 30 s"),
        (RuntimeError("ours"), PAUSE_SECONDS, "an unexpected error"),
    ],
    ids=repr,
)
def test_an_api_server_that_does_not_answer_is_left_alone_and_so_is_a_bug_of_ours(
    error: Exception, pause: float, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(FAILURES)
    scene.channel = "new"
    scene.cluster.refused = dict.fromkeys(scene.names, error)
    assert pauses(scene, 2) == [LOOK_SECONDS, pause, LOOK_SECONDS]
    assert len(scene.cluster.tried) == FAILURES
    assert words in caplog.text
