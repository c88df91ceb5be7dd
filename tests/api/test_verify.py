"""`perdure-operator verify`, which `helm test` runs, with an operator and without one, by its own rights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster.commands import clean_environment
from tests.api.conftest import SYSTEM, Installed
from tests.api.process import OperatorProcess
from tests.api.scene import until

pytestmark = pytest.mark.api


def verify(kubeconfig: Path, *, lease_seconds: int) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "perdure_operator.cli.main", "verify", f"--kubeconfig={kubeconfig}"]
    argv += [f"--lease-namespace={SYSTEM}", f"--lease-seconds={lease_seconds}"]
    return subprocess.run(argv, check=False, capture_output=True, text=True, env=clean_environment(os.environ))


def test_an_installation_is_sound_as_long_as_an_operator_leads(installed: Installed, tmp_path: Path) -> None:
    with OperatorProcess(installed.kubeconfig, tmp_path / "log") as operator:
        until("a leader", lambda: operator.leading)
        sound = verify(installed.kubeconfig, lease_seconds=15)
    assert (sound.returncode, sound.stderr) == (0, "")
    assert "an operator leads" in sound.stdout
    broken = verify(installed.kubeconfig, lease_seconds=1)
    assert (broken.returncode, broken.stdout) == (1, "")
    assert broken.stderr == (
        f"perdure-operator: no operator leads: the Lease {SYSTEM}/perdure-operator had no holder for 3 s: "
        "look at the operator's log\n"
    )
