"""One rank of the step bench: trains with the bare loop and with a Session in turns, and prints both as JSON on rank 0.

Started by e2e.bench.step, once per rank; a program of its own because a Session belongs to a whole process. In turns,
because on a busy machine two minutes are not alike.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import perdure
from perdure.contract import Env
from perdure.session.wrapping import Replica

STEPS, BATCH = 20, 64
WARM_EPOCHS, WARM_STEPS = 4, 2
"""What is left out: the first epochs, and the first steps of each."""
SECONDS = 20.0
"""Of measuring, about: longer steps are fewer."""
MOST_EPOCHS = 100


class Loop:
    """A network of the digits' size, and as much work besides as makes a step last."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module], work: int) -> None:
        self.model = wrap(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self._work = work

    def timed(self, batches: Iterable[Any], after: Callable[[], None]) -> Iterator[float]:
        """Trains an epoch; the seconds of each step."""
        begun = time.perf_counter()
        for number, (images, labels) in enumerate(batches):
            worked(self._work)
            loss: Tensor = nn.functional.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            after()
            now = time.perf_counter()
            if number >= WARM_STEPS:
                yield now - begun
            begun = now


FACTOR = torch.randn(64, 64)


def worked(times: int) -> None:
    """Some work that grows with `times` alone."""
    for _ in range(times):
        torch.mm(FACTOR, FACTOR)


def work_for(seconds: float) -> int:
    """How often `worked` has to be asked for, on all ranks alike."""
    begun, times = time.perf_counter(), 2000
    worked(times)
    found = torch.tensor([int(seconds * times / (time.perf_counter() - begun))])
    if dist.is_initialized():
        dist.broadcast(found, 0)
    return int(found.item())


def main() -> None:
    """`stepping ROOT SECONDS`: a step takes so long and what it takes anyway."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    root, seconds = sys.argv[1], float(sys.argv[2])
    session = perdure.Session.from_env(root)
    dataset = TensorDataset(torch.randn(STEPS * BATCH, 64), torch.randint(0, 10, (STEPS * BATCH,)))
    work = work_for(seconds)
    ready = Env.IMAGE in os.environ

    def wrapped(module: nn.Module) -> nn.Module:
        """As the bare loop calls it: in what is compared with a pod's rank, without the Session's own wrapper."""
        replica = session.wrap(module)
        return replica.inside[0] if ready and isinstance(replica, Replica) else replica

    bare, ours = Loop(wrapped, work), Loop(session.wrap, work)
    session.register(model=ours.model, optimizer=ours.optimizer)
    share = range(session.rank, STEPS * BATCH, session.world)
    own = DataLoader(Subset(dataset, share), batch_size=BATCH // session.world, shuffle=False)
    loader = session.loader(dataset, batch_size=BATCH, shuffle=False)
    times: dict[str, list[float]] = {"bare": [], "session": [], "call": [], "bare-cpu": [], "session-cpu": []}

    def step() -> None:
        begun = time.perf_counter()
        session.step()
        times["call"].append(time.perf_counter() - begun)

    epochs = max(20, min(MOST_EPOCHS, int(SECONDS / 2 / STEPS / (seconds + 0.002))))
    for epoch in session.epochs(epochs):
        for name, steps in (("bare", bare.timed(own, lambda: None)), ("session", ours.timed(loader, step))):
            begun = time.process_time()
            times[name] += steps
            times[f"{name}-cpu"].append((time.process_time() - begun) / STEPS)
        if epoch < WARM_EPOCHS:
            for found in times.values():
                found.clear()
    if session.rank == 0:
        times["kept"] = [float(session._run.images.wanted)]  # noqa: SLF001 - nobody else says so before a peer is lost
        print(json.dumps(times))


if __name__ == "__main__":
    main()
