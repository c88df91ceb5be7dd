"""A script whose batch changes while its ranks change live: of test_adapting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

import perdure
from perdure.loop.leaving import Exit
from perdure.session.session import Session
from tests.unit.runtime.known_measures import know
from tests.unit.runtime.live.scripts import take_part
from tests.unit.runtime.whole_numbers import Weights, losses, optimizer_of, round_gradients, samples

BATCH = 8


def train(
    root: str,
    *,
    decisions: Sequence[Mapping[str, Any]] | None = None,
    most: int = 3,
    epochs: int = 3,
    wait_at: int | None = None,
    again: Sequence[tuple[int, str]] = (),
    noise: float | None = None,
) -> dict[str, Any]:
    """Trains to the end; at step `wait_at` every old rank waits until its part of the hand-over is ready.

    In its first step the run gets to know this `noise`, and that steps take equally long.
    """
    torch.set_num_threads(1)
    offers = dict(again)
    with Session.from_env(root) as session:
        net = Weights()
        model = session.wrap(net)
        optimizer = optimizer_of(net)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
        session.register(model=model, optimizer=optimizer, scheduler=scheduler)
        adapt = perdure.Adapt(up_to=40, per_rank=(1, most), decisions=decisions)
        batches = session.loader(samples(), BATCH, adapt=adapt)
        parts: list[tuple[int, int, int]] = []
        try:
            for _ in session.epochs(epochs):
                for inputs, wanted, _ in batches:
                    with session.micro() as last:
                        session.weighted(losses(model(inputs), wanted).mean()).backward()
                    parts.append((session.steps_done, session.world, len(inputs)))
                    if not last:
                        continue
                    round_gradients(net)
                    optimizer.step()
                    optimizer.zero_grad()
                    if noise is not None and session.steps_done == 0:
                        know(session, noise, BATCH // 4, BATCH // 2)
                    take_part(session, wait_at, offers)
                    session.step()
                    scheduler.step()
        except Exit:
            return {"left": session.steps_done, "parts": parts}
        return {
            "rank": session.rank,
            "steps": session.steps_done,
            "weights": net.fields.tolist(),
            "momentum": optimizer.state_dict()["state"][0]["momentum_buffer"].tolist(),
            "rate": optimizer.param_groups[0]["lr"],
            "progress": perdure.progress(session).samples,
            "parts": parts,
            "decisions": batches.decisions,
        }
