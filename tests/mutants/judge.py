"""Runs the simulation and the unit tests over a copy of the tree in which a bug is planted. Called by `__main__`."""

from __future__ import annotations

import hashlib
import os
import re
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

from tests.mutants.catalogue import CATALOGUE
from tests.mutants.mutant import Mutant

REPOSITORY: Final = Path(__file__).parents[2]
_COPIED: Final = (
    *("operator", "runtime", "tests", "e2e", "crds", "helm", "docs", "images", "examples"),
    "pyproject.toml",
    "conftest.py",
)
_PYTEST: Final = ("-m", "pytest", "-q", "-x", "-n0", "--no-header", "-p", "no:cacheprovider")
_SEED: Final = re.compile(r"seed (\d+):")
_LIMIT_SECONDS: Final = 900
"""This finds a bug that makes something wait forever."""


class Found(StrEnum):
    """What found a planted bug."""

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
    unit_tests: bool = True


class Judge:
    """Works on copies of the tree as it was at the start: an edit meanwhile changes no verdict."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="perdure-mutants-")
        self._original = Path(self._folder.name) / "original"
        self._original.mkdir()
        for name in _COPIED:
            source = REPOSITORY / name
            if source.is_dir():
                shutil.copytree(source, self._original / name, ignore=shutil.ignore_patterns("tools"))
            else:
                shutil.copy2(source, self._original / name)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def digest(self) -> str:
        """Of all that decides a verdict: the same for the same tree."""
        found = hashlib.sha256()
        for name in _COPIED:
            for path in sorted([self._original / name, *(self._original / name).rglob("*")]):
                if path.is_file() and path.suffix != ".pyc":
                    found.update(f"{path.relative_to(self._original)}\0".encode())
                    found.update(path.read_bytes())
        return found.hexdigest()[:16]

    def judge(self, mutant: Mutant | None, effort: Effort) -> tuple[Found, str]:
        """Who finds the bug, the simulation being asked first, and the first line of what it says; raises Stale."""
        with self._copy(mutant) as root:
            for histories, faults in plays(mutant, effort):
                words = self._play(root, effort.seed, histories, faults)
                if words is not None:
                    return Found.SIMULATION, words
            tests = mutant.tests if mutant else sorted({path for one in CATALOGUE for path in one.tests})
            words = _complaint(root, [*_PYTEST, *tests]) if effort.unit_tests else None
        return (Found.NOBODY, "") if words is None else (Found.UNIT, words)

    def _play(self, root: Path, first: int, histories: int, faults: tuple[str, ...]) -> str | None:
        """The first history that fails with the bug, and not without it."""
        end = first + histories
        while first < end:
            words = _complaint(root, _simulated(first, end - first, faults))
            failed = _SEED.match(words or "")
            if words is None or failed is None or root == self._original:
                return words
            first = int(failed[1]) + 1
            if _complaint(self._original, _simulated(first - 1, 1, faults)) is None:
                return words
        return None

    @contextmanager
    def _copy(self, mutant: Mutant | None) -> Iterator[Path]:
        """A tree of links, but for the one file that is changed."""
        if mutant is None:
            yield self._original
            return
        with tempfile.TemporaryDirectory(prefix="mutant-", dir=self._folder.name) as folder:
            root = Path(folder) / "tree"
            shutil.copytree(self._original, root, copy_function=os.link)
            file, text = mutant.changed(self._original)
            (root / file).unlink()
            (root / file).write_text(text, encoding="utf-8")
            for compiled in (root / file).parent.glob(f"__pycache__/{file.stem}.*"):
                compiled.unlink()
            yield root


def _simulated(first: int, histories: int, faults: tuple[str, ...]) -> list[str]:
    words = ["-m", "tests.simulation", "run", "--cores", "1", "--shrink", "0", "--stop-at-first"]
    return [*words, "--histories", str(histories), "--seed", str(first), *faults]


def plays(mutant: Mutant | None, effort: Effort) -> Iterator[tuple[int, tuple[str, ...]]]:
    """How many histories, and the words that choose their faults: few aimed ones find what a hundred others do not."""
    if mutant and mutant.outside:
        return
    if mutant and mutant.faults and effort.aimed:
        yield effort.aimed, ("--only", *mutant.faults)
    if effort.histories:
        yield effort.histories, ()


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
