"""One process of the step bench: CPU of a pass over a dataset by torch's DataLoader and by a Session's, as JSON.

Started by e2e.bench.step; a program of its own because a Session belongs to a whole process, and because workers count
as its children. Bare and Session take turns, and each pass has new workers in both.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterable
from itertools import product
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import perdure

WORKERS = (0, 2, 4)
SAMPLES = 24_000
BATCH = 64
ROUNDS = 5


class Own(TensorDataset):
    """A script's own class might draw random numbers, so its samples are seeded one by one."""


def cpu_seconds() -> float:
    """Of this process and of the children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def passed(batches: Iterable[Any]) -> float:
    """CPU seconds of one pass."""
    before = cpu_seconds()
    for _ in batches:
        pass
    return cpu_seconds() - before


def main() -> None:
    """`loading ROOT`."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tensors = torch.randn(SAMPLES, 64), torch.randint(0, 10, (SAMPLES,))
    session = perdure.Session.from_env(sys.argv[1])
    found: dict[str, dict[str, list[float]]] = {}
    for dataset, workers in product((TensorDataset(*tensors), Own(*tensors)), WORKERS):
        name = f"{workers} workers{', a class of its own' if isinstance(dataset, Own) else ''}"
        bare = DataLoader(dataset, batch_size=BATCH, shuffle=True, num_workers=workers)
        ours = session.loader(dataset, batch_size=BATCH, name=name, train=False, num_workers=workers)
        found[name] = {"bare": [], "session": []}
        for number in range(ROUNDS + 1):
            turns = {"bare": passed(bare), "session": passed(ours)}
            for kind, seconds in turns.items() if number else ():  # the first is cold
                found[name][kind].append(seconds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
