"""A trainer that hands over while a save of its run is under way in the background."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import perdure
from perdure.loop.leaving import Exit
from perdure.session.session import Session
from tests.unit.runtime.live.scripts import BATCH, dataset, dies, digest, network, take_part
from tests.unit.runtime.session.background import Uploads

FROZEN_AT = 1
"""Before the first save is begun."""


def train(
    root: str,
    *,
    wait_at: int | None = None,
    again: Sequence[tuple[int, str]] = (),
    die: str = "",
    thaw_at: int = -1,
) -> dict[str, Any]:
    """Trains to the end. In run 1 what uploads stands still, so its first save is under way until the ranks change."""
    torch.set_num_threads(1)
    told: list[tuple[int, int, int]] = []
    offers = dict(again)
    with Session.from_env(root) as session:
        net = network("plain")
        torch.manual_seed(session.rank)
        wrapped = session.wrap(net)
        optimizer = torch.optim.Adam(wrapped.parameters(), lr=1e-2)
        session.register(model=wrapped, optimizer=optimizer)
        session.on("committed", lambda commit: told.append((commit.seq, commit.step, session.steps_done)))
        if die:
            perdure.restore(session)
            dies(die, "restored")
        uploads = Uploads(session)
        begun, under_way = None, dict[int, int | None]()
        try:
            for _ in session.epochs(3):
                for inputs, labels in session.loader(dataset(5), BATCH):
                    begun = session.steps_done if begun is None else begun
                    optimizer.zero_grad()
                    session.weighted(cross_entropy(wrapped(inputs), labels)).backward()
                    optimizer.step()
                    take_part(session, wait_at, offers)
                    if session.steps_done == FROZEN_AT and offers:
                        uploads.freeze()
                    if session.steps_done == thaw_at and offers:
                        uploads.thaw()
                    if uploads.run == 2:
                        uploads.wait_for_end_of_frozen()
                        uploads.settle()
                    session.step()
                    under_way[session.steps_done] = uploads.under_way
        except Exit:
            return {"left": session.steps_done, "told": told}
        return {
            "begun": begun,
            "rank": session.rank,
            "steps": session.steps_done,
            "weights": digest(net.parameters()),
            "buffers": "",
            "optimizer": digest(value["exp_avg"] for value in optimizer.state_dict()["state"].values()),
            "rate": 0.0,
            "random": torch.rand(1).item(),
            "told": told,
            "under_way": under_way,
        }
