"""Every example of the docs runs, and ends with an undisturbed run's weights although it was interrupted."""

from __future__ import annotations

import itertools
import os
import re
import signal
import textwrap
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import perdure
from perdure import Session
from perdure.loop.leaving import Exit
from tests.support.covering import covering
from tests.support.forked import EXAMPLES as EXAMPLES_IMPORT
from tests.support.forked import forked_ranks
from tests.unit.runtime.session.training import Join

DOCS = Path(__file__).parents[4] / "docs"
ELSEWHERE = {"frameworks.md"}
"""Run by the tests of the adapters."""
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page.name not in ELSEWHERE]
BLOCK = re.compile(r"^ *```(?:python|py)\b.*?\n(.*?)^ *```", re.M | re.S)
EXAMPLES = {
    f"{page.relative_to(DOCS).with_suffix('')}-{number}": textwrap.dedent(found)
    for page in PAGES
    for number, found in enumerate(BLOCK.findall(page.read_text()), 1)
}
LAUNCHED = {name for name, example in EXAMPLES.items() if re.search("init_process_group|init_device_mesh", example)}
"""They need ranks: test_found_groups and test_sharded train as they do."""
TRAINS = re.compile(r"session\.epochs|_epochs_until|job\.run")
TRAININGS = [name for name, example in EXAMPLES.items() if TRAINS.search(example) and name not in LAUNCHED]
TESTS = [name for name, example in EXAMPLES.items() if "perdure.testing" in example]
OTHERS = [name for name in EXAMPLES if name not in {*TRAININGS, *LAUNCHED, *TESTS}]
FIRST = EXAMPLES["first-job-1"]
WOULD_START = "each resumed run would start"
"""The words with which a mistake is reported in the first steps."""
DIGITS = Path(__file__).parents[4] / "examples" / "digits" / "train.py"


class Interrupted(Session):
    """Gets SIGTERM right before it reports one step."""

    before = 0

    def step(self, *, exhausted: bool = False) -> None:
        if self.steps_done + 1 == self.before:
            os.kill(os.getpid(), signal.SIGTERM)
        super().step(exhausted=exhausted)


def data(size: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(size)
    return TensorDataset(torch.randn(size, 4, generator=generator), torch.randint(0, 3, (size,), generator=generator))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3))


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return sum(
            float((model(inputs).argmax(1) == labels).float().mean()) for inputs, labels in DataLoader(data(9), 3)
        )


def names() -> dict[str, Any]:
    """What an example finds."""
    return {
        "perdure": perdure,
        "torch": torch,
        "itertools": itertools,
        "DataLoader": DataLoader,
        "Net": network,
        "criterion": cross_entropy,
        "evaluate": accuracy,
        "train_set": data(40),
        "test_set": data(16),
        "good_enough": lambda: False,
        "my_samples": lambda epoch, i: data(8 + epoch + i).tensors,
    }


def run(example: str, root: Path, before: int = 0) -> list[float]:
    """The weights it ends with."""
    Interrupted.before = before
    found = names()
    if "from_env" in example:
        exec(example.replace("from_env()", f"from_env({str(root)!r})"), found)  # noqa: S102 - our own page
    else:
        with Interrupted.from_env(root) as session:
            model = session.wrap(network())
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
            session.register(model=model, optimizer=optimizer, scheduler=scheduler)
            found |= {"session": session, "model": model, "optimizer": optimizer, "scheduler": scheduler}
            found["train"] = session.loader(data(40), batch_size=8)
            exec(example, found)  # noqa: S102 - our own page
    return [value for parameter in found["model"].parameters() for value in parameter.flatten().tolist()]


def test_there_are_examples() -> None:
    assert len(TRAININGS) > 5
    assert OTHERS
    assert TESTS


@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler:UserWarning")  # torch counts within a process
@pytest.mark.parametrize(("name", "before"), covering(TRAININGS, (2, 5)))
def test_an_example_ends_as_if_it_had_not_been_interrupted(
    join: Join,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    name: str,
    before: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """And it is told of no mistake."""
    example = EXAMPLES[name]
    join().close()  # the environment is as on a laptop
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(perdure, "Session", Interrupted)
    if '"pretrained"' in example:
        run(FIRST, tmp_path / "pretrained")
    expected = run(example, tmp_path / "undisturbed")
    assert WOULD_START not in capfd.readouterr().err
    root = tmp_path / "root"
    with nullcontext() if "should_stop" in example else pytest.raises(Exit):
        assert run(example, root, before) != expected
    assert run(example, root) == expected


@pytest.mark.parametrize("name", OTHERS)
def test_an_example_that_trains_nothing_runs_beside_a_finished_training(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    join().close()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(perdure, "Session", Interrupted)
    expected = run(FIRST, tmp_path / "checkpoints")
    found = names()
    exec(EXAMPLES[name], found)  # noqa: S102 - our own page
    assert [value for parameter in found["model"].parameters() for value in parameter.flatten().tolist()] == expected


@pytest.mark.parametrize("name", TESTS)
def test_an_example_of_a_test_passes_for_a_script_of_this_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "train.py").write_text(DIGITS.read_text())
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(EXAMPLES[name], found)  # noqa: S102 - our own page
    tests = [test for name, test in found.items() if name.startswith("test_")]
    assert tests
    with forked_ranks(*EXAMPLES_IMPORT):
        for test in tests:
            test(tmp_path / "root")
