"""How the ranks of a run find each other: one store at rank 0, then the process groups.

Rank 0 listens first; the others try again in short steps, because its port may open any moment. The first key in the
store is the run: whoever reached the store of another run (an old one that still listens) keeps looking. Waiting has
a deadline of its own, and a request to exit ends it. torch's client has none for an answer: whoever listens and says
nothing (a frozen process) is asked by another thread.

Called once by the session, before anything is restored. A world of one has neither store nor groups.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from perdure.errors import PeerLost, UserError
from perdure.group.gloo import GlooPeers, peer_lost
from perdure.group.peers import Peers, Solo
from perdure.group.world import Group, claim, connect_group, install
from perdure.wire.settings import Settings

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")

RUN_KEY: Final = "run"
RETRY_SECONDS: Final = 0.05
WAIT_SECONDS: Final = 1.0
"""How long one wait for a key lasts before a request to exit is looked for."""
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 5.0
"""How long a store may take for an answer, or for saying that there is none, before anybody doubts that it is there."""
OPENING_SECONDS: Final = 300.0
"""What rank 0 may take to open the run beyond the wait for its turn; the others wait for its message."""


@dataclass(frozen=True)
class Groups:
    """The ranks of a run, met."""

    peers: Peers
    agreement: Group | None
    """For the agreement alone; None in a world of one."""
    gradients: Gradients | None = None
    """What is to be torch's WORLD; None in a world of one, or where there is one already."""


@dataclass(frozen=True)
class Gradients:
    """A connected group, and the store that further ones may be made over."""

    group: Group
    store: Store
    timeout: timedelta


class Deadline:
    """Until when, and whether anybody asked to give up before."""

    def __init__(self, seconds: float, give_up: Callable[[], None], named: str = "") -> None:
        """`named` is what sets the seconds, for people."""
        self._seconds = seconds
        self._named = f" ({named})" if named else ""
        self._at = time.monotonic() + seconds
        self._give_up = give_up

    def check(self, awaited: str) -> float:
        """Seconds left; PeerLost when there are none, or whatever `give_up` raises."""
        self._give_up()
        left = self._at - time.monotonic()
        if left <= 0:
            raise PeerLost(f"{awaited}: waited {self._seconds:g} s{self._named}; look at the other ranks' logs")
        return left


def rendezvous(settings: Settings, *, timeout: timedelta, deadline: Deadline) -> Groups:
    """Returns when all ranks are connected, torch's WORLD too. PeerLost if they are not by the deadline."""
    if settings.world > 1 and dist.is_initialized() and not settings.joined:
        raise UserError("another Session of this process has not ended: leave its `with`, or call its close(), first")
    groups = connect_ranks(settings, timeout=timeout, deadline=deadline)
    install_groups(groups, settings)
    return groups


def connect_ranks(settings: Settings, *, timeout: timedelta, deadline: Deadline) -> Groups:
    """The groups of a run, connected, while torch may still use those of another. From any thread."""
    if settings.world == 1:
        return Groups(Solo(), None)
    place = place_of(settings)
    store = open_place(place, timeout, deadline, listen=not settings.master_is_elsewhere)
    _everybody_is_here(store, settings, deadline)

    def group(name: str, seconds: timedelta) -> Group:
        # gloo has a limit of its own; and nobody is asked to give up, for a thread that is left behind would go on.
        limit = Deadline(seconds.total_seconds() + ANSWER_SECONDS, lambda: None)
        make = partial(connect_group, store, name, rank=settings.rank, size=settings.world, timeout=seconds)
        return _answered(make, limit, f"{place} does not answer while the process groups are made")

    with peer_lost("the process groups were made"):
        gradients = None
        if torch.cuda.is_available() and not settings.joined:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl", store=store, rank=settings.rank, world_size=settings.world, timeout=timeout
            )
            claim()
        elif not settings.joined:
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


@dataclass(frozen=True)
class Place:
    """Where processes find each other: a store, and what its first key says of whom it is for."""

    address: tuple[str, int]
    hosts: bool
    """This process has it; the others look for it."""
    named: str
    prefix: str
    awaited: str
    """Who hosts it, for people."""

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def connect(self, *, listen: bool) -> Store:
        """One connection."""
        store = dist.TCPStore(  # type: ignore[attr-defined]
            *self.address, is_master=listen, wait_for_workers=False, timeout=timedelta(seconds=CONNECT_SECONDS)
        )
        return PrefixStore(self.prefix, store)


def open_place(place: Place, timeout: timedelta, deadline: Deadline, *, listen: bool = True) -> Store:
    """Its store, once it is there and named as it should be. PeerLost if it is not by the deadline."""
    store = _listen(place, deadline, listen=listen) if place.hosts else _find(place, deadline)
    store.set_timeout(timeout)
    return store


