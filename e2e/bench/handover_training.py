"""The script of `e2e.bench.handover_restarts`: trains without end, at a pace that leaves the machine to newcomers.

`python -m e2e.bench.handover_training small|large SECONDS`, the seconds being the pause after each step. It saves only
when it has to leave.
"""

from __future__ import annotations

import sys
import time

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import perdure
from e2e.bench.handing import model


def main(kind: str, pace: float) -> None:
    """Trains."""
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(6144, 64, generator=generator), torch.randint(0, 10, (6144,), generator=generator))
    with perdure.Session.from_env() as session:
        net = model(kind)
        wrapped = session.wrap(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-5)
        session.register(model=wrapped, optimizer=optimizer)
        for _ in session.epochs(1_000_000):
            for inputs, labels in session.loader(data, 12):
                optimizer.zero_grad()
                session.weighted(cross_entropy(wrapped(inputs), labels)).backward()
                optimizer.step()
                session.step()
                time.sleep(pace)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
