"""A job of declared step times and of declared gradient noise, for e2e.bench.pooled.

`python pooled_trainer.py PHI PART_SECONDS SAMPLE_SECONDS adapts|fixed`: each part of a batch takes PART_SECONDS and
SAMPLE_SECONDS for each of its samples, as on busy accelerators. The loss is linear in the weights, and samples differ
by their sign alone, so the noise scale of its gradient is PHI samples wherever the training stands: with a mean sign of
m, the variance over the square of the mean is (1 - m^2) / m^2.
"""

import math
import sys
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import perdure

SAMPLES = 640
INITIAL, MOST = 32, 256
EPOCHS = 1_000_000


def samples(noise: float) -> TensorDataset:
    """Signs whose mean is 1 / sqrt(noise + 1)."""
    positive = round(SAMPLES * (1 + 1 / math.sqrt(noise + 1)) / 2)
    signs = torch.ones(SAMPLES)
    signs[positive:] = -1
    return TensorDataset(signs)


def main() -> None:
    noise, part_seconds, sample_seconds = map(float, sys.argv[1:4])
    adapt = perdure.Adapt(up_to=MOST, per_rank=(1, MOST), rule="sqrt") if sys.argv[4] == "adapts" else None
    torch.manual_seed(0)
    with perdure.Session.from_env() as session:
        net = nn.Linear(256, 1, bias=False)
        model = session.wrap(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        session.register(model=net, optimizer=optimizer)
        batches = session.loader(samples(noise), INITIAL, adapt=adapt)
        for _ in session.epochs(EPOCHS):
            for (signs,) in batches:
                due = time.monotonic() + part_seconds + sample_seconds * len(signs)
                with session.micro() as last:
                    loss = (model(torch.ones(len(signs), 256)).squeeze(1) * signs).mean()
                    session.weighted(loss).backward()
                time.sleep(max(0.0, due - time.monotonic()))
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
                    session.step()


if __name__ == "__main__":
    main()
