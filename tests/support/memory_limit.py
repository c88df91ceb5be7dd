"""A memory limit for processes of a test, as a container has one: a cgroup, of version 1 or 2. Needs root.

The kernel counts all that its processes take: private and shared memory, anonymous files, cached files until they are
written. Files that are written leave the cache first. If that is not enough, it kills a process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from e2e.cluster import cgroups
from e2e.prepare import requirements


@dataclass(frozen=True)
class MemoryGroup:
    """One cgroup."""

    folder: Path
    """In the hierarchy that limits memory."""

    def join(self) -> None:
        """This process belongs to it, and what it starts. What it has taken before is not counted."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def used(self) -> int:
        """Bytes, without cached files."""
        stat = dict(line.split() for line in self._of("memory.stat", "memory.stat").read_text().splitlines())
        whole = int(self._of("memory.usage_in_bytes", "memory.current").read_text())
        return whole - int(stat["active_file"]) - int(stat["inactive_file"])

    def most(self) -> int:
        """The most bytes that were ever used, with cached files."""
        return int(self._of("memory.max_usage_in_bytes", "memory.peak").read_text())

    def limit(self, most: int) -> None:
        """Its processes may use so many bytes from now on, and nothing is swapped."""
        self._of("memory.limit_in_bytes", "memory.max").write_text(str(most))
        swap = self._of("memory.memsw.limit_in_bytes", "memory.swap.max")
        if swap.exists():
            swap.write_text("0" if swap.name == "memory.swap.max" else str(most))

    def as_in_container(self, path: Path) -> Path:
        """Where its processes find its files as if it were their container's. `path` is new."""
        if (self.folder / "memory.max").exists():
            return self.folder
        path.mkdir()
        (path / "memory").symlink_to(self.folder)
        return path

    def killed(self) -> int:
        """How many of its processes were killed because they needed more."""
        lines = self._of("memory.oom_control", "memory.events").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def _of(self, version_1: str, version_2: str) -> Path:
        return self.folder / (version_2 if (self.folder / "memory.max").exists() else version_1)


@contextmanager
def memory_groups(count: int) -> Iterator[list[MemoryGroup]]:
    """So many cgroups without a limit; nothing of them is left. Where none can be made the test is skipped, and fails
    under CI=true."""
    if lacks := requirements.machine():
        _cannot("; ".join(lacks))
    names = [f"perdure-test-{os.getpid()}-{number}" for number in range(count)]
    try:
        try:
            for name in names:
                cgroups.make(name)
        except OSError as error:
            _cannot(str(error))
        yield [MemoryGroup(_limiting(name)) for name in names]
    finally:
        for name in names:
            cgroups.kill(name)
            cgroups.remove(name)


def _cannot(why: str) -> NoReturn:
    told = f"no cgroup can be made here: {why}"
    if os.environ.get("CI") == "true":
        pytest.fail(told)
    pytest.skip(told)


def _limiting(name: str) -> Path:
    folders = [hierarchy / name for hierarchy in cgroups.hierarchies()]
    files = ("memory.limit_in_bytes", "memory.max")
    return next(folder for folder in folders if any((folder / file).exists() for file in files))
