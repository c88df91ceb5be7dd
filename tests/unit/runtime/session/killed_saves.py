"""A trainer that saves in the background and is killed: `python -m tests.unit.runtime.session.killed_saves ROOT`."""

from __future__ import annotations

import sys
import time

import torch
from torch.nn.functional import cross_entropy

from perdure.session.session import Session
from tests.unit.runtime.session.background import BATCH, dataset, digest, network

STEP_SECONDS = 0.01
"""What a step computes beside its model: saves are under way most of the time."""
EPOCHS = 12


def main(root: str) -> None:
    """Its last line is its training result."""
    torch.set_num_threads(1)
    with Session.from_env(root) as session:
        net = network()
        wrapped = session.wrap(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        session.register(model=wrapped, optimizer=optimizer)
        for _ in session.epochs(EPOCHS):
            for inputs, labels in session.loader(dataset(), BATCH):
                optimizer.zero_grad()
                session.weighted(cross_entropy(wrapped(inputs), labels)).backward()
                optimizer.step()
                time.sleep(STEP_SECONDS)
                session.step()
    print(digest(net), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
