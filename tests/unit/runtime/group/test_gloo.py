"""Messages and agreement in a real group of one: what does not need a second rank."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from perdure.group.agreement import Agreement, CheckpointCall, Votes
from perdure.group.gloo import FIRST_BYTES, GlooPeers
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
    assert peers.gather({"a": [1]}) == [{"a": [1]}]
    assert peers.broadcast("all") == "all"


def test_agreement_does_not_depend_on_the_default_device(group: dist.ProcessGroup, elsewhere: None) -> None:
    assert Agreement(group).at_once(3, CheckpointCall.STEP, Votes(exhausted=True)) == Votes(exhausted=True)


LONG = "x" * (2 * FIRST_BYTES)


@pytest.mark.parametrize(
    "said", [("a", "b"), (LONG, ""), ("", LONG), (LONG, LONG[:-7])], ids=["short", "0", "1", "long"]
)
def test_messages_of_any_length_arrive_whole(said: tuple[str, str]) -> None:
    store = HashStore()

    def rank(number: int) -> tuple[list[str], str]:
        peers = GlooPeers(connect_group(store, "messages", rank=number, size=2, timeout=timedelta(seconds=60)))
        return peers.gather(said[number]), peers.broadcast(said[number])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(rank, range(2))) == [(list(said), said[0])] * 2
