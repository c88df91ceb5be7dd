"""An old rank and a newcomer, act by act over real connections: what a commit made here would hold goes over."""

from __future__ import annotations

import copy
import json
import random
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from e2e.harness.local_run import free_port
from perdure.checkpoint.checkpointer import Checkpointer
from perdure.checkpoint.codec import decode
from perdure.checkpoint.opening import Opening
from perdure.checkpoint.state import RankState
from perdure.errors import Fenced, StorageError, UserError
from perdure.group.agreement import Agreement
from perdure.group.peers import Alone, Solo
from perdure.live.effects import Effects
from perdure.live.header import Stop
from perdure.live.keys import FORMAT
from perdure.live.membership import make_heartbeat
from perdure.live.protocol.parties import Attempt
from perdure.live.transfer import to_preallocate
from perdure.log.entry import Opened
from perdure.log.members import fetch_members
from perdure.log.reader import Log, slot_of
from perdure.log.verdict import Verdict
from perdure.log.writer import Resume, Writer
from perdure.loop.run import Run
from perdure.loop.telemetry.trace import NoTrace
from perdure.wire import CommitRef, Handover
from perdure.wire.channel import acknowledge_vote
from perdure.wire.settings import Member, Settings
from tests.support.store import MemoryStore
from tests.unit.runtime.checkpoint.world import MANIFEST, UID, position

ATTEMPT = Attempt(1, 2, 1, joins=(0,), leavers=(0,))
STOP = Stop("train", "cadence", True)
GOAL = {"epochs": 7}
EVERY = ("numpy", "python", "torch")


def same_tensors(ones: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    return ones.keys() == others.keys() and all(torch.equal(ones[name], others[name]) for name in ones)


class Process:
    """One of the two, as its script has made it."""

    def __init__(self, settings: Settings, store: MemoryStore, seed: int, width: int) -> None:
        torch.manual_seed(seed)
        self.run = Run(settings)
        self.run.store, self.run.peers = store, Solo() if settings.handover is None else Alone(0, 1)
        self.run.timeout = 120.0
        self.run.agreement, self.run.heartbeat = Agreement(None), make_heartbeat(self.run)
        self.net = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        for name in ("net", "optimizer", "scheduler"):
            self.run.registry.add(name, getattr(self, name))

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.net(torch.rand(8, 4)).sum().backward()
            self.optimizer.step()
            self.scheduler.step()
            self.run.progress.step += 1


class Pair:
    """Run 1, of one rank at step 3, and the process that will take its place."""

    def __init__(self, width: int = 3) -> None:
        self.store = MemoryStore()
        block = Handover(1, 1, (0,), (0,), f"127.0.0.1:{free_port()}", 120, "token")
        self.old = Process(Settings("memory://", uid=UID, run=1, member=Member("leaver", "n1")), self.store, 7, width)
        joins = Settings("memory://", uid=UID, run=2, handover=block, master=("127.0.0.1", 1))
        self.new = Process(replace(joins, member=Member("newcomer", "n2")), self.store, 8, width)
        self.writer = Writer(Log(self.store), uid=UID, run=1)
        assert isinstance(self.writer.try_open(1, wait_over=True), Resume)
        self.new.run.opened_checkpointer = self.pen(self.new.run, None)
        run = self.old.run
        run.opening = Opening(1, 1, GOAL, self.writer)
        run.opened_checkpointer = self.pen(run, self.writer)
        run.user_state["best"] = (1, "x")
        self.old.train(3)
        run.progress.saved = True
        run.schedule.saved_at = time.monotonic() - 100
        run.images.begin()
        self.giver = Effects(run, ATTEMPT, ATTEMPT.of_old(0), block, "127.0.0.1:1")
        self.taker = Effects(self.new.run, ATTEMPT, ATTEMPT.of_new(0), block, "127.0.0.1:1")

    def pen(self, run: Run, writer: Writer | None) -> Checkpointer:
        return Checkpointer(
            self.store, run.peers, writer, run.settings.run or 0, 3, NoTrace(), run.timings, run.state, CommitRef(1, 2)
        )

    def meet(self, *, warm: tuple[str, str] = ("same", "same")) -> None:
        def connects(effects: Effects, warm: str) -> None:
            effects.find_store(lambda: None)
            effects.get_warm(warm)
            effects.connect()
            effects.connect_ranks()

        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(connects, self.giver, warm[0]), pool.submit(connects, self.taker, warm[1])]:
                done.result(120)

    def move(self) -> RankState:
        with ThreadPoolExecutor(2) as pool:
            taken = pool.submit(self.taker.take)
            pool.submit(self.giver.give, STOP).result(120)
            return taken.result(120)

    def let_go(self) -> None:
        for effects in (self.giver, self.taker):
            effects.end()
            effects.let_go()


