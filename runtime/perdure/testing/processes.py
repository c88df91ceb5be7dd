"""Runs a user's script on several ranks of this machine, from start to end.

Each rank is a process, started as a cluster would start it: torch's environment variables name its rank, and the ranks
connect over loopback. Each writes its reports to a temporary file, which is read after it has ended. A keeper process
between each rank and the test kills everything that the rank started, however either of them ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from perdure.agent.environ import OF_A_RUN
from perdure.agent.stderr_tail import Tail
from perdure.errors import PerdureError, UserError
from perdure.wire import CLEAN, Env, ExitKind
from perdure.wire.channel import CommitDone, Exiting, Resulted, StepDone, TrainerReport, read_report
from perdure.wire.settings import as_uri

TIMEOUT_SECONDS: Final = 300.0
FOLLOW_SECONDS: Final = 30.0
"""How long the other ranks may take to end by themselves after one failed."""
KILLED_SECONDS: Final = 30.0
"""How long a keeper may take to kill its rank."""
PORTS: Final = (20000, 30000)
"""Below the kernel's ephemeral ports: one of gloo's sockets could take such a port before rank 0 listens on it."""


@dataclass(frozen=True)
class Rank:
    """How one rank ended."""

    number: int
    outcome: ExitKind | None
    """None if it timed out and was killed."""
    step: int
    """Optimizer steps done in all runs on this root."""
    output: str
    """Its stdout and stderr."""
    status: int
    """Its exit status; 128 + n after signal n."""
    epoch: int | None = None
    """Finished epochs; None if the Session did not report how it ended."""
    result: Mapping[str, Any] | None = None
    """The last value of `session.result`."""

    @property
    def clean(self) -> bool:
        """Whether it completed its work, or saved it and left."""
        return self.outcome in CLEAN


@dataclass(frozen=True)
class Ended:
    """How a script ended on all its ranks."""

    ranks: tuple[Rank, ...]
    """By rank number."""

    @property
    def outcome(self) -> ExitKind | None:
        """`completed`, or `checkpointed` if the run saved and left."""
        return self.ranks[0].outcome

    @property
    def step(self) -> int:
        """Optimizer steps done in all runs on this root."""
        return self.ranks[0].step

    @property
    def epoch(self) -> int | None:
        """Finished epochs of all loops, in all runs on this root."""
        return self.ranks[0].epoch

    @property
    def result(self) -> Mapping[str, Any] | None:
        """`session.result` of rank 0; None if the script set none in this run."""
        return self.ranks[0].result


class RanksFailed(PerdureError):
    """A rank failed or timed out. The message ends with the last lines that it printed."""

    def __init__(self, message: str, ended: Ended) -> None:
        super().__init__(message)
        self.ended = ended


def processes(
    n: int,
    *arguments: str | Path,
    root: str | Path,
    exit_at: int | None = None,
    environ: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Ended:
    """Runs a script that uses a Session on `n` ranks of this machine, and returns when all have ended.

    Args:
        n: The number of ranks, at least 1.
        arguments: Python's arguments, such as `"train.py", "--epochs", "3"` or `"-m", "package.train"`.
        root: Where the checkpoints are; it replaces the root that the script names. Another call with the same root
            resumes from there, on any number of ranks.
        exit_at: The optimizer step at which every rank is asked to leave, as in a drain. Steps count from 1, over all
            runs on this root. One rank leaves right after this step, several leave one step later; the outcome is
            `checkpointed`. It is `completed` if the training ends at or before this step.
        environ: Added to the ranks' environment. They inherit this process's environment, without the variables of a
            run that it belongs to itself, and use one thread each by default.
        folder: The ranks' working directory; the current one by default.
        timeout_seconds: Ranks that have not ended by then are killed, also those that still run 30 s after another
            rank failed.

    When this returns or raises, the ranks and all processes that they started are gone.

    Raises RanksFailed if a rank fails or times out, and UserError for `n` or `exit_at` below 1, a timeout that is not
    above 0, or no arguments.
    """
    _check(n, arguments, exit_at, timeout_seconds)
    variables = _environment(n, as_uri(root), exit_at, dict(environ or {}))
    command = [sys.executable, *map(str, arguments)]
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(_rank(number, command, variables, folder)) for number in range(n)]
        _wait(ranks, time.monotonic() + timeout_seconds)
    ended = Ended(tuple(rank.ended() for rank in ranks))
    if not all(rank.clean for rank in ended.ranks):
        raise RanksFailed(_failure_text(ended, " ".join(command[1:]), timeout_seconds), ended)
    return ended


def _check(n: int, arguments: Sequence[str | Path], exit_at: int | None, timeout_seconds: float) -> None:
    if n < 1:
        raise UserError(f"processes: n is {n}: give the number of ranks, 1 or more")
    if not arguments:
        raise UserError('processes: no script: give the arguments of `python`, such as "train.py"')
    if exit_at is not None and exit_at < 1:
        raise UserError(f"processes: exit_at is {exit_at}: optimizer steps count from 1")
    if not timeout_seconds > 0:
        raise UserError(f"processes: timeout_seconds is {timeout_seconds}: give a number above 0")


def _environment(n: int, root: str, exit_at: int | None, own: Mapping[str, str]) -> dict[str, str]:
    """The environment of every rank. `own` overrides the defaults, but not the variables that form the run."""
    inherited = {name: value for name, value in os.environ.items() if not _describes_a_run(name)}
    defaults = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONUNBUFFERED": "1"}
    asked = {} if exit_at is None else {Env.EXIT_AT_STEP: str(exit_at)}
    place = {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_port())}
    return {**defaults, **inherited, Env.CHECK_SECONDS: "0", **own, **asked, **place, Env.ROOT: root}


def _describes_a_run(name: str) -> bool:
    """Whether the variable describes the run, or the launcher, that this process itself belongs to."""
    return name in OF_A_RUN or name.startswith(("PERDURE_", "TORCHELASTIC_"))


def _port() -> int:
    while True:
        port = PORTS[0] + secrets.randbelow(PORTS[1] - PORTS[0])  # tests seed `random`, and would all get one port
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


@dataclass
class _Running:
    """One rank's keeper process, and the files that the rank writes."""

    number: int
    keeper: subprocess.Popen[bytes]
    output: IO[bytes]
    reports: IO[bytes]
    timed_out: bool = False
    result: Rank | None = None

    def ended(self) -> Rank:
        """How the rank ended. Only after `end`."""
        if self.result is None:
            raise RuntimeError("the rank has not ended")
        return self.result

    def end(self) -> None:
        """Kills the rank if it still runs, and reads its files."""
        self.keeper.terminate()
        try:
            status = self.keeper.wait(KILLED_SECONDS)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            status = self.keeper.wait()
        self.result = self._read(status)

    def _read(self, status: int) -> Rank:
        reports = [report for line in _whole(self.reports).splitlines() if (report := read_report(line))]
        output = _whole(self.output).decode(errors="replace")
        ending = next((report for report in reports if isinstance(report, Exiting)), None)
        steps = [report.step for report in reports if isinstance(report, StepDone | Exiting)]
        results = [report.result for report in reports if isinstance(report, Resulted)]
        outcome = None if self.timed_out else _outcome(ending, reports, status)
        return Rank(
            self.number,
            outcome,
            max(steps, default=0),
            output,
            status,
            ending.epoch if ending else None,
            results[-1] if results else None,
        )


