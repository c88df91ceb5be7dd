"""What it costs to measure step times and gradient noise, beside the steps themselves: no cluster needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from e2e.bench.report import Figure
from e2e.harness.local_run import free_port
from e2e.prepare import Progress

WAYS = {
    "one rank, pairs of steps": (1, 1),
    "one rank, four micro-batches": (1, 4),
    "two ranks": (2, 1),
}
"""How many ranks, and how many micro-batches of a step."""
BOUND = 1.0


def measure(progress: Progress) -> tuple[list[Figure], dict[str, Any]]:
    """Each way once, with a figure for each window of steps."""
    figures, facts = [], dict[str, Any](cores=os.cpu_count())
    for name, (world, parts) in WAYS.items():
        progress.say(f"training: {name}")
        found = _trained(world, parts)
        facts |= {"parameters": found["parameters"], "tokens": found["tokens"]}
        shares = tuple(100 * own / whole for own, whole in zip(found["own"], found["whole"], strict=True))
        figures.append(Figure(f"CPU that measures, of all CPU: {name}", "%", shares, BOUND, "bound"))
        figures.append(Figure(f"CPU of eight steps: {name}", "s", tuple(found["whole"])))
    return figures, facts


def _trained(world: int, parts: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        told = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        told |= {"OMP_NUM_THREADS": "1"}
        argv = [sys.executable, "-m", "e2e.bench.measured_training", folder, str(parts)]
        ranks = [
            subprocess.Popen(argv, env={**os.environ, **told, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(world)
        ]
        outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError("the training failed")
    found: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    return found
