"""What a script reports: values by name, functions called now and then, and once more at the end, however it comes."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import perdure
from perdure import Session, UserError
from perdure.errors import PeerLost
from perdure.loop.reports import Reports, read_values
from perdure.loop.telemetry.events import Reported
from tests.unit.runtime.records import kinds
from tests.unit.runtime.session.training import Join, Training


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def listening(session: Session) -> list[Reported]:
    found: list[Reported] = []
    session.on("reported", found.append)
    return found


class TestValues:
    def test_numbers_strings_and_tensors_of_one_element_are_values(self) -> None:
        given = {"a": 1, "b": 0.5, "c": "warm", "d": None, "e": True, "f": torch.tensor([0.25]), "g": np.float32(2)}
        assert read_values(given) == {"a": 1, "b": 0.5, "c": "warm", "d": None, "e": True, "f": 0.25, "g": 2.0}
        assert type(read_values({"f": torch.tensor(1)})["f"]) is int

    @pytest.mark.parametrize(
        "value", [[1], torch.ones(2), {"a": 1}, object()], ids=["list", "tensor", "dict", "object"]
    )
    def test_anything_else_is_refused_by_name(self, value: object) -> None:
        with pytest.raises(UserError, match=r"report\(loss=\.\.\.\): a \w+ is nothing to report: give a number"):
            read_values({"loss": value})

    def test_nothing_at_all_is_refused_with_the_remedy(self) -> None:
        with pytest.raises(UserError, match=r"perdure\.report\(session, loss=loss\)"):
            read_values({})


class TestNowAndThen:
    def test_each_function_is_called_when_its_time_has_come_and_counts_from_there(self) -> None:
        clock, told = Clock(), list[Any]()
        reports = Reports(told.append, clock)
        reports.add(10, lambda: {"a": clock.now})
        reports.add(25, lambda: {"b": clock.now})
        for clock.now in (105.0, 112.0, 121.0, 122.0, 130.0):
            reports.call_due()
        assert told == [{"a": 112.0}, {"a": 122.0}, {"b": 130.0}]

    def test_one_that_gives_nothing_reports_nothing(self) -> None:
        clock, told = Clock(), list[Any]()
        reports = Reports(told.append, clock)
        reports.add(10, lambda: None)
        clock.now += 10
        reports.call_due()
        assert told == []

    @pytest.mark.parametrize("gives", [[1], 3.5])
    def test_one_that_fails_is_reported_and_the_next_is_called(
        self, gives: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock, told = Clock(), list[Any]()
        reports = Reports(told.append, clock)

        def fails() -> Any:
            raise ValueError("no such table")

        for report in (fails, lambda: gives, lambda: {"a": 1}):
            reports.add(10, report)
        clock.now += 10
        with caplog.at_level(logging.ERROR, logger="perdure"):
            reports.call_due()
        assert told == [{"a": 1}]
        assert "fails) failed, training goes on" in caplog.text
        assert "ValueError: no such table" in caplog.text
        assert f"gives a {type(gives).__name__}: let it give a mapping" in caplog.text

    def test_a_peer_that_is_gone_is_no_fault_of_the_function(self) -> None:
        clock = Clock()
        reports = Reports(lambda _: None, clock)

        def meets_it() -> None:
            raise PeerLost("rank 1 is gone")

        reports.add(10, meets_it)
        clock.now += 10
        with pytest.raises(PeerLost):
            reports.call_due()

    def test_what_it_draws_is_not_drawn(self) -> None:
        clock, told = Clock(), list[Any]()
        reports = Reports(told.append, clock)
        reports.add(10, lambda: {"drawn": torch.rand(1).item()})
        torch.manual_seed(3)
        expected = torch.rand(1).item()
        torch.manual_seed(3)
        clock.now += 10
        reports.call_due()
        assert told == [{"drawn": expected}]
        assert torch.rand(1).item() == expected

    @pytest.mark.parametrize("seconds", [0, -1, True, float("inf"), float("nan"), "60"])
    def test_seconds_that_are_none_are_refused(self, seconds: Any) -> None:
        with pytest.raises(UserError, match="give seconds, more than 0"):
            Reports(lambda _: None).add(seconds, dict)

    def test_what_cannot_be_called_is_refused(self) -> None:
        with pytest.raises(UserError, match="a dict cannot be called"):
            Reports(lambda _: None).add(1, {"loss": 1})  # type: ignore[arg-type]


class TestTheLastCall:
    def test_it_is_one_call_of_each_whatever_the_others_do(self, caplog: pytest.LogCaptureFixture) -> None:
        told = list[Any]()
        reports = Reports(told.append)

        def fails() -> Any:
            raise PeerLost("rank 1 is gone")

        def exits() -> Any:
            raise SystemExit(3)

        for report in (fails, exits, lambda: {"a": 1}):
            reports.add(1000, report)
        reports.end()
        reports.end()
        assert told == [{"a": 1}]
        assert "rank 1 is gone" in caplog.text

    def test_a_completed_job_has_one_after_its_exit_hooks_and_before_it_is_recorded(
        self, join: Join, tmp_path: Path
    ) -> None:
        session, told = join(), list[Any]()
        session.on("exit", lambda: told.append("exit"))
        perdure.report_every(session, 1000, lambda: told.append(kinds(tmp_path)))
        Training(session).run()
        assert told == ["exit", ["Opened", "Committed"]]

    def test_a_loop_that_a_condition_ends_has_one_too(self, join: Join) -> None:
        session = join()
        told = listening(session)
        perdure.report_every(session, 1000, lambda: {"steps": session.steps_done})
        perdure.stop_when(session, "enough", lambda: True)
        Training(session).run(9)
        assert told == [Reported(5, 1, {"steps": 5})]

    def test_one_that_is_drained_has_one_after_its_commit_and_the_leaving_hooks(
        self, join: Join, tmp_path: Path
    ) -> None:
        session, told = join(), list[Any]()
        session.on("leaving", told.append)
        perdure.report_every(session, 1000, lambda: told.append(kinds(tmp_path)))
        Training(session).left(stop=3)
        assert told == ["SIGTERM", ["Opened", "Committed"]]

    def test_a_script_that_fails_has_one(self, join: Join) -> None:
        session = join()
        told = listening(session)
        perdure.report_every(session, 1000, lambda: {"steps": session.steps_done})
        training = Training(session)

        def fails(*_: Any) -> None:
            if session.steps_done == 3:
                raise ZeroDivisionError

        training.optimizer.register_step_post_hook(fails)
        with pytest.raises(ZeroDivisionError):
            training.run(2)
        assert told == [Reported(3, 0, {"steps": 3})]

    def test_a_script_that_saves_and_goes_on_by_itself_has_one(self, join: Join) -> None:
        session = join(CHECK_SECONDS="0")
        training, told = Training(session), listening(session)
        perdure.report_every(session, 1000, lambda: {"steps": session.steps_done})
        with session:
            for _ in session.epochs(2):
                for inputs, _ in training.batches:
                    training.net(inputs).sum().backward()
                    if session.steps_done:  # before the first step a request ends the process
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
                    if perdure.should_stop(session):
                        break
                if perdure.should_stop(session):
                    break
            perdure.report(session, after=True)
        assert told == [Reported(2, 0, {"steps": 2}), Reported(2, 0, {"after": True})]

    def test_it_comes_after_the_error_was_reported_to_the_agent(self, join: Join) -> None:
        session, told = join(), list[bool]()
        perdure.report_every(session, 1000, lambda: told.append(session._core.run.reporter.ended))
        with pytest.raises(ZeroDivisionError), session:
            raise ZeroDivisionError
        assert told == [True]


def test_a_report_is_said_and_goes_to_the_trace_and_to_the_hooks(
    join: Join, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = join(TRACE="1")
    training, told = Training(session), listening(session)
    session.on("epoch", lambda epoch: perdure.report(session, loss=torch.tensor(0.25), epoch=epoch, note="warm"))
    with caplog.at_level(logging.INFO, logger="perdure"):
        training.run(1)
    assert told == [Reported(5, 0, {"loss": 0.25, "epoch": 0, "note": "warm"})]
    assert "run 1 rank 0: step 5, epoch 0: loss 0.25, epoch 0, note warm" in caplog.text
    lines = "".join(path.read_text() for path in tmp_path.glob("trace/*.jsonl"))
    assert '"event":"reported","step":5,"epoch":0,"values":{"loss":0.25,"epoch":0,"note":"warm"}' in lines


def test_it_is_called_by_the_main_thread_at_steps_and_polls(join: Join) -> None:
    session, threads = join(), list[Any]()
    perdure.report_every(session, 1e-9, lambda: threads.append(threading.current_thread()))
    with session:
        training = Training(session)
        for _ in session.epochs(1):
            for inputs, _ in training.batches:
                training.net(inputs).sum().backward()
                session.step()
            perdure.poll(session)
    assert threads == [threading.main_thread()] * (5 + 1 + 1)
