"""Accelerate: the page's script trains the same on other ranks, interrupted or not."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import perdure
from perdure.testing import processes
from tests.support.forked import forked_ranks

PAGE = Path(__file__).parents[4] / "docs" / "frameworks.md"
ABOVE = """
import perdure, torch
from accelerate import Accelerator
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def samples(count):
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(count))
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


train_set, test_set = samples(64), samples(18)


def Net():
    return torch.nn.Linear(4, 2)


def sharded(world):
    return fully_shard(Net(), mesh=init_device_mesh("cpu", (world,)))


"""


@pytest.fixture(autouse=True)
def _forked() -> Iterator[None]:
    """Accelerate's imports take more of a rank's time than the training."""
    with forked_ranks("accelerate", "torch.distributed.fsdp"):
        yield


def written(folder: Path, *replaced: tuple[str, str]) -> str:
    """The page's script."""
    section = PAGE.read_text().partition("## Accelerate")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)
    for was, now in replaced:
        assert was in block
        block = block.replace(was, now)
    script = folder / "train.py"
    script.write_text(ABOVE + block)
    return str(script)


def test_the_page_trains_the_same_on_other_ranks(tmp_path: Path) -> None:
    script = written(tmp_path)
    undisturbed = processes(1, script, root=tmp_path / "undisturbed")
    left = processes(2, script, root=tmp_path / "drained", exit_at=4)
    ended = processes(1, script, root=tmp_path / "drained")
    assert (left.outcome, left.step) == ("checkpointed", 5)
    assert (undisturbed.outcome, undisturbed.step) == (ended.outcome, ended.step) == ("completed", 9)
    was, now = (perdure.load(tmp_path / root) for root in ("undisturbed", "drained"))
    assert was["scheduler"] == now["scheduler"]
    for name, value in was["model"].items():
        torch.testing.assert_close(now["model"][name], value)
    said = [line for run in (left, ended) for line in run.ranks[0].output.splitlines() if "accuracy" in line]
    assert said == [line for line in undisturbed.ranks[0].output.splitlines() if "accuracy" in line]


def test_a_model_that_the_script_shards_goes_on_bit_for_bit(tmp_path: Path) -> None:
    script = written(tmp_path, ("session.wrap(Net())", "sharded(session.world)"))
    undisturbed = processes(2, script, root=tmp_path / "undisturbed")
    left = processes(2, script, root=tmp_path / "drained", exit_at=4)
    ended = processes(2, script, root=tmp_path / "drained")
    assert (left.outcome, undisturbed.outcome, ended.outcome) == ("checkpointed", "completed", "completed")
    was, now = (perdure.load(tmp_path / root) for root in ("undisturbed", "drained"))
    assert was["optimizer"]["state"][0]["exp_avg"].shape == (2, 4)
    assert all(torch.equal(now["model"][name], value) for name, value in was["model"].items())
    said = [line for run in (left, ended) for line in run.ranks[0].output.splitlines() if "accuracy" in line]
    assert said == [line for line in undisturbed.ranks[0].output.splitlines() if "accuracy" in line]
