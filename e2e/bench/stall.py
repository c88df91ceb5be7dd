"""How long a save stops training, beside the alternatives: one process, a folder, no cluster needed.

Once at the level of the arena and the process that uploads from it, in one process with the alternatives. Once as a
Session does it, with the votes, the manifest and the entry of the log.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from e2e.bench.report import FOLDER, Figure
from e2e.prepare import Progress

SIZES = {256: 7, 1024: 5}
"""MiB of state, and how many rounds."""
QUICK = {256: 3}
BASELINE = "dcp.async_save"
SESSION = "Perdure, a Session"
AT_ONCE = "Perdure, a Session that waits for its copies"
QUANTITIES = {
    "stall": ("stall per save", "s"),
    "held": ("held at the hand-out", "s"),
    "durable": ("until durable", "s"),
    "known": ("until the ranks know it", "s"),
    "during": ("a step while it uploads, of one without", "times"),
    "extra": ("memory", "MiB"),
}


def measure(progress: Progress, *, quick: bool = False) -> tuple[list[Figure], dict[str, Any]]:
    """Every size in a process of its own; there all ways in turn, several rounds. `quick`: the small size alone."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    figures: list[Figure] = []
    sizes = QUICK if quick else SIZES
    for mib, rounds in sizes.items():
        progress.say(f"{mib} MiB, {rounds} rounds of all ways")
        with tempfile.TemporaryDirectory(dir=FOLDER) as folder:  # on a disk: /tmp may be memory
            found = _measured("stalling", Path(folder, "ways"), mib, rounds)
            progress.say(f"{mib} MiB, {rounds} saves of a Session")
            for way, more in ((SESSION, ()), (AT_ONCE, ("at-once",))):
                into = Path(folder, f"session{len(more)}")
                found["ways"][way] = _measured("session_stalling", into, mib, rounds, *more)["saves"]
            figures += _figures(mib, found)
    return figures, {"cores": os.cpu_count(), "rounds": sizes}


def _figures(mib: int, found: dict[str, Any]) -> list[Figure]:
    figures = [Figure(f"{mib} MiB, a step without a save", "s", tuple(found["step"]))]
    for quantity, (name, unit) in QUANTITIES.items():
        samples = {
            way: tuple(cost[quantity] for cost in costs) for way, costs in found["ways"].items() if quantity in costs[0]
        }
        theirs = Figure(BASELINE, unit, samples.get(BASELINE, (0.0,)))
        for way, values in samples.items():
            own = Figure(f"{mib} MiB, {name}: {way}", unit, values)
            ratio = f"of {BASELINE}: {own.median / theirs.median:.3g} times" if theirs.median > 0 else ""
            figures.append(Figure(own.name, unit, values, theirs.median if BASELINE in samples else None, ratio))
    for kind, seconds in found["copies"].items():
        figures.append(Figure(f"{mib} MiB, a copy into an arena, memory {kind}", "s", (seconds,)))
    return figures


def _measured(program: str, folder: Path, mib: int, rounds: int, *more: str) -> dict[str, Any]:
    folder.mkdir()
    argv = [sys.executable, "-m", f"e2e.bench.{program}", str(folder), str(mib), str(rounds), *more]
    done = subprocess.run(argv, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{program} of {mib} MiB failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))
