"""All ranks stop at one call: a reduce that is started at one check and read at the next call.

Reading one call later hides the wait behind a training step. Each vector carries a label (step, kind, and a sum over
all calls so far): ranks that call unequally often would otherwise pair different steps and stop at different ones, so
a label that differs is an error on every rank. An exit is read by all ranks at the same call, and they make sure of
that before anybody leaves. In a world of one nothing is sent and nothing lags.

Not every call is a check (perdure.group.pace): what is said at the others is kept until the next.

Called by the session at every `step()` and `poll()`; it knows neither why anybody asks nor what is done about it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final, Protocol, runtime_checkable

import torch
import torch.distributed as dist

from perdure.errors import UserError
from perdure.group.gloo import lost
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


_KINDS: Final = len(CheckpointCall)
_CALLS = {
    CheckpointCall.STEP: "step()",
    CheckpointCall.POLL: "poll()",
    CheckpointCall.SAVE: "save()",
    CheckpointCall.END: "the end of epochs()",
    CheckpointCall.PIN: "save(pin=...)",
}


@dataclass(frozen=True)
class Votes:
    """What at least one rank said, up to the check that was read."""

    exit: bool = False
    """Somebody was asked to save and exit."""
    save: bool = False
    """A periodic checkpoint is due."""
    exhausted: bool = False
    """Somebody has no further sample: a last step is behind it."""
    attempt: int = 0
    """The run that every rank is ready to become, at a hand-over; 0 unless all name the same."""
    asked: int = 0
    """The number of a save that somebody was asked for, higher for each further one. Read once: whoever hears of the
    same one later says it no more."""

    def __or__(self, later: Votes) -> Votes:
        """Both, one after the other: what is ready may not be so any more."""
        ends, saves = self.exit or later.exit, self.save or later.save
        return Votes(ends, saves, self.exhausted or later.exhausted, later.attempt, max(self.asked, later.asked))


NOTHING: Final = Votes()


@runtime_checkable
class Maximum(Protocol):
    """Puts the ranks' vectors together: number by number the greatest."""

    def start(self, vector: Sequence[int]) -> Callable[[], list[int]]:
        """Sends this rank's; what is returned waits for the others' and gives the result."""
        ...


