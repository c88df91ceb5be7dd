"""What the command line tells of a root."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from perdure.checkpoint import inspect
from perdure.checkpoint.inspect import Line
from perdure.checkpoint.retention import retire
from perdure.errors import Corrupt, UserError
from perdure.group.peers import Solo
from perdure.log.reader import Log
from perdure.log.writer import Writer
from perdure.store import open_store
from perdure.wire import CommitSelector
from perdure.wire.settings import Member
from tests.unit.runtime.checkpoint.world import UID, opened, position, save, save_solo, state

SCREEN_LINES = 24


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A run with one retired commit, one that is there, and its completion."""
    uri = f"file://{tmp_path}/root"
    store = open_store(uri, {})
    log_writer = opened(store)
    save_solo(store, log_writer, 10)
    save_solo(store, log_writer, 20)
    retire(store, log_writer, 1)
    log_writer.complete({"epochs": 1}, position(20, 1))
    return uri


def texts(lines: Iterable[Line]) -> list[str]:
    return [text for line in lines for text in line.text.splitlines()]


def test_a_commit_that_its_training_deletes_while_all_are_verified_is_no_damage(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}", {})
    log_writer = opened(store)
    for step in (10, 20, 30):
        save_solo(store, log_writer, step)
    states = []
    for line in inspect.verify(store.uri, {}):
        states.append(line.data.get("state"))
        if states == [None, "whole"]:
            retire(store, log_writer, 2)
    assert states == [None, "whole", "whole", "retired"]


def test_the_log_is_reported_newest_first(uri: str) -> None:
    lines = texts(inspect.log(uri, {}))
    assert [line.split()[0] for line in lines] == ["4", "3", "2", "1"]
    assert "Completed goal=" in lines[0]
    assert "Committed step=20 epoch=0 (test)" in lines[1]
    assert "Opened world=1 resumes=nothing" in lines[3]
    entries = [json.loads(line.printed(as_json=True)) for line in inspect.log(uri, {})]
    assert [(entry["seq"], entry["kind"], entry.get("step")) for entry in entries] == [
        (4, "Completed", 20),
        (3, "Committed", 20),
        (2, "Committed", 10),
        (1, "Opened", None),
    ]


def test_an_empty_root_is_reported_as_empty(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    for command in (inspect.log, inspect.verify):
        with pytest.raises(UserError, match="has no log: nothing was ever trained here"):
            list(command(uri, {}))
    with pytest.raises(UserError, match="has no commit"):
        list(inspect.show(uri, CommitSelector(), {}))


def test_the_newest_commit_is_shown_and_its_tensors_where_they_are_asked_for(uri: str) -> None:
    (line,) = inspect.show(uri, CommitSelector(), {})
    assert line.text.splitlines()[0] == "commit 3 of run 1: step 20, epoch 0"
    assert "by 1 rank: test\n" in line.text
    assert "shared half" not in line.text
    (longer,) = inspect.show(uri, CommitSelector(), {}, tensors=True)
    assert "shared half bfloat16 [33] from cpu, 66 bytes at " in longer.text
    assert "replicated running_mean float32 [4] from cpu, 16 bytes at " in longer.text
    data = json.loads(longer.printed(as_json=True))
    named = {tensor["name"]: tensor for tensor in data.pop("tensors")}
    assert named["half"]["size"] == 66
    assert data == json.loads(line.printed(as_json=True))
    assert (data["seq"], data["step"], data["world"]) == (3, 20, 1)
    assert sum(group["bytes"] for group in data["groups"].values()) == sum(each["size"] for each in named.values())


def test_a_commit_of_many_tensors_fits_a_screen(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}", {})
    log_writer = opened(store)
    many = replace(state(10), shared={f"model.layer{number}.weight": torch.ones(1) for number in range(300)})
    save(store, Solo(), log_writer, many, position(10), run=1)
    shown = texts(inspect.show(store.uri, CommitSelector(), {}))
    assert len(shown) <= SCREEN_LINES
    assert any("in 300 tensors" in line for line in shown)


def test_a_commit_is_chosen_by_its_number_and_one_that_is_not_there_is_named(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/root"
    store = open_store(uri, {})
    log_writer = opened(store)
    for step in (10, 20):
        save_solo(store, log_writer, step, pin="best" if step == 10 else None)
    (line,) = inspect.show(uri, CommitSelector(seq=2), {})
    assert line.text.startswith("commit 2 of run 1: step 10, epoch 0\n")
    assert "by 1 rank: test, pinned as best\n" in line.text
    with pytest.raises(UserError, match="no commit of seq 7: there are entry 3"):
        list(inspect.show(uri, CommitSelector(seq=7), {}))


def test_the_newest_commit_is_shown_as_damaged_and_no_older_one_instead(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/root"
    store = open_store(uri, {})
    log_writer = opened(store)
    for step in (10, 20):
        save_solo(store, log_writer, step)
    store.delete([key for key in store.list("data/1/20-") if key.endswith("manifest.json")])
    with pytest.raises(Corrupt, match=r"data/1/20-.* is missing"):
        list(inspect.show(uri, CommitSelector(), {}))


def test_a_commit_is_shown_with_the_members_of_its_run(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/root"
    store = open_store(uri, {})
    log_writer = Writer(Log(store), uid=UID, run=1)
    log_writer.try_open(2, wait_over=True, members=[Member("digits-0", "n1"), Member("digits-1")])
    save_solo(store, log_writer, 10)
    text = texts(inspect.show(uri, CommitSelector(), {}))
    assert text[4:6] == ["rank 0 ran in digits-0 on n1", "rank 1 ran in digits-1"]
    (named,) = (line for line in texts(inspect.log(uri, {})) if "Opened" in line)
    key = named.rpartition(" members=")[2]
    store.delete([key])
    assert f"members: {key} is missing" in texts(inspect.show(uri, CommitSelector(), {}))


def test_a_whole_root_is_verified_and_a_damaged_one_reported(uri: str) -> None:
    lines = list(inspect.verify(uri, {}))
    assert lines[0].text == "log: 4 entries, 0 damaged"
    assert lines[1].text.startswith("commit 3 of step 20: whole")
    assert lines[2].text == "commit 2 of step 10: retired"
    assert [line.data.get("state") for line in lines] == [None, "whole", "retired"]
    store = open_store(uri, {})
    shard = next(key for key in store.list("data/") if key.endswith(".safetensors"))
    store.put(shard, store.get(shard)[:-1] + b"?")
    told = inspect.verify(uri, {})
    with pytest.raises(Corrupt, match=r"damaged in 1 places; the first: .*is damaged in the block"):
        list(told)


def test_reading_a_log_needs_no_torch(uri: str) -> None:
    program = (
        "import sys; from perdure.checkpoint import inspect; from perdure.wire import CommitSelector; "
        "list(inspect.log(sys.argv[1], {})); "
        "list(inspect.show(sys.argv[1], CommitSelector(), {})); list(inspect.verify(sys.argv[1], {})); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, uri], check=False).returncode == 0