@pytest.fixture
def pair() -> Iterator[Pair]:
    one = Pair()
    yield one
    one.let_go()


@pytest.fixture
def wide() -> Iterator[Pair]:
    """The same with 14 MiB of parameters, and twice as much that the optimizer keeps."""
    one = Pair(2**19)
    yield one
    one.let_go()


def test_a_newcomer_needs_no_memory_any_more_when_the_old_rank_stands_still_for_it(wide: Pair) -> None:
    registry = wide.old.run.registry
    wide.giver.preallocations = to_preallocate(registry.grown())
    wide.meet()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    found = wide.move()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert same_tensors(found.shared, registry.state(None).shared)
    kept = sum(tensor.nbytes for name, tensor in found.shared.items() if name.startswith("optimizer/"))
    assert kept > 24 * 2**20
    assert faults * resource.getpagesize() < kept / 4


def as_float64(state: dict[str, Any]) -> None:
    state["exp_avg"] = state["exp_avg"].double()


def with_more(state: dict[str, Any]) -> None:
    state["exp_avg_sq"] = torch.cat([state["exp_avg_sq"], state["exp_avg_sq"]])


def turned(state: dict[str, Any]) -> None:
    state["exp_avg"] = state["exp_avg"].t().contiguous().t()


def with_another(state: dict[str, Any]) -> None:
    state["more"] = [torch.randn(2**18), "more"]


def with_less(state: dict[str, Any]) -> None:
    del state["exp_avg"]


@pytest.mark.parametrize("change", [as_float64, with_more, turned, with_another, with_less])
def test_what_an_optimizer_keeps_may_change_after_a_newcomer_has_made_room_for_it(
    wide: Pair, change: Callable[[dict[str, Any]], None]
) -> None:
    registry = wide.old.run.registry
    wide.giver.preallocations = to_preallocate(registry.grown())
    wide.meet()
    change(wide.old.optimizer.state[next(wide.old.net.parameters())])
    found, held = wide.move(), registry.state(None)
    assert same_tensors(found.shared, held.shared)
    assert {name: tensor.dtype for name, tensor in found.shared.items()} == {
        name: tensor.dtype for name, tensor in held.shared.items()
    }
    wide.new.run.registry.load(found)
    assert same_tensors(wide.new.run.registry.state(None).shared, held.shared)


def test_an_old_rank_that_tells_of_no_room_has_its_state_received_all_the_same(wide: Pair) -> None:
    wide.meet()
    assert same_tensors(wide.move().shared, wide.old.run.registry.state(None).shared)


def test_a_newcomer_gets_what_a_commit_made_here_would_hold_and_the_old_rank_keeps_it(pair: Pair) -> None:
    before = copy.deepcopy(pair.old.run.state())
    drawn = random.getstate(), cast("Any", np.random.get_state())[1], torch.get_rng_state()
    pair.meet()
    found = pair.move()
    for state in (found, pair.old.run.state()):
        assert same_tensors(state.shared, before.shared)
        assert same_tensors(state.replicated, before.replicated)
        assert state.objects == before.objects
        assert torch.equal(torch.from_numpy(state.rank["rng"]["torch"]), drawn[2])
        assert state.rank["rng"]["python"] == drawn[0]
        assert np.array_equal(state.rank["rng"]["numpy"][1], drawn[1])
    parameters = dict(pair.new.net.named_parameters())
    assert found.shared["net.0.weight"].data_ptr() == parameters["0.weight"].data_ptr()


