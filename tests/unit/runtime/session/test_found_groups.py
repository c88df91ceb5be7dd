"""Ranks that a launcher has started, in a process group that was there before the session: scripts as users start them.

The arithmetic of the training is exact (integers, powers of two, float64), so its weights are the same bit for bit on
any number of ranks that divides a batch; momentum and the schedule make them depend on the order of the steps.
"""

from __future__ import annotations

import os
import re
import runpy
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

import perdure
from e2e.harness.local_run import free_port
from perdure import Session
from perdure.wire import ExitKind
from perdure.wire.channel import Attached, Exiting
from tests.support.forked import ForkedLauncher, run_forked
from tests.unit.runtime.records import entries
from tests.unit.runtime.session.test_processes import together

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "launchers.md"
(EXAMPLE,) = (
    textwrap.dedent(found)
    for found in re.findall(r"^ *```python\n(.*?)^ *```", PAGE.read_text(), re.M | re.S)
    if "init_process_group" in found
)
STEPS = 3 * 5
SECONDS = 600

BEFORE = """
import os, signal, sys, time, torch, perdure

class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 2, bias=False, dtype=torch.float64)
        torch.nn.init.zeros_(self.weight)

def criterion(outputs, labels):
    return (outputs * labels).sum(1).mean()

numbers = torch.Generator().manual_seed(0)
train_set = torch.utils.data.TensorDataset(
    torch.randint(-8, 8, (40, 4), generator=numbers).double(), torch.randint(-8, 8, (40, 2), generator=numbers).double()
)

class Interrupted(perdure.Session):
    def step(self, **said):
        if self.rank == 0 and self.steps_done + 1 == int(sys.argv[1]):
            os.kill(os.getppid(), signal.SIGTERM)
            while not perdure.exit_requested(self):
                time.sleep(0.01)
        super().step(**said)

perdure.Session = Interrupted
"""
AFTER = """
if session.rank == 0:
    torch.save(model.module.state_dict(), "weights.pt")
"""


def write(folder: Path, script: str = BEFORE + EXAMPLE + AFTER) -> str:
    """The example, with all that it needs, or another one; it leaves its weights."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script)
    return str(folder / "train.py")


def launch(
    folder: Path, ranks: int, *options: str, terminate: int = 0, script: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """The example as torchrun plays it; rank 0 sends torchrun SIGTERM right before it reports a step."""
    path = write(folder, script) if script else write(folder)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    command = [*launcher, *options, path, str(terminate)]
    environ |= {"OMP_NUM_THREADS": "1"} | more
    return run_forked(command, cwd=folder, env=environ, seconds=SECONDS, start=ForkedLauncher)


def alone(folder: Path, patch: pytest.MonkeyPatch, script: str = "") -> None:
    """The same, undisturbed, as the one rank of a group in this process."""
    path = write(folder, script) if script else write(folder)
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in place.items():
        patch.setenv(name, value)
    patch.setattr(sys, "argv", [path, "0"])
    patch.setattr(perdure, "Session", Session)  # and back again
    patch.chdir(folder)
    runpy.run_path(path, run_name="__main__")


def test_torchrun_does_not_say_that_a_training_is_done_which_was_asked_to_leave(tmp_path: Path) -> None:
    left = launch(tmp_path / "left", 1, PERDURE_EXIT_AT_STEP="3")
    assert left.returncode == 1, left.stderr
    assert entries(tmp_path / "left" / "checkpoints")[-1].get("final"), left.stderr
    assert "exitcode  : 75" in left.stderr


def test_plain_torchrun_is_ended_in_the_middle_and_goes_on_with_other_ranks_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    with monkeypatch.context() as patch:
        alone(undisturbed, patch)
    first = launch(disturbed, 2, terminate=7)
    assert not (disturbed / "weights.pt").exists()
    (opened, *made) = entries(disturbed / "checkpoints")
    assert opened["kind"] == "Opened"
    assert {entry["kind"] for entry in made} == {"Committed"}, first.stderr
    left = made[-1]["step"]  # behind an epoch's last step it is saved in case, before it is left
    assert made[-1]["final"]
    assert isinstance(left, int)
    assert 7 <= left < STEPS
    second = launch(disturbed, 1)
    assert second.returncode == 0, second.stderr
    lines = entries(disturbed / "checkpoints")
    assert [entry["kind"] for entry in lines[1 + len(made) :]] == ["Opened", "Committed", "Completed"]
    assert [entry["world"] for entry in lines if entry["kind"] == "Opened"] == [2, 1]
    assert lines[-1]["step"] == STEPS
    weights, expected = (torch.load(folder / "weights.pt")["weight"] for folder in (disturbed, undisturbed))
    assert expected.count_nonzero() == expected.numel()
    assert torch.equal(weights, expected)


OWN_GROUP = """
import os, torch, perdure
session = perdure.Session.from_env()
torch.manual_seed(0)
model = session.wrap(torch.nn.Linear(4, 2, dtype=torch.float64))
optimizer = torch.optim.SGD(model.parameters(), lr=2**-6, momentum=0.5)
session.register(model=model, optimizer=optimizer)
numbers = torch.Generator().manual_seed(0)
samples = torch.utils.data.TensorDataset(torch.randint(-8, 8, (40, 4), generator=numbers).double())
with session:
    for epoch in session.epochs(3):
        for (inputs,) in session.loader(samples, batch_size=8):
            optimizer.zero_grad()
            session.weighted(model(inputs).mean()).backward()
            optimizer.step()
            if session.rank == 1 and session.steps_done == int(os.environ.get("FAILS", 99)):
                if not os.path.exists("failed"):
                    open("failed", "w").close()
                    raise RuntimeError("once")
            session.step()
    if session.rank == 0:
        torch.save(model.state_dict(), "weights.pt")
