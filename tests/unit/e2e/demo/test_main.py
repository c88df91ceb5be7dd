"""What the command line of the demo says of an interruption."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.demo.story import CLUSTER
from e2e.prepare import Progress
from e2e.prepare.basics import locked


def test_a_removal_that_is_interrupted_does_not_say_that_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path))
    with locked(f"cluster-{CLUSTER}", Progress()):
        words = [sys.executable, "-m", "e2e.demo", "down"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert "waiting for it" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            _, said = process.communicate()
    assert (process.returncode, said) == (130, "\ninterrupted: `make demo-down` removes what is left\n")
