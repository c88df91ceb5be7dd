"""A root is read from plain files; two runs have the same weight hash only if every byte of the model is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from e2e.harness.evidence import Entry, Mark, NoEvidence, TracedStep
from e2e.harness.root import Root

WEIGHTS = {"model.a": np.arange(4.0, dtype=np.float32), "model.b": np.ones((2, 3), dtype=np.float32)}
MOMENTS = {"optimizer/model.a/exp_avg": np.zeros(4, dtype=np.float32)}


def committed(folder: Path, shards: list[dict[str, Any]], *, seq: int = 1) -> Root:
    """A root whose newest commit has these shards."""
    data = f"data/1/{seq}-nonce/"
    (folder / data).mkdir(parents=True)
    (folder / "log").mkdir(exist_ok=True)
    keys = [f"{data}shard-{rank}.safetensors" for rank in range(len(shards))]
    for key, tensors in zip(keys, shards, strict=True):
        save_file(tensors, folder / key, metadata={"format": "pt"})
    manifest = {"indexes": [{"rank": rank, "shard": {"key": key}} for rank, key in enumerate(keys)]}
    (folder / data / "manifest.json").write_text(json.dumps(manifest))
    entry = {"kind": "Committed", "seq": seq, "uid": "u", "run": 1, "time": "2030-01-01T00:00:00+00:00"}
    entry |= {"step": seq, "manifest": {"key": f"{data}manifest.json"}}
    (folder / "log" / f"{10**16 - 1 - seq:016d}.json").write_text(json.dumps(entry))
    return Root(folder)


def shared(tensors: dict[str, Any]) -> dict[str, Any]:
    return {f"shared/{name}": value for name, value in tensors.items()}


def test_the_hash_does_not_depend_on_which_rank_stored_which_tensor(tmp_path: Path) -> None:
    one = committed(tmp_path / "one", [shared(WEIGHTS | MOMENTS)])
    a, b = ({name: WEIGHTS[name]} for name in WEIGHTS)
    two = committed(tmp_path / "two", [shared(b | MOMENTS), shared(a)])
    assert one.weight_hash() == two.weight_hash()


def test_the_hash_sees_the_last_bit_of_one_weight(tmp_path: Path) -> None:
    one = committed(tmp_path / "one", [shared(WEIGHTS)])
    almost = WEIGHTS | {"model.a": np.nextafter(WEIGHTS["model.a"], np.float32(9))}
    assert committed(tmp_path / "two", [shared(almost)]).weight_hash() != one.weight_hash()


def test_the_hash_leaves_the_optimizer_out(tmp_path: Path) -> None:
    one = committed(tmp_path / "one", [shared(WEIGHTS)])
    assert committed(tmp_path / "two", [shared(WEIGHTS | MOMENTS)]).weight_hash() == one.weight_hash()


def test_the_members_of_a_run_are_those_that_its_own_opening_names(tmp_path: Path) -> None:
    for folder in ("log", "members"):
        (tmp_path / folder).mkdir()
    for seq, run in enumerate((1, 2, 3), 1):
        told = {"run": run, "members": [{"name": f"pod-{number}", "node": "n1"} for number in range(run)]}
        (tmp_path / f"members/{run}-nonce.json").write_text(json.dumps(told))
        entry = {"kind": "Opened", "seq": seq, "uid": "u", "run": run, "time": "2030-01-01T00:00:00+00:00"}
        if run < 3:  # the store took no report of the last one
            entry |= {"members": {"key": f"members/{run}-nonce.json"}}
        (tmp_path / "log" / f"{10**16 - 1 - seq:016d}.json").write_text(json.dumps(entry))
    assert [Root(tmp_path).members(run) for run in (1, 2, 3)] == [["pod-0"], ["pod-0", "pod-1"], []]


def test_the_newest_commit_counts(tmp_path: Path) -> None:
    committed(tmp_path, [shared(WEIGHTS)])
    newest = committed(tmp_path, [shared({"model.a": WEIGHTS["model.a"]})], seq=2)
    assert newest.weight_hash() == committed(tmp_path / "x", [shared({"model.a": WEIGHTS["model.a"]})]).weight_hash()


def test_a_root_without_a_commit_or_without_a_model_is_no_evidence(tmp_path: Path) -> None:
    with pytest.raises(NoEvidence, match="no commit"):
        Root(tmp_path).weight_hash()
    with pytest.raises(NoEvidence, match="no tensor of the model"):
        committed(tmp_path, [shared(MOMENTS)]).weight_hash()


def test_log_entries_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    committed(tmp_path, [shared(WEIGHTS)], seq=9)
    committed(tmp_path, [shared(WEIGHTS)], seq=10)
    entries = Root(tmp_path).entries()
    assert [entry.seq for entry in entries] == [9, 10]
    assert isinstance(entries[0], Entry)


def test_steps_and_marks_of_a_trace_are_distinguished(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    step = {"t": 1.5, "uid": "u", "run": 1, "rank": 0, "world": 2, "epoch": 0, "step": 3, "ids": [4, 5]}
    mark = {"t": 2.5, "uid": "u", "run": 1, "rank": 0, "world": 2, "event": "request-seen", "step": 3}
    over = {"t": 3.5, "uid": "u", "run": 2, "rank": 0, "world": 2, "event": "took-over", "parts": {"vote": 0.25}}
    lines = "".join(f"{json.dumps(line)}\n" for line in (step, mark, over))
    (tmp_path / "trace" / "u-1-0-00000.jsonl").write_text(lines)
    trace = Root(tmp_path).trace()
    assert trace.steps == (TracedStep("u", 1, 0, 3, 0, 1.5, (4, 5)),)
    assert trace.marks == (Mark("u", 1, 0, "request-seen", 2.5), Mark("u", 2, 0, "took-over", 3.5, {"vote": 0.25}))
