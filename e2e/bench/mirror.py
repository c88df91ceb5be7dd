"""What a mirror costs: FSDP2 over two ranks with 256 MiB of weights and AdamW's averages, a rank in each of two pods.

The ranks train alternately without a mirror, with a snapshot after every step, and after every fourth. Beside it stands
what the same bytes cost on this machine: a copy of a rank's part in memory, and its way over a connection to the other
rank's memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from e2e.bench.report import Figure
from e2e.bench.saves import IN_MEMORY
from e2e.harness.local_run import free_port
from e2e.prepare import Progress
from perdure.agent.images import MIRROR_FILES
from perdure.group.mirror_link import MirrorReceiver, MirrorSender
from perdure.wire import Env

MIB = 256
RANKS = 2
STEPS = 30
ROUNDS = 3
EVERY = (0, 1, 4)
QUANTITIES = {
    "step": "a step",
    "held": "held at the hand-out, of each step",
    "waited": "Session.step(), of each step",
    "cpu": "CPU of a step, one rank",
}
SECONDS = 600
SENT = 5


def measure(progress: Progress) -> tuple[list[Figure], dict[str, Any]]:
    """A table, and facts."""
    found: dict[int, list[dict[str, float]]] = {every: [] for every in EVERY}
    for number in range(ROUNDS):
        for every in EVERY if number % 2 == 0 else reversed(EVERY):
            progress.say(f"round {number + 1} of {ROUNDS}: {name(every)}")
            found[every].append(trained(every))
    part = MIB / RANKS
    figures = [
        Figure(f"a copy of {part:.0f} MiB in memory", "s", tuple(one["copy"] for one in found[0])),
        Figure(f"{part:.0f} MiB over a connection", "s", sent(int(part))),
    ]
    for quantity, words in QUANTITIES.items():
        alone = Figure("", "s", tuple(one[quantity] for one in found[0])).median
        for every in EVERY:
            samples = tuple(one[quantity] for one in found[every])
            told = (alone, name(0)) if every else (None, "")
            figures.append(Figure(f"{words}: {name(every)}", "s", samples, *told))
    return figures, {"cores": os.cpu_count(), "rounds": ROUNDS, "steps": STEPS}


def name(every: int) -> str:
    """Of a way."""
    return f"a snapshot every {every} steps" if every > 1 else "a snapshot each step" if every else "no mirror"


def trained(every: int) -> dict[str, float]:
    """What rank 0 has found."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PERDURE_")}
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        place = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        place |= {Env.ROOT: Path(folder, "root").as_uri(), Env.EVERY_STEPS: "100000"}
        started = []
        for rank in range(RANKS):
            image, *files = (Path(folder, f"{rank}-{number}") for number in range(1 + MIRROR_FILES))
            for file in (image, *files):
                file.touch()
            mirror = {Env.MIRROR_FILES: os.pathsep.join(map(str, files)), Env.MIRROR_EVERY_STEPS: str(every)}
            mirror[Env.IMAGE] = str(image)
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "e2e.bench.mirror_training", str(MIB), str(STEPS)],
                    env={**inherited, **place, **(mirror if every else {}), "RANK": str(rank), "LOCAL_RANK": "0"},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        outputs = [process.communicate(timeout=SECONDS) for process in started]
    for process, (_, errors) in zip(started, outputs, strict=True):
        if process.returncode or ("are mirrored" in outputs[0][1]) != bool(every):
            raise RuntimeError(f"{name(every)} failed:\n{errors[-3000:]}")
    found: dict[str, float] = json.loads(outputs[0][0].splitlines()[-1])
    return found


def sent(mib: int) -> tuple[float, ...]:
    """Seconds for so many bytes from one file in memory to another, over a connection of this machine."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        own, kept = Path(folder, "own"), Path(folder, "kept")
        own.write_bytes(bytes(mib * 2**20))
        kept.touch()
        receiver = MirrorReceiver([kept], lambda _: True)
        sender = MirrorSender(("127.0.0.1", receiver.port), receiver.token)
        took = []
        for _ in range(SENT + 1):
            begun = time.perf_counter()
            sender.send(0, own)
            took.append(time.perf_counter() - begun)
        sender.close()
        receiver.close()
    return tuple(took[1:])  # in the first, memory is new
