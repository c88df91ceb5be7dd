"""The script of test_stragglers: a small model by DDP, with more work on rank 1 in each step, in the script itself or
in a worker of its loader. Work is counted in loops, and nothing sleeps. All steps are one window,
which is told in the last one."""

from __future__ import annotations

import argparse
import math
from itertools import repeat

import torch
from torch import nn
from torch.utils.data import Dataset

import perdure
from perdure.loop.telemetry import figures, own_time

STEPS, BATCH = 60, 6
LOOPS = 2_000_000
"""For an own time that is several times that of a step without them."""


def work(loops: int) -> None:
    for _ in repeat(None, loops):
        pass


class Numbers(Dataset[torch.Tensor]):
    def __init__(self, loops: int) -> None:
        self.loops = loops

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, number: int) -> torch.Tensor:
        work(self.loops)
        return torch.full((64,), float(number % 7))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--where", choices=("script", "worker"))
    where = parser.parse_args().where
    vars(own_time).update(WINDOW_SECONDS=math.inf)
    with perdure.Session.from_env() as session:
        more = LOOPS if session.rank == 1 else 0
        model = session.wrap(nn.Linear(64, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        session.register(model=model, optimizer=optimizer)
        data = Numbers(more // (BATCH // session.world) if where == "worker" else 0)
        for _ in session.epochs(1):
            for batch in session.loader(data, batch_size=BATCH, num_workers=1 if where == "worker" else 0):
                work(more if where == "script" else 0)
                loss = session.weighted(model(batch).square().mean())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if session.steps_done == STEPS - 1:
                    vars(own_time).update(WINDOW_SECONDS=0.0)
                    vars(figures).update(SEND_SECONDS=0.0)
                session.step()


if __name__ == "__main__":
    main()
