"""All ranks stop at one step: a reduce that is started at one check and read at the next.

Reading one step later hides the wait behind a training step. Each vector carries a label (step, kind): ranks that
check unequally often would otherwise pair different steps and stop at different ones, so a label that differs is an
error on every rank. In a world of one nothing is sent and nothing lags.

Called by the session at every `step()` and `poll()`; it knows neither why anybody asks nor what is done about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
import torch.distributed as dist

from perdure.errors import UserError
from perdure.group.gloo import peer_lost


class CheckpointCall(IntEnum):
    """What a rank was doing when it checked."""

    STEP = 1
    POLL = 2
    SAVE = 3
    END = 4


_CALLS = {
    CheckpointCall.STEP: "step()",
    CheckpointCall.POLL: "poll()",
    CheckpointCall.SAVE: "save()",
    CheckpointCall.END: "the end of epochs()",
}


@dataclass(frozen=True)
class Votes:
    """What at least one rank said at the check that was read."""

    exit: bool = False
    """Somebody was asked to save and exit."""
    save: bool = False
    """A periodic checkpoint is due."""
    exhausted: bool = False
    """Somebody has no further sample: a last step is behind it."""


class Agreement:
    """The lagged reduce of one rank; all ranks call it equally often, in the same order."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        """`group` is used by nothing else; None in a world of one."""
        self._group = group
        self._pending: tuple[dist.Work, torch.Tensor] | None = None
        self._label = ""

    def check(self, step: int, kind: CheckpointCall, said: Votes) -> Votes:
        """Says `said`, and returns what all ranks said at the check before this one.

        Once somebody has asked to exit nothing further is sent: every rank reads the same.
        """
        if self._group is None:
            return said
        agreed = self.collect()
        if not agreed.exit:
            self._send(step, kind, said)
        return agreed

    def at_once(self, step: int, kind: CheckpointCall, said: Votes) -> Votes:
        """The same without the lag: what all ranks say at this very check, or have said at the one before."""
        before = self.check(step, kind, said)
        now = self.collect()
        return Votes(before.exit or now.exit, before.save or now.save, before.exhausted or now.exhausted)

    def collect(self) -> Votes:
        """Reads the reduce that is still under way, if any."""
        if self._pending is None:
            return Votes()
        work, vector = self._pending
        self._pending = None
        with peer_lost(f"all ranks were to meet at {self._label}"):
            work.wait()
        return self._read([int(n) for n in vector.tolist()])

    def _send(self, step: int, kind: CheckpointCall, said: Votes) -> None:
        self._label = f"{_CALLS[kind]} of step {step}"
        flags = [int(said.exit), int(said.save), int(said.exhausted)]
        vector = torch.tensor([step, -step, kind, -kind, *flags], dtype=torch.int64, device="cpu")
        with peer_lost(f"all ranks were to meet at {self._label}"):
            work = dist.all_reduce(vector, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
        if work is None:
            raise UserError("this process is not a rank of the run's process group: start it with the others")
        self._pending = work, vector

    def _read(self, vector: list[int]) -> Votes:
        step, least_step, kind, least_kind = vector[0], -vector[1], vector[2], -vector[3]
        if step != least_step or kind != least_kind:
            calls = sorted({_CALLS[CheckpointCall(least_kind)], _CALLS[CheckpointCall(kind)]})
            steps = f"step {step}" if step == least_step else f"steps {least_step} to {step}"
            raise UserError(
                f"the ranks check unequally often: this rank was at {self._label}, all of them at {steps}, in "
                f"{' and '.join(calls)}: call step(), poll() and save() equally often on every rank"
            )
        return Votes(*(bool(flag) for flag in vector[4:]))
