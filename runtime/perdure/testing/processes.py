"""A user's script on some ranks of this machine, from its start to its end.

The ranks are processes of their own, as a cluster would start them: torch's variables say who they are, and they meet
on loopback. What they report goes into a file for each, as nobody has to read it before they have ended. A keeper
stands between them and the test, so that nothing is left of them, however either ends.
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
from perdure.wire.channel import Committed, Exiting, Report, Resulted, Stepped, read_report
from perdure.wire.settings import as_uri

TIMEOUT_SECONDS: Final = 300.0
FOLLOW_SECONDS: Final = 30.0
"""How long the other ranks may take to end once one has failed: they notice it by themselves."""
KILLED_SECONDS: Final = 30.0
"""How long what was killed may take to be gone."""
PORTS: Final = (20000, 30000)
"""Below those that the kernel hands out by itself: gloo's own sockets would take one before rank 0 listens there."""


@dataclass(frozen=True)
class Rank:
    """How one rank has ended."""

    number: int
    outcome: ExitKind | None
    """None: it had not ended when its time was over, and was killed."""
    step: int
    """Optimizer steps done, of all runs together."""
    output: str
    """What it has printed, on stdout and stderr."""
    status: int
    """Its exit status; 128 + n after signal n."""
    epoch: int | None = None
    """Epochs finished; None where it did not say how it ends."""
    result: Mapping[str, Any] | None = None
    """`session.result`, as it was set last."""

    @property
    def clean(self) -> bool:
        """Whether it has ended as it should: its work is done, or saved."""
        return self.outcome in CLEAN


@dataclass(frozen=True)
class Ended:
    """How a script has ended on all its ranks."""

    ranks: tuple[Rank, ...]
    """By rank."""

    @property
    def outcome(self) -> ExitKind | None:
        """`completed`, or `checkpointed` where the run has left."""
        return self.ranks[0].outcome

    @property
    def step(self) -> int:
        """Optimizer steps done, of all runs on this root together."""
        return self.ranks[0].step

    @property
    def epoch(self) -> int | None:
        """Epochs finished, of all loops and runs together."""
        return self.ranks[0].epoch

    @property
    def result(self) -> Mapping[str, Any] | None:
        """`session.result` of rank 0, None where the script has set none in this run."""
        return self.ranks[0].result


class RanksFailed(PerdureError):
    """A rank has failed, or had not ended in time. The message ends with what it printed last."""

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
    """Runs a script with a Session on `n` ranks of this machine, and returns when all have ended.

    `arguments` are Python's: `"train.py", "--epochs", "3"`, or `"-m", "package.train"`; they are looked for in `folder`
    (default: the current one). `root` is where its checkpoints are, whatever the script says: called again with the
    same root, with any other `n`, it goes on there.

    `exit_at` asks the run to leave in that optimizer step (from 1, of all runs on this root together) on every rank, as
    a drain would: one rank saves and leaves right after it, several do a step later. It is `checkpointed` then; it is
    `completed` if that step did not come, or was the last one. `environ` is added to the ranks' environment, which is
    this process's without what it says of a run of its own; they have one thread each if it does not say otherwise.

    RanksFailed with the end of a rank's output if one fails, or if one has not ended after `timeout_seconds` (or 30 s
    after another failed). When this returns or raises, the ranks and all they have started are gone. UserError for
    `n` or `exit_at` below 1, a time that is not above 0, or without arguments.
    """
    _check(n, arguments, exit_at, timeout_seconds)
    told = _environment(n, as_uri(root), exit_at, dict(environ or {}))
    command = [sys.executable, *map(str, arguments)]
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(_rank(number, command, told, folder)) for number in range(n)]
        _wait(ranks, time.monotonic() + timeout_seconds)
    ended = Ended(tuple(rank.ended() for rank in ranks))
    if not all(rank.clean for rank in ended.ranks):
        raise RanksFailed(_words(ended, " ".join(command[1:]), timeout_seconds), ended)
    return ended


def _check(n: int, arguments: Sequence[str | Path], exit_at: int | None, timeout_seconds: float) -> None:
    if n < 1:
        raise UserError(f"processes: n is {n}: give the number of ranks, 1 or more")
    if not arguments:
        raise UserError('processes: no script: give what stands behind `python`, such as "train.py"')
    if exit_at is not None and exit_at < 1:
        raise UserError(f"processes: exit_at is {exit_at}: optimizer steps count from 1")
    if not timeout_seconds > 0:
        raise UserError(f"processes: timeout_seconds is {timeout_seconds}: give a number above 0")


