"""Makes a run's commits: stages the state, commits it, retries, cleans up.

A failed periodic save is reported and training goes on; an exit save is retried until time is up. All ranks decide the
same. Staging happens once, and every attempt to commit has a new nonce. The session owns the checkpointer and chooses
when to save and why.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from awscrt.checksums import crc64nvme

from perdure.checkpoint import boxes, tensors
from perdure.checkpoint import stage as staging
from perdure.checkpoint.codec import encode
from perdure.checkpoint.retention import discard, retire
from perdure.checkpoint.save import commit, stage_together
from perdure.checkpoint.state import NewCommit, RankState, Saved
from perdure.checkpoint.upload import Staged
from perdure.console import Trouble, say
from perdure.errors import PerdureError, StorageError, StorageRefused, UserError, in_words
from perdure.group.collectives import on_all, on_rank0
from perdure.group.peers import Peers
from perdure.log import pins
from perdure.log.position import Position
from perdure.log.writer import Writer
from perdure.store import Store
from perdure.wire import CommitRef
from perdure.wire.settings import NO_MEMBER, Member

AGAIN_SECONDS: Final = 1.0
GOAL_SECONDS: Final = 600.0
"""How long the last commit of a finished job is retried without a deadline."""
TRACE_SECONDS: Final = 10.0
"""How long the last write of the trace is retried."""
_NAMED: Final = 4
"""Differing tensors that a message names."""

SecondsLeft = Callable[[], float | None]
"""Seconds that this rank still has; None without a deadline."""


ChecksumTotal = tuple[int, int, Sequence[tuple[Sequence[int], int]]]
"""One checksum of all that must be equal, one of all that should be, and one for the boxes of each group of ranks that
hold the same ones, with these ranks."""


@dataclass(frozen=True)
class Checksums:
    """Checksums of what one rank holds, by name."""

    shared: Mapping[str, int] = field(default_factory=dict)
    """Checksums of what must be equal on all ranks."""
    other: Mapping[str, int] = field(default_factory=dict)
    """Checksums of what should be equal on all ranks."""
    replicas: Mapping[tuple[int, ...], Mapping[str, int]] = field(default_factory=dict)
    """Checksums of the boxes of sharded tensors that must be equal on several ranks, by these ranks."""


class FlushedTrace(Protocol):
    """A trace, written beside the commits."""

    def flush(self) -> None:
        """Write the collected events. After StorageError they are kept for another try."""
        ...


class SaveTimings(Protocol):
    """Receives the durations of a save's parts."""

    def note(self, seconds: Mapping[str, float]) -> None:
        """Receive seconds by part."""
        ...


