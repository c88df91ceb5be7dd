"""The running processes of one trainer: their pipes, their ends and their descendants.

A trainer is over when its last process has ended *and* no descendant is left: a DataLoader worker of the old run must
not hold memory or ports of the next. A trainer whose processes only have their interpreters to shut down, and hold
nothing, may be set aside earlier and ends while the next one runs. There are no threads here, only non-blocking pipes
that the shell's selector watches.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from perdure.agent import linux
from perdure.agent.launch import Launcher
from perdure.agent.memory import OutOfMemory, oom_kills
from perdure.agent.pod_log import Outlet
from perdure.agent.residual_resources import held_by, is_room
from perdure.agent.state import Cleared, MakesWay, ProcessEnded, ReportReceived
from perdure.agent.stderr_tail import Tail
from perdure.host.cgroup import memory_limit
from perdure.wire.channel import read_report, read_unwound

_CHUNK: Final = 65536
"""A pipe's capacity: one read takes everything, and a process that writes without end cannot block the agent."""
_LEAST: Final = 19
"""The lowest priority, for processes that were set aside."""


@dataclass
class Pipe:
    """The agent's end of a pipe from one process."""

    fd: int
    selector: selectors.BaseSelector
    closed: bool = False

    def __post_init__(self) -> None:
        os.set_blocking(self.fd, False)  # a descendant may hold the other end forever
        self.selector.register(self.fd, selectors.EVENT_READ)

    def read(self) -> bytes:
        """The pipe's current contents."""
        if self.closed:
            return b""
        try:
            chunk = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return b""
        if not chunk:
            self.close()  # an end of file would wake the selector forever
        return chunk

    def close(self) -> None:
        """Stop reading."""
        if not self.closed:
            self.closed = True
            self.selector.unregister(self.fd)
            os.close(self.fd)


@dataclass
class Child:
    """One process that the agent started."""

    rank: int
    pid: int
    report: Pipe
    stderr: Pipe
    log: Outlet
    """Receives its stderr."""
    status: int | None = None
    """Its exit status, as in ProcessEnded, once it has ended."""
    reported: bool = False
    """Whether its end was reported."""
    unwound: bool = False
    """Whether it only has its interpreter to shut down."""
    groups: frozenset[int] = frozenset()
    """The sockets of its process groups, by inode, once it is unwound."""
    port: int = 0
    """The port that its run's rank 0 listens on."""
    until: float = 0.0
    """When it is killed, once it is set aside."""
    tail: Tail = field(default_factory=Tail)
    """The end of its stderr."""
    _line: bytes = b""
    """The beginning of an incomplete report."""

    def pump(self) -> Iterator[ReportReceived]:
        """The reports that have arrived; passes stderr through."""
        *lines, self._line = (self._line + self.report.read()).split(b"\n")
        for line in lines:
            if (groups := read_unwound(line)) is not None:
                self.unwound, self.groups = True, groups
            if report := read_report(line):
                yield ReportReceived(self.rank, report)
        text = self.stderr.read()
        self.log.write(text)
        self.tail.add(text)

    def drain(self) -> None:
        """Passes its stderr on; its reports are no longer read."""
        for _ in self.pump():
            pass

    def close(self) -> None:
        """Close its pipes."""
        self.report.close()
        self.stderr.close()

    def end(
        self, status: int, *, left_behind: bool, out_of_memory: OutOfMemory | None
    ) -> Iterator[ReportReceived | ProcessEnded]:
        """Its last reports and its end."""
        self.reported = True
        yield from self.pump()
        self.close()
        yield ProcessEnded(self.rank, status, self.tail.text(), left_behind, out_of_memory)


