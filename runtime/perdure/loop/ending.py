"""Waits at the end of a script until all ranks are done. Only then a job is complete.

After the training one rank may work for an hour, for example on an export, while the others have nothing to do. They
wait here, through keys in the run's store, because a collective has a time limit. A rank that fails says so. One that
is killed falls silent, which its heartbeat (perdure.group.heartbeat) shows. Called by the session.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

import torch.distributed as dist

from perdure.errors import PeerLost
from perdure.group.gloo import peer_lost
from perdure.group.heartbeat import heartbeats
from perdure.group.rendezvous import reach
from perdure.loop.run import Run

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LOOK_SECONDS: Final = 0.1
SILENCE_SECONDS: Final = 300.0
"""A rank that stops its other threads for this long is taken for dead."""
FAILED_SECONDS: Final = 5.0
"""How long a failed rank tries to report that. If rank 0's node is gone, this one has to make room for the next run,
and the others notice its silence."""

DONE: Final = "done"
FAILED: Final = "failed"


def wait_for_all(run: Run) -> None:
    """Returns when all ranks are done. PeerLost if one of them fails or falls silent."""
    if run.world == 1:
        return
    try:
        with peer_lost("it was to say that its work is done"):
            _wait_by_keys(run)
    except PeerLost:
        if not _launcher_is_gone(run):
            raise
    run.peers.gather("has seen that all are done", None)  # until then every rank needs the store


def _wait_by_keys(run: Run) -> None:
    store = _store(run)
    store.set(_key(run.rank), DONE)
    heard = RanksHeard(store)
    waiting = set(range(run.world))
    while waiting := {rank for rank in waiting if not _is_done(store, rank)}:
        heard.check(waiting, time.monotonic())
        time.sleep(LOOK_SECONDS)


def _launcher_is_gone(run: Run) -> bool:
    """Whether torchrun, which has the store, was killed. Its ranks live on, but only their collectives work."""
    if not run.settings.master_is_elsewhere:
        return False
    try:
        ask_again(partial(reach, run.settings), SILENCE_SECONDS)
    except (dist.DistError, OSError):
        return True
    return False


def tell_failed(run: Run) -> None:
    """Tells the others not to wait for this rank. If they are gone, does nothing."""
    if run.world > 1 and (run.found or dist.is_initialized()):
        with contextlib.suppress(RuntimeError, PeerLost):
            _store(run, FAILED_SECONDS).set(_key(run.rank), FAILED)


def _is_done(store: Store, rank: int) -> bool:
    if not store.check([_key(rank)]):
        return False
    if bytes(store.get(_key(rank))).decode() == FAILED:
        raise PeerLost(f"rank {rank} has failed in what comes after the training: look at its log")
    return True


def _key(rank: int) -> str:
    return f"end/{rank}"


def _store(run: Run, seconds: float = SILENCE_SECONDS) -> Store:
    """A separate connection. PeerLost if the store refuses connections, or cannot be reached for that long."""
    try:
        store = ask_again(partial(reach, run.settings), seconds)
    except OSError as error:
        raise PeerLost(f"rank 0 is gone: {error}") from error
    store.set_timeout(timedelta(seconds=SILENCE_SECONDS))
    return store


def ask_again(connect: Callable[[], Store], seconds: float) -> Store:
    """Returns what `connect` gives. After a timeout it tries again; after `seconds` it raises the error.

    A name server alone may cause a timeout: see docs/decisions/036.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return connect()
        except (dist.DistError, TimeoutError):
            if time.monotonic() > until:
                raise


class RanksHeard:
    """When each rank that still works was last heard. The caller passes every time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._heard: dict[int, tuple[bytes, float]] = {}

    def check(self, ranks: Iterable[int], now: float) -> None:
        """PeerLost if one of these ranks has sent no new heartbeat for too long, or none since the first call."""
        ranks = list(ranks)
        found = heartbeats(self._store, ranks)
        for rank in ranks:
            beat = found.get(rank, b"")
            before, since = self._heard.get(rank, (b"", now))
            self._heard[rank] = (beat, since if beat == before else now)
            if now - self._heard[rank][1] > SILENCE_SECONDS:
                raise PeerLost(f"no heartbeat of rank {rank} came for {SILENCE_SECONDS:.0f} s after training ended")
