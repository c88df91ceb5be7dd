"""Saves in the background of one rank, in this process: what the loop makes of them, act by act."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from perdure import Session
from perdure.checkpoint.background import arena, copies, rank0, uploading
from perdure.errors import PerdureError, StorageError
from perdure.loop import background_saves, save_effects
from perdure.wire.channel import SaveFailed, read_report
from tests.support.store import WatchedStore
from tests.unit.runtime.records import entries
from tests.unit.runtime.session.background import Uploads

SECONDS = 30.0
"""More than anything takes here, on a machine that is busy."""
EVERY = 10
"""Steps between two saves. Undisturbed saves from 10 to 20 are made."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    environ = {"BACKGROUND_BYTES": "0", "CHECK_SECONDS": "0", "KEEP": "1", "EVERY_STEPS": str(EVERY)}
    for name, value in environ.items():
        monkeypatch.setenv(f"PERDURE_{name}", value)
    return tmp_path / "root"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_effects, "DEADLINE_SECONDS", 0.0)
    monkeypatch.setattr(save_effects, "SLOWEST", 2**60)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """By how many seconds it seems later than it is, for the deadlines of saves: their sum."""
    seconds = list[float]()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(seconds))
    for module in (copies, save_effects):
        monkeypatch.setattr(module, "time", clock)
    return seconds


def stepping(root: Path, steps: int, epochs: int = 1, loops: int = 1) -> Iterator[tuple[Uploads, int]]:
    """Trains so many steps in each epoch, and asks for a save between two of them. Yields the number of each step as it
    ends: what the caller does then comes before the rank votes, and before a save of this step begins."""
    behind = set[int | None]()
    with Session.from_env(root) as session:
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        session.register(net=net, optimizer=optimizer)
        uploads = Uploads(session)
        for _ in range(loops):
            for epoch in session.epochs(epochs):
                if epoch:
                    session.save()
                for (inputs,) in session.loader(TensorDataset(torch.randn(4 * steps, 4)), 4):
                    behind.add(uploads.under_way)
                    optimizer.zero_grad()
                    session.weighted(net(inputs).square().mean()).backward()
                    optimizer.step()
                    yield uploads, session.steps_done + 1
                    session.step()
    assert EVERY in behind, "training has stood until the first save was made"


def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.001)


def commits(root: Path) -> list[int]:
    """Steps, oldest first."""
    return [entry["step"] for entry in entries(root) if entry["kind"] == "Committed"]


def found(root: Path, step: int, what: str) -> list[Path]:
    """Such objects of the saves of a step."""
    return [*root.glob(f"data/1/{step}-*/{what}")]


@pytest.mark.parametrize("steps", range(11, 16))
def test_a_requested_save_is_made_wherever_the_commit_before_it_is_reported(root: Path, steps: int) -> None:
    """That commit is reported as early as possible: before the epoch's end, or there, or after it."""
    for uploads, _ in stepping(root, steps, epochs=2):
        uploads.settle()
    assert commits(root) == [10, steps, 20, 2 * steps]


def test_the_steps_until_the_ranks_know_a_commit_are_no_part_of_what_its_save_took(
    root: Path, later: list[float]
) -> None:
    """An exit, a hand-over and the grace that is reported go by what a save took. Each step seems to take a minute."""
    took = list[float]()
    for uploads, _ in stepping(root, 15):
        uploads.settle()
        later.append(60.0)
        timings = uploads._background._run.timings
        took += [timings.of_a_save()] if "commit" in timings.seconds else []
    assert took
    assert max(took) < SECONDS


def test_older_commits_are_removed_while_training_goes_on(root: Path) -> None:
    for uploads, step in stepping(root, 29):
        uploads.settle()
        if step == 29:
            assert commits(root) == [10, 20]
            until(lambda: not found(root, 10, "*"))


def test_what_a_failed_save_has_uploaded_is_removed_once_the_next_one_begins(root: Path) -> None:
    """Also if no save is ever committed: where a store is almost full, that may be why."""
    failed = list[int]()
    for uploads, _ in stepping(root, 39):
        saving = uploads.under_way
        if saving and saving not in failed and len(failed) < 2:
            uploads.wait()
            found(root, saving, "index-*")[0].unlink()
            failed.append(saving)
            if len(failed) == 2:
                until(lambda: not found(root, 10, "*"))
                assert commits(root) == []
        uploads.settle()
        if not saving and failed == [10]:
            assert found(root, 10, "shard-*")
            uploads.wait_for_pause()
    assert len(failed) == 2


