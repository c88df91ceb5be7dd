"""When a save fails: a periodic one is reported and training goes on, an exit save is tried again until time is up.

All ranks decide alike. Every attempt is a new one under a new nonce; that a commit is whole is the business of
perdure.checkpoint. Owned by the session, which says when and why.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import torch
from awscrt.checksums import crc64nvme
from torch import Tensor

from perdure.checkpoint.opening import say
from perdure.checkpoint.retention import retire
from perdure.checkpoint.save import save
from perdure.checkpoint.state import Position, State
from perdure.checkpoint.writer import Writer
from perdure.contract import CommitRef
from perdure.errors import PerdureError, StorageError, StorageRefused, UserError
from perdure.group.collectives import on_rank0
from perdure.group.peers import Peers
from perdure.store import Store
from perdure.telemetry.timings import Timings
from perdure.telemetry.trace import Trace

AGAIN_SECONDS: Final = 1.0
GOAL_SECONDS: Final = 600.0
"""How long the last commit of a finished job is tried, when nobody presses."""
TRACE_SECONDS: Final = 10.0
"""How long the end of the trace is tried."""

Left = Callable[[], float | None]
"""Seconds this rank still has, or None if nobody has set it a time."""


@dataclass
class Checkpointer:
    """Makes the commits of one run."""

    store: Store
    peers: Peers
    writer: Writer | None
    """On rank 0."""
    run: int
    keep: int
    trace: Trace
    timings: Timings
    read: Callable[[], State]
    """The state to save, as it is now."""
    commit: CommitRef | None = None
    """The newest commit this run has made or resumed from."""
    _compared: bool = False
    _pen: threading.Lock = field(default_factory=threading.Lock)

    def periodic(self, position: Position, reason: str) -> bool:
        """Saves, or says why not."""
        self._try_to_flush_trace()
        try:
            self._save(position, final=False, reason=reason)
        except StorageError as error:
            say(f"checkpoint of step {position.step} failed, training goes on: {error}")
            return False
        self.retire()
        return True

    def final(self, position: Position, reason: str, left: Left) -> None:
        """Saves, trying again until the first rank's time is up; then StorageError. StorageRefused at once.

        The trace is tried once before: with a store that does not answer, each attempt would first wait for it.
        """
        self._try_to_flush_trace()

        def attempt() -> None:
            self._save(position, final=True, reason=reason)

        self._until_time_is_up(f"step {position.step}", attempt, left)

    def complete(self, goal: Any, position: Position, left: Left) -> None:
        """Records that the goal is reached."""

        def append() -> None:
            if self.writer:
                with self._pen:
                    self.writer.complete(goal, position)

        self._until_time_is_up("the goal", lambda: on_rank0(self.peers, append), left)

    def write_trace(self, left: Left) -> None:
        """What is left of the trace, once the ending is told: this rank's time alone limits it, and not for long."""
        until = time.monotonic() + min(left() or 0.0, TRACE_SECONDS)
        while not self._try_to_flush_trace() and time.monotonic() + AGAIN_SECONDS < until:
            time.sleep(AGAIN_SECONDS)

    def retire(self) -> None:
        """Removes what newer commits have made superfluous, or says why not."""
        if self.writer:
            try:
                with self._pen:
                    retire(self.store, self.writer, self.keep)
            except StorageError as error:
                say(f"old checkpoints could not be removed, trying again at the next: {error}")

    def close(self, outcome: str) -> None:
        """Ends the run's turn without a commit, if that is possible; called from another thread."""
        with self._pen:
            if self.writer:
                try:
                    self.writer.close(outcome)
                except PerdureError as error:
                    say(f"the log could not be closed: {error}")

    def _save(self, position: Position, *, final: bool, reason: str) -> None:
        state = self.read()
        if not self._compared:
            check_equal(self.peers, state)
            self._compared = True
        with self._pen:
            saved = save(self.store, self.peers, self.writer, state, position, run=self.run, final=final, reason=reason)
        self.commit = saved.commit
        self.timings.note(saved.seconds)

    def _until_time_is_up(self, what: str, act: Callable[[], None], left: Left) -> None:
        number = 0
        while True:
            number += 1
            try:
                return act()
            except StorageRefused:
                raise
            except StorageError as error:
                time_left = self._least(left)
                if time_left <= 0:
                    raise
                say(
                    f"exit save failed (attempt {number} of {what}): {error}; "
                    f"trying again until {_clock_time(time_left)}"
                )
                time.sleep(min(AGAIN_SECONDS, time_left))

    def _least(self, left: Left) -> float:
        """Every rank has its own deadline on its own clock; the nearest counts for all."""
        given = [seconds for seconds in self.peers.gather(left()) if seconds is not None]
        return min(given, default=AGAIN_SECONDS)

    def _try_to_flush_trace(self) -> bool:
        try:
            self.trace.flush()
        except StorageError as error:
            say(f"trace could not be written: {error}")
            return False
        return True


def _clock_time(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%H:%M:%SZ")


def check_equal(peers: Peers, state: State) -> None:
    """UserError if a parameter or an optimizer's state differs between ranks: each is saved by one of them only."""
    if peers.world == 1:
        return
    sums = {name: _checksum(tensor) for name, tensor in state.shared.items()}
    whole = crc64nvme("".join(f"{name}{sums[name]}" for name in sorted(sums)).encode())
    if len(set(peers.gather(whole))) == 1:
        return
    by_rank = peers.gather(sums)
    for rank, other in enumerate(by_rank):
        for name in sorted(by_rank[0].keys() | other.keys()):
            if by_rank[0].get(name) != other.get(name):
                raise UserError(
                    f"{name} differs between rank 0 and rank {rank}: wrap the model with session.wrap, and take the "
                    f"same optimizer steps on every rank"
                )


def _checksum(tensor: Tensor) -> int:
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return int(crc64nvme(flat.numpy().data))
