"""The network of examples/digits with a fixed time per sample, as on busy accelerators: twice as many take half as
long.

Started in pods by e2e.bench.goodput, with train.py of examples/digits beside it: `python elastic_trainer.py SECONDS`,
of one process for one sample. Perdure's work between two steps comes on top.
"""

import sys
import time

import torch
from torch.nn.functional import cross_entropy
from train import GLOBAL_BATCH, digits, network  # type: ignore[import-not-found]

import perdure

EPOCHS = 1_000_000


def main() -> None:
    seconds_per_sample = float(sys.argv[1])
    torch.manual_seed(0)
    train, _ = digits()
    with perdure.Session.from_env() as session:
        model = session.wrap(network())
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        session.register(model=model, optimizer=optimizer)
        batches = session.loader(train, batch_size=GLOBAL_BATCH)
        for _ in session.epochs(EPOCHS):
            for images, labels in batches:
                due = time.monotonic() + GLOBAL_BATCH * seconds_per_sample / session.world
                loss = session.weighted(cross_entropy(model(images), labels))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                time.sleep(max(0.0, due - time.monotonic()))
                session.step()


if __name__ == "__main__":
    main()
