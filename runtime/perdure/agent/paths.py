"""The agent's files. The startup probe imports only this module of the agent, because it has to be quick."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from perdure.host.cgroup import CGROUPS


def default_scratch(environ: Mapping[str, str]) -> Path:
    """The agent's own folder. In pods it is below /dev/shm, the only writable place with a read-only root."""
    return Path(environ.get("TMPDIR") or "/tmp") / "perdure"  # noqa: S108 - POSIX's default for TMPDIR


def warm_marker(scratch: Path) -> Path:
    """The file that the startup probe looks for: it exists once an assignment was read."""
    return scratch / "warm"


class Paths(NamedTuple):
    """The files of one agent."""

    assignment: Path
    termination_log: Path
    scratch: Path
    cgroups: Path = CGROUPS
    """The container's own limits and counters."""
    channel: Path | None = None
    """Says where reports go; without one nothing is reported."""
    report_token: Path | None = None
    """The pod's token for them."""
