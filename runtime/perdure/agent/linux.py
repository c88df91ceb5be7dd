"""Linux-specific facts and calls: process trees, subreapers and CPU limits.

Used only by the agent. Data from /proc may be stale: a process may be gone already.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Final

from perdure.host.cgroup import CGROUPS

_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_c = ctypes.CDLL(None, use_errno=True)
_prctl, _fflush = _c.prctl, _c.fflush


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, as PID 1 is anyway."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def name_process(name: str) -> None:
    """Set the name in `top` and /proc/PID/comm; the first 15 bytes count."""
    _prctl(_PR_SET_NAME, name.encode(errors="replace"), 0, 0, 0)


def flush_stdout() -> None:
    """Flush the C library's stdout."""
    _fflush(ctypes.c_void_p.in_dll(_c, "stdout"))


def _parents_and_sessions() -> dict[int, tuple[int, int]]:
    """The parent and the session of each process."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                # The second field is the program's name in brackets, which may hold anything.
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                found[int(folder.name)] = (int(fields[1]), int(fields[3]))
    return found


def descendants(root: int, spared: Container[int | None] = ()) -> list[int]:
    """Every process below `root`, except for those in `spared` and their descendants."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in _parents_and_sessions().items():
        children.setdefault(parent, []).append(pid)
    found, waiting = [], [root]
    while waiting:
        below = [pid for pid in children.get(waiting.pop(), []) if pid not in spared]
        found += below
        waiting += below
    return found


def session_members(leader: int) -> list[int]:
    """Every process in the session of `leader`."""
    return [pid for pid, (_, session) in _parents_and_sessions().items() if session == leader]


def kill(pids: Iterable[int]) -> None:
    """SIGKILL these processes; missing ones are no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def cpu_limit(root: Path = CGROUPS) -> int | None:
    """Whole CPUs that the container's cgroup (v2 or v1) allows, at least 1; None without a limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not (quota.isdigit() and period.isdigit() and int(period)):
        return None  # "max" or -1: no limit
    return max(1, int(quota) // int(period))
