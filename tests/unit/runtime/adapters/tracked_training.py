"""A training whose history goes to a tracker, as a program: `python -m ... ROOT PLACE KILLED`.

KILLED: "N": the process kills itself at the first commit of step N or later, once the tracker has written it; "N
before": right before that; "N asked": it is asked to leave in step N; "": nothing of this.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import perdure
from perdure.adapters.tracking import Tracker
from perdure.adapters.tracking.sink import HistorySink
from perdure.checkpoint.state import NewCommit
from perdure.loop.leaving import Exit
from tests.unit.runtime.live.scripts import take_part
from tests.unit.runtime.session.training import samples

EPOCHS = 3
STEPS = EPOCHS * 5


def sink(place: str) -> HistorySink:
    """A new object for the history at this place: `tensorboard FOLDER`, `mlflow FOLDER` or `wandb FOLDER`."""
    kind, folder = place.split(" ", 1)
    if kind == "tensorboard":
        from perdure.adapters.tracking.tensorboard import TensorBoard

        return TensorBoard(folder)
    if kind == "wandb":
        from perdure.adapters.tracking.wandb import WandB

        os.environ["WANDB_SILENT"] = "true"
        return WandB("perdure", mode="offline", dir=folder)
    from perdure.adapters.tracking.mlflow import MLflow

    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    return MLflow("training", tracking_uri=f"file://{folder}")


def train(
    session: perdure.Session,
    into: HistorySink,
    killed: str = "",
    committed: Callable[[NewCommit], None] = lambda _: None,
    in_step: Callable[[], None] = lambda: None,
) -> None:
    """`committed` is called when the tracker has written what a commit holds, `in_step` in each step."""
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    at, how = (*killed.split(" "), "")[:2]

    def kill(commit: Any) -> None:
        if at and how != "asked" and commit.step >= int(at):
            os.kill(os.getpid(), signal.SIGKILL)

    with session:
        model = session.wrap(net)
        session.register(model=model, optimizer=optimizer)
        if how == "before":
            session.on("committed", kill)
        tracker = Tracker(session, into)
        session.on("committed", kill)
        session.on("committed", committed)
        train = session.loader(samples(), 8)
        for epoch in session.epochs(EPOCHS):
            for inputs, _ in train:
                optimizer.zero_grad()
                loss = session.weighted(model(inputs).square().mean())
                loss.backward()
                optimizer.step()
                if how == "asked" and str(session.steps_done + 1) == at:
                    os.kill(os.getpid(), signal.SIGTERM)
                in_step()
                tracker.log(loss=loss)
                session.step()
                tracker.log(done=session.steps_done)
            tracker.log(epoch=epoch)


def moved(root: str, *, place: str, again: Sequence[tuple[int, str]], wait_at: None = None) -> dict[str, Any]:
    """One process of the training, for a nursery: `again` are its offers of live hand-overs, by step."""
    offers = dict(again)
    session = perdure.Session.from_env(root)
    try:
        train(session, sink(place), in_step=lambda: take_part(session, None, offers))
    except Exit:
        return {"left": session.steps_done}
    return {"rank": session.rank}


if __name__ == "__main__":
    root, place, killed = sys.argv[1:]
    train(perdure.Session.from_env(Path(root)), sink(place), killed)
