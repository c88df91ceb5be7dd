"""Connections between ranks do not wait long for a link that is there again."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore

from perdure.group.backoff import LONGEST_SECONDS, TCP_RTO_MAX_MS, limit, open_files
from perdure.group.world import connect_group

SECONDS = timedelta(seconds=120)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as one:
        other, _ = door.accept()
        with other:
            yield one, other


@pytest.fixture
def known(pair: tuple[socket.socket, socket.socket]) -> int:
    """This kernel's limit of an untouched socket; before Linux 6.15 it knows none."""
    try:
        return pair[0].getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS)
    except OSError:
        pytest.skip("this kernel has no limit of that kind")


def _limited(files: frozenset[int]) -> set[int]:
    """The limits of those that are connections."""
    found = set[int]()
    for file in files:
        try:
            with socket.socket(fileno=os.dup(file)) as one:
                one.getpeername()
                if one.family in (socket.AF_INET, socket.AF_INET6):
                    found.add(one.getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS))
        except OSError:
            continue
    return found


def test_all_that_a_group_connects_is_limited_and_nothing_else(
    known: int, pair: tuple[socket.socket, socket.socket]
) -> None:
    store, before = HashStore(), open_files()
    with ThreadPoolExecutor(2) as ranks:
        made = [ranks.submit(connect_group, store, "g", rank=rank, size=2, timeout=SECONDS) for rank in range(2)]
        groups = [one.result() for one in made]
    assert _limited(open_files() - before) == {1000 * LONGEST_SECONDS}
    assert pair[0].getsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS) == known != 1000 * LONGEST_SECONDS
    assert len(groups) == 2


def test_what_is_no_socket_or_is_closed_by_now_does_no_harm() -> None:
    one, other = socket.socketpair()
    with one, other, open("/dev/null") as nothing:  # noqa: PTH123
        limit([one.fileno(), nothing.fileno(), 10**6])
        one.sendall(b"x")
        assert other.recv(1) == b"x"
