"""A script that measures its gradient noise, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import perdure
from perdure.loop.leaving import Exit
from perdure.session.session import Session
from tests.unit.runtime.live.accumulators import sharded
from tests.unit.runtime.live.scripts import BATCH, dataset, network, take_part


def train(
    root: str,
    *,
    epochs: int = 4,
    wait_at: int | None = None,
    again: Sequence[tuple[int, str]] = (),
    measures: bool = True,
    every: int = 1,
    shards: bool = False,
) -> dict[str, Any]:
    """What all ranks have heard, by step, and this rank's own terms of the noise."""
    torch.set_num_threads(1)
    offers = dict(again)
    heard: dict[int, Any] = {}
    with Session.from_env(root, deterministic=True) as session:
        net = network("plain")
        wrapped = sharded(net, session.world) if shards else session.wrap(net)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-2)
        session.register(model=wrapped, optimizer=optimizer)
        meter = session._core.run.measure(BATCH, every).meter if measures else None
        with suppress(Exit):
            for _ in session.epochs(epochs):
                for inputs, labels in session.loader(dataset(), BATCH):
                    if meter:
                        own = meter._own[0].tolist()
                        heard[session.steps_done] = {**meter.write(), "own": own, "run": perdure.progress(session).run}
                    optimizer.zero_grad()
                    session.weighted(cross_entropy(wrapped(inputs), labels)).backward()
                    optimizer.step()
                    take_part(session, wait_at, offers)
                    session.step()
        return {"heard": heard, "rank": session.rank}