def _environment(n: int, root: str, exit_at: int | None, own: Mapping[str, str]) -> dict[str, str]:
    """What every rank finds; `own` counts before the defaults, not before what makes the run."""
    inherited = {name: value for name, value in os.environ.items() if not _of_a_run(name)}
    defaults = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONUNBUFFERED": "1"}
    asked = {} if exit_at is None else {Env.EXIT_AT_STEP: str(exit_at)}
    place = {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_port())}
    return {**defaults, **inherited, Env.CHECK_SECONDS: "0", **own, **asked, **place, Env.ROOT: root}


def _of_a_run(name: str) -> bool:
    """Whether the variable would tell a rank of the run, or the launcher, that this process itself belongs to."""
    return name in OF_A_RUN or name.startswith(("PERDURE_", "TORCHELASTIC_"))


def _port() -> int:
    while True:
        port = PORTS[0] + secrets.randbelow(PORTS[1] - PORTS[0])  # not what a test has seeded
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


@dataclass
class _Running:
    """One rank's keeper, and the files that the rank writes into."""

    number: int
    keeper: subprocess.Popen[bytes]
    output: IO[bytes]
    reports: IO[bytes]
    cut: bool = False
    """Whether its time was over before it had ended."""
    told: Rank | None = None

    def ended(self) -> Rank:
        """How it has ended."""
        if self.told is None:
            raise RuntimeError("asked before its end")
        return self.told

    def end(self) -> None:
        """Ends it if it has not ended, and reads what it has left."""
        self.keeper.terminate()
        try:
            status = self.keeper.wait(KILLED_SECONDS)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            status = self.keeper.wait()
        self.told = self._read(status)

    def _read(self, status: int) -> Rank:
        reports = [report for line in _whole(self.reports).splitlines() if (report := read_report(line))]
        output = _whole(self.output).decode(errors="replace")
        ending = next((report for report in reports if isinstance(report, Exiting)), None)
        steps = [report.step for report in reports if isinstance(report, Stepped | Exiting)]
        results = [report.result for report in reports if isinstance(report, Resulted)]
        outcome = None if self.cut else _outcome(ending, reports, status)
        return Rank(
            self.number,
            outcome,
            max(steps, default=0),
            output,
            status,
            ending.epoch if ending else None,
            results[-1] if results else None,
        )


def _outcome(ending: Exiting | None, reports: Sequence[Report], status: int) -> ExitKind:
    """The rank's own word counts; without one a goal that is in the log, if the script has exited with 0."""
    if ending:
        return ending.outcome
    goal = any(isinstance(report, Committed) and report.goal for report in reports)
    return ExitKind.COMPLETED if goal and status == 0 else ExitKind.FAILED


def _whole(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


@contextlib.contextmanager
def _rank(
    number: int, command: Sequence[str], told: Mapping[str, str], folder: str | Path | None
) -> Iterator[_Running]:
    """One rank that runs, and nothing of it afterwards."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as reports:
        own = {"RANK": str(number), "LOCAL_RANK": str(number), Env.REPORT_FD: str(reports.fileno())}
        keeper = subprocess.Popen(
            [sys.executable, "-m", "perdure.testing.keeper", str(os.getpid()), *command],
            env={**told, **own},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[reports.fileno()],
            start_new_session=True,  # Ctrl-C is for the test, which ends them
        )
        running = _Running(number, keeper, output, reports)
        try:
            yield running
        finally:
            running.end()


def _wait(ranks: Sequence[_Running], until: float) -> None:
    """Returns when all have ended, or their time is over."""
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
    for rank in ranks:  # before the first of them is ended, which others would notice
        rank.cut = rank.keeper.poll() is None


def _words(ended: Ended, command: str, seconds: float) -> str:
    """Who has failed, and what those to blame have printed last."""
    lines = [f"{command} on {len(ended.ranks)} rank{'s' * (len(ended.ranks) > 1)}:"]
    lines += [f"  rank {rank.number}: {_word(rank, seconds)}, at step {rank.step}" for rank in ended.ranks]
    unclean = [rank for rank in ended.ranks if not rank.clean]
    blamed = [rank for rank in unclean if rank.outcome in (None, ExitKind.FAILED)] or unclean
    for rank in blamed:
        tail = Tail()
        tail.add(rank.output.encode())
        lines.append(f"rank {rank.number} has printed last:\n{tail.text().rstrip() or '(nothing)'}")
    return "\n".join(lines)


def _word(rank: Rank, seconds: float) -> str:
    if rank.outcome is None:
        return f"killed, it had not ended after {seconds:g} s, or {FOLLOW_SECONDS:g} s after another rank"
    if rank.outcome is ExitKind.FAILED and rank.status == 0:
        return "failed: exit status 0, and no Session that has reached its goal or was asked to leave"
    return f"{rank.outcome}, exit status {rank.status}"