def test_it_gets_all_that_an_old_rank_knows_of_the_run(pair: Pair) -> None:
    pair.meet()
    pair.move()
    header = pair.taker.header
    assert header
    assert header == pair.giver.header
    assert (header.source, header.due, header.exhausted) == ("train", "cadence", True)
    assert (header.saved, header.goal, header.commit, header.alike) == (True, GOAL, CommitRef(1, 2), EVERY)
    assert (header.position, header.place) == (pair.old.run.progress.position(), pair.writer.place)
    assert 100 <= header.age < 200
    assert [decode(one)["asked"] for one in header.ranks] == [[]]
    assert pair.old.run.images._ranks == header.ranks, "an image of this place has what is each rank's own"


def test_the_decider_opens_the_newer_run_for_its_rank_0_and_the_older_one_is_out(pair: Pair) -> None:
    pair.meet()
    pair.move()
    with ThreadPoolExecutor(2) as pool:
        for vote in [pool.submit(one.vote) for one in (pair.giver, pair.taker)]:
            vote.result(120)
    assert pair.giver.append_opened() is Verdict.GO
    assert pair.taker.read_log() is Verdict.GO
    word = pair.giver.word()
    assert word == pair.taker.word()
    slot = slot_of(word.seq, word.entry.encode())
    assert slot.entry
    assert isinstance(slot.entry.event, Opened)
    members = slot.entry.event.members
    assert slot.entry.event == Opened(1, None, takes_over=1, step=3, members=members)
    assert members
    assert fetch_members(pair.store, members) == (Member("newcomer", "n2"),)
    pair.taker.install(word)
    writer = pair.new.run.checkpointer.writer
    assert writer
    with pytest.raises(Fenced):
        pair.writer.commit(position(4), MANIFEST, final=False, reason="late")
    assert writer.commit(position(4), MANIFEST, final=False, reason="cadence").seq == word.seq + 1


def test_parties_that_hold_other_things_do_not_connect(pair: Pair) -> None:
    with pytest.raises(UserError, match="other models"):
        pair.meet(warm=("one", "other"))


@pytest.mark.parametrize("published", ["same", [FORMAT - 1, "same"], [FORMAT + 1, "same"]])
def test_a_party_of_another_version_does_not_connect(pair: Pair, published: Any) -> None:
    pair.giver.find_store(lambda: None)
    pair.giver.keys.store.set("warm/0", json.dumps(published))
    pair.taker.find_store(lambda: None)
    with pytest.raises(UserError, match=r"rank 0 .*has other models, optimizers or versions"):
        pair.taker.get_warm("same")


@pytest.mark.parametrize(("old", "marked"), [(True, 2), (False, 0)])
def test_an_abort_marks_the_older_run_alone(pair: Pair, old: bool, marked: int) -> None:
    writer = Writer(Log(pair.store), uid=UID, run=2)
    pair.new.run.opened_checkpointer = pair.pen(pair.new.run, writer)
    (pair.giver if old else pair.taker).abort()
    assert (pair.writer.aborted, writer.aborted) == (marked, 0)


def test_a_store_that_does_not_answer_is_seen(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: Any, **__: Any) -> Any:
        raise StorageError("no route to the store")

    assert pair.giver.store_answers()
    monkeypatch.setattr(pair.store, "list", down)
    assert not pair.giver.store_answers()


def test_a_vote_needs_the_agents_word_for_this_very_attempt(pair: Pair, tmp_path: Path) -> None:
    assert pair.giver.acknowledged()
    offer = tmp_path / "offer"
    pair.old.run.settings = replace(pair.old.run.settings, report_fd=5, offer_file=offer)
    assert not pair.giver.acknowledged()
    acknowledge_vote(offer, 1)
    assert not pair.giver.acknowledged()
    acknowledge_vote(offer, 2)
    assert pair.giver.acknowledged()
