"""The second example as a user starts it: it stops early, says why in the log, and exports once."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from perdure.cli.main import main
from tests.support.forked import ForkedLauncher, run_forked

REPOSITORY = Path(__file__).parents[3]
SCRIPT = REPOSITORY / "examples" / "tinygpt" / "train.py"
SECONDS = 600


def test_a_training_that_learns_nothing_stops_on_a_plateau_and_exports_what_it_has(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    command = [str(SCRIPT), "--epochs", "3", "--batch", "4", "--rate", "0"]
    done = run_forked(command, cwd=tmp_path, env=environ | {"OMP_NUM_THREADS": "1"}, seconds=SECONDS)
    assert done.returncode == 0, done.stderr
    first, *later = [line for line in done.stdout.splitlines() if line.startswith("evaluation loss")]
    assert later == [first] * 4
    newest = json.loads(min((tmp_path / "checkpoints" / "log").glob("*.json")).read_text())
    assert (newest["kind"], newest["step"]) == ("Completed", 125)
    assert newest["goal"] == {"epochs": 3, "stop": ["plateau"]}
    assert done.stdout.count("exported ") == 1
    exported = load_file(tmp_path / "tinygpt.safetensors")
    assert exported["model.characters.weight"].shape == (100, 64)
    assert all(name.startswith("model.") for name in exported)


@pytest.mark.parametrize("how", ["--tp", *(pytest.param(how, marks=pytest.mark.chaos) for how in ("--fsdp", "--hsdp"))])
def test_two_processes_train_it_in_parts_and_its_weights_are_exported_whole(tmp_path: Path, how: str) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = tmp_path / "train.py"
    script.write_text(re.sub(r"(?<=^TRAINING_FILES = ).*", '("csv", "functools")', SCRIPT.read_text(), flags=re.M))
    command = [*launcher, str(script), how, "--epochs", "1", "--batch", "46"]
    environ |= {"OMP_NUM_THREADS": "1"}
    done = run_forked(command, cwd=tmp_path, env=environ, seconds=SECONDS, start=ForkedLauncher)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("step ")]
    assert 9 < len(losses) < 13, "each step is told once"
    assert losses[-2] < 0.8 * losses[0], "the last step may be of one micro-batch alone"
    assert "exported" not in done.stdout
    assert main(["export", str(tmp_path / "checkpoints"), "model", str(tmp_path / "out")]) == 0
    assert load_file(tmp_path / "out" / "model.safetensors")["characters.weight"].shape == (100, 64)
