"""The few facts and calls that only Linux knows: process trees, subreapers and CPU limits.

Used by the agent alone. What /proc tells may be out of date when it is read: a process may be gone already.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from perdure.host.cgroup import CGROUPS

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_c = ctypes.CDLL(None, use_errno=True)
_prctl, _fflush = _c.prctl, _c.fflush


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent has ended, as PID 1 is anyway."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def die_with_parent() -> None:
    """Called in a child between fork and exec: SIGKILL when the agent is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def name_process(name: str) -> None:
    """What `top` and /proc/PID/comm show of this process: the first 15 bytes of it."""
    _prctl(_PR_SET_NAME, name.encode(errors="replace"), 0, 0, 0)


def flush_stdout() -> None:
    """Writes what libraries have printed by the functions of C."""
    _fflush(ctypes.c_void_p.in_dll(_c, "stdout"))


def _parents_and_sessions() -> dict[int, tuple[int, int]]:
    """Of each process its parent and its session."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                # The second field is the program's name in brackets, which may hold anything.
                fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                found[int(folder.name)] = (int(fields[1]), int(fields[3]))
    return found


def descendants(root: int, spared: int | None = None) -> list[int]:
    """Every process below `root`, but for `spared` and what is below it."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in _parents_and_sessions().items():
        children.setdefault(parent, []).append(pid)
    found, waiting = [], [root]
    while waiting:
        below = [pid for pid in children.get(waiting.pop(), []) if pid != spared]
        found += below
        waiting += below
    return found


def session_members(leader: int) -> list[int]:
    """Every process in the session that `leader` has founded."""
    return [pid for pid, (_, session) in _parents_and_sessions().items() if session == leader]


def kill(pids: Iterable[int]) -> None:
    """SIGKILL; a process that is gone already is no error."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def cpu_limit(root: Path = CGROUPS) -> int | None:
    """Whole CPUs this container's cgroup (v2, else v1) allows, at least 1; None without a limit."""
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
