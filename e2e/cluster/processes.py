"""Starts, finds and ends the components of one cluster.

A component is born inside the cluster's cgroup, so if its starter is killed at any moment nothing is lost track of. A
pid file names a component; the cgroup proves that the pid is ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import cgroups
from e2e.cluster.folder import Folder

POLL_SECONDS = 0.05
LONGEST_REST_SECONDS = 0.5
SIGNAL_SECONDS = 15.0
TAIL_LINES = 15
TAIL_BYTES = 20_000
# $1 is the pid file, $2 the cgroup's list of processes, the rest the program. It outlives its starter.
LAUNCH = """
pid_file=$1 group=$2
shift 2
echo $$ > "$group" || exit 1
"$@" &
echo $! > "$pid_file"
"""
GO = {"GOGC": "400"}
"""For the environment of programs in Go: a fifth of what a control plane computes is garbage collection."""
# What a node must not share with the host or another node: each gets an empty one in its own mount namespace.
PRIVATE_MOUNTS = (
    'mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/lib && mount -t tmpfs tmpfs /var/log && exec "$@"'
)


class ClusterError(RuntimeError):
    """The cluster cannot do the request; the message says what happened and where to look."""


class ComponentDied(ClusterError):
    """A component that should be running has ended."""


@dataclass(frozen=True)
class Place:
    """Where a component runs: a network namespace, and a mount namespace of its own or another component's."""

    netns: str
    new_mounts: bool = False
    mounts_of: str = ""


@dataclass(frozen=True)
class Processes:
    """The components of one cluster."""

    folder: Folder
    group: str
    path: str
    part: str = "plane"
    """Which part of the group is started here: a node's components end together."""

    def start(self, name: str, argv: Sequence[str | Path], place: Place, env: Mapping[str, str] | None = None) -> None:
        """Start a component; it must not be running."""
        words = [*self._enter(place), *map(str, argv)]
        launch: list[str | Path] = [
            "/bin/sh",
            "-c",
            LAUNCH,
            "launch",
            self._pid_file(name),
            cgroups.procs_file(f"{self.group}/{self.part}"),
            *words,
        ]
        environment = {"PATH": self.path, "HOME": str(self.folder.temporary), "TMPDIR": str(self.folder.temporary)}
        with self.log(name).open("ab") as log:
            subprocess.run(
                launch,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, **GO, **(env or {})},
                start_new_session=True,
                check=True,
            )

    def log(self, name: str) -> Path:
        """The component's output."""
        return self.folder.logs / f"{name}.log"

    def names(self) -> list[str]:
        """The components that were ever started and not stopped on purpose."""
        return sorted(path.name for path in self.folder.pids.glob("*") if _size(path))  # else it is being started

    def pid(self, name: str) -> int | None:
        """The component's process; None when it has ended."""
        try:
            pid = int(self._pid_file(name).read_text())
        except (OSError, ValueError):
            return None
        return pid if pid in cgroups.pids(self.group) else None

    def freeze(self, name: str) -> None:
        """Stop a component where it is; it does nothing more when this returns."""
        pid = self._signal(name, signal.SIGSTOP)
        self._until(f"{name} to freeze", lambda: all(state == "T" for state in _thread_states(pid)))

    def thaw(self, name: str) -> None:
        """Let a frozen component go on."""
        pid = self._signal(name, signal.SIGCONT)
        self._until(f"{name} to thaw", lambda: "T" not in _thread_states(pid))

    def stop(self, name: str) -> None:
        """Kill a component and forget it."""
        self._signal(name, signal.SIGKILL)
        self._until(f"{name} to end", lambda: self.pid(name) is None)
        self._pid_file(name).unlink()

    def forget(self, name: str) -> None:
        """From now on this component's end is not an error."""
        self._pid_file(name).unlink(missing_ok=True)

    def dead(self) -> list[str]:
        """The components that have ended by themselves."""
        ended = [name for name in self.names() if self.pid(name) is None]
        return [name for name in ended if self._pid_file(name).exists()]  # else it has been forgotten meanwhile

    def check(self) -> None:
        """Raise when a component has died, with the end of its log."""
        dead = self.dead()
        if dead:
            raise ComponentDied("\n".join(f"{name} has died: {self.tail(name)}" for name in dead))

    def wait(self, what: str, seconds: float, done: Callable[[], bool]) -> None:
        """Wait until done; ends early when a component dies."""

        def done_or_dead() -> bool:
            self.check()
            return done()

        self._until(what, done_or_dead, seconds)

    def tail(self, name: str) -> str:
        """The last lines of the component's log, and where the rest is."""
        return tail(self.log(name))

    def _signal(self, name: str, number: signal.Signals) -> int:
        pid = self.pid(name)
        if pid is None:
            raise ClusterError(f"{name} is not running: {self.tail(name)}")
        os.kill(pid, number)
        return pid

    def _until(self, what: str, done: Callable[[], bool], seconds: float = SIGNAL_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        for _ in looks():
            if done():
                return
            if time.monotonic() > deadline:
                raise ClusterError(f"waited {seconds:.0f} s in vain for {what}; logs are in {self.folder.logs}")

    def _pid_file(self, name: str) -> Path:
        return self.folder.pids / name

    def _enter(self, place: Place) -> list[str]:
        enter = ["nsenter", f"--net=/run/netns/{place.netns}"]
        if place.mounts_of:
            return [*enter, f"--mount=/proc/{self.pid(place.mounts_of)}/ns/mnt"]
        if place.new_mounts:
            return [*enter, "unshare", "--mount", "--propagation=private", "/bin/sh", "-c", PRIVATE_MOUNTS, "mounts"]
        return enter


def looks() -> Iterator[None]:
    """One look each, without end, with a rest before the next."""
    while True:
        begun = time.monotonic()
        yield
        time.sleep(rest_after(time.monotonic() - begun))


def rest_after(seconds: float) -> float:
    """How many seconds to rest after a look that took so many: a look that starts kubectl takes time from what it waits
    for."""
    return min(max(POLL_SECONDS, 4 * seconds), LONGEST_REST_SECONDS)


def _thread_states(pid: int) -> set[str]:
    # in a stat file the state follows the program's name, which may hold anything but ends with the last ")"
    states = set()
    for file in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # this thread has just ended
            states.add(file.read_text().rsplit(")", 1)[1].split()[0])
    return states


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # forgotten meanwhile
        return 0


def tail(log: Path) -> str:
    """The last lines of a log file, and where the rest is."""
    try:
        text = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
    except OSError as error:
        return f"no log ({error.strerror}: {log})"
    return f"the end of {log}:\n" + "\n".join(f"    {line}" for line in text.splitlines()[-TAIL_LINES:])
