"""Trains in a Session that saves every SAVED_EVERY steps in the background, and prints what each save cost, as JSON.

    python -m e2e.bench.session_stalling FOLDER MIB ROUNDS

The first half of the steps between two saves bears the save, the second half is the control: it goes on alone. Started
by e2e.bench.stall.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Final

import torch

import perdure
from e2e.bench.stalling import STEPS, Training
from perdure.checkpoint.state import NewCommit

SAVED_EVERY: Final = 4 * STEPS


def main() -> None:
    torch.set_num_threads(1)
    folder, mib, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    training = Training(mib)
    os.environ |= {"PERDURE_EVERY_STEPS": str(SAVED_EVERY), "PERDURE_KEEP": "1", "PERDURE_BACKGROUND_BYTES": "0"}
    stepped: list[float] = []
    requested: list[float] = []
    durable: list[float] = []
    with perdure.Session.from_env(folder) as session:
        session.register(model=training.state.model, optimizer=training.state.optimizer)

        @session.on("committed")
        def committed(commit: NewCommit) -> None:
            durable.append(sum(commit.seconds[0].values()))

        for _ in session.epochs(1):
            for _ in session.steps(SAVED_EVERY * (rounds + 2)):
                requested.append(time.perf_counter())  # the batch is here: what is due has been done
                training.step()
                stepped.append(time.perf_counter())
                session.step()
    print(json.dumps({"saves": figures(requested, stepped, durable, rounds)}))


def figures(requested: list[float], stepped: list[float], durable: list[float], rounds: int) -> list[dict[str, float]]:
    """The costs of each save but the first, for which memory is new. Step n, from 0, begins at `requested[n]`."""
    found = []
    for number in range(2, rounds + 2):
        first = number * SAVED_EVERY
        control, end = first + SAVED_EVERY // 2, first + SAVED_EVERY - 1
        alone = (stepped[end] - stepped[control]) / (end - control)
        bears = stepped[control] - stepped[first - 1]
        steps = [stepped[step] - requested[step] for step in range(first, first + STEPS)]
        found.append(
            {
                "held": requested[first] - stepped[first - 1],
                "stall": bears - alone * (control - first + 1),
                "during": statistics.mean(steps) / alone,
                "durable": durable[number - 1],
            }
        )
    return found


if __name__ == "__main__":
    main()
