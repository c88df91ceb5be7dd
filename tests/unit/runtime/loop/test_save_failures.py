"""Failing checkpoints: training goes on, the failures are reported, and it ends where the script says so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import Session, UserError
from perdure.errors import StorageError
from perdure.wire import ErrorKind, ExitKind
from perdure.wire.channel import Exiting, SaveFailed, read_report
from tests.unit.runtime.checkpoint.test_checkpointer import Unreliable
from tests.unit.runtime.records import entries, kinds
from tests.unit.runtime.session.training import Join, Training


def told(pipe: tuple[int, int]) -> list[Any]:
    reports = map(read_report, os.read(pipe[0], 2**16).splitlines())
    return [report for report in reports if isinstance(report, SaveFailed | Exiting)]


def failing(session: Session, root: Path, times: int) -> Unreliable:
    """Its store fails so often in a row, from the first checkpoint on."""
    store = Unreliable(root)
    session._core.run.store = store
    perdure.restore(session)
    store.refusals = times
    return store


def test_training_goes_on_and_the_agent_is_told_how_many_have_failed(
    join: Join, tmp_path: Path, pipe: tuple[int, int]
) -> None:
    session = join(REPORT_FD=str(pipe[1]), EVERY_STEPS="1", CHECK_SECONDS="0")
    training, seen = Training(session), list[int]()
    failing(session, tmp_path, 3)
    session.on("epoch", lambda _: seen.append(perdure.progress(session).save_failures))
    training.run(2)
    *failed, ending = told(pipe)
    assert [report.failures for report in failed] == [1, 2, 3]
    assert all("no route to the store" in report.why for report in failed)
    assert ending.outcome is ExitKind.COMPLETED
    assert seen == [0, 0]


def test_it_ends_with_the_last_that_may_fail_and_says_so(join: Join, tmp_path: Path, pipe: tuple[int, int]) -> None:
    session = join({"max_save_failures": 3}, REPORT_FD=str(pipe[1]), EVERY_STEPS="1", CHECK_SECONDS="0")
    training = Training(session)
    failing(session, tmp_path, 1000)
    with pytest.raises(StorageError, match="3 checkpoints in a row have failed, max_save_failures is 3"):
        training.run(2)
    *failed, ending = told(pipe)
    assert [report.failures for report in failed] == [1, 2, 3]
    assert (ending.outcome, ending.error.kind) == (ExitKind.FAILED, ErrorKind.STORAGE)
    assert (session.steps_done, kinds(tmp_path)) == (3, ["Opened"])


@pytest.mark.parametrize(("waits", "saved"), [(1e9, 10), (1e-9, 7)])
def test_the_next_save_waits_for_the_end_of_the_pause_and_not_for_the_cadence(
    waits: float, saved: int, join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps 2 to 6 fail where the pauses are short."""
    session = join(EVERY_STEPS="2", CHECK_SECONDS="0")
    training = Training(session)
    failing(session, tmp_path, 5)
    monkeypatch.setattr("perdure.checkpoint.schedule.pause", lambda *_: waits)
    training.run(2)
    first, *_ = [entry for entry in entries(tmp_path) if entry["kind"] == "Committed"]
    assert (first["step"], session.steps_done) == (saved, 10)


@pytest.mark.parametrize("count", [0, -1, True, 2.0, "3"])
def test_a_limit_that_is_none_is_refused(count: Any) -> None:
    with pytest.raises(UserError, match=r"max_save_failures is .*: give a whole number of 1 or more, or None"):
        Session.from_env(max_save_failures=count)