@dataclass
class Checkpointer:
    """Makes the commits of one run."""

    store: Store
    peers: Peers
    writer: Writer | None
    """On rank 0."""
    run: int
    keep: int
    trace: FlushedTrace
    timings: SaveTimings
    read: Callable[[], RankState]
    """Returns the current state."""
    commit: CommitRef | None = None
    """The newest commit that this run made or resumed from."""
    pin: str | None = None
    """The pin of the next commit; rank 0's counts."""
    made: NewCommit | None = None
    """The newest commit that this run made, in full."""
    member: Member = NO_MEMBER
    """This rank's pod and node."""
    beside: Callable[[], Any] = lambda: None
    """Returns this rank's facts that are not state (JSON)."""
    compare_beside: Callable[[Sequence[Any]], None] = lambda _: None
    """Receives those of all ranks; raises UserError if they cannot train together."""
    hint: str = ""
    """Extra hint for rank-divergence errors."""
    keep_every: int | None = None
    """Also keep the first commit of every so many steps; None: keep none."""
    limit: int | None = None
    """Periodic saves that may fail in a row; None for no limit."""
    failures: int = 0
    """Periodic saves that failed in a row."""
    trouble: str = ""
    """Why the last of them failed."""
    wasted: float = 0.0
    """Seconds that the last of them took on the slowest rank."""
    _staging: float = 0.0
    """Seconds of the last staging."""
    _save_trouble: Trouble = field(default_factory=Trouble)
    _retire_trouble: Trouble = field(default_factory=Trouble)
    _trace_trouble: Trouble = field(default_factory=Trouble)
    _reported: set[str] = field(default_factory=set)
    """Names already reported to differ between ranks."""
    writing: threading.Lock = field(default_factory=threading.Lock)
    """Held while the writer is used."""

    @staticmethod
    def check_pin(name: object) -> str:
        """The name, checked. UserError for what cannot be a pin's name."""
        return pins.check_pin(name)

    def rehearse(self) -> None:
        """Check everything without writing. Raises UserError for what cannot be saved or loaded again. Collective."""
        _, every = stage_together(self.peers, self._read_together(), lambda _: self.beside())
        self.compare_beside(every)

    def stage(self, state: RankState) -> Staged:
        """Stage this rank's part of a commit without a copy: commit it before training goes on. Collective.

        Raises UserError if the state cannot be saved, or if the ranks have diverged.
        """
        begun = time.monotonic()
        staged, _ = self._staged(state, lambda _: None, sums_of)
        self._staging = time.monotonic() - begun
        self.timings.note({"stage": self._staging})
        return staged

    def stage_now(self) -> Staged:
        """Stage the registered state, and write the trace until now beside it. As `stage`."""
        self._try_to_flush_trace()
        return self.stage(self._read_together())

    def stage_and_tell(self, state: RankState, tell: Callable[[Staged], Any]) -> tuple[Staged, list[Any]]:
        """Like `stage`, without the tensors, and with an extra JSON value of each rank, in one exchange.

        For a hand-over, which compares the large parameters and optimizer state while it sends them.
        """
        return self._staged(state, tell, lambda state: Checksums(other=other_sums(state)), staging.stage_own)

    @boxes.meshes_stay()
    def _staged(
        self,
        state: RankState,
        tell: Callable[[Staged], Any],
        sum_up: Callable[[RankState], Checksums],
        stage: Callable[[RankState, int, int], Staged] = staging.stage,
    ) -> tuple[Staged, list[Any]]:
        sums: list[Checksums] = []

        def report(staged: Staged) -> list[Any]:
            sums.append(sum_up(state) if self.peers.world > 1 else Checksums())
            return [whole_of(sums[0]), self.beside(), tell(staged)]

        staged, every = stage_together(self.peers, state, report, stage)
        compare(self.peers, sums[0], [total for total, _, _ in every], self._reported, self.hint)
        self.compare_beside([beside for _, beside, _ in every])
        return staged, [own for _, _, own in every]

    def commit_staged(self, staged: Staged, position: Position, *, final: bool, reason: str) -> None:
        """Commit the staged state. Collective; after StorageError the call may be repeated."""
        with self.writing:
            saved = commit(
                self.store,
                self.peers,
                self.writer,
                staged,
                position,
                run=self.run,
                final=final,
                reason=reason,
                pin=self.pin,
                member=self.member,
                staging=self._staging,
            )
        self.pin = None
        self.note(saved, position)

    def note(self, saved: Saved, position: Position) -> None:
        """Note a commit of this run."""
        self.failures, self.trouble = 0, ""
        self._save_trouble.over()
        self.commit, self.made = saved.commit, self._described(saved, position)
        self.timings.note(saved.seconds)

    def commit_first(self, staged: Staged, position: Position, reason: str, seconds: float) -> None:
        """Commit the run's first state, with retries for `seconds`; then raises StorageError. Collective."""
        begun, trouble = time.monotonic(), Trouble()
        while True:
            try:
                return self.commit_staged(staged, position, final=False, reason=reason)
            except StorageRefused:
                raise
            except StorageError as error:
                if on_rank0(self.peers, "saves what it begins with again", lambda: time.monotonic() - begun >= seconds):
                    raise
                trouble.say(f"what this run begins with cannot be saved ({reason}), trying again: {error}")
                time.sleep(AGAIN_SECONDS)

    def begin_with(self, position: Position, reason: str, seconds: float) -> None:
        """Like `commit_first`, for the registered state, which a run must save before it trains on it."""
        self.commit_first(self.stage(self._read_together()), position, reason, seconds)

    def _described(self, saved: Saved, position: Position) -> NewCommit:
        members, seconds = zip(*((part.member, part.seconds) for part in saved.by_rank), strict=True)
        slowest = max(range(len(saved.by_rank)), key=lambda rank: saved.by_rank[rank].own_seconds)
        made, step, epoch = saved.commit, position.step, position.epoch
        return NewCommit(made.seq, step, epoch, self.store.uri, self.peers.world, members, seconds, slowest)

    def periodic(self, position: Position, reason: str) -> bool:
        """Save; a failure is logged and returns False. Raises StorageError on all ranks after `limit` failures in a
        row."""
        begun = time.monotonic()
        try:
            self.commit_staged(self.stage_now(), position, final=False, reason=reason)
        except StorageError as error:
            pin, self.pin = self.pin, None
            self.count_failure(position, error, time.monotonic() - begun, pin)
            return False
        self.retire()
        return True

    def count_failure(self, position: Position, error: StorageError, seconds: float, pin: str | None = None) -> None:
        """Count a periodic save, for `pin`, that failed after `seconds`; raises it after `limit` in a row. Collective.

        Ranks exchange the counts, because a joined rank does not know earlier failures.
        """
        counted = self.peers.gather("counts failed saves", (self.failures, seconds))
        self.failures, self.trouble = max(failures for failures, _ in counted) + 1, str(error)
        self.wasted = max(seconds for _, seconds in counted)
        if self.limit is not None and self.failures >= self.limit:
            raise type(error)(
                f"{self.failures} checkpoints in a row have failed, max_save_failures is {self.limit}; the last, of "
                f"step {position.step}: {error}"
            ) from error
        row = "" if self.failures == 1 else f" as the {self.failures - 1} before it"
        failed = f"checkpoint of step {position.step} failed{row}, training goes on"
        if pin:
            say(f"{failed}, so nothing is pinned as {pin!r}: {error}")
        else:
            self._save_trouble.say(f"{failed}: {error}")

    def final(self, position: Position, reason: str, left: SecondsLeft) -> None:
        """Save, with retries until the first rank's time is up; then raises StorageError. Raises StorageRefused at
        once.

        The trace is flushed only once before: with a silent store, each attempt would wait for it.
        """
        staged = self.stage_now()

        def attempt() -> None:
            self.commit_staged(staged, position, final=True, reason=reason)

        self._until_time_is_up(f"step {position.step}", attempt, left)

    def complete(self, goal: Any, position: Position, left: SecondsLeft) -> None:
        """Record in the log that the goal is reached."""

        def append() -> None:
            if self.writer:
                with self.writing:
                    self.writer.complete(goal, position)

        self._until_time_is_up("the goal", lambda: on_rank0(self.peers, "records its goal", append), left)

    def write_trace(self, left: SecondsLeft) -> None:
        """Write the rest of the trace, within this rank's own time and at most TRACE_SECONDS."""
        until = time.monotonic() + min(left() or 0.0, TRACE_SECONDS)
        while not self._try_to_flush_trace() and time.monotonic() + AGAIN_SECONDS < until:
            time.sleep(AGAIN_SECONDS)

    def discard(self) -> None:
        """Delete what failed saves have left, before another one."""
        if self.writer:
            with self.writing:
                discard(self.store, self.writer)

    def retire(self) -> None:
        """Delete commits that newer ones replaced; a failure is logged."""
        if self.writer:
            try:
                with self.writing:
                    retire(self.store, self.writer, self.keep, keep_every=self.keep_every)
            except (StorageError, MemoryError) as error:
                why = in_words(error)
                self._retire_trouble.say(f"old checkpoints could not be removed, trying again at the next: {why}")
            else:
                self._retire_trouble.over()

    def close(self, outcome: str) -> None:
        """Close the run in the log without a commit, if possible. Called from another thread."""
        with self.writing:
            if self.writer:
                try:
                    self.writer.close(outcome)
                except PerdureError as error:
                    say(f"the log could not be closed: {error}")

    @boxes.meshes_stay()
    def _read_together(self) -> RankState:
        """Read the state on all ranks; an error of one is raised on all, so that no rank waits for it."""
        return on_all(self.peers, "begins a save", lambda: (self.read(), None))[0]

    def _until_time_is_up(self, what: str, act: Callable[[], None], left: SecondsLeft) -> None:
        number, trouble = 0, Trouble()
        while True:
            number += 1
            try:
                return act()
            except StorageRefused:
                raise
            except StorageError as error:
                time_left = self._least(left)
                if time_left <= 0:
                    self._say_given_up(what)
                    raise
                trouble.say(
                    f"exit save failed (attempt {number} of {what}): {error}; "
                    f"trying again until {_clock_time(time_left)}"
                )
                time.sleep(min(AGAIN_SECONDS, time_left))

    def _say_given_up(self, what: str) -> None:
        """Log what is lost; the error that ends the run says only why."""
        if self.peers.rank == 0:
            kept = f"step {self.commit.step}, which is saved" if self.commit else "where this one has begun"
            say(f"the deadline passed and {what} is not saved: the next run continues from {kept}")

    def _least(self, left: SecondsLeft) -> float:
        """The least time left of all ranks, each by its own clock. Collective."""
        given = [
            seconds for seconds in self.peers.gather("saves again before it leaves", left()) if seconds is not None
        ]
        return min(given, default=AGAIN_SECONDS)

    def _try_to_flush_trace(self) -> bool:
        try:
            self.trace.flush()
        except StorageError as error:
            self._trace_trouble.say(f"trace could not be written: {error}")
            return False
        self._trace_trouble.over()
        return True


