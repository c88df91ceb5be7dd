"""What each rank has of its own: old ranks gather it, and the ranks of the newer run continue with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from perdure.errors import UserError
from perdure.group.peers import Peers
from perdure.live.header import Header
from perdure.live.own_states import Gathered, OwnStates
from perdure.live.protocol.parties import Attempt
from perdure.loop.position.accumulating import Accumulator
from perdure.loop.run import Run
from perdure.wire.settings import Settings
from tests.support.store import MemoryStore
from tests.unit.runtime.checkpoint.world import UID, on_ranks
from tests.unit.runtime.live.test_effects import EVERY, Process

TO_ONE = Attempt(1, 2, 2, joins=(), leavers=(1,))
IN_PLACE = Attempt(1, 2, 2, joins=(1,), leavers=(1,))


class Seen:
    """The samples that a rank has seen, and whatever else it keeps."""

    def __init__(self, *seen: Any) -> None:
        self.seen = list(seen)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def both(states: list[dict[str, Any]], *_: int) -> dict[str, Any]:
    return {"seen": [sample for state in states for sample in state["seen"]]}


def rank_of_two(rank: int, seen: Any) -> Run:
    """One that has registered `seen` with a merge function, and has added to an accumulator."""
    run = Process(Settings("memory://", uid=UID, run=1, rank=rank, world=2), MemoryStore(), 7, 3).run
    run.registry.add("seen", seen, merge=both)
    counter(run).add(n=10 + rank)
    return run


def counter(run: Run) -> Accumulator:
    return Accumulator("counter", run.progress.sums, lambda held, _: [held])


def test_a_rank_that_stays_alone_gets_the_merged_state_all_sums_and_the_common_generators() -> None:
    objects = [Seen(rank) for rank in range(2)]
    runs = [rank_of_two(rank, objects[rank]) for rank in range(2)]

    def gather(peers: Peers) -> tuple[OwnStates, Gathered]:
        runs[peers.rank].peers = peers
        own_states = OwnStates(runs[peers.rank], TO_ONE, TO_ONE.of_old(peers.rank))
        return own_states, own_states.gather()

    first, _ = on_ranks(2, gather)
    assert not isinstance(first, BaseException), first
    own_states, gathered = first
    assert (gathered.state, gathered.ranks, gathered.alone, gathered.alike) == (None, (), None, EVERY)
    header = cast("Header", SimpleNamespace(parts=gathered.parts, sums=gathered.accumulators))
    own_states.merge(header)
    assert objects[0].seen == [0], "merging changes nothing that trains"
    own_states.install(header)
    assert (objects[0].seen, objects[1].seen) == ([0, 1], [1])
    assert counter(runs[0]).sum() == {"n": 21}
    expected = torch.rand(3)
    own_states.derive_generators()
    assert torch.equal(torch.rand(3), expected)


def test_a_newcomer_in_the_place_of_a_leaver_continues_with_its_sums() -> None:
    runs = [rank_of_two(rank, Seen()) for rank in range(2)]
    header = cast("Header", SimpleNamespace(sums=[run.progress.sums.tell() for run in runs]))
    newcomer = rank_of_two(0, Seen())
    OwnStates(newcomer, IN_PLACE, IN_PLACE.of_new(1)).install(header)
    assert counter(newcomer).sum() == {"n": 11}


class Odd:
    """What one rank alone cannot save."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def state_dict(self) -> dict[str, Any]:
        return {"seen": object() if self._rank else []}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(("joins", "leavers"), [((1,), (1,)), ((2,), ()), ((1,), ()), ((), (1,))])
def test_what_one_rank_cannot_save_raises_on_all_old_ranks_at_the_same_place(
    joins: tuple[int, ...], leavers: tuple[int, ...]
) -> None:
    attempt = Attempt(1, 2, 2, joins, leavers)

    def tell(peers: Peers) -> None:
        settings = Settings("memory://", uid=UID, run=1, rank=peers.rank, world=2)
        run = Process(settings, MemoryStore(), 7, 3).run
        run.peers = peers
        run.registry.add("odd", Odd(peers.rank), merge=lambda states, *_: states[0])
        OwnStates(run, attempt, attempt.of_old(peers.rank)).gather()

    for raised in on_ranks(2, tell):
        assert isinstance(raised, UserError)
        assert "rank 1: odd" in str(raised)
