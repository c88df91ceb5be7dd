"""The cost of a trainer's imports with the zygote and without: from its start to its first line after them.

No cluster needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from e2e.bench.report import Figure
from e2e.prepare import Progress

ROUNDS = 10
REPOSITORY = Path(__file__).parents[2]
STARTER = Path(__file__).with_name("starting.py")


def measure(progress: Progress, rounds: int = ROUNDS) -> tuple[list[Figure], dict[str, Any]]:
    """Starts of a script with the imports of examples/digits: executed, forked from a zygote that has read the script,
    and from one that has not; in turn, so that other load affects all alike."""
    progress.say(f"{rounds} starts by exec and {rounds} by fork")
    argv = [sys.executable, str(STARTER), str(rounds)]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the bench of starts failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    executed, forked = Figure("exec", "s", tuple(found["exec"])), Figure("fork", "s", tuple(found["fork"]))
    ratio = executed.median / forked.median
    figures = [
        Figure("fork to the first line", "s", forked.samples, executed.median, "exec's median"),
        Figure("exec to the first line", "s", executed.samples),
        Figure("fork to the first line, script not read", "s", tuple(found["unread"])),
        Figure("how often quicker", "x", (ratio,)),
        Figure("memory of the zygote alone", "MiB", (found["private"],)),
        Figure("memory of a trainer alone, forked", "MiB", (found["trainer"]["fork"],)),
        Figure("memory of a trainer alone, executed", "MiB", (found["trainer"]["exec"],)),
    ]
    return figures, {"cores": os.cpu_count(), "rounds": rounds, "zygote": found["said"]}
