"""What other programs have written becomes a checkpoint root; what names code is refused."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save

import perdure
from perdure.cli.main import main
from perdure.errors import StorageError
from perdure.store.file import FileStore

DONE = "DONE"


class Evil:
    """Makes a file if it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def save_dcp(state: dict[str, Any], folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(state, checkpoint_id=folder, no_dist=True)


@pytest.fixture
def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).to(torch.bfloat16).float())
    optimizer = torch.optim.AdamW(model.parameters(), fused=False)
    model(torch.randn(8, 5)).square().mean().backward()
    optimizer.step()
    return model, optimizer


def equal(found: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        return found.dtype == expected.dtype and torch.equal(found, expected)
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(equal(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(equal, found, expected))
    return bool(found == expected)


@pytest.mark.parametrize("form", ["torch", "dcp"])
def test_a_model_and_its_optimizer_come_in_as_they_were(
    tmp_path: Path, trained: tuple[nn.Module, torch.optim.Optimizer], form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = trained
    whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    source = tmp_path / "from"
    torch.save(whole, source) if form == "torch" else save_dcp(whole, source)
    for name in ("model", "optimizer"):
        root = tmp_path / name
        assert main(["import", str(source), str(root), name, "--take", name]) == 0
        assert f"{name}, " in capsys.readouterr().out
        assert main(["verify", str(root)]) == 0
        (found,) = [perdure.load(root, [name])[name]]
        assert equal(found, whole[name])
        loader: Any = {"model": nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))}.get(name)
        (loader or torch.optim.AdamW(model.parameters(), fused=False)).load_state_dict(found)


@pytest.mark.parametrize("form", ["file", "folder", "shards"])
def test_safetensors_come_in(tmp_path: Path, trained: tuple[nn.Module, torch.optim.Optimizer], form: str) -> None:
    state = trained[0].state_dict()
    source = tmp_path / ("from.safetensors" if form == "file" else "from")
    if form == "file":
        save_file(state, source)
    else:
        source.mkdir()
        names = ["model.safetensors"] if form == "folder" else ["a.safetensors", "b.safetensors"]
        shards = {name: dict(list(state.items())[number :: len(names)]) for number, name in enumerate(names)}
        for name, tensors in shards.items():
            save_file(tensors, source / name)
        if form == "shards":
            places = {key: name for name, tensors in shards.items() for key in tensors}
            (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert main(["import", str(source), str(tmp_path / "root"), "model"]) == 0
    assert equal(perdure.load(tmp_path / "root", ["model"])["model"], dict(state))


def test_what_was_exported_comes_in_again(tmp_path: Path, trained: tuple[nn.Module, torch.optim.Optimizer]) -> None:
    torch.save(trained[0].state_dict(), tmp_path / "from")
    assert main(["import", str(tmp_path / "from"), str(tmp_path / "a"), "model"]) == 0
    for number, form in enumerate(["hf", "torch", "dcp"]):
        out, again = tmp_path / form, tmp_path / f"again{number}"
        assert main(["export", str(tmp_path / "a"), "model", str(out), "--format", form]) == 0
        assert main(["import", str(out), str(again), "model"]) == 0
        assert main(["diff", "--tensors-only", str(tmp_path / "a"), str(again)]) == 0


@pytest.mark.parametrize("where", ["torch", "dcp's index", "dcp's values"])
def test_code_is_refused_and_never_run(tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    source, mark = tmp_path / "from", tmp_path / DONE
    if where == "torch":
        torch.save({"w": torch.ones(2), "x": Evil(mark)}, source)
    else:
        value = Evil(mark) if where == "dcp's values" else 3
        save_dcp({"w": torch.ones(2), "x": value}, source)
        if where == "dcp's index":
            (source / ".metadata").write_bytes(pickle.dumps(Evil(mark)))
    assert main(["import", str(source), str(tmp_path / "root"), "model"]) == 2
    assert f"{source} holds something else than tensors and plain values" in capsys.readouterr().err
    assert not mark.exists()
    assert not (tmp_path / "root" / "log").exists()


def test_the_planted_code_would_run(tmp_path: Path) -> None:
    torch.save({"x": Evil(tmp_path / DONE)}, tmp_path / "from")
    torch.load(tmp_path / "from", weights_only=False)
    assert (tmp_path / DONE).exists()


@pytest.mark.parametrize(
    ("content", "take", "words"),
    [
        (None, None, "there is no"),
        ("text", None, "cannot be read|holds something else"),
        ([1, 2], None, "holds list, no state_dict"),
        ({"model": {"w": torch.ones(2)}}, "net", "has nothing at net: there are model"),
        ({"model": {"w": torch.ones(2)}}, "model.w", "holds Tensor, no state_dict"),
        ({"model": {"w": torch.ones(2)}}, "model.w.x", "what is there has no keys"),
    ],
    ids=["nothing", "text", "list", "other key", "tensor", "too deep"],
)
def test_what_cannot_come_in_is_named_and_the_root_stays_empty(
    tmp_path: Path, content: Any, take: str | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "from"
    if content == "text":
        source.write_text("no checkpoint")
    elif content is not None:
        torch.save(content, source)
    more = ["--take", take] if take else []
    assert main(["import", str(source), str(tmp_path / "root"), "model", *more]) == 2
    found = capsys.readouterr().err
    assert any(word in found for word in words.split("|")), found
    assert not (tmp_path / "root" / "log").exists()


@pytest.mark.parametrize("name", ["from", "from.safetensors", "from/model.safetensors", "from/.metadata"])
def test_bytes_that_are_no_checkpoint_or_half_of_one_are_one_line(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "whole", _use_new_zipfile_serialization=False)
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    source = tmp_path / Path(name).parts[0]
    for content in (b"", b"junk", b"\xff" * 20, *(whole[:end] for end in range(1, len(whole), 23))):
        (tmp_path / name).write_bytes(content)
        assert main(["import", str(source), str(tmp_path / "root"), "model"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"perdure: error: {source} "), said
        assert said.count("\n") == 1, said


def test_a_root_that_has_a_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "from")
    assert main(["import", str(tmp_path / "from"), str(tmp_path / "root"), "model"]) == 0
    assert main(["import", str(tmp_path / "from"), str(tmp_path / "root"), "model"]) == 2
    assert "has a log already" in capsys.readouterr().err


def test_an_import_that_a_full_disk_ended_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "from")
    refused = ["import", str(tmp_path / "from"), str(tmp_path / "root"), "model"]
    real = FileStore.put

    def full(store: FileStore, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        if key.endswith("manifest.json"):
            raise StorageError(f"cannot write {key}: no space left")
        real(store, key, data, if_absent=if_absent)

    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "put", full)
        assert main(refused) == 1
    assert main(refused) == 0
    assert equal(perdure.load(tmp_path / "root", ["model"])["model"], {"w": torch.ones(2)})


def test_a_script_begins_with_what_came_in(tmp_path: Path, trained: tuple[nn.Module, torch.optim.Optimizer]) -> None:
    torch.save(trained[0].state_dict(), tmp_path / "from")
    assert main(["import", str(tmp_path / "from"), str(tmp_path / "base"), "model"]) == 0
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model.load_state_dict(perdure.load(tmp_path / "base", ["model"])["model"])
    assert equal(model.state_dict(), trained[0].state_dict())
