"""Removes a cluster when the process that owns it has ended without doing so: Ctrl-C, SIGTERM, even SIGKILL.

A process of its own, in a session of its own, that waits for the owner's death and does nothing else. A new cluster
under the same name has another owner and is left alone. Started by `Cluster.up`.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import cleanup
from e2e.cluster.folder import Folder
from e2e.prepare import Progress
from e2e.prepare.basics import REPOSITORY, locked


@dataclass(frozen=True)
class Owner:
    """A process, distinguished from any later one with its number by its start time."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Owner:
        """The process with this number now."""
        # in a stat file the start is the 20th word after the program's name, which may hold anything but ends with ")"
        return cls(pid, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])

    @classmethod
    def read(cls, text: str) -> Owner | None:
        """What `str` has made of one; None of an empty text."""
        pid, _, started = text.partition(" ")
        return cls(int(pid), started) if pid else None

    def __str__(self) -> str:
        return f"{self.pid} {self.started}"

    def alive(self) -> bool:
        """Whether it still runs."""
        with contextlib.suppress(OSError):
            return Owner.of(self.pid) == self
        return False


def start(cluster: str, owner: Owner) -> None:
    """Watch over a cluster that this process is about to boot."""
    # a session of its own, because Ctrl-C is for the owner, and no child of ours: it may outlive us
    argv = ["setsid", "--fork", sys.executable, "-m", "e2e.cluster.guard", cluster, str(owner.pid), owner.started]
    nothing = subprocess.DEVNULL
    subprocess.run(argv, cwd=REPOSITORY, stdin=nothing, stdout=nothing, stderr=nothing, check=True)


def wait_for_the_end_of(owner: Owner) -> None:
    """Returns when it has ended."""
    with contextlib.suppress(ProcessLookupError):
        file = os.pidfd_open(owner.pid)
        poll = select.poll()
        poll.register(file, select.POLLIN)
        while owner.alive() and not poll.poll():
            pass


def main() -> None:
    """Wait, then remove the remains of the owner's cluster."""
    cluster, pid, started = sys.argv[1:]
    owner = Owner(int(pid), started)
    wait_for_the_end_of(owner)
    with locked(f"cluster-{cluster}", Progress()):
        if Folder.of(cluster).read_owner() == str(owner):
            cleanup.remove(cluster)


if __name__ == "__main__":
    main()
