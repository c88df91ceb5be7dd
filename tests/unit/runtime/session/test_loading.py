"""`perdure.load` and `perdure.history`: a commit's parts without a session, whole and verified, or not at all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import perdure
from perdure import Corrupt, UserError
from perdure.checkpoint import stored_commit
from perdure.checkpoint.retention import retire
from perdure.group.peers import Solo
from perdure.state.registry import Registry
from perdure.store import Store, open_store
from tests.support.store import WatchedStore
from tests.unit.runtime.checkpoint.world import opened, position, save, save_solo
from tests.unit.runtime.session.training import Join, Training


def test_a_commit_that_its_training_deletes_under_the_reader_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"file://{tmp_path}", {})
    log_writer = opened(store)
    for step in (10, 20):
        save_solo(store, log_writer, step)

    def training(verb: str, key: str, act: Callable[[], Any]) -> Any:
        if verb == "get" and "/10-" in key:
            retire(store, log_writer, 1)
        return act()

    monkeypatch.setattr(stored_commit, "open_store", lambda *_: WatchedStore(store, training))
    with pytest.raises(UserError, match=r"entry 2 of .* was deleted by its training while it was read: .*perdure pin"):
        perdure.load(tmp_path, step=10)
    assert perdure.load(tmp_path).commit.step == 20


def equal(a: Any, b: Any) -> bool:
    """Bit for bit, at any depth."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


class Net(nn.Module):
    """Tied weights, a buffer, and state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.first.weight
        self.words: Any = {"classes": ["cat", "dog"], "mask": torch.arange(3)}

    def get_extra_state(self) -> Any:
        return self.words

    def set_extra_state(self, state: Any) -> None:
        self.words = state


class Kept:
    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def trained() -> tuple[Net, torch.optim.Optimizer, Kept]:
    torch.manual_seed(3)
    net = Net()
    groups: list[dict[str, Any]] = [
        {"params": [net.norm.weight], "lr": 0.1},
        {"params": [net.first.weight, net.first.bias]},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    net.norm(net.first(torch.randn(8, 4))).square().sum().backward()
    optimizer.step()
    return net, optimizer, Kept({"shadow": OrderedDict(w=torch.randn(900)), "n": (1, {2: "two"})})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """One commit of `trained()`."""
    store = open_store(f"file://{tmp_path}/root", {})
    registry = Registry()
    for name, thing in zip(("net", "optimizer", "ema"), trained(), strict=True):
        registry.add(name, thing)
    save(store, Solo(), opened(store), registry.state(None), position(1), run=1)
    return tmp_path / "root"


def shard(root: Path) -> Path:
    return next(root.glob("data/*/*/*.safetensors"))


def test_each_state_dict_is_as_the_object_gave_it(root: Path) -> None:
    loaded = perdure.load(root)
    assert set(loaded) == {"net", "optimizer", "ema"}
    net, optimizer, ema = trained()
    for name, state in [("net", net.state_dict()), ("optimizer", optimizer.state_dict()), ("ema", ema.state)]:
        assert equal(dict(loaded[name]), dict(state)), name
    assert loaded["net"]["again.weight"] is loaded["net"]["first.weight"]
    assert (loaded.commit.seq, loaded.commit.step, loaded.missing) == (2, 1, ())


def test_an_object_takes_its_own(root: Path) -> None:
    loaded = perdure.load(f"file://{root}")
    net, optimizer, _ = trained()
    for tensor in net.state_dict().values():
        if isinstance(tensor, Tensor):
            tensor.zero_()
    optimizer.state.clear()
    net.load_state_dict(loaded["net"])
    optimizer.load_state_dict(loaded["optimizer"])
    expected = trained()
    assert equal(dict(net.state_dict()), dict(expected[0].state_dict()))
    assert equal(optimizer.state_dict(), expected[1].state_dict())


def test_nothing_is_read_of_what_is_not_asked_for(tmp_path: Path) -> None:
    """The damaged block holds others alone."""
    store: Store = open_store(f"file://{tmp_path}", {})
    registry = Registry()
    registry.add("large", Kept({"a": torch.zeros(5_000_000)}))  # more than two blocks
    registry.add("small", Kept({"b": torch.arange(3, dtype=torch.int8)}))
    save(store, Solo(), opened(store), registry.state(None), position(1), run=1)
    data = bytearray(shard(tmp_path).read_bytes())
    data[5_000_000] ^= 1
    shard(tmp_path).write_bytes(data)
    assert perdure.load(tmp_path, ["small"])["small"]["b"].tolist() == [0, 1, 2]
    with pytest.raises(Corrupt, match=r"entry 2 of file:.* cannot be loaded: .*damaged.*large\.a: choose another"):
        perdure.load(tmp_path, ["small", "large"])


@pytest.mark.parametrize("harm", ["torn", "missing", "manifest"])
def test_what_is_damaged_is_reported_and_no_other_commit_is_taken(root: Path, harm: str) -> None:
    torn = next(root.glob("data/*/*/manifest.json")) if harm == "manifest" else shard(root)
    if harm == "missing":
        torn.unlink()
    else:
        torn.write_bytes(torn.read_bytes()[:-1])
    with pytest.raises(Corrupt, match=r"entry 2 of file:.* cannot be loaded: data/1/.*choose another commit by seq="):
        perdure.load(root)


def test_a_name_that_is_not_there_is_an_error_or_reported(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"does not hold nett: it holds ema, net, optimizer; correct the name, or pass"):
        perdure.load(root, ["nett", "ema"])
    loaded = perdure.load(root, ["nett", "ema"], strict=False)
    assert (list(loaded), loaded.missing) == (["ema"], ("nett",))
    assert "does not hold nett" in capsys.readouterr().err


def test_names_are_a_list(root: Path) -> None:
    with pytest.raises(UserError, match=r"names is 'net': give a list of names, such as \['net'\]"):
        perdure.load(root, "net")


def test_an_address_without_checkpoints_is_reported_as_empty(tmp_path: Path) -> None:
    for act in (perdure.load, perdure.history):
        with pytest.raises(UserError, match="nothing was ever trained there: correct the address"):
            act(tmp_path / "typo")
    assert not (tmp_path / "typo").exists()
    with pytest.raises(UserError, match="neither s3://bucket/prefix nor file:///folder"):
        perdure.load("ftp://host/root")


def test_an_epoch_a_step_and_an_entry_of_a_training_are_found(join: Join, tmp_path: Path) -> None:
    training = Training(join(EVERY_STEPS="2", EVERY_EPOCHS="1", KEEP="9"))
    training.session.state["best"] = 0.5
    training.run(epochs=2)
    commits = perdure.history(tmp_path)
    assert [(one.step, one.epoch, one.reason) for one in commits] == [
        (10, 2, "goal"),
        (8, 1, "cadence"),
        (6, 1, "cadence"),
        (5, 1, "epoch"),
        (4, 0, "cadence"),
        (2, 0, "cadence"),
    ]
    newest = perdure.load(tmp_path, ["net", "session"])
    values = [value.item() for tensor in newest["net"].values() for value in tensor.flatten()]
    assert sorted(values) == sorted(training.weights)
    assert newest["session"] == {"best": 0.5}
    assert perdure.load(tmp_path, epoch=1).commit == perdure.load(tmp_path, step=5).commit == commits[3]
    assert perdure.load(tmp_path, seq=commits[2].seq).commit.step == 6
    with pytest.raises(UserError, match="epoch and seq are given"):
        perdure.load(tmp_path, epoch=1, seq=2)
