"""Exports, read by their consumers: safetensors, transformers, torch.load and dcp."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load as load_dcp

from perdure import Session
from perdure.cli.main import main
from perdure.store import open_store


class Tied(nn.Module):
    """An output layer that shares its weight with the embedding, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.norm(self.embed(numbers)))
        return found


def train(root: Path, net: nn.Module, samples: torch.Tensor) -> nn.Module:
    """The module after an epoch, whose commit is in the root."""
    with Session.from_env(root) as session:
        model = session.wrap(net)
        optimizer = torch.optim.AdamW(model.parameters())
        session.register(model=model, optimizer=optimizer)
        for _ in session.epochs(1):
            for (numbers,) in session.loader(torch.utils.data.TensorDataset(samples), batch_size=4):
                optimizer.zero_grad()
                outputs = model(numbers)
                session.weighted(getattr(outputs, "logits", outputs).square().mean()).backward()
                optimizer.step()
                session.step()
    return net


@pytest.fixture
def root(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    train(tmp_path / "root", Tied(), torch.arange(8) % 6)
    return tmp_path / "root"


def expected(root: Path) -> dict[str, torch.Tensor]:
    import perdure

    return perdure.load(root, ["model"])["model"]


def test_safetensors_hold_every_tensor_and_tied_ones_once(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(root), "model", str(tmp_path / "out")]) == 0
    assert "out: model of entry 2, step 2, 7 tensors" in capsys.readouterr().out
    file = tmp_path / "out" / "model.safetensors"
    found, state = load_file(file), expected(root)
    assert state.keys() - found.keys() == {"head.weight"}
    assert all(torch.equal(tensor, state[name]) for name, tensor in found.items())
    with safe_open(file, "pt") as opened:
        assert opened.metadata() == {"format": "pt", "head.weight": "embed.weight"}


def test_a_transformer_comes_back_from_pretrained_with_the_same_logits(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel  # four seconds, which every process of a test run would take

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=8, n_positions=4, n_embd=8, n_layer=1, n_head=2)
    trained = train(tmp_path / "root", GPT2LMHeadModel(config), torch.randint(8, (8, 4))).eval()
    assert main(["export", str(tmp_path / "root"), "model", str(tmp_path / "out")]) == 0
    config.save_pretrained(tmp_path / "out")
    back = GPT2LMHeadModel.from_pretrained(tmp_path / "out").eval()
    numbers = torch.arange(4)[None]
    with torch.no_grad():
        assert torch.equal(back(numbers).logits, trained(numbers).logits)


def test_torch_loads_what_it_would_have_saved_without_pickled_code(root: Path, tmp_path: Path) -> None:
    for name in ("model", "optimizer"):
        assert main(["export", "--format", "torch", str(root), name, str(tmp_path / "out" / name)]) == 0
    state = torch.load(tmp_path / "out" / "model", weights_only=True)
    assert all(torch.equal(tensor, expected(root)[name]) for name, tensor in state.items())
    net = Tied()
    net.load_state_dict(state)
    optimizer = torch.optim.AdamW(net.parameters())
    optimizer.load_state_dict(torch.load(tmp_path / "out" / "optimizer", weights_only=True))
    assert {float(state["step"]) for state in optimizer.state.values()} == {2.0}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_is_loaded_in_place(root: Path, tmp_path: Path) -> None:
    assert main(["export", "--format", "dcp", str(root), "model", str(tmp_path / "out")]) == 0
    state = Tied().state_dict()
    load_dcp(state, checkpoint_id=tmp_path / "out", no_dist=True)
    assert all(torch.equal(tensor, expected(root)[name]) for name, tensor in state.items())


@pytest.mark.parametrize(
    ("name", "to", "why"),
    [
        ("model", "there", "there exists: name another place"),
        ("optimizer", "out", "format hf holds tensors alone, and state is none"),
        ("encoder", "out", "does not hold encoder: it holds model, optimizer"),
    ],
    ids=["exists", "no-tensors", "no-such-name"],
)
def test_what_cannot_be_exported_is_reported_and_leaves_nothing(
    root: Path, capsys: pytest.CaptureFixture[str], name: str, to: str, why: str
) -> None:
    (root.parent / "there").touch()
    assert main(["export", str(root), name, str(root.parent / to)]) == 2
    assert why in capsys.readouterr().err
    assert sorted(path.name for path in root.parent.iterdir()) == ["root", "there"]


@pytest.mark.parametrize("form", ["hf", "torch", "dcp"])
def test_a_place_where_nothing_can_be_written_is_named(
    root: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    (root.parent / "file").touch()
    long = "x" * 300
    for to in (f"{root.parent}/file/out", f"/sys/{form}", f"{root.parent}/{long}", f"s3://bucket/{form}"):
        assert main(["export", str(root), "model", to, "--format", form]) == 2
        said = capsys.readouterr().err
        assert re.match(r"perdure: error: \S+ (cannot be written: [A-Z]|is a URI: )", said), said
        assert said.count("\n") == 1
    assert sorted(path.name for path in root.parent.iterdir()) == ["file", "root"]


@pytest.mark.parametrize("form", ["hf", "torch", "dcp"])
def test_an_export_that_fills_the_disk_is_one_line_and_leaves_nothing(
    root: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    with largest_file(64):
        status = main(["export", str(root), "model", str(root.parent / "out"), "--format", form])
    said = capsys.readouterr().err
    assert (status, said) == (2, f"perdure: error: {root.parent / 'out'} cannot be written: File too large\n")
    assert [path.name for path in root.parent.iterdir()] == ["root"]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Until the end of the block no file of this process can grow beyond this many bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_name_as_long_as_the_system_allows_is_written(root: Path) -> None:
    assert main(["export", str(root), "model", str(root.parent / ("x" * 255))]) == 0
    assert len(load_file(root.parent / ("x" * 255) / "model.safetensors")) > 1


def test_a_commit_is_named_by_its_number_and_a_damaged_one_leaves_nothing(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", f"{root}@9", "model", str(tmp_path / "out")]) == 2
    assert "no commit of seq 9" in capsys.readouterr().err
    store = open_store(f"file://{root}", {})
    shard = next(key for key in store.list("data/") if key.endswith(".safetensors"))
    store.put(shard, store.get(shard)[:-1] + b"?")
    assert main(["export", f"{root}@2", "optimizer", str(tmp_path / "out"), "--format", "torch"]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root"]
