"""What `Session.step()` adds to a training step, with one rank and with two: no cluster needed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from typing import Any

from e2e.bench.report import Figure
from e2e.prepare import Progress

SECONDS = 300.0
MICRO = 1e6
BOUND = 300.0


def measure(progress: Progress) -> tuple[list[Figure], dict[str, Any]]:
    """Both worlds."""
    figures = []
    for world in (1, 2):
        progress.say(f"training with {world} rank(s), bare and with a Session")
        figures += _figures(world, _trained(world))
    return figures, {"cores": os.cpu_count()}


def _figures(world: int, times: dict[str, list[float]]) -> list[Figure]:
    bare, ours, call = (tuple(value * MICRO for value in times[name]) for name in ("bare", "session", "call"))
    suffix = f", {world} rank{'s' if world > 1 else ''}"
    loop = Figure(f"bare loop{suffix}", "us", bare)
    return [
        loop,
        Figure(f"loop with Session{suffix}", "us", ours, loop.median, "the bare loop's median"),
        Figure(f"Session.step() itself{suffix}", "us", call, BOUND, "what a lagged agreement may cost here"),
    ]


def _trained(world: int) -> dict[str, list[float]]:
    """Runs the ranks; what rank 0 has printed."""
    with tempfile.TemporaryDirectory() as root, socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        held.close()
        ranks = [_start(rank, world, port, root) for rank in range(world)]
        outputs = [rank.communicate(timeout=SECONDS) for rank in ranks]
    failed = [errors for rank, (_, errors) in zip(ranks, outputs, strict=True) if rank.returncode]
    if failed:
        raise RuntimeError(f"the step bench failed:\n{failed[0][-2000:]}")
    return dict(json.loads(outputs[0][0].splitlines()[-1]))


def _start(rank: int, world: int, port: int, root: str) -> subprocess.Popen[str]:
    place = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    quiet = {"PERDURE_EVERY_SECONDS": 3600, "OMP_NUM_THREADS": 1}
    environ = {**os.environ, **{name: str(value) for name, value in (place | quiet).items()}}
    argv = [sys.executable, "-m", "e2e.bench.stepping", root]
    return subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
