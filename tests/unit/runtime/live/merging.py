"""A script whose ranks each remember what they have seen, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import perdure
from perdure.loop.leaving import Exit
from perdure.session.session import Session
from tests.unit.runtime.live.scripts import network, take_part
from tests.unit.runtime.session.scenarios import Seen, dealt, failing

MERGES = {"dealt": dealt, "failing": failing}
SIZE = 48
STOP = 6
"""The step behind which the ranks change."""


class Odd(Seen):
    """For a while its state cannot be saved."""

    odd = False

    def state_dict(self) -> dict[str, Any]:
        return {"odd": object()} if self.odd else super().state_dict()


def train(
    root: str,
    *,
    merge: str = "dealt",
    odd: int | None = None,
    wait_at: int | None = None,
    again: Sequence[tuple[int, str]] = (),
) -> dict[str, Any]:
    """What this process has seen in each run, with what it began that run with; what rank `odd` has seen cannot be
    saved where the ranks change."""
    torch.set_num_threads(1)
    by_run: dict[int, dict[str, Any]] = {}
    offers = dict(again)
    generator = torch.Generator().manual_seed(SIZE)
    numbered = TensorDataset(torch.randn(SIZE, 8, generator=generator), torch.arange(SIZE))
    with Session.from_env(root, deterministic=True) as session:
        net, seen = network("plain"), Odd()
        wrapped = session.wrap(net)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-2)
        session.register(model=wrapped, optimizer=optimizer, seen=seen, merge={"seen": MERGES[merge]})
        batches = session.loader(numbered, 6)
        with suppress(Exit):
            for _ in session.epochs(2):
                for inputs, ids in batches:
                    run = perdure.progress(session).run
                    mine = by_run.setdefault(run, {"rank": session.rank, "began": [*seen.ids]})
                    optimizer.zero_grad()
                    session.weighted(cross_entropy(wrapped(inputs), ids % 3)).backward()
                    optimizer.step()
                    seen.ids += ids.tolist()
                    mine["seen"] = [*seen.ids]
                    seen.odd = session.rank == odd and session.steps_done + 1 == STOP
                    take_part(session, wait_at, offers)
                    session.step()
    return {"runs": by_run}