"""


def test_torchrun_starts_all_ranks_again_when_one_fails_and_they_go_on_from_the_newest_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    with monkeypatch.context() as patch:
        alone(undisturbed, patch, OWN_GROUP)
    done = launch(disturbed, 2, "--max-restarts=1", script=OWN_GROUP, FAILS="7", PERDURE_EVERY_STEPS="4")
    assert (disturbed / "failed").exists()
    assert done.returncode == 0, done.stderr
    kinds = [(entry["kind"], entry.get("step")) for entry in entries(disturbed / "checkpoints")]
    resumed = [step for kind, step in kinds if kind == "Committed" and step is not None]
    assert [kind for kind, _ in kinds].count("Opened") == 2
    assert resumed[:2] == [4, 8], done.stderr
    assert kinds[-1] == ("Completed", STEPS)
    weights, expected = (torch.load(folder / "weights.pt") for folder in (disturbed, undisturbed))
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


EARLY_END = """
import torch, torch.distributed as dist, perdure
dist.init_process_group("gloo")
with perdure.Session.from_env() as session:
    torch.manual_seed(0)
    session.register(model=torch.nn.Linear(4, 2))  # not wrapped: DistributedDataParallel would keep the group
    samples = torch.utils.data.TensorDataset(torch.zeros(8, 4))
    for epoch in session.epochs(1):
        for _ in session.loader(samples, batch_size=4):
            session.step()
    dist.destroy_process_group()
"""


def test_a_script_that_ends_its_group_before_its_session_completes_on_every_rank(tmp_path: Path) -> None:
    with together(tmp_path, "-c", EARLY_END) as ranks:
        for rank in ranks:
            attached = rank.until(Attached)
            assert isinstance(attached, Attached)
            assert (attached.live, "was made before the Session" in attached.live_why) == (False, True)
        for rank in ranks:
            ending = rank.until(Exiting)
            assert isinstance(ending, Exiting)
            assert ending.outcome is ExitKind.COMPLETED
    assert [entry["kind"] for entry in entries(tmp_path / "checkpoints")] == ["Opened", "Committed", "Completed"]


def test_a_group_of_one_is_left_to_its_maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        before = signal.getsignal(signal.SIGTERM)
        Session.from_env(tmp_path).close()
        assert dist.is_initialized()
        assert signal.getsignal(signal.SIGTERM) == before
    finally:
        dist.destroy_process_group()
