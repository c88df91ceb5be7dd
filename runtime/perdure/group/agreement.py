"""Makes all ranks stop at the same call: a reduce starts at one check and is read at the next call.

Reading one call later hides the wait behind a training step. Each vector has a label (step, kind, and a hash of all
calls so far). Ranks that call unequally often would pair different steps and stop at different ones, so differing
labels are an error on every rank. All ranks read an exit at the same call, and confirm that before any leaves. In a
world of one nothing is sent and nothing lags.

Not every call is a check (perdure.group.pace); votes at other calls wait for the next check.

Called by the session at every `step()` and `poll()`. It knows neither the reasons nor the effects of a vote. Ranks of a
sharded model also meet before their optimizers step (`Agreement.meet`). gloo pairs messages by their order alone, and
ends the process where two have different lengths. So a meeting has the length and the label of a vote.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import IntEnum
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable

import torch
import torch.distributed as dist

from perdure.errors import UserError
from perdure.group.gloo import lost, peer_lost
from perdure.group.pace import Pace
from perdure.group.world import Group
from perdure.wire.settings import DEFAULT_CHECK_SECONDS

_SUM_FACTOR: Final = 1_000_003
_SUM_BITS: Final = (1 << 61) - 1


class CheckpointCall(IntEnum):
    """What a rank was doing when it checked."""

    STEP = 1
    POLL = 2
    SAVE = 3
    END = 4
    PIN = 5
    OPTIMIZER = 6


_BESIDE: Final = 13
"""Where in a vector the other values begin."""
_APART: Final = _BESIDE + 4
"""Where those begin that stay apart by rank."""
_MEETING: Final = "all ranks were to meet before their optimizers step"
_KINDS: Final = len(CheckpointCall)
_CALLS = {
    CheckpointCall.STEP: "step()",
    CheckpointCall.POLL: "poll()",
    CheckpointCall.SAVE: "save()",
    CheckpointCall.END: "the end of epochs()",
    CheckpointCall.PIN: "save(pin=...)",
    CheckpointCall.OPTIMIZER: "an optimizer's step()",
}


@dataclass(frozen=True)
class Votes:
    """What at least one rank voted for, up to the check that was read."""

    exit: bool = False
    """A rank was asked to save and exit."""
    save: bool = False
    """A periodic checkpoint is due."""
    exhausted: bool = False
    """A rank has no further sample after its last step."""
    attempt: int = 0
    """The run that every rank is ready to hand over to; 0 unless all name the same."""
    save_number: int = 0
    """The number of a requested save, higher for each new one. A rank that reads a number does not send it again."""

    def __or__(self, later: Votes) -> Votes:
        """Both votes; of `attempt` the later one counts, because a rank may no longer be ready."""
        ends, saves = self.exit or later.exit, self.save or later.save
        return Votes(
            ends, saves, self.exhausted or later.exhausted, later.attempt, max(self.save_number, later.save_number)
        )


NOTHING: Final = Votes()


@runtime_checkable
class Maximum(Protocol):
    """The element-wise maximum of the ranks' vectors."""

    def start(self, vector: Sequence[int]) -> Callable[[], list[int]]:
        """Send this rank's vector. The returned function waits for the result."""
        ...


class GlooMaximum:
    """The maximum over a group that nothing else uses.

    Each rank sends its vector to all: gloo's reduce goes round the ranks twice, in pieces, and takes twice the CPU time
    with two ranks, and more with more.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._options = dist.AllToAllOptions()
        self._own = self._all = torch.empty(0, dtype=torch.int64, device="cpu")
        self._work: Any = None

    def start(self, vector: Sequence[int]) -> Callable[[], list[int]]:
        """See Maximum. Only one is in flight, so the buffers are reused: allocating costs as much as sending."""
        world = self._group.size()
        if self._own.numel() != world * len(vector):
            self._own = torch.empty(world * len(vector), dtype=torch.int64, device="cpu")
            self._all = torch.empty_like(self._own)
        self._own.numpy().reshape(world, -1)[:] = vector
        self._work = self._group.alltoall_base(self._all, self._own, [], [], self._options)
        return self._wait

    def has_come(self, seconds: float) -> bool:
        """Whether the result is there, or is known never to come, within so many seconds."""
        with suppress(RuntimeError):  # of this wait, or of the exchange itself
            self._work.wait(timedelta(seconds=seconds))
        return bool(self._work.is_completed())

    def _wait(self) -> list[int]:
        self._work.wait()
        most: list[int] = self._by_rank().max(0).tolist()
        return most

    def rows(self, first: int) -> list[list[int]]:
        """Each rank's numbers from `first` on, of the result that was waited for last."""
        found: list[list[int]] = self._by_rank()[:, first:].tolist()
        return found

    def _by_rank(self) -> Any:
        return self._all.numpy().reshape(self._group.size(), -1)


