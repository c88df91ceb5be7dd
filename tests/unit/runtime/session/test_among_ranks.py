"""One of two ranks at its steps and hand-outs, while the other says what the test says, or is gone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from perdure.checkpoint.checkpointer import Checkpointer
from perdure.checkpoint.image_file import Image
from perdure.errors import Corrupt, PeerLost
from perdure.group.agreement import Agreement, Votes
from perdure.group.heartbeat import Heartbeat
from perdure.group.peers import Alone
from perdure.live.header import Stop
from perdure.loop import leaving
from perdure.loop.position.counting import Steps
from perdure.loop.run import Run
from perdure.loop.telemetry.events import Event
from perdure.session import boundary
from perdure.session.boundary import Boundary
from perdure.wire import ExitKind
from perdure.wire.channel import Exiting, Imaged
from perdure.wire.settings import Settings

IMAGE = Path("image")
NEXT = 4
"""The run that takes over."""


class Other:
    """The other rank's side of the reduce: it votes alike, and as the test says; `gone`: nothing any more."""

    def __init__(self) -> None:
        self.says = Votes()
        self.gone = False

    def start(self, vector: Sequence[int]) -> Callable[[], list[int]]:
        label, says = vector[:6], self.says
        flags = [
            int(says.exit),
            int(says.save),
            int(says.exhausted),
            vector[9],
            says.attempt,
            -says.attempt,
            says.save_number,
        ]
        beside = vector[len(label) + len(flags) :]
        every = [max(own, other) for own, other in zip(vector, [*label, *flags, *beside], strict=True)]

        def wait() -> list[int]:
            if self.gone:
                raise RuntimeError("Connection closed by peer")
            return every

        return wait


class Told:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def take(self, event: Event) -> None:
        self.events.append(event)


class Watched(Heartbeat):
    """One that is never started, and knows whether it would listen."""

    pauses = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.pauses += 1
        with super().paused():
            yield
        self.pauses -= 1


class HandsOver:
    """What an attempt comes to: the newer run, or an exit."""

    def __init__(self, run: Run, *, exits: bool = False) -> None:
        self.run, self.exits = run, exits
        self.stops: list[Stop] = []
        self.exit_wanted = False

    def look(self) -> int:
        return NEXT if self.run.settings.run != NEXT else 0

    def hand_over(self, stop: Stop) -> bool:
        assert cast("Watched", self.run.heartbeat).pauses == 1, "who says nothing here is no lost peer"
        self.stops.append(stop)
        if not self.exits:
            self.run.settings = Settings(self.run.settings.root, uid="u", run=NEXT, rank=0, world=2, image_file=IMAGE)
            self.run.agreement = Agreement(Other(), interval=0.0)
        return self.exits

    def leaving(self) -> None:
        pass

    def saved(self) -> None:
        pass


class Left(Exception):
    """The ranks save and leave."""


class Rank:
    """Rank 0 of run 3, before its first step."""

    def __init__(self, root: Path, *, images: bool = True) -> None:
        IMAGE.touch()
        settings = Settings(root.as_uri(), uid="u", run=3, rank=0, world=2, image_file=IMAGE if images else None)
        self.run, self.other, self.told = Run(settings), Other(), Told()
        self.run.peers, self.run.agreement = Alone(0, 2), Agreement(self.other, interval=0.0)
        self.run.heartbeat = Watched(settings, lambda: False, lambda _: None)
        self.run.opened_checkpointer = cast("Checkpointer", SimpleNamespace(commit=None, pin=None))
        self.run.reporter.add(self.told)
        self.net = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.5)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        for name in ("net", "optimizer", "scheduler"):
            self.run.registry.add(name, getattr(self, name))
        self.boundary = Boundary(self.run)
        self.steps = Steps(self.boundary, 9)
        self.run.progress.add(self.steps)
        self.run.progress.begin_epoch()
        self.run.images.begin()
        self.batches = iter(self.steps)
        next(self.batches)

    def step(self) -> None:
        self.net(torch.ones(1, 2)).sum().backward()
        self.optimizer.step()
        self.boundary.step(exhausted=False)
        self.scheduler.step()

    def asks(self) -> None:
        next(self.batches)

    @property
    def left(self) -> Image | None:
        try:
            return Image(IMAGE)
        except Corrupt:
            return None


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaves(_run: Run, _saved: Callable[[], None]) -> None:
        raise Left

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(boundary, "save_and_leave", leaves)


@pytest.fixture
def rank(tmp_path: Path) -> Any:
    one = Rank(tmp_path)
    yield one
    one.run.images.end()


