"""Connects the ranks of a run: a store at rank 0, then the process groups.

Rank 0 listens; the others retry in short intervals. The store's first key names the run: a rank that reached the store
of another run, such as an old one that still listens, keeps looking. The wait has its own deadline, and a request to
exit ends it. torch's client has no timeout for an answer, so another thread makes its calls in case the server is
frozen.

Called once by the session, before anything is restored. A world of one has neither store nor groups.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
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
from perdure.group.world import ON_CPUS, WITH_GPUS, Group, connect_group, install
from perdure.wire.settings import Settings

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")

RUN_KEY: Final = "run"
RETRY_SECONDS: Final = 0.05
WAIT_SECONDS: Final = 1.0
"""The longest wait for a key before the next check for a request to exit."""
POLL_SECONDS: Final = 0.1
"""How often the store is asked for a key after that."""
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 5.0
"""How long a store may take to answer before the deadline is checked."""
OPENING_SECONDS: Final = 300.0
"""Time for rank 0 to open the run, beyond the wait for its turn. The other ranks wait for its message."""


@dataclass(frozen=True)
class Groups:
    """The connected ranks of a run."""

    peers: Peers
    agreement: Group | None
    """Only for the agreement; None in a world of one."""
    gradients: Gradients | None = None
    """Becomes torch's WORLD; None in a world of one, or if there is a WORLD already."""
    of_mesh: tuple[Group, ...] = ()
    """This rank's groups in a mesh, in the order in which torch makes them."""


@dataclass(frozen=True)
class Gradients:
    """A connected group, and the store over which further groups can be made."""

    group: Group
    store: Store
    timeout: timedelta
    backend: str
    """torch's word for what WORLD has beside this group."""


class Deadline:
    """The deadline of a wait, and a check for a request to give up earlier."""

    def __init__(self, seconds: float, give_up: Callable[[], None], named: str = "") -> None:
        """`named` is the setting that gives the seconds, for messages."""
        self._seconds = seconds
        self._named = f" ({named})" if named else ""
        self._at = time.monotonic() + seconds
        self._give_up = give_up

    def check(self, awaited: str) -> float:
        """Seconds left. Raises PeerLost if there are none, or what `give_up` raises."""
        self._give_up()
        left = self._at - time.monotonic()
        if left <= 0:
            raise PeerLost(f"{awaited}: waited {self._seconds:g} s{self._named}; look at the other ranks' logs")
        return left


def rendezvous(settings: Settings, *, timeout: timedelta, deadline: Deadline) -> Groups:
    """Connect all ranks, torch's WORLD included. Raises PeerLost at the deadline."""
    if settings.world > 1 and dist.is_initialized() and not settings.joined:
        raise UserError("another Session of this process has not ended: leave its `with`, or call its close(), first")
    groups = connect_ranks(settings, timeout=timeout, deadline=deadline)
    install_groups(groups, settings)
    return groups


def connect_ranks(
    settings: Settings, *, timeout: timedelta, deadline: Deadline, mesh: Sequence[tuple[int, tuple[int, ...]]] = ()
) -> Groups:
    """Connect the groups of a run, while torch may still use those of another. From any thread.

    `mesh`: this rank's groups in a mesh that are not all ranks, each with its dimension and its ranks.
    """
    if settings.world == 1:
        return Groups(Solo(), None)
    place = place_of(settings)
    store = open_place(place, timeout, deadline, listen=not settings.master_is_elsewhere)
    _await_all_ranks(store, settings, deadline)

    everyone = range(settings.world)

    def group(name: str, seconds: timedelta, ranks: Sequence[int] = everyone) -> Group:
        # gloo has its own timeout. No request to give up is checked, because an abandoned thread would go on.
        limit = Deadline(seconds.total_seconds() + ANSWER_SECONDS, lambda: None)
        rank, size = ranks.index(settings.rank), len(ranks)
        make = partial(connect_group, store, name, rank=rank, size=size, timeout=seconds)
        return _answered(make, limit, f"{place} does not answer while the process groups are made")

    with peer_lost("the process groups were made"):
        gradients = None
        if not settings.joined:
            backend = WITH_GPUS if torch.cuda.is_available() else ON_CPUS
            gradients = Gradients(group("gradients", timeout), store, timeout, backend)
        agreement = group("agreement", timeout)
        messages = group("messages", max(timeout, timedelta(seconds=settings.wait + OPENING_SECONDS)))
        of_mesh = tuple(group(f"mesh/{dim}/{ranks[0]}", timeout, ranks) for dim, ranks in mesh)
    return Groups(GlooPeers(messages), agreement, gradients, of_mesh)


def install_groups(groups: Groups, settings: Settings) -> None:
    """Make torch's collectives those of this run; no other groups may be installed."""
    if groups.gradients:
        with peer_lost("the process groups were installed"):
            made = groups.gradients
            place = {"rank": settings.rank, "world": settings.world}
            install(made.group, made.store, **place, timeout=made.timeout, backend=made.backend)