def place_of(settings: Settings) -> Place:
    """Where the ranks of a run find each other."""
    named = f"{settings.uid}/{settings.run or '-'}/{settings.world}"
    prefix = f"perdure-{settings.attempt}" + (f"-{settings.joined}" if settings.joined else "")
    return Place(settings.master or ("", 0), settings.rank == 0, named, prefix, "rank 0")


def reach(settings: Settings) -> Store:
    """One more connection to the run's store. OSError at once where nobody listens: torch's own client is loud there.

    Whoever looks stays until torch's client has come, as in `_port`.
    """
    return connect_again(place_of(settings))


def connect_again(place: Place) -> Store:
    """The same for any place."""
    with socket.create_connection(place.address, timeout=CONNECT_SECONDS):
        return place.connect(listen=False)


def _listen(place: Place, deadline: Deadline, *, listen: bool) -> Store:
    """The port may still belong to a socket that is about to be closed."""
    while True:
        try:
            store = _answered(lambda: place.connect(listen=listen), deadline, _silent(place))
        except dist.DistNetworkError as error:
            deadline.check(f"{place.awaited} cannot listen at {place}: {error}")
            time.sleep(RETRY_SECONDS)
            continue
        _answered(partial(store.set, RUN_KEY, place.named), deadline, _silent(place))
        return store


def _find(place: Place, deadline: Deadline) -> Store:
    wrong = ""  # once it is known, it is what people are told, wherever the time is up
    while True:
        try:
            with _port(place.address, deadline, wrong or f"{place.awaited} does not listen at {place}"):
                store = _answered(lambda: place.connect(listen=False), deadline, wrong or _silent(place))
            await_keys(store, [RUN_KEY], deadline, wrong or f"{place.awaited} has not named its run")
            found = bytes(_answered(partial(store.get, RUN_KEY), deadline, wrong or _silent(place))).decode()
        except (dist.DistNetworkError, dist.DistStoreError):
            found = ""  # no store, or it stopped listening between two calls
        if found == place.named:
            return store
        if found:
            wrong = f"{place} is the store of run {found!r}, wanted is {place.named!r}"
        time.sleep(RETRY_SECONDS)


def _port(address: tuple[str, int], deadline: Deadline, awaited: str) -> socket.socket:
    """A connection to it, once somebody listens: torch's own client backs off for seconds when nobody does yet.

    Closed at once it could be gone before the store has accepted it, and the thread that serves a store of torch 2.15
    was seen to answer nobody after that, for seconds or for good.
    """
    while True:
        left = deadline.check(awaited)
        try:
            return socket.create_connection(address, timeout=min(left, CONNECT_SECONDS))
        except OSError:
            time.sleep(RETRY_SECONDS)


def _silent(place: Place) -> str:
    return f"{place.awaited} listens at {place} and does not answer"


def _answered(ask: Callable[[], T], deadline: Deadline, awaited: str) -> T:
    """What `ask` gives: a call of torch's that has a limit, as long as whoever is asked lives.

    Another thread makes it, so that this one can give it up. That thread is left behind until the connection ends; if
    that is while the interpreter goes down, torch may abort the process, which has told its ending by then.
    """
    answer: Future[T] = Future()

    def call() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            answer.set_exception(error)

    threading.Thread(target=call, name="perdure-rendezvous", daemon=True).start()
    while True:
        try:
            return answer.result(ANSWER_SECONDS)
        except TimeoutError:
            if answer.done():  # the call's own error, or it came this very moment
                return answer.result()
            deadline.check(awaited)


def _everybody_is_here(store: Store, settings: Settings, deadline: Deadline) -> None:
    """Making the groups has no deadline of its own, so nobody begins before all are there."""
    _answered(partial(store.set, f"here/{settings.rank}", "1"), deadline, _silent(place_of(settings)))
    for rank in range(settings.world):
        await_keys(store, [f"here/{rank}"], deadline, f"rank {rank} of {settings.world} has not come")


def look_for_keys(store: Store, keys: list[str], deadline: Deadline, awaited: str, *, every: float) -> None:
    """The same where they may be long in coming: torch's own wait complains each time."""
    while not store.check(keys):
        time.sleep(min(every, deadline.check(awaited)))


def await_keys(store: Store, keys: list[str], deadline: Deadline, awaited: str) -> None:
    """Returns when all the keys are set."""
    while True:
        patience = timedelta(seconds=min(deadline.check(awaited), WAIT_SECONDS))
        try:
            _answered(partial(store.wait, keys, patience), deadline, f"{awaited}, and the store does not answer")
        except dist.DistStoreError:
            continue
        return
