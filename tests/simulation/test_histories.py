"""Seeded histories of the whole operator: no invariant breaks, every job settles, and a seed is a history."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HISTORIES = int(os.environ.get("PERDURE_HISTORIES", "400"))
ROOT = Path(__file__).parents[2]


def simulation(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: the order of sets has to be the same in each."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_no_invariant_breaks_in_any_history() -> None:
    done = simulation("run", "--histories", str(HISTORIES), "--shrink", "1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_gives_the_same_history_each_time() -> None:
    first, second = (simulation("replay", "7", "--steps").stdout for _ in range(2))
    assert first == second
    assert "every invariant held" in first
