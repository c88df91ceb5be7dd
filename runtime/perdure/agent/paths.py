"""The files an agent reads and writes. The startup probe imports nothing else of the agent: it has to be quick."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from perdure.host.cgroup import CGROUPS


def default_scratch(environ: Mapping[str, str]) -> Path:
    """The agent's own folder: in pods below /dev/shm, the only place that a read-only root leaves writable."""
    return Path(environ.get("TMPDIR") or "/tmp") / "perdure"  # noqa: S108 - POSIX's default for TMPDIR


def warm_marker(scratch: Path) -> Path:
    """What the kubelet looks for: there once an assignment was read, but while a seat is held for a next trainer."""
    return scratch / "warm"


class Paths(NamedTuple):
    """Where one agent reads and writes."""

    assignment: Path
    termination_log: Path
    scratch: Path
    cgroups: Path = CGROUPS
    """The container's own limits and counters."""