@dataclass(frozen=True)
class StoreAddress:
    """A meeting place of processes: a store, and the name in its first key."""

    address: tuple[str, int]
    hosts: bool
    """Whether this process hosts the store."""
    named: str
    prefix: str
    awaited: str
    """The host, for messages."""

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def connect(self, *, listen: bool) -> Store:
        """Open one connection."""
        store = dist.TCPStore(  # type: ignore[attr-defined]
            *self.address, is_master=listen, wait_for_workers=False, timeout=timedelta(seconds=CONNECT_SECONDS)
        )
        return PrefixStore(self.prefix, store)


def open_place(place: StoreAddress, timeout: timedelta, deadline: Deadline, *, listen: bool = True) -> Store:
    """Wait for the store with the right name, and connect. Raises PeerLost at the deadline."""
    store = _listen(place, deadline, listen=listen) if place.hosts else _find(place, deadline)
    store.set_timeout(timeout)
    return store


def place_of(settings: Settings) -> StoreAddress:
    """The meeting place of a run's ranks.

    Ranks that connect while a run trains have another one than those that meet in place, at the same address: the
    first may still listen after an attempt that came to nothing.
    """
    named = f"{settings.uid}/{settings.run or '-'}/{settings.world}"
    named += f" over {settings.takes_over}" if settings.takes_over else ""
    prefix = f"perdure-{settings.attempt}" + (f"-{settings.joined}" if settings.joined else "")
    return StoreAddress(settings.master or ("", 0), settings.rank == 0, named, prefix, "rank 0")


def reach(settings: Settings) -> Store:
    """Open another connection to the run's store. Raises OSError at once if nothing listens, where torch's client logs
    noise.

    The probing connection stays open until torch's client has connected, as in `_port`.
    """
    return connect_again(place_of(settings))


def connect_again(place: StoreAddress) -> Store:
    """Open another connection to the store at this place. As `reach`."""
    with socket.create_connection(place.address, timeout=CONNECT_SECONDS):
        return place.connect(listen=False)


def _listen(place: StoreAddress, deadline: Deadline, *, listen: bool) -> Store:
    """Host the store, with retries: the port may still belong to a closing socket."""
    while True:
        try:
            store = _answered(lambda: place.connect(listen=listen), deadline, _silent(place))
        except dist.DistNetworkError as error:
            deadline.check(f"{place.awaited} cannot listen at {place}: {error}")
            time.sleep(RETRY_SECONDS)
            continue
        _answered(partial(store.set, RUN_KEY, place.named), deadline, _silent(place))
        return store


def _find(place: StoreAddress, deadline: Deadline) -> Store:
    wrong = ""  # once known, the best message for any timeout
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
    """Connect as soon as the port listens; torch's own client would back off for seconds.

    Keep the connection until torch's client has connected: closed earlier, it may be gone before the store accepts it,
    and the server thread of torch 2.15 was then seen to answer no client, for seconds or forever.
    """
    while True:
        left = deadline.check(awaited)
        try:
            return socket.create_connection(address, timeout=min(left, CONNECT_SECONDS))
        except OSError:
            time.sleep(RETRY_SECONDS)


def _silent(place: StoreAddress) -> str:
    return f"{place.awaited} listens at {place} and does not answer"


def _answered(ask: Callable[[], T], deadline: Deadline, awaited: str) -> T:
    """The result of `ask`, a torch call whose own timeout only works while the server lives.

    Another thread makes the call, so that this one can give up. That thread stays until the connection ends. If that
    happens during the interpreter's shutdown, torch may abort the process, which has reported its ending by then.
    """
    answer: Future[T] = Future()

    def call() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised by `answer.result`
            answer.set_exception(error)

    threading.Thread(target=call, name="perdure-rendezvous", daemon=True).start()
    while True:
        try:
            return answer.result(ANSWER_SECONDS)
        except TimeoutError:
            if answer.done():  # the call's own TimeoutError, or it just finished
                return answer.result()
            deadline.check(awaited)


def _await_all_ranks(store: Store, settings: Settings, deadline: Deadline) -> None:
    """Wait for all ranks, because making the groups cannot be given up."""
    _answered(partial(store.set, f"here/{settings.rank}", "1"), deadline, _silent(place_of(settings)))
    for rank in range(settings.world):
        missing = f"rank {rank} of {settings.world} has not come"
        await_keys(store, [f"here/{rank}"], deadline, missing)


def look_for_keys(store: Store, keys: list[str], deadline: Deadline, awaited: str, *, every: float) -> None:
    """Wait for keys that may take long, by polling: torch's own wait logs a complaint each time."""
    while not store.check(keys):
        time.sleep(min(every, deadline.check(awaited)))


def await_keys(store: Store, keys: list[str], deadline: Deadline, awaited: str) -> None:
    """Wait until all keys are set.

    torch's own wait returns as soon as they are, and logs a complaint if it gives up. So it is called once, and a
    longer wait polls.
    """
    silent = f"{awaited}, and the store does not answer"
    patience = timedelta(seconds=min(deadline.check(awaited), WAIT_SECONDS))
    try:
        _answered(partial(store.wait, keys, patience), deadline, silent)
    except dist.DistStoreError:
        while not _answered(partial(store.check, keys), deadline, silent):
            time.sleep(min(POLL_SECONDS, deadline.check(awaited)))
