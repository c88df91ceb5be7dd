"""Trains an FSDP2 model as one rank, and prints as rank 0 what its steps took, as JSON.

    python -m e2e.bench.mirror_training MIB STEPS

The environment says after how many steps its part is mirrored, and in which files; see e2e.bench.mirror, which starts
it. The first third of the steps does not count: memory is new in them.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import torch

import perdure
from e2e.bench.saves_training import Training, cpu_seconds


def main() -> None:
    torch.set_num_threads(1)
    mib, steps = int(sys.argv[1]), int(sys.argv[2])
    training = Training("fsdp2", mib, 0.0)
    begun, stepped, counted, cpu = ([0.0] * steps for _ in range(4))
    with perdure.Session.from_env(os.environ["PERDURE_ROOT"]) as session:
        session.register(model=training.model, optimizer=training.optimizer)
        for _ in session.epochs(1):
            for number, _ in enumerate(session.steps(steps)):
                begun[number] = time.perf_counter()
                training.step()
                stepped[number] = time.perf_counter()
                session.step()
                counted[number] = time.perf_counter()
                cpu[number] = cpu_seconds()
    first = steps // 3
    found = {
        "step": (counted[-1] - counted[first - 1]) / (steps - first),
        "held": statistics.mean(begun[n] - counted[n - 1] for n in range(first, steps)),
        "waited": statistics.mean(counted[n] - stepped[n] for n in range(first, steps)),
        "cpu": (cpu[-1] - cpu[first - 1]) / (steps - first),
        "copy": training.seconds_of_a_copy(),
    }
    if os.environ["RANK"] == "0":
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
