"""What Caffe2 tests its checkpoints with, as a script: ten items, three an epoch, and a total that begins at 100.

`python running_total.py UPLOADS [EPOCH]`: uploads go into a folder, and it may begin from a checkpoint of an epoch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import perdure

ITEMS = 10
PER_EPOCH = 3


class Total(nn.Module):
    """A parameter server's blob, as a module has it."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.tensor(100))


def main(uploads: Path, resume_from: dict[str, int] | None) -> None:
    with perdure.Session.from_env(resume_from=resume_from) as session:
        model = Total()
        session.register(model=model)

        @session.on("init")
        def init() -> None:
            print("init")

        @session.on("epoch")
        def after(epoch: int) -> None:
            print(f"epoch {epoch + 1}: total {model.total}, {len(list(uploads.iterdir()))} uploaded")

        @session.on("collect")
        def collect(tensors: Iterator[tuple[str, Tensor]]) -> None:
            print("collected", {name: tensor.item() for name, tensor in tensors})

        @session.on("exit")
        def upload() -> None:
            print("exit")
            (uploads / str(session.rank)).write_text(str(model.total.item()))

        def all_counted() -> bool:
            return (perdure.progress(session).epoch or 0) * PER_EPOCH + PER_EPOCH >= ITEMS

        for epoch in session.epochs(stop=[all_counted]):
            first = epoch * PER_EPOCH
            for i in session.steps(min(PER_EPOCH, ITEMS - first)):
                mine = first + i if i % session.world == session.rank else 0
                model.total += perdure.all_reduce(session, mine)
                session.step()
        print(f"ended after epoch {perdure.progress(session).finished_epochs} with {model.total}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), {"epoch": int(sys.argv[2])} if sys.argv[2:] else None)