class TestAPeerIsLost:
    def test_it_is_raised_where_the_script_has_done_all_that_belongs_to_its_step(self, rank: Rank) -> None:
        rank.step()
        rank.asks()
        rank.other.gone = True
        rank.step()
        with pytest.raises(PeerLost):
            rank.asks()
        rank.run.images.leave()
        assert rank.left
        assert rank.left.label.stamp.step == 2
        assert rank.run.registry.state(None).objects["scheduler"]["last_epoch"] == 2

    def test_where_no_image_is_kept_it_is_raised_at_once(self, tmp_path: Path) -> None:
        rank = Rank(tmp_path, images=False)
        rank.step()
        rank.other.gone = True
        with pytest.raises(PeerLost):
            rank.step()

    def test_nothing_else_is_agreed_on_before_that(self, rank: Rank) -> None:
        rank.step()
        rank.asks()
        rank.other.gone = True
        rank.step()
        rank.other.gone = False
        rank.boundary.poll()
        for act in (rank.boundary.mark, rank.boundary.end_epoch):
            with pytest.raises(PeerLost):
                act()

    def test_its_image_is_left_before_its_end_is_reported(self, rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
        def exits(status: int) -> None:
            raise Left(status)

        rank.step()
        rank.asks()
        monkeypatch.setattr(os, "_exit", exits)
        with pytest.raises(Left):
            leaving.lose_peers(rank.run, "rank 1 was not heard")
        kinds = [event for event in rank.told.events if isinstance(event, Imaged | Exiting)]
        assert [type(event) for event in kinds] == [Imaged, Exiting]
        assert kinds[0] == Imaged(1, "", rank.run.settings.run or 0)
        assert rank.left


class TestAHandOver:
    def ready(self, rank: Rank, *, exits: bool = False) -> HandsOver:
        handing = HandsOver(rank.run, exits=exits)
        rank.boundary.live_handover = cast("Any", handing)
        rank.other.says = Votes(attempt=NEXT)
        rank.step()
        rank.asks()
        assert not handing.stops
        return handing

    def test_is_where_all_named_it_when_they_last_checked(self, rank: Rank) -> None:
        handing = self.ready(rank)
        rank.step()
        rank.asks()
        assert handing.stops == [Stop("steps", "", False)]
        assert not rank.boundary.leaving

    def test_is_none_where_a_rank_is_not_ready_any_more(self, rank: Rank) -> None:
        handing = self.ready(rank)
        rank.other.says = Votes()
        rank.step()
        rank.asks()
        assert not handing.stops

    def test_is_none_where_an_exit_was_requested_since(self, rank: Rank) -> None:
        handing = self.ready(rank)
        rank.other.says = Votes(exit=True, attempt=NEXT)
        rank.step()
        with pytest.raises(Left):
            rank.asks()
        assert not handing.stops

    def test_takes_along_what_is_due_here(self, rank: Rank) -> None:
        handing = self.ready(rank)
        rank.other.says = Votes(save=True, exhausted=True, attempt=NEXT)
        rank.step()
        rank.run.progress.saved = True
        rank.asks()
        assert handing.stops == [Stop("steps", "cadence", True)]

    def test_that_comes_to_an_exit_ends_in_one(self, rank: Rank) -> None:
        self.ready(rank, exits=True)
        rank.step()
        with pytest.raises(Left):
            rank.asks()

    def test_leaves_images_of_the_newer_run_behind_it(self, rank: Rank) -> None:
        self.ready(rank)
        rank.step()
        rank.asks()
        rank.run.images.leave()
        assert rank.left
        assert (rank.left.label.stamp.run, rank.left.label.stamp.step) == (NEXT, 2)

    def test_whose_end_wants_an_exit_asks_all_for_one(self, rank: Rank) -> None:
        handing = HandsOver(rank.run)
        rank.boundary.live_handover = cast("Any", handing)
        handing.exit_wanted = True
        rank.step()
        rank.asks()
        rank.step()
        with pytest.raises(Left):
            rank.asks()


def test_a_process_that_has_reported_its_end_leaves_no_image(rank: Rank) -> None:
    rank.step()
    rank.asks()
    rank.run.tell(rank.run.ending(ExitKind.PEER_LOST))
    rank.run.images.leave()
    assert rank.left is None


class Joins:
    """A newcomer whose old ranks stand at `steps`, with a checkpoint due there."""

    header = SimpleNamespace(due="script", exhausted=True)

    def __init__(self) -> None:
        self.asked_of: list[str] = []

    def first_batch(self, source: str) -> bool:
        self.asked_of.append(source)
        return len(self.asked_of) > 1


def test_a_newcomer_is_a_rank_from_its_first_batch_on_and_makes_the_checkpoint_that_is_due_there(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[str] = []
    joins = Joins()
    rank.boundary.newcomer = cast("Any", joins)
    monkeypatch.setattr(rank.boundary, "_save_now", lambda reason, **_: saved.append(reason))
    rank.step()
    rank.asks()
    assert (joins.asked_of, saved, rank.boundary.exhausted) == (["steps"], [], False)
    rank.step()
    rank.asks()
    assert (joins.asked_of, saved, rank.boundary.exhausted) == (["steps", "steps"], ["script"], True)
    assert rank.boundary.newcomer is None


def test_only_rank_0_leaves_by_itself_before_the_first_step(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another may be a step behind one that is done."""

    def exits(status: int) -> None:
        raise Left(status)

    monkeypatch.setattr(os, "_exit", exits)
    rank.run.settings = replace(rank.run.settings, rank=1)
    leaving.stop_without_step(rank.run)
    assert not rank.run.reporter.ended
