"""Which sockets a trainer takes for those of its process groups."""

from __future__ import annotations

import gc
import os
import select
import socket
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from perdure.agent import residual_resources
from perdure.agent.listeners import GroupListeners, internet_listeners, socket_inode


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> GroupListeners:
    monkeypatch.setattr(dist.ProcessGroupGloo, "__init__", dist.ProcessGroupGloo.__init__)
    listeners = GroupListeners()
    listeners.watch(dist.ProcessGroupGloo)
    return listeners


def group() -> Any:
    return dist.ProcessGroupGloo(HashStore(), 0, 1)


def listening() -> set[int]:
    """The sockets of this process that accept connections, by inode."""
    inodes = {inode for _, inode, _ in internet_listeners(Path("/proc/self/net"))}
    return {int(inode) for fd in Path("/proc/self/fd").iterdir() if (inode := inode_of(fd)) in inodes}


def inode_of(fd: Path) -> str:
    return socket_inode(str(fd.readlink())) if fd.is_symlink() else ""


def test_it_knows_the_one_of_each_group_that_lives(remembered: GroupListeners) -> None:
    before = listening()
    groups = [group(), group()]
    made = listening() - before
    assert len(made) == 2
    assert remembered.still_open() == sorted(made)
    groups.pop()
    gc.collect()
    assert remembered.still_open() == sorted(listening() - before)
    assert len(remembered.still_open()) == 1


def held(groups: Set[int]) -> list[str]:
    """All that this process holds but for the sockets of these groups; a test's output may be a file."""
    return list(residual_resources._held(os.getpid(), 0, residual_resources.PROC, groups))


def test_they_are_not_held_and_a_server_is(remembered: GroupListeners) -> None:
    """As the agent sees the trainer."""
    kept = group()
    assert kept.size() == 1
    sockets = frozenset(remembered.still_open())
    others = listening() - sockets
    assert sockets
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = os.stat(server.fileno()).st_ino  # noqa: PTH116 - a number
        assert f"it listens on port {server.getsockname()[1]}" in held(sockets | others)
        assert not [what for what in held(sockets | others | {mine}) if what.startswith("it listens on port")]


@pytest.mark.parametrize("waits_by", [select.poll, select.epoll])
def test_a_server_that_the_script_opens_meanwhile_is_none(waits_by: Callable[[], Any]) -> None:
    """In another thread."""
    loop = waits_by()

    class Group:
        def __init__(self) -> None:
            self.group = group()
            self.server = socket.create_server(("127.0.0.1", 0))
            loop.register(self.server.fileno())

    listeners, before = GroupListeners(), listening()
    listeners.watch(Group)
    made = Group()
    with made.server:
        server = os.stat(made.server.fileno()).st_ino  # noqa: PTH116 - a number
        assert listeners.still_open() == sorted(listening() - before - {server})
        assert listeners.still_open()
