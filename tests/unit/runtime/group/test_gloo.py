"""Messages and agreement in a real group of one: what does not need a second rank."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from perdure.group.agreement import Agreement, CheckpointCall, Votes
from perdure.group.gloo import FIRST_BYTES, LEAST_BYTES, GlooPeers, NotMet
from perdure.group.peers import RanksApart
from perdure.group.world import connect_group


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    one = dist.group.WORLD
    assert one is not None
    yield one
    dist.destroy_process_group()


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """A script that makes all its tensors on another device."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


def test_messages_do_not_depend_on_the_default_device(group: dist.ProcessGroup, elsewhere: None) -> None:
    peers = GlooPeers(group)
    assert peers.gather("tests", {"a": [1]}) == [{"a": [1]}]
    assert peers.broadcast("tests", "all") == "all"
    assert peers.announce("all") == "all"


def test_agreement_does_not_depend_on_the_default_device(group: dist.ProcessGroup, elsewhere: None) -> None:
    assert Agreement(group).at_once(3, CheckpointCall.STEP, Votes(exhausted=True)) == Votes(exhausted=True)


LONG = "x" * (2 * FIRST_BYTES)


@pytest.mark.parametrize(
    "said", [("a", "b"), (LONG, ""), ("", LONG), (LONG, LONG[:-7])], ids=["short", "0", "1", "long"]
)
def test_messages_of_any_length_arrive_whole(said: tuple[str, str]) -> None:
    def rank(peers: GlooPeers) -> tuple[list[str], str, str]:
        own = said[peers.rank]
        return peers.gather("tests", own), peers.broadcast("tests", own), peers.announce(own)

    assert on_two(rank) == [(list(said), said[0], said[0])] * 2


def on_two(act: Callable[[GlooPeers], Any]) -> list[Any]:
    """What `act` returns, or RanksApart that it raises, on two connected ranks."""
    store = HashStore()

    def rank(number: int) -> Any:
        peers = GlooPeers(connect_group(store, "messages", rank=number, size=2, timeout=timedelta(seconds=60)))
        try:
            return act(peers)
        except RanksApart as apart:
            return apart

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(rank, range(2)))


def evaluates(peers: GlooPeers, value: Any) -> Any:
    return peers.gather("evaluates", value)


def saves(peers: GlooPeers, value: Any) -> Any:
    return peers.broadcast("saves", value)


def ends(peers: GlooPeers, value: Any) -> Any:
    return peers.gather("ends\nan epoch", value)


@pytest.mark.parametrize("value", [True, LONG], ids=["short", "long"])
@pytest.mark.parametrize(
    "calls",
    [(evaluates, ends), (evaluates, saves), (saves, ends)],
    ids=["gather-gather", "gather-broadcast", "broadcast-gather"],
)
def test_ranks_that_meet_in_different_calls_are_both_told_which_and_can_go_on_together(
    calls: tuple[Callable[[GlooPeers, Any], Any], ...], value: Any
) -> None:
    def rank(peers: GlooPeers) -> Any:
        with pytest.raises(RanksApart) as apart:
            calls[peers.rank](peers, value)
        assert evaluates(peers, peers.rank) == [0, 1]
        return str(apart.value)

    words: dict[Any, str] = {evaluates: "evaluates", saves: "saves", ends: "ends an epoch"}
    found = on_two(rank)
    assert found[0] == found[1]
    assert f"come apart: rank 0 {words[calls[0]]}, rank 1 {words[calls[1]]}: make the same calls" in found[0]


def test_words_of_any_length_tell_calls_apart() -> None:
    def rank(peers: GlooPeers) -> Any:
        return peers.gather("é" * LEAST_BYTES + str(peers.rank), True)

    assert [type(one) for one in on_two(rank)] == [RanksApart] * 2
    assert on_two(lambda peers: peers.gather("é" * LEAST_BYTES, LONG)) == [[LONG] * 2] * 2


def test_a_call_that_is_late_for_what_is_over_is_not_made() -> None:
    """Rank 0 is on its way into a call when another thread of it agrees with rank 1 that there is none."""

    def rank(peers: GlooPeers) -> list[Any]:
        over = threading.Event()

        def agrees() -> None:
            peers.gather("agrees", None)
            over.set()

        with ThreadPoolExecutor(1) as thread, peers.only_while(lambda: not over.is_set()):
            moved = peers.gather("moves", peers.rank)
            thread.submit(agrees).result()
            if peers.rank == 0:
                with pytest.raises(NotMet, match="hands its state over"):
                    peers.gather("hands its state over", None)
        return [*moved, *peers.gather("steps", peers.rank)]

    assert on_two(rank) == [[0, 1, 0, 1]] * 2