class Meeting:
    """All ranks come to the same place, each at its own time. Nothing is changed before all have."""

    def __init__(self, group: Group, vector: Sequence[int], compare: Callable[[Sequence[int]], None]) -> None:
        """This rank comes. `compare` gets the maximum, and raises if the ranks are at different places. PeerLost if
        another one is gone."""
        self._maximum, self._compare = GlooMaximum(group), compare
        with peer_lost(_MEETING):
            self._read = self._maximum.start(vector)

    def is_over(self, seconds: float) -> bool:
        """Whether all have come, within so many seconds. PeerLost if one is gone; UserError if one comes from another
        step, or votes meanwhile."""
        if not self._maximum.has_come(seconds):
            return False
        with peer_lost(_MEETING):
            most = self._read()
        self._compare(most)
        return True


class Beside(Protocol):
    """Other values that travel with every vote."""

    def words(self) -> Sequence[int]:
        """This rank's four integers."""
        ...

    def heard(self, most: Sequence[int]) -> None:
        """The element-wise maximum over all ranks."""
        ...


class NothingBeside:
    """Sends nothing else."""

    def words(self) -> Sequence[int]:
        """Zeros."""
        return (0, 0, 0, 0)

    def heard(self, most: Sequence[int]) -> None:
        """Does nothing."""


class Apart(Protocol):
    """Values that travel with every vote and stay apart by rank. All ranks send equally many."""

    def words(self) -> Sequence[int]:
        """This rank's."""
        ...

    def heard(self, rows: Sequence[Sequence[int]]) -> None:
        """Each rank's, equal on all ranks."""
        ...


