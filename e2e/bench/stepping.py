"""One rank of the step bench: trains with the bare loop and with a Session in turns, and prints both as JSON on rank 0.

Started by e2e.bench.step, once per rank; a program of its own because a Session belongs to a whole process. In turns of
half a second, because on a busy machine two seconds are not alike: what is compared is a turn of the one and the turn
of the other beside it, and which of them comes first changes each time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import perdure
from perdure.contract import Env
from perdure.session.wrapping import Replica

BATCH = 64
LONG_SECONDS = 0.01
STEPS, WARM_STEPS = 160, 40
"""Of a turn, and how many of them are left out: ranks that have waited for a while agree more often at first."""
LONG_STEPS, LONG_WARM_STEPS = 28, 8
"""The same where a step takes long."""
WARM_TURNS = 2
SECONDS = 40.0
"""Of measuring, about: longer steps are fewer."""
LEAST_TURNS, MOST_TURNS = 20, 60


class Loop:
    """A network of the digits' size, and as much work besides as makes a step last."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module], work: int) -> None:
        self.model = wrap(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self._work = work

    def turn(self, batches: Iterable[Any], after: Callable[[], None], warm: int) -> tuple[float, float]:
        """Trains an epoch; seconds and CPU seconds of a step, all that come after the first `warm` together."""
        remaining = iter(batches)
        self._train(islice(remaining, warm), after)
        begun, used = time.perf_counter(), time.process_time()
        steps = self._train(remaining, after)
        return (time.perf_counter() - begun) / steps, (time.process_time() - used) / steps

    def _train(self, batches: Iterable[Any], after: Callable[[], None]) -> int:
        steps = 0
        for images, labels in batches:
            worked(self._work)
            loss: Tensor = nn.functional.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            after()
            steps += 1
        return steps


FACTOR = torch.randn(64, 64)


def worked(times: int) -> None:
    """Some work that grows with `times` alone."""
    for _ in range(times):
        torch.mm(FACTOR, FACTOR)


def work_for(seconds: float) -> int:
    """How often `worked` has to be asked for, on all ranks alike."""
    times, tries = 2000, []
    for _ in range(5):  # the first is cold, and any may be interrupted: one that was slow made steps short
        begun = time.perf_counter()
        worked(times)
        tries.append(time.perf_counter() - begun)
    found = torch.tensor([int(seconds * times / min(tries))])
    if dist.is_initialized():
        dist.broadcast(found, 0)
    return int(found.item())


def main() -> None:
    """`stepping ROOT SECONDS`: a step takes so long and what it takes anyway."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    root, seconds = sys.argv[1], float(sys.argv[2])
    steps, warm = (LONG_STEPS, LONG_WARM_STEPS) if seconds >= LONG_SECONDS else (STEPS, WARM_STEPS)
    session = perdure.Session.from_env(root)
    dataset = TensorDataset(torch.randn(steps * BATCH, 64), torch.randint(0, 10, (steps * BATCH,)))
    work = work_for(seconds)
    ready = Env.IMAGE in os.environ

    def wrapped(module: nn.Module) -> nn.Module:
        """As the bare loop calls it: in what is compared with a pod's rank, without the Session's own wrapper."""
        replica = session.wrap(module)
        return replica.inside[0] if ready and isinstance(replica, Replica) else replica

    bare, ours = Loop(wrapped, work), Loop(session.wrap, work)
    session.register(model=ours.model, optimizer=ours.optimizer)
    share = range(session.rank, steps * BATCH, session.world)
    own = DataLoader(Subset(dataset, share), batch_size=BATCH // session.world, shuffle=False)
    loader = session.loader(dataset, batch_size=BATCH, shuffle=False)
    times: dict[str, list[float]] = {"bare": [], "session": [], "call": [], "bare-cpu": [], "session-cpu": []}

    def step() -> None:
        begun = time.perf_counter()
        session.step()
        times["call"].append(time.perf_counter() - begun)

    turns = max(LEAST_TURNS, min(MOST_TURNS, int(SECONDS / 2 / steps / (seconds + 0.002))))
    for epoch in session.epochs(WARM_TURNS + turns):
        for name in ("bare", "session") if epoch % 2 else ("session", "bare"):
            wall, cpu = ours.turn(loader, step, warm) if name == "session" else bare.turn(own, lambda: None, warm)
            times[name].append(wall)
            times[f"{name}-cpu"].append(cpu)
        if epoch < WARM_TURNS:
            for found in times.values():
                found.clear()
    if session.rank == 0:
        times["kept"] = [float(session._run.images.wanted)]  # noqa: SLF001 - nobody else says so before a peer is lost
        print(json.dumps(times))


if __name__ == "__main__":
    main()
