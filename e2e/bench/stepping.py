"""One rank of the step bench: trains with the bare loop and with a Session in turns, and prints both as JSON.

Started by e2e.bench.step, once per rank; a program of its own because a Session belongs to a whole process. A round is
four turns of a quarter of a second, bare, Session, Session, bare, or the other way round each second time: so a steady
drift affects both alike. Both train one model by one optimizer, so neither has the better place in memory. Each rank
has its own core, as on its own node, and reports how much others used of it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_pre_hooks as before_steps
from torch.utils.data import DataLoader, Subset, TensorDataset

import perdure
from perdure.state.wrapping import Replica
from perdure.wire import Env

BATCH = 64
LONG_SECONDS = 0.01
STEPS, WARM_STEPS = 80, 20
"""The length of a turn, and the pause before it: ranks that have waited for a while agree more often at first."""
LONG_STEPS, LONG_WARM_STEPS = 12, 6
"""The same where a step takes long."""
TURNS = ("bare", "session", "session", "bare")
WARM_ROUNDS = 2
OWN_SECONDS = 0.001
"""The time of a step beside the given work, about."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Round:
    """Seconds and CPU seconds of a step, by the kind of turn, and the others' share of the core meanwhile."""

    wall: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in TURNS})
    cpu: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in TURNS})
    others: float = 0.0
    """The share of the round's time."""


class Loop:
    """A network of the digits' size, and additional work to fill the step."""

    def __init__(self, model: nn.Module, work: int) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self._work = work

    def train(self, model: nn.Module, batches: Iterable[Any], after: Callable[[], None]) -> int:
        """How many steps there were."""
        steps = 0
        for images, labels in batches:
            worked(self._work)
            loss: Tensor = nn.functional.cross_entropy(model(images), labels)
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
    """How many calls of `worked` are needed, on all ranks alike."""
    times, tries = 2000, []
    for _ in range(5):  # the first is cold, and any may be interrupted: a slow one made steps short
        begun = time.perf_counter()
        worked(times)
        tries.append(time.perf_counter() - begun)
    found = torch.tensor([int(seconds * times / min(tries))])
    if dist.is_initialized():
        dist.broadcast(found, 0)
    return int(found.item())


def free_seconds(core: int) -> float:
    """How long a core has had no process to run so far: idle, or with interrupts, which a rank's messages make."""
    lines = Path("/proc/stat").read_text().splitlines()
    counts = next(line for line in lines if line.startswith(f"cpu{core} ")).split()
    return sum(int(ticks) for ticks in counts[4:8]) / TICKS


@contextmanager
def without_hooks() -> Iterator[None]:
    """A Session's work before each optimizer step is no part of a bare loop."""
    hooks = dict(before_steps)
    before_steps.clear()
    try:
        yield
    finally:
        before_steps.update(hooks)


def main() -> None:
    """`stepping ROOT SECONDS MEASURING`: the additional time of a step, and the total time of the rounds."""
    root, seconds, measuring = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    cores = sorted(os.sched_getaffinity(0))
    core = cores[int(os.environ["RANK"]) % len(cores)]
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    steps, warm = (LONG_STEPS, LONG_WARM_STEPS) if seconds >= LONG_SECONDS else (STEPS, WARM_STEPS)
    session = perdure.Session.from_env(root)
    samples = 2 * (steps + warm) * BATCH
    dataset = TensorDataset(torch.randn(samples, 64), torch.randint(0, 10, (samples,)))
    own = session.wrap(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    loop = Loop(own, work_for(seconds))
    session.register(model=own, optimizer=loop.optimizer)
    # Ranks compared with a pod's run without the Session's wrapper.
    plain = own.inside[0] if Env.IMAGE in os.environ and isinstance(own, Replica) else own
    share = range(session.rank, samples, session.world)
    bare = DataLoader(Subset(dataset, share), batch_size=BATCH // session.world, shuffle=False)
    loader = session.loader(dataset, batch_size=BATCH, shuffle=False)
    calls: list[float] = []

    def step() -> None:
        begun = time.perf_counter()
        session.step()
        calls.append(time.perf_counter() - begun)

    kinds: dict[str, tuple[nn.Module, Iterable[Any], Callable[[], None]]] = {
        "bare": (plain, bare, lambda: None),
        "session": (own, loader, step),
    }

    def turned(number: int) -> Round:
        found, free = Round(), free_seconds(core)
        begun, used = time.perf_counter(), time.process_time()
        left: dict[str, Iterator[Any]] = {name: iter(batches) for name, (_, batches, _) in kinds.items()}
        for name in TURNS if number % 2 else (*TURNS[2:], *TURNS[:2]):
            model, _, after = kinds[name]
            with without_hooks() if name == "bare" else nullcontext():
                loop.train(model, islice(left[name], warm), after)
                from_wall, from_cpu = time.perf_counter(), time.process_time()
                loop.train(model, islice(left[name], steps), after)
            found.wall[name].append((time.perf_counter() - from_wall) / steps)
            found.cpu[name].append((time.process_time() - from_cpu) / steps)
        took, cpu = time.perf_counter() - begun, time.process_time() - used
        found.others = max(0.0, 1 - (free_seconds(core) - free + cpu) / took)
        for batches in left.values():
            next(batches, None)
        return found

    rounds: list[Round] = []
    number = max(1, int(measuring / 4 / (steps + warm) / (seconds + OWN_SECONDS)))
    for epoch in session.epochs(WARM_ROUNDS + number):
        rounds.append(turned(epoch))
        if epoch < WARM_ROUNDS:
            rounds.clear()
            calls.clear()
    kept = session._core.run.images.wanted  # noqa: SLF001 - no public call says so before a peer is lost
    print(
        json.dumps({"rounds": [vars(one) for one in rounds], "call": calls if session.rank == 0 else [], "kept": kept})
    )


if __name__ == "__main__":
    main()
