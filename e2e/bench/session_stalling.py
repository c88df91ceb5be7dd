"""Trains in a Session that saves every SAVED_EVERY steps in the background, and prints what each save cost, as JSON.

    python -m e2e.bench.session_stalling FOLDER MIB ROUNDS [at-once]

With `at-once` training waits for each copy, as it does where something has changed beside one.

The first half of the steps between two saves bears the save, the second half is the control: it goes on alone. A save
that the ranks do not know by then, or that is left out because the one before it is still under way, has no figures.
Started by e2e.bench.stall.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

import perdure
from e2e.bench.commits import Commits
from e2e.bench.stalling import STEPS, Training

SAVED_EVERY: Final = 4 * STEPS
FIRST: Final = 1
"""The saves before that one have new memory."""


def main() -> None:
    torch.set_num_threads(1)
    folder, mib, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    training = Training(mib)
    os.environ |= {"PERDURE_EVERY_STEPS": str(SAVED_EVERY), "PERDURE_KEEP": "1", "PERDURE_BACKGROUND_BYTES": "0"}
    stepped: list[float] = []
    requested: list[float] = []
    commits = Commits()
    with perdure.Session.from_env(folder) as session:
        if sys.argv[4:]:
            session._core.run.background._effects.deferral.refused = True  # noqa: SLF001
        session.register(model=training.state.model, optimizer=training.state.optimizer)

        session.on("committed", commits.told)
        for _ in session.epochs(1):
            for _ in session.steps(SAVED_EVERY * (rounds + FIRST)):
                requested.append(time.perf_counter())  # the batch is here: what is due has been done
                training.step()
                stepped.append(time.perf_counter())
                session.step()
    saves = figures(requested, stepped, commits, commits.made(folder.as_uri()), rounds)
    if not saves:
        raise SystemExit(f"no save was known within {SAVED_EVERY // 2} steps: {commits.known}")
    print(json.dumps({"saves": saves}))


def figures(
    requested: list[float], stepped: list[float], commits: Commits, made: Mapping[int, float], rounds: int
) -> list[dict[str, float]]:
    """The costs of each save but the first ones. Step n, from 0, begins at `requested[n]`."""
    found = []
    for number in range(FIRST, rounds + FIRST):
        first = number * SAVED_EVERY
        control, end = first + SAVED_EVERY // 2, first + SAVED_EVERY - 1
        known, begun = commits.known.get(first), stepped[first - 1]
        if known is None or known > stepped[control]:
            continue
        alone = (stepped[end] - stepped[control]) / (end - control)
        bears = stepped[control] - begun
        steps = [stepped[step] - requested[step] for step in range(first, first + STEPS)]
        found.append(
            {
                "held": requested[first] - begun,
                "stall": bears - alone * (control - first + 1),
                "during": statistics.mean(steps) / alone,
                "durable": made[first] - begun,
                "known": known - begun,
            }
        )
    return found


if __name__ == "__main__":
    main()
