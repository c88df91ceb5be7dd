"""The checks that MindSpore has of its graceful exit, by the numbers of docs/ancestors.md."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import perdure
from perdure import Session
from tests.support.forked import Forked
from tests.unit.runtime.session.ranks import Scene, play
from tests.unit.runtime.session.training import Training

SCRIPT = Path(__file__).with_name("graceful.py")


LEFT = 75
"""EX_TEMPFAIL: saved, and not done."""


@dataclass(frozen=True)
class Once:
    """What a run has left that was interrupted."""

    folder: Path
    printed: list[str]
    model: dict[str, Any]
    """As it was exported."""
    checkpoint: dict[str, Any]


def run(folder: Path, *options: str, status: int = 0) -> list[str]:
    """The lines that the script has printed. It ends with this status."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    environ["OMP_NUM_THREADS"] = "1"
    command, pipe = [str(SCRIPT), str(folder), *options], subprocess.PIPE
    with Forked(command, cwd=folder, env=environ, stdout=pipe, stderr=pipe) as process:
        printed, complaints = process.communicate()
    assert process.returncode == status, complaints
    return printed.splitlines()


def left(folder: Path, printed: list[str]) -> Once:
    return Once(folder, printed, torch.load(folder / "model.pt"), dict(perdure.load(folder / "checkpoints")["model"]))


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    folder = tmp_path_factory.mktemp("once")
    return left(folder, run(folder, "--ask", "SIGTERM", "--after", "epoch 2", status=LEFT))


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_ac_ms_1_a_missing_file_changes_nothing_and_none_is_looked_for_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_CHECK_SECONDS", "0")
    asked = Training(Session.from_env(tmp_path / "asked", exit_file=tmp_path / "no" / "config.json")).run()
    plain = Training(Session.from_env(tmp_path / "plain")).run()
    for training in (asked, plain):
        training.session.close()
    assert (asked.session.steps_done, asked.weights) == (plain.session.steps_done, plain.weights)
    defaults = inspect.signature(Session.from_env).parameters
    assert (defaults["exit_file"].default, defaults["exit_signals"].default) == (None, (signal.SIGTERM,))


def test_ac_ms_2_a_signal_ends_a_training_early_with_a_checkpoint_and_a_model(once: Once) -> None:
    assert once.printed == ["epoch 0", "epoch 1", "epoch 2", "leaving after step 24: SIGTERM"]
    assert same(once.model, once.checkpoint)


def test_ac_ms_3_a_second_run_that_is_interrupted_goes_on_and_leaves_newer_ones(once: Once) -> None:
    """With the counters, and the first one's checkpoint is kept beside it."""
    printed = run(once.folder, "--ask", "SIGUSR1", "--after", "epoch 3", status=LEFT)
    assert printed == ["epoch 3", "leaving after step 32: SIGUSR1"]
    assert [commit.step for commit in perdure.history(once.folder / "checkpoints")] == [32, 24]
    again = left(once.folder, printed)
    assert same(again.model, again.checkpoint)
    assert not same(again.model, once.model)


def test_ac_ms_4_a_signal_in_an_evaluation_stops_it_and_without_one_it_is_done_to_its_end(tmp_path: Path) -> None:
    """It goes on where it was stopped, too."""
    first = run(tmp_path, "--evaluate", "--ask", "SIGTERM", "--after", "evaluated 3", status=LEFT)
    assert first == ["epoch 0", *(f"evaluated {number}" for number in (1, 2, 3)), "leaving after step 8: SIGTERM"]
    second = run(tmp_path, "--evaluate")
    assert second == ["epoch 0", *(f"evaluated {number}" for number in (4, 5, 6, 7, 8)), "done"]


def test_ac_ms_5_eight_ranks_with_a_request_from_the_first_step_leave_together_each_with_its_part(
    tmp_path: Path,
) -> None:
    """A line is said once, by rank 0; there each rank says it."""
    file = str(tmp_path / "config.json")
    asked = Scene(
        "eight",
        "requested",
        8,
        {"root": str(tmp_path / "root"), "file": file},
        {"PERDURE_CHECK_SECONDS": "0"},
        "tests.upstream.scenes",
    )
    ranks = play(tmp_path, [asked])["eight"]
    assert {rank["left"] for rank in ranks} < {1, 2, 3}
    assert len({rank["left"] for rank in ranks}) == 1
    said = f"saved step {ranks[0]['left']}, leaving: GracefulExit in {file}"
    assert [sum(said in line for line in rank["said"]) for rank in ranks] == [1] + [0] * 7
    shards = sorted(path.name for path in (tmp_path / "root").glob("data/1/*/shard-*"))
    assert shards == [f"shard-{rank:05d}-of-00008.safetensors" for rank in range(8)]
