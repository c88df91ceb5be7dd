"""Runs the simulation and the unit tests over a copy of the tree in which a bug is planted. Called by `__main__`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.mutants.mutant import Mutant

REPOSITORY: Final = Path(__file__).parents[2]
_COPIED: Final = (
    *("operator", "runtime", "tests", "e2e", "crds", "helm", "docs", "images", "examples"),
    "pyproject.toml",
    "conftest.py",
)
_UNIT: Final = ("tests/unit/operator",)
_LIMIT_SECONDS: Final = 900
"""A bug that makes something wait for ever is found by that."""


class Found(StrEnum):
    """Who has found a planted bug."""

    SIMULATION = "simulation"
    UNIT = "unit tests"
    NOBODY = "nobody"


@dataclass(frozen=True)
class Effort:
    """How hard the simulation tries."""

    histories: int
    """With all faults."""
    seed: int = 0
    aimed: int = 0
    """Before those: with nothing but the bug's own faults."""


def judge(mutant: Mutant | None, effort: Effort) -> tuple[Found, str]:
    """Who finds the bug, the simulation being asked first, and the first line of what it says; raises Stale."""
    with _copy() as root:
        if mutant:
            mutant.plant(root)
        for histories, faults in _plays(mutant, effort):
            simulated = ["-m", "tests.simulation", "run", "--cores", "1", "--shrink", "0", "--stop-at-first"]
            simulated += ["--histories", str(histories), "--seed", str(effort.seed), *faults]
            words = _complaint(root, simulated)
            if words is not None:
                return Found.SIMULATION, words
        words = _complaint(root, ["-m", "pytest", "-q", "-x", "-n0", "--no-header", "-p", "no:cacheprovider", *_UNIT])
        return (Found.NOBODY, "") if words is None else (Found.UNIT, words)


def _plays(mutant: Mutant | None, effort: Effort) -> Iterator[tuple[int, tuple[str, ...]]]:
    """How many histories, and the words that choose their faults: few aimed ones find what a hundred others do not."""
    if mutant and mutant.faults and effort.aimed:
        yield effort.aimed, ("--only", *mutant.faults)
    if effort.histories:
        yield effort.histories, ()


@contextmanager
def _copy() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="perdure-mutant-") as folder:
        root = Path(folder)
        for name in _COPIED:
            source = REPOSITORY / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__", "tools"))
            else:
                shutil.copy2(source, root / name)
        yield root


def _complaint(root: Path, words: list[str]) -> str | None:
    """What the command says where it fails, None where it is content."""
    path = os.pathsep.join(str(root / part) for part in ("operator", "runtime", "."))
    env = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=root,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "it does not come to an end"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith(("seed ", "FAILED ", "ERROR "))]
    return (lines or [done.stderr.strip()[-200:] or "it fails without a word"])[0][:160]
