"""How the ranks of a run find each other: one store at rank 0, then the process groups.

Rank 0 listens first; the others try again in short steps, because its port may open any moment. The first key in the
store is the run: whoever reached the store of another run (an old one that still listens) keeps looking. Waiting has
a deadline of its own, and a request to exit ends it.

Called once by the session, before anything is restored. A world of one has neither store nor groups.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from perdure.errors import PeerLost, UserError
from perdure.group.gloo import GlooPeers, peer_lost
from perdure.group.peers import Peers, Solo
from perdure.group.world import Group, connect_group, install
from perdure.settings import Settings

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

RUN_KEY: Final = "run"
RETRY_SECONDS: Final = 0.05
WAIT_SECONDS: Final = 1.0
"""How long one wait for a key lasts before a request to exit is looked for."""
CONNECT_SECONDS: Final = 5.0
OPENING_SECONDS: Final = 300.0
"""What rank 0 may take to open the run beyond the wait for its turn; the others wait for its message."""


@dataclass(frozen=True)
class Groups:
    """The ranks of a run, met."""

    peers: Peers
    agreement: Group | None
    """For the agreement alone; None in a world of one."""
    gradients: Gradients | None = None
    """What is to be torch's WORLD; None in a world of one, or where torch has made it itself."""


@dataclass(frozen=True)
class Gradients:
    """A connected group, and the store that further ones may be made over."""

    group: dist.ProcessGroupGloo
    store: Store
    timeout: timedelta


class Deadline:
    """Until when, and whether anybody asked to give up before."""

    def __init__(self, seconds: float, give_up: Callable[[], None]) -> None:
        self._seconds = seconds
        self._at = time.monotonic() + seconds
        self._give_up = give_up

    def check(self, awaited: str) -> float:
        """Seconds left; PeerLost when there are none, or whatever `give_up` raises."""
        self._give_up()
        left = self._at - time.monotonic()
        if left <= 0:
            raise PeerLost(f"{awaited}: waited {self._seconds:g} s; look at the other ranks' logs")
        return left


def rendezvous(settings: Settings, *, timeout: timedelta, deadline: Deadline) -> Groups:
    """Returns when all ranks are connected, torch's WORLD too. PeerLost if they are not by the deadline."""
    if settings.world > 1 and dist.is_initialized():
        raise UserError("torch.distributed is initialised already: remove init_process_group, the Session calls it")
    groups = connect_ranks(settings, timeout=timeout, deadline=deadline)
    install_groups(groups, settings)
    return groups


def connect_ranks(settings: Settings, *, timeout: timedelta, deadline: Deadline) -> Groups:
    """The groups of a run, connected, while torch may still use those of another. From any thread."""
    if settings.world == 1:
        return Groups(Solo(), None)
    store = _store(settings, timeout, deadline)
    _everybody_is_here(store, settings, deadline)

    def group(name: str, seconds: timedelta) -> dist.ProcessGroupGloo:
        return connect_group(store, name, rank=settings.rank, size=settings.world, timeout=seconds)

    with peer_lost("the process groups were made"):
        gradients = None
        if torch.cuda.is_available():
            dist.init_process_group(
                "cpu:gloo,cuda:nccl", store=store, rank=settings.rank, world_size=settings.world, timeout=timeout
            )
        else:
            gradients = Gradients(group("gradients", timeout), store, timeout)
        agreement = group("agreement", timeout)
        messages = group("messages", max(timeout, timedelta(seconds=settings.wait + OPENING_SECONDS)))
    return Groups(GlooPeers(messages), agreement, gradients)


def install_groups(groups: Groups, settings: Settings) -> None:
    """From here on torch's collectives are those of this run. None of another is installed."""
    if groups.gradients:
        with peer_lost("the process groups were installed"):
            made = groups.gradients
            install(made.group, made.store, rank=settings.rank, world=settings.world, timeout=made.timeout)


def _store(settings: Settings, timeout: timedelta, deadline: Deadline) -> Store:
    wanted = f"{settings.uid}/{settings.run or '-'}/{settings.world}"
    store = _listen(settings, wanted, deadline) if settings.rank == 0 else _find(settings, wanted, deadline)
    store.set_timeout(timeout)
    return store


def _listen(settings: Settings, wanted: str, deadline: Deadline) -> Store:
    """The port may still belong to a socket that is about to be closed."""
    while True:
        try:
            store = connect(settings, listen=not settings.master_is_elsewhere)
        except dist.DistNetworkError as error:
            deadline.check(f"rank 0 cannot listen at {_address(settings)}: {error}")
            time.sleep(RETRY_SECONDS)
            continue
        store.set(RUN_KEY, wanted)
        return store


def _find(settings: Settings, wanted: str, deadline: Deadline) -> Store:
    awaited = f"rank 0 does not listen at {_address(settings)}"
    while True:
        _await_port(settings, deadline, awaited)
        try:
            store = connect(settings, listen=False)
            found = _first_key(store, deadline)
        except (dist.DistNetworkError, dist.DistStoreError):
            found = ""  # no store, or it stopped listening between two calls
        if found == wanted:
            return store
        awaited = f"{_address(settings)} is the store of run {found!r}, wanted is {wanted!r}"
        time.sleep(RETRY_SECONDS)


def connect(settings: Settings, *, listen: bool) -> Store:
    host, port = settings.master or ("", 0)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=listen, wait_for_workers=False, timeout=timedelta(seconds=CONNECT_SECONDS)
    )
    return PrefixStore(f"perdure-{settings.attempt}", store)


def _address(settings: Settings) -> str:
    host, port = settings.master or ("", 0)
    return f"{host}:{port}"


def _await_port(settings: Settings, deadline: Deadline, awaited: str) -> None:
    """torch's own client backs off for seconds when nobody listens yet."""
    while True:
        left = deadline.check(awaited)
        try:
            socket.create_connection(settings.master or ("", 0), timeout=min(left, CONNECT_SECONDS)).close()
        except OSError:
            time.sleep(RETRY_SECONDS)
        else:
            return


def _first_key(store: Store, deadline: Deadline) -> str:
    _await_keys(store, [RUN_KEY], deadline, "rank 0 has not named its run")
    return bytes(store.get(RUN_KEY)).decode()


def _everybody_is_here(store: Store, settings: Settings, deadline: Deadline) -> None:
    """Making the groups has no deadline of its own, so nobody begins before all are there."""
    store.set(f"here/{settings.rank}", "1")
    for rank in range(settings.world):
        _await_keys(store, [f"here/{rank}"], deadline, f"rank {rank} of {settings.world} has not come")


def _await_keys(store: Store, keys: list[str], deadline: Deadline, awaited: str) -> None:
    while True:
        left = deadline.check(awaited)
        try:
            store.wait(keys, timedelta(seconds=min(left, WAIT_SECONDS)))
        except dist.DistStoreError:
            continue
        return
