"""An exit save and a restore succeed where there is room for the live state and 256 MiB: a pod sized for training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


def run(what: str, uri: str, mib: int) -> str:
    """What the program printed; its end is the error if it fails."""
    argv = [sys.executable, "-m", "tests.unit.runtime.checkpoint.limited", what, uri, str(mib)]
    # One arena: what threads of the C library would set aside each is no need of ours.
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize("mib", [320, pytest.param(1024, marks=pytest.mark.chaos)])
def test_a_save_and_a_restore_need_no_more_than_the_live_state_and_256_mib(tmp_path: Path, mib: int) -> None:
    uri = f"file://{tmp_path}/root"
    run("save", uri, mib)
    assert run("restore", uri, mib).split() == ["10", "tensors"]
