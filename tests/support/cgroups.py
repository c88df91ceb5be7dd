"""A container's cgroup, as files. For tests of code that reads one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cgroup(root: Path, files: Mapping[str, str]) -> Path:
    """These files below it, by relative name; returns the root."""
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return root
