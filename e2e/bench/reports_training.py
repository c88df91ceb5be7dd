"""The training of `e2e.bench reports`: short steps, and how long each took, as JSON in a file.

python -m e2e.bench.reports_training FILE FIRST-PART

It makes the second file at the end of its first part: from then on its member may report.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import perdure

BATCH, WIDTH = 64, 512
STEPS = 100
"""Of an epoch."""
WARM_UP, BEFORE, AFTER = 1, 8, 22
"""Epochs: the first do not count, and those that follow are of the first part."""


def main(file: Path, first_part: Path) -> None:
    """Trains, and writes the seconds of the steps of both parts, each from the end of the one before."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    samples = BATCH * STEPS
    dataset = TensorDataset(torch.randn(samples, WIDTH), torch.randint(0, 10, (samples,)))
    ended: list[float] = []
    with perdure.Session.from_env() as session:
        net = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
        )
        model = session.wrap(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        session.register(model=model, optimizer=optimizer)
        for epoch in session.epochs(WARM_UP + BEFORE + AFTER):
            if epoch == WARM_UP + BEFORE:
                first_part.touch()
            for images, labels in session.loader(dataset, batch_size=BATCH):
                optimizer.zero_grad()
                cross_entropy(model(images), labels).backward()
                optimizer.step()
                session.step()
                ended.append(time.perf_counter())
        took = [after - before for before, after in pairwise(ended)]
        first, second = WARM_UP * STEPS, (WARM_UP + BEFORE) * STEPS
        written = file.with_suffix(".new")
        written.write_text(json.dumps([took[first : second - 1], took[second:]]))
        written.rename(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
