"""What `perdure diff` tells of two commits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from perdure.checkpoint import compare
from perdure.checkpoint.compare import Side, diff
from perdure.checkpoint.inspect import Line
from perdure.checkpoint.state import RankState
from perdure.cli.main import main
from perdure.errors import Corrupt
from perdure.group.peers import Solo
from perdure.store import open_store
from perdure.wire import CommitSelector
from tests.unit.runtime.checkpoint.world import on_ranks, opened, position, save, save_solo

PACKED = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
VALUES = {
    "packed": PACKED,
    "w": torch.arange(6.0).reshape(2, 3),
    "half": torch.ones(33, dtype=torch.bfloat16),
    "mask": torch.tensor([True, False]),
    "spectrum": torch.ones(2, dtype=torch.complex128),
    "count": torch.tensor(7),
    "tiny": torch.ones(4).to(torch.float8_e4m3fn),
    "none": torch.empty(0, 3),
    "turned": torch.arange(6.0).reshape(2, 3).t(),
}


def root(folder: Path, named: Mapping[str, Tensor], objects: Any = None, own: Any = None, *, world: int = 1) -> str:
    """A root with one commit of these."""
    uri = f"file://{folder}"
    store = open_store(uri, {})
    pen = opened(store)
    mine = RankState(dict(named), {}, objects or {}, own)
    found = on_ranks(
        world,
        lambda peers: (
            save(store, peers, pen if peers.rank == 0 else None, mine, position(20), run=1)
            if world > 1
            else save(store, Solo(), pen, mine, position(20), run=1)
        ),
    )
    assert not [each for each in found if isinstance(each, BaseException)]
    return uri


def told(one: str, other: str, *, tensors_only: bool = False) -> tuple[list[str], Mapping[str, Any]]:
    """The lines of the differences, and what the summary says."""
    sides = (Side.read(uri, CommitSelector(), {}) for uri in (one, other))
    left, right = sides
    _, *lines, last = list(diff(left, right, tensors_only=tensors_only))
    return [line.text for line in lines], last.data


def test_a_commit_is_equal_to_one_of_the_same_by_other_ranks(tmp_path: Path) -> None:
    lines, last = told(root(tmp_path / "a", VALUES), root(tmp_path / "b", VALUES, world=3), tensors_only=True)
    assert (lines, last["equal"], last["tensors"]) == ([], True, len(VALUES))
    lines, last = told(f"file://{tmp_path}/a", f"file://{tmp_path}/b")
    assert (lines, last["equal"]) == (["made by 1 ranks in A, by 3 in B"], False)


@pytest.mark.parametrize(
    ("name", "changed", "line"),
    [
        ("w", VALUES["w"] + torch.tensor([0, 0.5, -2]), "w: 4 of 6 elements differ, by 2 at most"),
        ("half", torch.full((33,), 1.5).bfloat16(), "half: 33 of 33 elements differ, by 0.5 at most"),
        ("mask", torch.tensor([True, True]), "mask: 1 of 2 elements differ, by 1 at most"),
        ("spectrum", torch.tensor([1, 4 + 4j]).to(torch.complex128), "spectrum: 1 of 2 elements differ, by 5 at most"),
        ("count", torch.tensor(9), "count: 1 of 1 elements differ, by 2 at most"),
        ("tiny", torch.tensor([1, 1, 1, 3.0]).to(torch.float8_e4m3fn), "tiny: 1 of 4 elements differ, by 2 at most"),
        ("packed", PACKED.view(torch.uint8).add(1).view(PACKED.dtype), "packed: 4 of 4 elements differ"),
        ("turned", torch.zeros(3, 2), "turned: 5 of 6 elements differ, by 5 at most"),
        ("w", torch.zeros(2, 2), "w: float32 [2, 3] in A, float32 [2, 2] in B"),
        ("w", VALUES["w"].double(), "w: float32 [2, 3] in A, float64 [2, 3] in B"),
    ],
    ids=["float", "bfloat16", "bool", "complex", "scalar", "float8", "float4", "transposed", "shape", "dtype"],
)
def test_a_tensor_that_differs_is_reported_with_how_far(tmp_path: Path, name: str, changed: Tensor, line: str) -> None:
    lines, last = told(root(tmp_path / "a", VALUES), root(tmp_path / "b", {**VALUES, name: changed}))
    assert lines == [line]
    assert (last["equal"], last["differing"]) == (False, 1)


def test_tensors_are_compared_bit_for_bit(tmp_path: Path) -> None:
    one = torch.tensor([float("nan"), 0.0, float("inf"), 1.0])
    other = torch.tensor([float("nan"), -0.0, 1.0, 1.0])
    lines, _ = told(root(tmp_path / "a", {"w": one}), root(tmp_path / "b", {"w": other}))
    assert lines == ["w: 2 of 4 elements differ, by 0 at most"], "the NaN is the same, and infinity is no distance"
    lines, _ = told(root(tmp_path / "c", {"w": one[2:3]}), root(tmp_path / "d", {"w": other[2:3]}))
    assert lines == ["w: 1 of 1 elements differ"]


def test_how_a_tensor_lies_in_memory_makes_no_difference(tmp_path: Path) -> None:
    turned = torch.arange(6.0).reshape(3, 2).t()
    lines, last = told(root(tmp_path / "a", {"w": turned}), root(tmp_path / "b", {"w": turned.contiguous()}))
    assert (lines, last["equal"]) == ([], True)


def test_more_than_a_batch_and_a_piece_is_compared_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "BATCH_BYTES", 100)
    monkeypatch.setattr(compare, "PIECE_ELEMENTS", 4)
    changed = {name: tensor.clone() for name, tensor in VALUES.items()}
    changed["half"][-1] = 3
    changed["w"][-1, -1] = 7
    lines, _ = told(root(tmp_path / "a", VALUES), root(tmp_path / "b", changed))
    assert sorted(lines) == ["half: 1 of 33 elements differ, by 2 at most", "w: 1 of 6 elements differ, by 2 at most"]


def test_what_only_one_has_is_named(tmp_path: Path) -> None:
    fewer = {name: VALUES[name] for name in ("w", "half")}
    lines, last = told(root(tmp_path / "a", fewer), root(tmp_path / "b", {"w": VALUES["w"], "ema": torch.ones(2)}))
    assert lines == ["only in A: half bfloat16 [33]", "only in B: ema float32 [2]"]
    assert (last["equal"], last["alone"]) == (False, 2)


def test_values_that_are_no_tensors_are_compared_by_their_place_unless_they_are_left_out(tmp_path: Path) -> None:
    objects = {"best": 0.5, "lists": [1], "one": 1, "same": (1, 2), "tuple": (1, 2)}
    one = root(tmp_path / "a", VALUES, {"session": objects}, {"rng": {"python": [1]}})
    objects = {"best": 0.75, "lists": [2], "new": True, "one": True, "same": (1, 2), "tuple": (1, 3)}
    other = root(tmp_path / "b", VALUES, {"session": objects}, {"rng": {"python": 2}})
    lines, last = told(one, other)
    assert lines == [
        "session/best: 0.5 in A, 0.75 in B",
        "session/lists differs",
        "session/new: nothing in A, True in B",
        "session/one: 1 in A, True in B",
        "session/tuple differs",
        "rank 0/rng/python differs",
    ]
    assert (last["equal"], last["others"]) == (False, 6)
    lines, last = told(one, other, tensors_only=True)
    assert (lines, last["equal"]) == ([], True)


def test_a_damaged_tensor_is_no_difference_but_an_error(tmp_path: Path) -> None:
    one, other = root(tmp_path / "a", VALUES), root(tmp_path / "b", VALUES)
    store = open_store(other, {})
    shard = next(key for key in store.list("data/") if key.endswith(".safetensors"))
    store.put(shard, store.get(shard)[:-1] + b"?")
    with pytest.raises(Corrupt, match="is damaged in the block"):
        told(one, other)


def test_on_the_command_line_commits_are_named_by_root_and_entry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(f"file://{tmp_path}/root", {})
    pen = opened(store)
    for step in (10, 20):
        save_solo(store, pen, step)
    newest = str(tmp_path / "root")
    assert main(["diff", newest, f"{newest}@3", "--tensors-only"]) == 0
    assert "0 differ; 0 in one only\n" in capsys.readouterr().out
    assert main(["diff", f"{newest}@2", newest]) == 1
    assert capsys.readouterr().out.splitlines()[0].endswith("entry 2: step 10")
    assert main(["diff", "--json", f"{newest}@2", newest]) == 1
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert objects[-1]["equal"] is False
    assert main(["diff", newest, f"{newest}@9"]) == 2
    assert "no commit of seq 9" in capsys.readouterr().err
    assert main(["show", f"{newest}@2"]) == 0
    assert capsys.readouterr().out.startswith("commit 2 of run 1: step 10")
    (tmp_path / "root@2").mkdir()
    assert main(["show", f"{newest}@2"]) == 2, "a folder of that name is meant itself"


def test_a_line_is_text_or_json() -> None:
    line = Line("w: float32", {"name": "w"})
    assert (line.printed(as_json=False), line.printed(as_json=True)) == ("w: float32", '{"name": "w"}')