class GlooMaximum:
    """Over a group that nothing else uses.

    Each sends its vector to each: gloo's reduce goes round the ranks twice, in pieces, and takes the CPU twice as long
    among two ranks, and more among more.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._options = dist.AllToAllOptions()
        self._own = self._all = torch.empty(0, dtype=torch.int64, device="cpu")
        self._work: Any = None

    def start(self, vector: Sequence[int]) -> Callable[[], list[int]]:
        """One at a time is under way, so all use one memory: to make it costs as much as to send it."""
        world = self._group.size()
        if self._own.numel() != world * len(vector):
            self._own = torch.empty(world * len(vector), dtype=torch.int64, device="cpu")
            self._all = torch.empty_like(self._own)
        self._own.numpy().reshape(world, -1)[:] = vector
        self._work = self._group.alltoall_base(self._all, self._own, [], [], self._options)
        return self._wait

    def _wait(self) -> list[int]:
        self._work.wait()
        most: list[int] = self._all.numpy().reshape(self._group.size(), -1).max(0).tolist()
        return most


class Agreement:
    """The lagged reduce of one rank; all ranks call it equally often, in the same order."""

    def __init__(
        self,
        group: Group | Maximum | None,
        *,
        interval: float = DEFAULT_CHECK_SECONDS,
        now: Callable[[], float] = time.monotonic,
        unsaid: Votes = NOTHING,
        hint: str = "",
    ) -> None:
        """`group` is used by nothing else; None in a world of one. About one check is made in `interval` seconds.

        `unsaid` is what this rank has still to say, from before the ranks changed. `hint` ends what is said of ranks
        that call unequally often.
        """
        self._hint = hint
        self._maximum = group if group is None or isinstance(group, Maximum) else GlooMaximum(group)
        self._pace = Pace(interval, now)
        self.unsaid = unsaid
        """What this rank has said at calls that were no checks."""
        self._pending: Callable[[], list[int]] | None = None
        self._call = (0, CheckpointCall.STEP)
        self._sum = 0
        self._sent = self._call
        self.attempt = 0
        """The run that all ranks were ready to become when they last checked: the newest word alone counts."""

    def check(self, step: int, kind: CheckpointCall, said: Votes, ready: Callable[[], int] | None = None) -> Votes:
        """Says `said`, and returns what all ranks said at the check before this call, if there is news.

        `ready` gives the attempt, and is asked only where a check is made: the newest word alone counts. Where somebody
        has asked to exit nothing further is sent: every rank reads the same, at the same call.
        """
        if self._maximum is None:
            return self._alone(replace(said, attempt=ready()) if ready else said)
        agreed = self._told(step, kind, said)
        is_check = self._pace.is_check(kind)
        if is_check and not agreed.exit:
            if ready and (attempt := ready()) != self.unsaid.attempt:
                self.unsaid = replace(self.unsaid, attempt=attempt)
            self._send()
        return agreed

    def at_once(self, step: int, kind: CheckpointCall, said: Votes) -> Votes:
        """The same without the lag: what all ranks say at this very call, or have said before."""
        if self._maximum is None:
            return self._alone(said)
        before = self._told(step, kind, said)
        if before.exit:
            return before
        self._send()
        return before | self._read()

    def collect(self) -> Votes:
        """Reads the reduce that is still under way, if any."""
        if self._pending is None:
            return NOTHING
        agreed = self._read()
        if agreed.exit:
            self._send(NOTHING)  # the next thing each rank does is to leave: here, and nowhere else
            self._read()
        return agreed

    def _alone(self, said: Votes) -> Votes:
        self.attempt = said.attempt
        return said

    def _told(self, step: int, kind: CheckpointCall, said: Votes) -> Votes:
        """A call has come: what is agreed, now that this rank is there."""
        self._call = step, kind
        self._sum = (self._sum * _SUM_FACTOR + step * _KINDS + kind) & _SUM_BITS
        if said is not self.unsaid and said != self.unsaid:
            self.unsaid |= said
        return NOTHING if self._pending is None else self.collect()

    def _send(self, said: Votes | None = None) -> None:
        """What has not been said yet, or `said`."""
        if said is None:
            said, self.unsaid = self.unsaid, NOTHING
        label = [*self._call, self._sum]
        flags = [int(said.exit), int(said.save), int(said.exhausted)]
        ready = [said.attempt, -said.attempt]
        vector = [*label, *(-number for number in label), *flags, -self._pace.checked(), *ready, said.asked]
        self._sent = self._call
        if self._maximum is not None:
            try:
                self._pending = self._maximum.start(vector)
            except RuntimeError as error:
                raise lost(f"all ranks were to meet at {self._sent_at}", error) from error

    def _read(self) -> Votes:
        if self._pending is None:
            return NOTHING
        wait, self._pending = self._pending, None
        try:
            vector = wait()
        except RuntimeError as error:
            raise lost(f"all ranks were to meet at {self._sent_at}", error) from error
        self._compare(vector[:3], [-number for number in vector[3:6]])
        self._pace.agree(-vector[9])
        self.attempt = vector[10] if vector[10] == -vector[11] else 0
        (leave, save, exhausted), asked = map(bool, vector[6:9]), vector[12]
        if asked and self.unsaid.asked <= asked:
            self.unsaid = replace(self.unsaid, asked=0)
        if not (leave or save or exhausted or asked or self.attempt):
            return NOTHING
        return Votes(leave, save, exhausted, self.attempt, asked)

    @property
    def _sent_at(self) -> str:
        step, kind = self._sent
        return f"{_CALLS[kind]} of step {step}"

    def _compare(self, most: Sequence[int], least: Sequence[int]) -> None:
        if most == least:
            return
        calls = sorted({_CALLS[CheckpointCall(least[1])], _CALLS[CheckpointCall(most[1])]})
        steps = f"step {most[0]}" if most[0] == least[0] else f"steps {least[0]} to {most[0]}"
        raise UserError(
            f"the ranks check unequally often: this rank was at {self._sent_at}, all of them at {steps}, in "
            f"{' and '.join(calls)}, after different calls: call step(), poll() and save() equally often on every rank"
            f"{self._hint}"
        )
