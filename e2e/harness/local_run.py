"""One run of a training as plain processes on this machine: no cluster and no agent, a folder for its root.

It starts the ranks, sees the steps that rank 0 reports, sends signals, and collects the output. No process ever
outlives the `with` block. Used for undisturbed twins and by `make try`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from e2e.harness.watching import Late

SECONDS = 900.0
TAIL_CHARACTERS = 2000
GIVEN = set[int]()
"""The ports assigned to this process."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Ended:
    """How one rank ended."""

    status: int
    said: str

    @property
    def tail(self) -> str:
        """The end of its output."""
        return self.said[-TAIL_CHARACTERS:]


Start = Callable[..., subprocess.Popen[Any]]
"""Called with a command and Popen's options; tests fork Python processes from one that has imported torch."""


def executed(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """A process that ends with the test run, even if that is killed."""
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], **options)


class LocalRun:
    """The ranks of one run; used as a context manager."""

    def __init__(
        self,
        argv: Sequence[str],
        folder: Path,
        *,
        world: int,
        environ: Mapping[str, str] | None = None,
        watched: bool = False,
        start: Start = executed,
    ) -> None:
        """`folder` gets the root below it, and is the ranks' working directory; `environ` is added to a bare one.

        Rank 0 of a `watched` run reports its steps, as to an agent.
        """
        self._argv = list(argv)
        self._folder = folder
        self._world = world
        self._environ = dict(environ or {})
        self._watched = watched
        self._start_process = start
        self._ranks: list[subprocess.Popen[str]] = []
        self._reports = -1
        self._unread = b""

    def __enter__(self) -> Self:
        self._reports, writer = os.pipe()
        os.set_blocking(writer, False)  # a rank whose reports are not read goes on
        port = free_port()
        try:
            self._ranks = [self._start(rank, port, writer) for rank in range(self._world)]
        finally:
            os.close(writer)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._reports)
        for rank in self._ranks:
            rank.kill()
            rank.wait()
            if rank.stdout:
                rank.stdout.close()

    def _start(self, rank: int, port: int, reports: int) -> subprocess.Popen[str]:
        place: dict[str, str | int] = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self._world}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environ = {"PERDURE_ROOT": (self._folder / "root").as_uri(), "PERDURE_TRACE": "1", "OMP_NUM_THREADS": "1"}
        environ |= {"PATH": SYSTEM_PATH, "HOME": str(self._folder)}
        environ |= {name: str(value) for name, value in place.items()} | self._environ
        told = self._watched and rank == 0
        if told:
            environ["PERDURE_REPORT_FD"] = str(reports)
        return self._start_process(
            self._argv,
            cwd=self._folder,
            env=environ,
            pass_fds=[reports] if told else [],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def reaches(self, step: int, *, seconds: float = SECONDS) -> int:
        """Wait until rank 0 has done this step, or a later one; returns it. Late if it ends before, or after
        `seconds`."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            line, found, rest = self._unread.partition(b"\n")
            if found:
                self._unread = rest
                done = _step(line)
                if done is not None and done >= step:
                    return done
            elif select.select([self._reports], [], [], left)[0]:
                more = os.read(self._reports, 65536)
                if not more:
                    raise Late(f"the training has ended before step {step}:\n{self.ends()[0].tail}")
                self._unread += more
        raise Late(f"not within {seconds:g} s: step {step}")

    def signal(self, number: int, ranks: Sequence[int] | None = None) -> None:
        """To these ranks, or all."""
        for rank in range(self._world) if ranks is None else ranks:
            self._ranks[rank].send_signal(number)

    def ends(self, *, seconds: float = SECONDS) -> list[Ended]:
        """Wait for all ranks, by rank."""
        deadline = time.monotonic() + seconds
        said = [rank.communicate(timeout=max(0.0, deadline - time.monotonic()))[0] for rank in self._ranks]
        return [Ended(rank.returncode, text) for rank, text in zip(self._ranks, said, strict=True)]


def _step(line: bytes) -> int | None:
    body = json.loads(line)
    return int(body["step"]) if body.get("report") == "step" else None


def free_port() -> int:
    """A free port of this machine that the kernel assigns to no connection meanwhile: gloo's own sockets would take it
    before it is used.

    Never the same one twice, because its first owner may not listen yet, and never one of another process of the tests.
    """
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    own = range(20000, 30000)[int(worker.removeprefix("gw")) :: int(workers)]
    while True:
        port = random.SystemRandom().choice(own)
        if port in GIVEN:
            continue
        with socket.socket() as held, contextlib.suppress(OSError):
            held.bind(("127.0.0.1", port))
            GIVEN.add(port)
            return port