@dataclass
class Children:
    """All processes of the trainer."""

    cgroups: Path
    launcher: Launcher
    members: list[Child] = field(default_factory=list)
    killed_before: int | None = None
    """The kernel's count of out-of-memory kills before the trainer was started."""
    clearing: bool = False
    """Whether the last process has ended and its descendants are being killed."""
    aside: list[Child] = field(default_factory=list)
    """Processes of older trainers that still end."""
    spared: int | None = None
    """A process of the agent's own, which no trainer started."""

    def add(self, child: Child) -> None:
        """Watch a new process."""
        self.members.append(child)

    def pump(self) -> Iterator[ReportReceived | MakesWay]:
        """All reports that have arrived."""
        for child in self.members:
            before = child.unwound
            yield from child.pump()
            if child.unwound and not before:
                yield MakesWay(child.rank, self._in_the_way(child))
        for child in self.aside:
            child.drain()

    def _in_the_way(self, child: Child) -> str:
        """Why no other trainer can begin before this process has ended; "" if one can."""
        self.reap()
        own = {one.pid for one in self.members}
        if self.aside or any(pid not in own for pid in self._left()):
            return "other processes are left"
        return held_by(child.pid, child.port, groups=child.groups) or (
            "" if is_room(child.pid, self.cgroups) else "there is no memory for both"
        )

    def reap(self) -> None:
        """Record every ended descendant that the agent has to wait for."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                for child in (*self.members, *self.aside):
                    if child.pid == ended[0]:
                        child.status = os.waitstatus_to_exitcode(ended[1])

    def ended(self) -> Iterator[ReportReceived | ProcessEnded | Cleared]:
        """The new ends, each after its last reports, and Cleared once nothing is left of the last one."""
        for child in self.members:
            if child.status is None or child.reported:
                continue
            linux.kill(linux.session_members(child.pid))
            last = all(other.reported for other in self.members if other is not child)
            self.clearing = last and not self._cleared()
            yield from child.end(child.status, left_behind=self.clearing, out_of_memory=self._out_of_memory())
        if self.clearing and self._cleared():
            self.clearing = False
            yield Cleared()
        self._end_aside()

    def _out_of_memory(self) -> OutOfMemory | None:
        killed = oom_kills(self.cgroups)
        if killed is None or self.killed_before is None or killed <= self.killed_before:
            return None
        return OutOfMemory(memory_limit(self.cgroups))

    def _cleared(self) -> bool:
        """Kill what the last process left behind; returns whether nothing is left."""
        if left := self._left():
            linux.kill(left)
            self.reap()
            left = self._left()
        return not left

    def _left(self) -> list[int]:
        """Every process below the agent that a trainer started, except for those set aside."""
        found = linux.descendants(os.getpid(), spared=(self.launcher.helper, self.spared))
        aside = {pid for child in self.aside for pid in linux.session_members(child.pid)}
        return [pid for pid in found if pid not in aside]

    def make_room(self, seconds: float) -> None:
        """Set this trainer aside for the next one, which may start now; it is killed if it has not ended after
        `seconds`."""
        self.killed_before = oom_kills(self.cgroups)
        until = time.monotonic() + seconds
        for child in self.members:
            if not child.reported:
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, child.pid, _LEAST)
                child.until = until
                self.aside.append(child)
        self.members.clear()
        self.clearing = False

    def _end_aside(self) -> None:
        """Reap processes that were set aside, and kill those whose time is up."""
        for child in list(self.aside):
            over = time.monotonic() >= child.until
            if child.status is not None or over:
                linux.kill(linux.session_members(child.pid))
            if child.status is not None:
                child.drain()
                child.close()
                self.aside.remove(child)

    def kill(self) -> None:
        """SIGKILL everything that a trainer started; later forks are killed at its end."""
        linux.kill(self._left())

    def terminate(self, sessions: Mapping[int, int]) -> None:
        """SIGTERM each process, or the descendant with its Session; `sessions` maps ranks to process ids."""
        for child in self.members:
            pid = sessions.get(child.rank, 0)
            if child.status is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid if _in_session(pid, child.pid) else child.pid, signal.SIGTERM)


def _in_session(pid: int, leader: int) -> bool:
    try:
        return pid > 1 and os.getsid(pid) == leader
    except ProcessLookupError:
        return False
