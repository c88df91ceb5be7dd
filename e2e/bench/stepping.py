"""One rank of the step bench: trains with the bare loop, then with a Session, and prints both as JSON on rank 0.

Started by e2e.bench.step, once per rank; a program of its own because a Session belongs to a whole process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import perdure

SAMPLES, BATCH, EPOCHS, WARM_EPOCHS = 6400, 64, 4, 1


def data() -> TensorDataset:
    """Images of the digits' size."""
    torch.manual_seed(0)
    return TensorDataset(torch.randn(SAMPLES, 64), torch.randint(0, 10, (SAMPLES,)))


def timed(model: nn.Module, batches: Iterable[Any], epochs: Iterable[int], after: Any) -> list[float]:
    """Trains; the seconds of each step after the warm epochs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return [seconds for epoch in epochs for seconds in _epoch(model, optimizer, batches, after) if epoch >= WARM_EPOCHS]


def _epoch(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Any], after: Any) -> Iterator[float]:
    begun = time.perf_counter()
    for images, labels in batches:
        loss: Tensor = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after()
        now = time.perf_counter()
        yield now - begun
        begun = now


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def main() -> None:
    torch.set_num_threads(1)
    session = perdure.Session.from_env(sys.argv[1])
    dataset, calls = data(), []
    model = session.wrap(network())
    session.register(model=model)
    share = range(session.rank, SAMPLES, session.world)
    own = DataLoader(Subset(dataset, share), batch_size=BATCH // session.world, shuffle=False)
    bare = timed(session.wrap(network()), own, range(EPOCHS), lambda: None)

    def step() -> None:
        begun = time.perf_counter()
        session.step()
        calls.append(time.perf_counter() - begun)

    loader = session.loader(dataset, batch_size=BATCH, shuffle=False)
    ours = timed(model, loader, session.epochs(EPOCHS), step)
    if not dist.is_initialized() or dist.get_rank() == 0:
        warm = WARM_EPOCHS * len(own)
        print(json.dumps({"bare": bare, "session": ours, "call": calls[warm:]}))


if __name__ == "__main__":
    main()