@pytest.mark.usefixtures("impatient")
def test_a_save_that_takes_too_long_has_failed_in_a_later_loop_too(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for uploads, step in stepping(root, 12, loops=2):
        if step in (2, 14):
            uploads.freeze()
    said = capsys.readouterr().err
    for step in (10, 20):
        assert f"checkpoint of step {step} failed, training goes on: not uploaded by its deadline" in said
    assert commits(root) == [12, 12, 24]


def test_an_upload_that_moves_is_not_ended_at_its_deadline(
    root: Path, later: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    for uploads, step in stepping(root, 14):
        match step:
            case 2:
                uploads.freeze()
            case 12:
                later.append(0.7 * save_effects.DEADLINE_SECONDS)
                uploads.move()
            case 13:
                later.append(0.7 * save_effects.DEADLINE_SECONDS)
            case 14:
                assert uploads.under_way == EVERY
                uploads.thaw()
                uploads.settle()
    assert "by its deadline" not in capsys.readouterr().err
    assert commits(root) == [EVERY, 14]


def test_an_uploader_that_follows_one_killed_after_the_deadline_has_time_of_its_own(
    root: Path, later: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    for uploads, step in stepping(root, 13):
        match step:
            case 2:
                uploads.freeze()
            case 12:
                later.append(2 * save_effects.DEADLINE_SECONDS)
                uploads.kill()
                uploads.wait_for_end_of_frozen()
                uploads.settle()
    assert "by its deadline" not in capsys.readouterr().err
    assert commits(root) == [EVERY, 13]


def test_a_part_that_cannot_be_copied_is_saved_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for uploads, step in stepping(root, 15):
        match step:
            case 10:
                monkeypatch.setattr(arena, "free_memory", lambda: 0)
            case 13:
                uploads.wait_for_pause()
    assert (
        "checkpoint of step 10 failed, training goes on: 268 MB of memory are missing for a copy"
        in capsys.readouterr().err
    )
    assert commits(root) == [13, 15]


@pytest.mark.parametrize("large", [True, False])
def test_a_state_that_cannot_or_need_not_be_copied_is_read_for_a_save_and_at_no_other_step(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, large: bool
) -> None:
    """There is no memory for a copy, or the state is too small for one."""
    monkeypatch.setattr(arena, "free_memory", lambda: 0)
    monkeypatch.setenv("PERDURE_BACKGROUND_BYTES", "0" if large else str(2**25))
    reads, by_step = list[object](), list[int]()
    with Session.from_env(root) as session:
        net = nn.Linear(4, 1)
        net.register_state_dict_pre_hook(lambda *told: reads.append(told))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        session.register(model=net, optimizer=optimizer)
        for _ in session.epochs(1):
            for (inputs,) in session.loader(TensorDataset(torch.randn(100, 4)), 4):
                by_step.append(len(reads))
                optimizer.zero_grad()
                net(inputs).square().mean().backward()
                optimizer.step()
                session.step()
    reads_in = [after - before for before, after in pairwise(by_step)]
    beside_a_save = {step for save in (0, EVERY, 2 * EVERY) for step in range(save - 2, save + 3)}
    assert [step for step, count in enumerate(reads_in) if count and step not in beside_a_save] == []


def test_a_rank_whose_uploaders_were_killed_copies_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "AGAIN_SECONDS", 0.0)
    behind = set[int | None]()
    for uploads, step in stepping(root, 29):
        if step == 2:
            uploads.freeze()
        if step == 11:
            uploads.kill_all()
        uploads.settle()
        if step == 15:
            uploads.wait_for_pause()
        behind.add(uploads.under_way)
    assert behind == {None, 10, 15, 20}
    assert commits(root) == [15, 20, 29]


@contextmanager
def traced(pid: int) -> Iterator[None]:
    """Another process traces this one: killed, it is not gone for its parent, as where it hangs in the kernel."""
    tracer = subprocess.Popen([sys.executable, "-c", TRACER, str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert tracer.stdout
    try:
        if tracer.stdout.read(1) != b"0":
            pytest.skip("no process may be traced here")
        yield
    finally:
        tracer.communicate(timeout=SECONDS)


TRACER = """
import ctypes, sys
PTRACE_SEIZE = 0x4206
print(int(ctypes.CDLL(None).ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None) != 0), end="", flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("impatient")
def test_after_an_uploader_that_cannot_be_ended_nothing_is_copied_any_more_and_saves_are_made_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(uploading, "REAP_SECONDS", 0.1)
    monkeypatch.setattr("perdure.checkpoint.schedule.pause", lambda *_: 1e-9)
    behind, said = list[int | None](), ""
    with ExitStack() as hold:
        for uploads, step in stepping(root, 39):
            match step:
                case 2:
                    uploads.freeze()
                    hold.enter_context(traced(uploads.process.pid))
                case 12:
                    while "cannot be ended" not in said:
                        uploads._background.words()
                        said += capsys.readouterr().err
                case 25:
                    hold.close()  # it is gone at last
            behind.append(uploads.under_way)
    said += capsys.readouterr().err
    assert said.count("cannot be ended: from now on training waits for its checkpoints") == 1
    assert set(behind[13:]) == {None}
    assert commits(root)[1:] == [20, 30, 39]


class Answers:
    """The log's store: an entry is written, and its answer is lost so often; or it waits until `go`."""

    def __init__(self, uploads: Uploads, lost: int = 0) -> None:
        self.lost, self.go, self._asked, self._uploads = lost, threading.Event(), threading.Event(), uploads
        writer = uploads._background._run.checkpointer.writer
        assert writer
        writer.log.store = WatchedStore(writer.log.store, self._around)

    def is_asked(self) -> bool:
        self._uploads._background.words()
        return self._asked.is_set()

    def _around(self, verb: str, key: str, act: Callable[[], Any]) -> Any:
        if verb != "put" or not key.startswith("log/"):
            return act()
        self._asked.set()
        if not self.lost:
            assert self.go.wait(SECONDS)
            return act()
        self.lost -= 1
        with suppress(PerdureError):
            act()
        raise StorageError("the answer was lost")


def test_each_try_of_an_append_whose_answer_is_lost_is_reported_and_one_commit_is_made(
    root: Path, monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]
) -> None:
    monkeypatch.setattr(rank0, "AGAIN_SECONDS", 0.0)
    monkeypatch.setenv("PERDURE_REPORT_FD", str(pipe[1]))
    for uploads, step in stepping(root, 15):
        if step == 2:
            Answers(uploads, lost=3).go.set()
        uploads.settle()
    reports = map(read_report, os.read(pipe[0], 2**16).splitlines())
    failed = [one for one in reports if isinstance(one, SaveFailed)]
    assert [one.failures for one in failed] == [1, 2, 3]
    assert all("the answer was lost" in one.why for one in failed)
    assert commits(root) == [10, 15]


def test_no_run_is_handed_over_while_the_store_has_not_answered_a_commit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_saves, "STOP_SECONDS", 0.0)
    for uploads, step in stepping(root, 15):
        if step == 2:
            answers = Answers(uploads)
        if step == 12:
            uploads.wait()
        if step == 13:
            until(answers.is_asked)
            assert uploads._background.stop() == "the store has not answered a commit"
            uploads._background.train_on()
            answers.go.set()
    assert commits(root) == [10, 15]


class Unreadable(Exception):
    pass


class Fails:
    """A part of the state that cannot be read at times."""

    def __init__(self) -> None:
        self.now, self.at = False, 0

    def state_dict(self) -> dict[str, Any]:
        if self.now:
            raise Unreadable
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_a_script_may_go_on_after_an_error_in_a_copy(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Session.from_env(root) as session:
        net, fails = nn.Linear(4, 1), Fails()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        session.register(net=net, optimizer=optimizer, fails=fails)
        for _ in session.epochs(1):
            for fails.at in (10, 0):
                with suppress(Unreadable):
                    for (inputs,) in session.loader(TensorDataset(torch.randn(96, 4)), 4):
                        optimizer.zero_grad()
                        session.weighted(net(inputs).square().mean()).backward()
                        optimizer.step()
                        session.step()
                        fails.now = session.steps_done == fails.at
    assert "checkpoint of step 10 failed, training goes on: it could not be copied" in capsys.readouterr().err
    assert commits(root)[-1] == session.steps_done
