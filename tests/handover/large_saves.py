"""Trains a network whose part of a save goes up in pieces: `large_saves.py ROOT`. It prints each step that it has done;
its last word is its result."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from perdure.session.session import Session
from tests.unit.runtime.session.background import BATCH, dataset, digest

EPOCHS = 3
WIDE = 150_000
"""With Adam's averages two pieces of 8 MiB, and a smaller one."""


def main(root: str) -> None:
    torch.set_num_threads(1)
    with Session.from_env(root) as session:
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(6, WIDE), nn.ReLU(), nn.Linear(WIDE, 3))
        wrapped = session.wrap(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        session.register(model=wrapped, optimizer=optimizer)
        for _ in session.epochs(EPOCHS):
            for inputs, labels in session.loader(dataset(), BATCH):
                optimizer.zero_grad()
                session.weighted(cross_entropy(wrapped(inputs), labels)).backward()
                optimizer.step()
                session.step()
                print("step", session.steps_done, flush=True)
    print(digest(net), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
