"""Ranks that do not find each other: the missing one is named, and waiting ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore

from perdure.errors import PeerLost
from perdure.group import rendezvous as module
from perdure.group.peers import Solo
from perdure.group.rendezvous import Deadline, connect_ranks, reach, rendezvous
from perdure.loop.leaving import Exit
from perdure.wire.settings import Settings
from tests.unit.runtime.group.conftest import Door

TIMEOUT = timedelta(seconds=20)


def nobody_gives_up() -> None:
    pass


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one


def settings(port: int, rank: int, run: int = 7) -> Settings:
    return Settings("file:///nowhere", run=run, rank=rank, world=2, master=("127.0.0.1", port))


def test_a_world_of_one_needs_no_meeting() -> None:
    groups = rendezvous(Settings("file:///nowhere"), timeout=TIMEOUT, deadline=Deadline(0.0, nobody_gives_up))
    assert isinstance(groups.peers, Solo)
    assert not dist.is_initialized()


def test_a_store_that_no_rank_opens_is_named_when_the_time_is_up(taken: socket.socket) -> None:
    port = taken.getsockname()[1]
    taken.close()
    with pytest.raises(PeerLost, match=rf"rank 0 does not listen at 127\.0\.0\.1:{port}: waited 0.2 s"):
        rendezvous(settings(port, rank=1), timeout=TIMEOUT, deadline=Deadline(0.2, nobody_gives_up))


def test_a_rank_that_does_not_come_is_named_when_the_time_is_up() -> None:
    with pytest.raises(PeerLost, match="rank 1 of 2 has not come"):
        rendezvous(settings(0, rank=0), timeout=TIMEOUT, deadline=Deadline(0.2, nobody_gives_up))


def test_torch_complains_once_at_most_however_long_a_rank_is_awaited(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PeerLost, match="rank 1 of 2 has not come"):
        rendezvous(settings(0, rank=0), timeout=TIMEOUT, deadline=Deadline(3.2, nobody_gives_up))
    assert capfd.readouterr().err.count("timed out after") <= 1


def test_a_taken_port_is_tried_until_the_time_is_up(taken: socket.socket) -> None:
    port = taken.getsockname()[1]
    with pytest.raises(PeerLost, match=f"rank 0 cannot listen at 127.0.0.1:{port}"):
        rendezvous(settings(port, rank=0), timeout=TIMEOUT, deadline=Deadline(0.2, nobody_gives_up))


def test_the_store_of_an_older_run_is_not_joined() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    PrefixStore("perdure-0", server).set("run", "local/6/2")
    with pytest.raises(PeerLost, match="store of run 'local/6/2', wanted is 'local/7/2'"):
        rendezvous(settings(server.port, rank=1), timeout=TIMEOUT, deadline=Deadline(3.0, nobody_gives_up))


def test_a_request_to_leave_ends_the_wait(taken: socket.socket) -> None:
    def give_up() -> None:
        raise Exit

    port = taken.getsockname()[1]
    taken.close()
    with pytest.raises(Exit):
        rendezvous(settings(port, rank=1), timeout=TIMEOUT, deadline=Deadline(60, give_up))


def test_a_store_that_lets_everybody_in_and_says_nothing_is_named_when_the_time_is_up(silent: int) -> None:
    said = rf"rank 0 listens at 127\.0\.0\.1:{silent} and does not answer: waited 1\.5 s \(PERDURE_RENDEZVOUS_SECONDS\)"
    deadline = Deadline(1.5, nobody_gives_up, "PERDURE_RENDEZVOUS_SECONDS")
    with pytest.raises(PeerLost, match=said):
        rendezvous(settings(silent, rank=1), timeout=TIMEOUT, deadline=deadline)


def test_a_request_to_leave_ends_the_wait_for_a_store_that_says_nothing(silent: int) -> None:
    asked = iter([False, False])

    def give_up() -> None:
        if next(asked, True):
            raise Exit

    with pytest.raises(Exit):
        rendezvous(settings(silent, rank=1), timeout=TIMEOUT, deadline=Deadline(60, give_up))


def test_a_store_that_falls_silent_while_the_groups_are_made_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo has a limit, and torch's store has none."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = PrefixStore("perdure-0", server)
    store.set("run", "local/7/2")
    store.set("here/0", "1")
    made = threading.Event()
    monkeypatch.setattr(module, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(module, "connect_group", lambda *_, **__: made.wait())
    with pytest.raises(PeerLost, match=r"does not answer while the process groups are made: waited 1\.5 s"):
        connect_ranks(
            settings(server.port, rank=1), timeout=timedelta(seconds=0.5), deadline=Deadline(60, nobody_gives_up)
        )
    made.set()


class LastMoment(Future[int]):
    """Is over its time in the moment in which the answer comes."""

    def result(self, timeout: float | None = None) -> int:
        found = super().result()
        if timeout is not None:
            raise TimeoutError
        return found


def test_an_answer_in_the_last_moment_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Future", LastMoment)
    assert module._answered(lambda: 7, Deadline(60, nobody_gives_up), "nobody answers") == 7


def test_what_the_call_itself_raises_is_raised() -> None:
    def fails() -> int:
        raise TimeoutError("the call's own")

    with pytest.raises(TimeoutError, match="the call's own"):
        module._answered(fails, Deadline(60, nobody_gives_up), "nobody answers")


def test_a_probe_of_a_store_stays_until_torchs_client_has_come(door: Door) -> None:
    """A store whose first client is gone before it was accepted may answer none after it."""

    def give_up() -> None:
        if door.has_let_two_in():
            raise Exit

    with pytest.raises(Exit):
        rendezvous(settings(door.port, rank=1), timeout=TIMEOUT, deadline=Deadline(60, give_up))
    assert door.first_visitor_stayed()


def test_so_does_one_more_connection_to_it(door: Door) -> None:
    with pytest.raises(dist.DistNetworkError):
        reach(settings(door.port, rank=1))
    assert door.first_visitor_stayed()
