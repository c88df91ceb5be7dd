"""What the command line tells of a root."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perdure.checkpoint import inspect
from perdure.checkpoint.retention import retire
from perdure.errors import Corrupt, UserError
from perdure.log.reader import Log
from perdure.log.writer import Writer
from perdure.store import open_store
from perdure.wire.settings import Member
from tests.unit.runtime.checkpoint.world import UID, opened, position, save_solo


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


def test_the_log_is_told_newest_first(uri: str) -> None:
    lines = list(inspect.log(uri, {}))
    assert [line.split()[0] for line in lines] == ["4", "3", "2", "1"]
    assert "Completed goal=" in lines[0]
    assert "Committed step=20 epoch=0 (test)" in lines[1]
    assert "Opened world=1 resumes=nothing" in lines[3]


def test_an_empty_root_is_told_so(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    for command in (inspect.log, inspect.verify):
        with pytest.raises(UserError, match="has no log: nothing was ever trained here"):
            list(command(uri, {}))
    with pytest.raises(UserError, match="has no commit"):
        list(inspect.show(uri, {}))


def test_the_newest_commit_is_shown_with_its_tensors(uri: str) -> None:
    text = "\n".join(inspect.show(uri, {}))
    assert "commit 3 of run 1: step 20, epoch 0" in text
    assert "by 1 rank" in text
    assert "shared half bfloat16 [33] from cpu, 66 bytes at " in text
    assert "replicated running_mean float32 [4] from cpu, 16 bytes at " in text


def test_a_commit_is_shown_with_the_members_of_its_run(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/root"
    store = open_store(uri, {})
    log_writer = Writer(Log(store), uid=UID, run=1)
    log_writer.try_open(2, wait_over=True, members=[Member("digits-0", "n1"), Member("digits-1")])
    save_solo(store, log_writer, 10)
    text = list(inspect.show(uri, {}))
    assert text[3:5] == ["rank 0 ran in digits-0 on n1", "rank 1 ran in digits-1"]
    (named,) = (line for line in inspect.log(uri, {}) if "Opened" in line)
    key = named.rpartition(" members=")[2]
    store.delete([key])
    assert f"members: {key} is missing" in inspect.show(uri, {})


def test_a_whole_root_is_verified_and_a_damaged_one_told(uri: str) -> None:
    lines = list(inspect.verify(uri, {}))
    assert lines[0] == "log: 4 entries, 0 damaged"
    assert lines[1].startswith("commit 3 of step 20: whole")
    assert lines[2] == "commit 2 of step 10: retired"
    store = open_store(uri, {})
    shard = next(key for key in store.list("data/") if key.endswith(".safetensors"))
    store.put(shard, store.get(shard)[:-1] + b"?")
    told = inspect.verify(uri, {})
    with pytest.raises(Corrupt, match=r"damaged in 1 places; the first: .*is damaged in the block"):
        list(told)


def test_reading_a_log_needs_no_torch(uri: str) -> None:
    program = (
        "import sys; from perdure.checkpoint import inspect; list(inspect.log(sys.argv[1], {})); "
        "list(inspect.show(sys.argv[1], {})); list(inspect.verify(sys.argv[1], {})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, uri], check=False).returncode == 0
