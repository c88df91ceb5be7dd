"""The checks that Caffe2 has of its checkpoints, by the numbers of docs/ancestors.md, on real processes.

The script is running_total.py: ten items, three an epoch, and a total that begins at 100. Caffe2 asks each question
of one node and of several.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import perdure
from perdure import Session, StorageRefused, UserError
from perdure.testing import Ended, processes
from tests.support.forked import forked_ranks

SCRIPT = Path(__file__).with_name("running_total.py")
TOTALS = {1: 103, 2: 115, 3: 136, 4: 145}
"""By epoch."""
EACH_EPOCH = {"PERDURE_EVERY_EPOCHS": "1", "PERDURE_KEEP": "9"}


@dataclass(frozen=True)
class Trained:
    """A first run, from its beginning to its end."""

    root: Path
    uploads: Path
    ended: Ended
    world: int


@pytest.fixture(scope="module", autouse=True)
def _forked() -> Iterator[None]:
    with forked_ranks():
        yield


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return train(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="module", params=["one node", "two nodes"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, two_nodes: Trained) -> Trained:
    return two_nodes if request.param == "two nodes" else train(tmp_path_factory.mktemp("one"), 1)


def train(folder: Path, world: int, *arguments: str) -> Trained:
    root, uploads = folder / "root", folder / "uploads"
    uploads.mkdir()
    ended = processes(world, SCRIPT, uploads, *arguments, root=root, environ=EACH_EPOCH)
    return Trained(root, uploads, ended, world)


def totals(output: str) -> dict[int, int]:
    """What a rank has printed after each of its epochs."""
    return {int(epoch): int(total) for epoch, total in re.findall(r"^epoch (\d+): total (\d+),", output, re.M)}


def test_ac_cf_1_totals_of_four_epochs_and_their_number(trained: Trained) -> None:
    assert [totals(rank.output) for rank in trained.ended.ranks] == [TOTALS] * trained.world
    assert (trained.ended.outcome, trained.ended.epoch) == ("completed", 4)


def test_ac_cf_2_a_fresh_process_from_any_epoch_ends_alike(two_nodes: Trained, tmp_path: Path) -> None:
    """Init is left out then, as the commit has what it would make; one node goes on with what two have saved."""

    def resume(epoch: int) -> Ended:
        folder = tmp_path / str(epoch)
        shutil.copytree(two_nodes.root, folder / "root")
        return train(folder, 1, str(epoch)).ended

    with ThreadPoolExecutor(2) as pool:
        resumed = dict(zip(TOTALS, pool.map(resume, TOTALS), strict=True))
    for epoch, ended in resumed.items():
        output = ended.ranks[0].output
        assert totals(output) == {later: total for later, total in TOTALS.items() if later > epoch}
        assert "ended after epoch 4 with 145" in output
        assert (ended.outcome, ended.epoch, "init" in output) == ("completed", 4, False)


def test_ac_cf_3_a_checkpoint_alone_has_the_total_of_its_epoch(trained: Trained) -> None:
    found = {epoch: perdure.load(trained.root, epoch=epoch)["model"]["total"].item() for epoch in TOTALS}
    assert found == TOTALS


def test_ac_cf_4_where_the_checkpoint_of_an_epoch_lies_is_reported(trained: Trained) -> None:
    """There it is prefix/node.epoch; here the log says which commit it is, and each node has its part of that one."""
    for commit in perdure.history(trained.root):
        (folder,) = (trained.root / "data" / str(commit.run)).glob(f"{commit.step}-*")
        of_nodes = sorted(path.name for path in folder.glob("shard-*"))
        assert of_nodes == [f"shard-{rank:05d}-of-{trained.world:05d}.safetensors" for rank in range(trained.world)]
    assert [commit.epoch for commit in perdure.history(trained.root)] == [4, 3, 2, 1]


def test_ac_cf_5_the_model_alone_is_loaded_of_an_epoch_there_is_and_nothing_of_one_there_is_not(
    trained: Trained,
) -> None:
    model = nn.Module()
    model.register_buffer("total", torch.tensor(0))
    for epoch, total in TOTALS.items():
        model.load_state_dict(perdure.load(trained.root, ["model"], epoch=epoch)["model"])
        assert model.get_buffer("total").item() == total
    with pytest.raises(UserError, match="no commit of epoch 5"):
        perdure.load(trained.root, ["model"], epoch=5)


def test_ac_cf_6_nothing_is_uploaded_before_the_end_and_then_once(trained: Trained) -> None:
    for rank in trained.ended.ranks:
        assert re.findall(r", (\d+) uploaded", rank.output) == ["0"] * 4
    uploaded = {path.name: path.read_text() for path in trained.uploads.iterdir()}
    assert uploaded == {str(rank): "145" for rank in range(trained.world)}


def test_ac_cf_8_collect_comes_once_before_exit_and_sees_what_was_trained(trained: Trained) -> None:
    first, *others = (re.findall(r"^(?:ended|collected|exit).*", rank.output, re.M) for rank in trained.ended.ranks)
    assert first == ["ended after epoch 4 with 145", "collected {'model.total': 145}", "exit"]
    assert all(other == ["ended after epoch 4 with 145", "exit"] for other in others)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root of this process's own sessions, which save after each epoch."""
    for name, value in EACH_EPOCH.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "root"


def test_ac_cf_7_a_root_that_stops_taking_checkpoints_costs_no_epoch(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A root that accepts nothing from the start is reported at once, before an hour is trained in vain."""
    failures = []
    with Session.from_env(folder) as session:
        session.register(model=nn.Linear(1, 1))
        for epoch in session.epochs(4):
            failures.append(perdure.progress(session).save_failures)
            if epoch == 0:
                (folder / "data").write_text("in the way")
            for _ in session.steps(3):
                session.step()
            if epoch == 3:
                (folder / "data").unlink()
    session.close()
    assert failures == [0, 1, 2, 3]
    assert capfd.readouterr().err.count("training goes on") == 1
    (folder.parent / "file").touch()
    refused = Session.from_env(folder.parent / "file")
    refused.register(model=nn.Linear(1, 1))
    with pytest.raises(StorageRefused):
        perdure.restore(refused)
    refused.close()


def test_ac_cf_9_one_root_serves_a_first_run_and_a_resume_from_each_epoch(folder: Path) -> None:
    seen = [run(folder, None), *(run(folder, {"epoch": epoch}) for epoch in TOTALS)]
    assert seen == [TOTALS, *({later: TOTALS[later] for later in TOTALS if later > epoch} for epoch in TOTALS)]


def run(root: Path, resume_from: dict[str, int] | None) -> dict[int, int]:
    """One run of the same training in this process: the total after each epoch that it trains."""
    found = {}
    with Session.from_env(root, resume_from=resume_from) as session:
        session.state["total"] = 100
        for epoch in session.epochs(4):
            for i in session.steps(min(3, 10 - 3 * epoch)):
                session.state["total"] += 3 * epoch + i
                session.step()
            found[epoch + 1] = session.state["total"]
    session.close()
    return found