def _clock_time(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%H:%M:%SZ")


def compare(peers: Peers, sums: Checksums, every: Sequence[ChecksumTotal], reported: set[str], hint: str) -> None:
    """Raises UserError if a parameter or an optimizer's state differs between ranks: only one rank saves each.

    Of everything else rank 0's value is saved, and a difference is logged once. `sums` are this rank's checksums by
    name, `every` the total checksums of each rank. Collective if they differ.
    """
    if len({whole for whole, _, _ in every}) > 1:
        rank, name = _first_different(peers.gather("compares parameters", sums.shared))
        raise UserError(
            f"{name} differs between rank 0 and rank {rank}: wrap the model with session.wrap, and take the same "
            f"optimizer steps on every rank{hint}"
        )
    totals: dict[tuple[int, ...], set[int]] = {}
    for ranks, total in (replica for _, _, replicas in every for replica in replicas):
        totals.setdefault(tuple(ranks), set()).add(total)
    if apart := sorted(ranks for ranks, found in totals.items() if len(found) > 1):
        by_rank = peers.gather("compares its shards", sums.replicas.get(apart[0], {}))
        among = apart[0]
        number, name = _first_different([by_rank[rank] for rank in among])
        raise UserError(
            f"{name} differs between rank {among[0]} and rank {among[number]}, which hold the same shard of it: "
            f"average gradients over the mesh's replicas, and take the same optimizer steps on every rank{hint}"
        )
    if len({whole for _, whole, _ in every}) > 1:
        by_rank = peers.gather("compares what else it saves", sums.other)
        rank, _ = _first_different(by_rank)
        names = [name for name in different(by_rank[0], by_rank[rank]) if name not in reported]
        if peers.rank == 0 and names:
            say(
                f"between rank 0 and rank {rank} these differ: {listed(names)}: a resumed run gets rank 0's on every "
                f"rank; if they count on the others, make them equal in each step, by a broadcast from "
                f"rank 0; on GPUs SyncBatchNorm does it for statistics of batches"
            )
        reported.update(names)


def sums_of(state: RankState) -> Checksums:
    """Checksums of the tensors that several ranks hold, and of what else should be equal."""
    shared: dict[str, int] = {}
    replicas: dict[tuple[int, ...], dict[str, int]] = {}
    for name, tensor in state.shared.items():
        if not boxes.is_sharded(tensor):
            shared[name] = tensors.checksum(tensor)
            continue
        holders = boxes.holders(tensor)
        for held in boxes.held(tensor):
            if len(ranks := holders[held.box]) > 1:
                replicas.setdefault(ranks, {})[f"{name} at {list(held.box.offset)}"] = tensors.checksum(held.memory)
    return Checksums(shared, other_sums(state), replicas)


def other_sums(state: RankState) -> dict[str, int]:
    """Checksums by name of what should be equal between ranks."""
    other = {name: tensors.checksum(tensor) for name, tensor in state.replicated.items() if name not in state.loose}
    for name, value in state.objects.items():
        if name in state.loose:
            continue
        other[name] = crc64nvme(json.dumps(encode(value, f"objects[{name!r}]"), sort_keys=True).encode())
    return other


def whole_of(sums: Checksums) -> ChecksumTotal:
    """One total checksum of each."""
    replicas = [(list(ranks), tensors.digest(found)) for ranks, found in sorted(sums.replicas.items())]
    return tensors.digest(sums.shared), tensors.digest(sums.other), replicas


def _first_different(by_rank: Sequence[Mapping[str, int]]) -> tuple[int, str]:
    return next((rank, name) for rank, found in enumerate(by_rank) for name in different(by_rank[0], found))


def different(one: Mapping[str, int], other: Mapping[str, int]) -> list[str]:
    """The names under which two ranks have different checksums."""
    return [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]


def listed(names: Sequence[str]) -> str:
    """The first few of them, for a message."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