class Agreement:
    """One rank's side of the lagged reduce. All ranks call it equally often, in the same order."""

    def __init__(
        self,
        group: Group | Maximum | None,
        *,
        interval: float = DEFAULT_CHECK_SECONDS,
        now: Callable[[], float] = time.monotonic,
        unsaid: Votes = NOTHING,
        hint: str = "",
        beside: Beside | None = None,
        apart: Apart | None = None,
    ) -> None:
        """Nothing else may use `group`; None in a world of one. About one check is made per `interval` seconds.

        `unsaid` are votes from before a change of ranks. `hint` is an extra hint for errors about unequal calls.
        """
        self._hint = hint
        self._beside = beside or NothingBeside()
        self.apart = apart
        """What else travels with the votes, if anything does. All ranks set it between the same two calls."""
        self._group = None if group is None or isinstance(group, Maximum) else group
        self._maximum: Maximum | None = group if isinstance(group, Maximum) else None
        if self._group is not None:
            self._maximum = GlooMaximum(self._group)
        self._pace = Pace(interval, now)
        self.unsaid = unsaid
        """Votes at calls without a check, not sent yet."""
        self._pending: Callable[[], list[int]] | None = None
        self._call = (0, CheckpointCall.STEP)
        self._sum = 0
        self._sent = self._call
        self.waits = ""
        """What this rank waits for, to follow "rank 0", while it reads the others' votes."""
        self.attempt = 0
        """The run that all ranks were ready to hand over to at the last check."""

    def check(self, step: int, kind: CheckpointCall, said: Votes, ready: Callable[[], int] | None = None) -> Votes:
        """Vote `said`, and return the votes of all ranks at the check before this call, if there are any.

        `ready` returns the attempt, and is called only for a check, because only the newest value counts. After an
        agreed exit nothing is sent: every rank reads it at the same call.
        """
        if self._maximum is None:
            return self._alone(replace(said, attempt=ready()) if ready else said)
        agreed = self._count(step, kind, said)
        is_check = self._pace.is_check(kind)
        if is_check and not agreed.exit:
            if ready and (attempt := ready()) != self.unsaid.attempt:
                self.unsaid = replace(self.unsaid, attempt=attempt)
            self._send()
        return agreed

    def at_once(self, step: int, kind: CheckpointCall, said: Votes) -> Votes:
        """Like `check`, without the lag: the votes of all ranks at this call or before."""
        if self._maximum is None:
            return self._alone(said)
        before = self._count(step, kind, said)
        if before.exit:
            return before
        self._send()
        return before | self._read()

    def meet(self, step: int) -> Meeting:
        """This rank comes to the meeting before its optimizers step. Collective, in the same order as the checks."""
        if self._group is None:
            raise RuntimeError("a single rank has no rank to meet")
        here = step, CheckpointCall.OPTIMIZER
        self._add(*here)
        return Meeting(self._group, self._vector(here), partial(self._compare, _at(here)))

    def collect(self) -> Votes:
        """Read the reduce in flight, if any."""
        if self._pending is None:
            return NOTHING
        agreed = self._read()
        if agreed.exit:
            self._send(NOTHING)  # confirms that every rank leaves at this call
            self._read()
        return agreed

    def _alone(self, said: Votes) -> Votes:
        self.attempt = said.attempt
        self._beside.heard(self._beside.words())
        if self.apart:
            self.apart.heard([self.apart.words()])
        return said

    def _count(self, step: int, kind: CheckpointCall, said: Votes) -> Votes:
        """Count a call and its votes; returns what was agreed before it."""
        self._call = step, kind
        self._add(step, kind)
        if said is not self.unsaid and said != self.unsaid:
            self.unsaid |= said
        return NOTHING if self._pending is None else self.collect()

    def _add(self, step: int, kind: CheckpointCall) -> None:
        self._sum = (self._sum * _SUM_FACTOR + step * _KINDS + kind) & _SUM_BITS

    def _vector(self, call: tuple[int, CheckpointCall], said: Votes = NOTHING, proposal: int = 0) -> list[int]:
        """A label and votes; it has the same length at each call."""
        label = [*call, self._sum]
        flags = [int(said.exit), int(said.save), int(said.exhausted)]
        ready = [said.attempt, -said.attempt]
        others = [*self._beside.words(), *(self.apart.words() if self.apart else ())]
        return [*label, *(-number for number in label), *flags, -proposal, *ready, said.save_number, *others]

    def _send(self, said: Votes | None = None) -> None:
        """Send `said`, or the votes not sent yet."""
        if said is None:
            said, self.unsaid = self.unsaid, NOTHING
        vector = self._vector(self._call, said, self._pace.checked())
        self._sent = self._call
        if self._maximum is not None:
            try:
                self._pending = self._maximum.start(vector)
            except RuntimeError as error:
                raise lost(f"all ranks were to meet at {_at(self._sent)}", error) from error

    def _read(self) -> Votes:
        if self._pending is None:
            return NOTHING
        wait, self._pending = self._pending, None
        step, kind = self._call
        self.waits = f"waits in {_CALLS[kind]} of step {step}"
        try:
            vector = wait()
        except RuntimeError as error:
            raise lost(f"all ranks were to meet at {_at(self._sent)}", error) from error
        self.waits = ""
        self._compare(_at(self._sent), vector)
        self._pace.agree(-vector[9])
        self._beside.heard(vector[_BESIDE:_APART])
        if self.apart and isinstance(self._maximum, GlooMaximum) and len(vector) > _APART:
            self.apart.heard(self._maximum.rows(_APART))
        self.attempt = vector[10] if vector[10] == -vector[11] else 0
        (leave, save, exhausted), save_number = map(bool, vector[6:9]), vector[12]
        if save_number and self.unsaid.save_number <= save_number:
            self.unsaid = replace(self.unsaid, save_number=0)
        if not (leave or save or exhausted or save_number or self.attempt):
            return NOTHING
        return Votes(leave, save, exhausted, self.attempt, save_number)

    def _compare(self, own: str, vector: Sequence[int]) -> None:
        """UserError unless all ranks sent the same label. `own` is where this one was."""
        most, least = vector[:3], [-number for number in vector[3:6]]
        if most == least:
            return
        kinds = {CheckpointCall(least[1]), CheckpointCall(most[1])}
        calls = " and ".join(sorted(_CALLS[kind] for kind in kinds))
        steps = f"step {most[0]}" if most[0] == least[0] else f"steps {least[0]} to {most[0]}"
        hint = ", and step optimizers" if CheckpointCall.OPTIMIZER in kinds else ""
        raise UserError(
            f"the ranks check unequally often: this rank was at {own}, all of them at {steps}, in {calls}, after "
            f"different calls: call step(), poll() and save(){hint} equally often on every rank{self._hint}"
        )


def _at(call: tuple[int, CheckpointCall]) -> str:
    step, kind = call
    return f"{_CALLS[kind]} of step {step}"