def _outcome(ending: Exiting | None, reports: Sequence[TrainerReport], status: int) -> ExitKind:
    """The outcome that the rank reported. Without one: completed if it committed the goal and exited with 0."""
    if ending:
        return ending.outcome
    goal = any(isinstance(report, CommitDone) and report.goal for report in reports)
    return ExitKind.COMPLETED if goal and status == 0 else ExitKind.FAILED


def _whole(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


@contextlib.contextmanager
def _rank(
    number: int, command: Sequence[str], variables: Mapping[str, str], folder: str | Path | None
) -> Iterator[_Running]:
    """Start one rank, and end it on exit from the context."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as reports:
        own = {"RANK": str(number), "LOCAL_RANK": str(number), Env.REPORT_FD: str(reports.fileno())}
        keeper = subprocess.Popen(
            [sys.executable, "-m", "perdure.testing.keeper", str(os.getpid()), *command],
            env={**variables, **own},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[reports.fileno()],
            start_new_session=True,  # Ctrl-C reaches only the test, which then ends the ranks
        )
        running = _Running(number, keeper, output, reports)
        try:
            yield running
        finally:
            running.end()


def _wait(ranks: Sequence[_Running], until: float) -> None:
    """Wait until all ranks have ended or timed out."""
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for rank in ranks:
            fd = os.pidfd_open(rank.keeper.pid)
            stack.callback(os.close, fd)
            selector.register(fd, selectors.EVENT_READ, rank)
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                selector.unregister(key.fd)
                if key.data.keeper.wait():
                    until = min(until, time.monotonic() + FOLLOW_SECONDS)
    for rank in ranks:  # all of them first: once one is killed, the others fail too
        rank.timed_out = rank.keeper.poll() is None


def _failure_text(ended: Ended, command: str, seconds: float) -> str:
    """How each rank ended, and the last lines of those that caused the failure."""
    lines = [f"{command} on {len(ended.ranks)} rank{'s' * (len(ended.ranks) > 1)}:"]
    lines += [f"  rank {rank.number}: {_ending_text(rank, seconds)}, at step {rank.step}" for rank in ended.ranks]
    unclean = [rank for rank in ended.ranks if not rank.clean]
    blamed = [rank for rank in unclean if rank.outcome in (None, ExitKind.FAILED)] or unclean
    for rank in blamed:
        tail = Tail()
        tail.add(rank.output.encode())
        lines.append(f"rank {rank.number} printed last:\n{tail.text().rstrip() or '(nothing)'}")
    return "\n".join(lines)


def _ending_text(rank: Rank, seconds: float) -> str:
    if rank.outcome is None:
        return f"killed: it still ran after {seconds:g} s, or {FOLLOW_SECONDS:g} s after another rank failed"
    if rank.outcome is ExitKind.FAILED and rank.status == 0:
        return "failed: exit status 0, but no Session reached its goal or was asked to leave"
    return f"{rank.outcome}, exit status {rank.status}"
