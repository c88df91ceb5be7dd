"""Ranks that start in no time: forked from a process that has imported torch and Perdure once, and does nothing else.

`Forge` is used by `play`; the process it talks to is this module run as a program. Each rank is a process of its own
with an environment of its own, runs one script as `__main__`, and ends as an interpreter ends.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.harness.local_run import free_port
from tests.support.forked import Forked
from tests.support.forks import die_with_parent

REPOSITORY = Path(__file__).parents[2]
SECONDS = 120
"""One run of one script; on an idle machine it takes one or two."""
WARM = """
import numpy, torch, torch.distributed, torch.optim.swa_utils, torch.utils.data, perdure, tests.property.diary
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler
import gc, torch._dynamo, perdure.session.session, perdure.store.file
gc.freeze()
"""
"""With what torch imports when the first optimizer is made."""


@dataclass(frozen=True)
class Rank:
    """One process to be."""

    script: str
    said: str
    """Where its stdout and stderr go."""
    environ: Mapping[str, str]


@dataclass(frozen=True)
class Ended:
    """How the ranks of one run have ended: exit statuses, negative for a signal; None: it had not in time."""

    statuses: Sequence[int | None]

    def by(self, number: signal.Signals) -> bool:
        """Whether a signal has ended one of them; then the others are killed, as an agent does it."""
        return -number in self.statuses and None not in self.statuses


class Forge:
    """The process that forks; a context."""

    def __enter__(self) -> Self:
        """Starts it; it is ready when the first run is."""
        names = ("PERDURE_", "PROPERTY_")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(names)}
        environ |= {"OMP_NUM_THREADS": "1"}
        command, pipe = ["-m", "tests.property.ranks"], subprocess.PIPE
        self._process = Forked(command, cwd=REPOSITORY, env=environ, stdin=pipe, stdout=pipe)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, ranks: Sequence[Rank]) -> Ended:
        """Has the ranks of one run started, and waits for all of them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([asdict(rank) for rank in ranks]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that forks the ranks has ended"
        return Ended(json.loads(answer))


def places(world: int) -> list[dict[str, str]]:
    """What torchrun would set, by rank."""
    if world == 1:
        return [{}]
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [common | {"RANK": str(rank)} for rank in range(world)]


def _serve() -> dict[str, Any] | None:
    """Answers until stdin ends; returns a rank to be, in the rank's process, and None in the end."""
    for line in iter(sys.stdin.readline, ""):
        alive: dict[int, int] = {}
        pids = []
        for rank in json.loads(line):
            reader, writer = os.pipe()
            pid = os.fork()
            if not pid:
                for other in (reader, *alive):
                    os.close(other)
                return dict(rank)  # `writer` stays open as long as the process lives
            os.close(writer)
            alive[reader] = pid
            pids.append(pid)
        print(json.dumps(_watched(alive, pids)), flush=True)
    return None


def _watched(alive: dict[int, int], pids: list[int]) -> list[int | None]:
    """The statuses of all ranks, each of which holds the other end of a pipe open while it lives."""
    deadline = time.monotonic() + SECONDS
    statuses: dict[int, int] = {}
    while alive:
        ready, _, _ = select.select([*alive], [], [], max(0.0, deadline - time.monotonic()))
        for reader in ready:
            os.close(reader)
            pid = alive.pop(reader)
            statuses[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        late = not ready
        if late or min(statuses.values()) < 0:
            for reader, pid in alive.items():
                os.kill(pid, signal.SIGABRT if late else signal.SIGKILL)  # the first one shows where it hangs
                os.close(reader)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                if not late:
                    statuses[pid] = status
            alive.clear()
    return [statuses.get(pid) for pid in pids]


def _become(rank: dict[str, Any]) -> None:
    """Runs the script; the interpreter ends afterwards, in the script's own way."""
    import faulthandler

    output = os.open(rank["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
        os.dup2(file, number)
    faulthandler.enable()
    os.environ.update(rank["environ"])
    path = Path(rank["script"])
    sys.argv = [str(path)]
    os.chdir(path.parent)
    status = [0]
    atexit.register(lambda: os._exit(status[0]))  # the last of all: tearing down torch's modules takes a second
    try:
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})  # noqa: S102
    except SystemExit as left:
        status[0] = left.code if isinstance(left.code, int) else int(left.code is not None)
        raise
    except BaseException:
        status[0] = 1
        raise


if __name__ == "__main__":
    die_with_parent()
    exec(WARM)  # noqa: S102
    becoming = _serve()
    if becoming is not None:
        die_with_parent()
        _become(becoming)
