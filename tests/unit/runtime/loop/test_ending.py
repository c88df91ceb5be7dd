"""Ranks that wait for each other at a script's end: over the run's store, which torchrun has if it has started them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store

from e2e.harness.local_run import free_port
from perdure.console import fall_silent
from perdure.errors import PeerLost
from perdure.group.peers import Alone
from perdure.group.rendezvous import place_of
from perdure.loop import ending
from perdure.loop.run import Run
from perdure.wire.settings import Settings


@pytest.fixture(autouse=True)
def _lines_of_nobody() -> Iterator[None]:
    yield
    fall_silent()


def one_of_two(root: Path, *, launcher: bool, host: str = "127.0.0.1") -> Run:
    """Rank 0, whose collectives answer; `launcher` says whether torchrun has the store."""
    place = (host, free_port())
    run = Run(Settings(root.as_uri(), rank=0, world=2, master=place, master_is_elsewhere=launcher))
    run.peers = Alone(0, 2)
    return run


def test_ranks_whose_launcher_was_killed_end_by_their_collectives_alone(tmp_path: Path) -> None:
    ending.wait_for_all(one_of_two(tmp_path, launcher=True))


def test_where_rank_0_has_the_store_one_that_is_gone_is_a_lost_peer(tmp_path: Path) -> None:
    with pytest.raises(PeerLost, match="rank 0 is gone"):
        ending.wait_for_all(one_of_two(tmp_path, launcher=False))


def test_so_is_one_to_which_there_is_no_way_any_more_and_who_has_failed_tells_it_nothing(tmp_path: Path) -> None:
    run = one_of_two(tmp_path, launcher=False, host="255.255.255.255")
    with pytest.raises(PeerLost, match="rank 0 is gone: "):
        ending.wait_for_all(run)
    run.found = object()
    ending.tell_failed(run)


def test_a_rank_that_has_failed_counts_as_lost_while_the_launcher_lives(tmp_path: Path) -> None:
    run = one_of_two(tmp_path, launcher=True)
    store = place_of(run.settings).connect(listen=True)
    store.set("end/1", ending.FAILED)
    with pytest.raises(PeerLost, match="rank 1 has failed"):
        ending.wait_for_all(run)


def test_a_rank_whose_heartbeat_stops_after_the_training_is_lost() -> None:
    store = HashStore()
    silence, late = ending.RanksHeard(store), ending.SILENCE_SECONDS + 1
    store.set("pulse/0", "1 0 ")
    store.set("pulse/1", "1 0 ")
    silence.check([0, 1], 0)
    store.set("pulse/0", "2 0 ")
    silence.check([0, 1], late - 1)
    silence.check([0], late)
    with pytest.raises(PeerLost, match="no heartbeat of rank 1 came for 300 s after training ended"):
        silence.check([0, 1], late)
    store.set("pulse/1", "2 0 ")
    silence.check([0, 1], late)


def test_so_is_one_that_was_never_heard() -> None:
    silence = ending.RanksHeard(HashStore())
    silence.check([1], 0)
    with pytest.raises(PeerLost, match="no heartbeat of rank 1"):
        silence.check([1], ending.SILENCE_SECONDS + 1)


def connecting(*answers: Exception | Store) -> Callable[[], Store]:
    """What gives or raises them, one after the other."""
    left = iter(answers)

    def connect() -> Store:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return connect


def test_a_store_that_does_not_answer_in_time_is_asked_again() -> None:
    store = HashStore()
    late = dist.DistNetworkError("The client socket has timed out"), TimeoutError("timed out")
    assert ending.ask_again(connecting(*late, store), 300) is store


def test_a_store_is_asked_again_for_so_long_and_no_longer() -> None:
    with pytest.raises(dist.DistNetworkError):
        ending.ask_again(connecting(dist.DistNetworkError("late"), HashStore()), -1)


def test_without_a_listener_nothing_is_asked_again() -> None:
    with pytest.raises(ConnectionRefusedError):
        ending.ask_again(connecting(ConnectionRefusedError("refused"), HashStore()), 300)
