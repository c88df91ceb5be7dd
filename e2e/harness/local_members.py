"""Members of a job as plain processes on this machine: real agents in front of the script, no cluster, no operator.

A test, or a bench, stands in for the operator: it writes each member's assignment as the kubelet would, and reads its
outcome. No process ever outlives the `with` block.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from e2e.harness.local_run import Start, executed, free_port
from e2e.harness.root import Root
from e2e.harness.watching import Late
from perdure.wire import Assignment, Handover, Leave, Outcome, Standby, Train, read_outcome, write_assignment
from perdure.wire.channel import write_whole

SECONDS: Final = 300.0
SAVE_SECONDS: Final = 60
UID: Final = "00000000-0000-0000-0000-00000000000a"


@dataclass
class LocalMember:
    """One agent, its folder, and its output in a file."""

    name: str
    folder: Path
    process: subprocess.Popen[Any]

    def assign(self, assignment: Assignment) -> None:
        """Replaces the file as a whole, as the kubelet does."""
        put_assignment(self.folder, assignment)

    @property
    def said(self) -> str:
        """All output so far, of agent and script."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def warm(self) -> bool:
        """Whether its startup probe would succeed."""
        return (self.folder / "state" / "warm").exists()

    def outcome(self, seconds: float = SECONDS) -> Outcome:
        """Wait for its end."""
        self.process.wait(seconds)
        return read_outcome((self.folder / "termination-log").read_text())


@dataclass
class LocalMembers:
    """The members of one job; used as a context manager."""

    argv: Sequence[str]
    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    start: Start = executed
    """Starts an agent."""
    processes: int = 1
    """Ranks of each member."""
    members: dict[str, LocalMember] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members.values():
            member.process.kill()  # all its children die with it
            member.process.wait()
            if error is not None:
                print(f"--- {member.name}\n{member.said}")

    @property
    def root(self) -> Root:
        """Their storage."""
        return Root(self.folder / "root")

    def standby(self, name: str) -> LocalMember:
        """Starts a member that waits for its assignment."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        put_assignment(folder, Standby())
        files = [f"--assignment={folder / 'assignment'}", f"--termination-log={folder / 'termination-log'}"]
        state = str(folder / "state")
        command = [sys.executable, "-m", "perdure.cli.main", "run", *files, "--state", state, "--", *self.argv]
        environ = {"PERDURE_ROOT": (self.folder / "root").as_uri(), "PERDURE_TRACE": "1", "OMP_NUM_THREADS": "1"}
        environ |= {"PERDURE_PROCESSES": str(self.processes)}
        environ |= {"PERDURE_UID": UID, "PERDURE_JOB": "local/digits", "PERDURE_MEMBER": name}
        environ |= {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder), **self.environ}
        with (folder / "log").open("wb") as log:
            process = self.start(command, cwd=folder, env=environ, stdout=log, stderr=subprocess.STDOUT)
        self.members[name] = LocalMember(name, folder, process)
        return self.members[name]

    def first_run(self, *names: str, beside: Sequence[str] = ()) -> None:
        """Start these members, and standbys `beside` them; once all are warm they are run 1, in this order.

        So a test with a standby finds a training that has only begun, however long imports take; and no agent gives up
        its zygote, and imports a second time, because that took longer than a minute.
        """
        started = [self.standby(name) for name in (*names, *beside)]
        self.waits("all members are warm", lambda: all(member.warm for member in started))
        master = f"127.0.0.1:{free_port()}"
        for rank, name in self.ranked(names):
            self.members[name].assign(Train(1, rank, self.world(names), master))

    def world(self, names: Sequence[str]) -> int:
        """How many ranks these members have."""
        return len(names) * self.processes

    def ranked(self, names: Sequence[str]) -> Iterable[tuple[int, str]]:
        """The first rank of each of these members."""
        return zip(range(0, self.world(names), self.processes), names, strict=True)

    def waits(self, what: str, until: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Poll, because files cannot be waited for; Late after `seconds`."""
        end = time.monotonic() + seconds
        while not until():
            if time.monotonic() > end:
                raise Late(f"not within {seconds:g} s: {what}")
            time.sleep(0.02)

    def trains(self, run: int, steps: int) -> None:
        """Wait until this run has done so many steps."""
        self.waits(f"{steps} steps of run {run}", lambda: self._steps(run) >= steps)

    def _steps(self, run: int) -> int:
        return len({step.step for step in self.root.trace().steps if step.run == run})

    def moves(
        self,
        old: Sequence[str],
        new: Sequence[str],
        *,
        run: int,
        following: int | None = None,
        limit: int = SAVE_SECONDS,
    ) -> None:
        """Assign all: `new` takes over from `old`, which is run `run`, each in the order of its ranks.

        `following` is the newer run's number; by default the next one.
        """
        following = following or run + 1
        joins, leavers = self._ranks(new, beside=old), self._ranks(old, beside=new)
        token = hashlib.sha256(json.dumps([UID, following, *new]).encode()).hexdigest()[:32]
        block = Handover(run, self.world(old), joins, leavers, f"127.0.0.1:{free_port()}", limit, token)
        master, wait = f"127.0.0.1:{free_port()}", SAVE_SECONDS + 15
        for rank, name in self.ranked(new):
            train = Train(following, rank, self.world(new), master, "drain", SAVE_SECONDS, wait, handover=block)
            self.members[name].assign(train)
        for name in old:
            if name not in new:
                self.members[name].assign(Leave(following, "drain", SAVE_SECONDS, handover=block))

    def _ranks(self, names: Sequence[str], *, beside: Sequence[str]) -> tuple[int, ...]:
        """The ranks of those that are not among the others."""
        firsts = [first for first, name in self.ranked(names) if name not in beside]
        return tuple(rank for first in firsts for rank in range(first, first + self.processes))

    def begins(self, run: int, names: Sequence[str], *, lost: Sequence[int] = ()) -> None:
        """Assign these members to run `run`, in the order of its ranks; members in another run end it.

        Runs named as lost save nothing; all others have their time to save.
        """
        master, wait = f"127.0.0.1:{free_port()}", SAVE_SECONDS + 15
        for rank, name in self.ranked(names):
            train = Train(run, rank, self.world(names), master, "drain", SAVE_SECONDS, wait, tuple(lost))
            self.members[name].assign(train)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Like the death of a node; SIGSTOP freezes the agent alone."""
        self.members[name].process.send_signal(number)


def put_assignment(folder: Path, assignment: Assignment) -> None:
    """The file that the kubelet keeps in the pod."""
    write_whole(folder / "assignment", write_assignment(assignment))
