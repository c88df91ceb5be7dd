"""The cluster's cgroups: where its processes are kept together, so that none can be lost or mistaken for another's.

cgroup v1 is what this was tested on; the code for v2 (one hierarchy, controllers handed down) is untested.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

KILL_SECONDS = 15.0
POLL_SECONDS = 0.02
WEIGHTS = {"cpu.shares": 1024, "cpu.weight": 100}
"""That of one process."""
V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "pids")


def hierarchies() -> list[Path]:
    """Every mounted hierarchy, the one used for bookkeeping first."""
    mounts = [line.split()[1:4] for line in Path("/proc/mounts").read_text().splitlines()]
    found = [
        (Path(point), kind, options.split(",")) for point, kind, options in mounts if kind in {"cgroup", "cgroup2"}
    ]
    found.sort(key=lambda entry: (entry[1] != "cgroup", "pids" not in entry[2]))
    return [path for path, _, _ in found]


def procs_file(group: str) -> Path:
    """A process that writes its id here belongs to the group, with all its descendants."""
    return hierarchies()[0] / group / "cgroup.procs"


def make(group: str) -> None:
    """Create the group in every hierarchy, usable for containers."""
    for hierarchy in hierarchies():
        path = hierarchy
        for part in group.split("/"):
            _hand_down_v2(path)
            path /= part
            path.mkdir(exist_ok=True)
            _inherit_cpuset_v1(path)


def weigh(group: str, processes: int) -> None:
    """On a busy machine the group gets as much of the processors as so many processes; by itself it counts as one."""
    for hierarchy in hierarchies():
        for name, one in WEIGHTS.items():
            file = hierarchy / group / name
            if file.exists():
                file.write_text(str(one * processes))


def pids(group: str) -> set[int]:
    """The processes in the group and below it."""
    return {
        int(pid)
        for hierarchy in hierarchies()
        for file in _walk(hierarchy / group)
        for pid in _read(file / "cgroup.procs").split()
        if pid != "0"
    }


def folders_named(group: str, name: str) -> list[Path]:
    """The folders below the group with that name, in the hierarchy used for bookkeeping."""
    return [folder for folder in _walk(hierarchies()[0] / group) if folder.name == name]


def kill(group: str) -> None:
    """End every process of the group; they have nothing worth saving."""

    def none_left() -> bool:
        left = pids(group)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    _until(none_left, f"processes of cgroup {group} do not end")


def remove(group: str) -> None:
    """Remove the group from every hierarchy; it must be empty of processes."""

    def gone() -> bool:
        for hierarchy in hierarchies():
            for folder in _walk(hierarchy / group):
                with contextlib.suppress(OSError):  # a process is still leaving: the next round gets it
                    folder.rmdir()
        return not any((hierarchy / group).exists() for hierarchy in hierarchies())

    _until(gone, f"cgroup {group} cannot be removed")


def _until(done: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + KILL_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{complaint}: gave up after {KILL_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)


def _walk(folder: Path) -> Iterator[Path]:
    """Deepest first; a folder may vanish meanwhile."""
    for path, _, _ in os.walk(folder, topdown=False):
        yield Path(path)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # the group vanished, or is a threaded one that has no list
        return ""


def _inherit_cpuset_v1(path: Path) -> None:
    for name in ("cpuset.cpus", "cpuset.mems"):
        file = path / name
        if file.exists() and (path / "notify_on_release").exists() and not file.read_text().strip():
            file.write_text((path.parent / name).read_text())


def _hand_down_v2(path: Path) -> None:
    available = _read(path / "cgroup.controllers").split()
    for controller in V2_CONTROLLERS:
        if controller in available:
            (path / "cgroup.subtree_control").write_text(f"+{controller}")
