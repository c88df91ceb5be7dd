"""The same training with nobody to disturb it: plain processes on this machine, no cluster and no agent.

They run in the environment that the trainer's image has, with the same number of ranks, so that the weights at the
end must be the same to the last bit.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.harness import evidence
from e2e.harness.root import Root

SECONDS = 300.0
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class TwinFailed(AssertionError):
    """The undisturbed training did not end well; the message is what a rank has said."""


@dataclass(frozen=True)
class Twin:
    """What an undisturbed training has left."""

    weights: str
    batches: tuple[tuple[int, tuple[int, ...]], ...]
    """The samples of each step."""


def trained(python: Path, script: Path, arguments: Sequence[str], *, world: int) -> Twin:
    """Trains it."""
    with tempfile.TemporaryDirectory(prefix="perdure-twin-") as name:
        folder = Path(name)
        port = _free_port()
        argv = [str(python), str(script), *arguments]
        ranks = [_start(argv, folder, rank, world, port) for rank in range(world)]
        try:
            said = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        for rank, text in zip(ranks, said, strict=True):
            if rank.returncode:
                raise TwinFailed(f"{' '.join(argv)} ended with status {rank.returncode}:\n{text[-2000:]}")
        return _judged(Root(folder / "root"))


def _judged(root: Root) -> Twin:
    entries, trace = root.entries(), root.trace().steps
    lost, missing = evidence.steps_lost(entries, trace), evidence.untraced(entries, trace)
    if lost or missing:
        raise TwinFailed(f"an undisturbed training has lost {lost} steps and left no trace of {missing}")
    return Twin(root.weight_hash(), tuple(evidence.batches(entries, trace)))


def _start(argv: Sequence[str], folder: Path, rank: int, world: int, port: int) -> subprocess.Popen[str]:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    environ = {"PERDURE_ROOT": (folder / "root").as_uri(), "PERDURE_TRACE": "1", "OMP_NUM_THREADS": "1"}
    environ |= {"PATH": SYSTEM_PATH, "HOME": str(folder), **{name: str(value) for name, value in place.items()}}
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *argv],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])
