"""What a script lets ask for an exit: the table of files, and the signals that can."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import perdure
from perdure import UserError
from perdure.loop.asking import ExitFile, exit_signals
from perdure.loop.leaving import Exit
from tests.unit.runtime.records import entries
from tests.unit.runtime.session.training import Join, Training

ASKS = ['{"GracefulExit": 1}', '{"GracefulExit": true}', '{"GracefulExit": 1.0, "cause": 7}']
SILENT = ["{}", '{"GracefulExit": 0}', '{"GracefulExit": "1"}', '{"GracefulExit": [1]}', '{"GracefulExit": null}']
WRONG = {
    "empty": "",
    "half written": '{"GracefulExit": ',
    "a number": "1",
    "a list": '[{"GracefulExit": 1}]',
    "a word": '"GracefulExit"',
    "too deep": "[" * 60_000,
    "not text": b"\xff\xfe\x00\x01",
}


@pytest.mark.parametrize("content", ASKS)
def test_a_file_asks_whose_word_equals_1(tmp_path: Path, content: str) -> None:
    file = tmp_path / "exit.json"
    file.write_text(content)
    assert ExitFile(file).asks()


@pytest.mark.parametrize("content", SILENT)
def test_another_value_asks_for_nothing_and_nothing_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str
) -> None:
    file = tmp_path / "exit.json"
    file.write_text(content)
    assert not ExitFile(file).asks()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("path", ["missing.json", "no/such/folder.json"])
def test_a_missing_file_asks_for_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str], path: str) -> None:
    assert not ExitFile(tmp_path / path).asks()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_file_is_said_once_and_a_mended_one_asks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str | bytes
) -> None:
    path = tmp_path / "exit.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    file = ExitFile(path)
    assert [file.asks() for _ in range(3)] == [False] * 3
    said = capfd.readouterr().err
    assert said.count(f"the exit file {path} asks for nothing, training goes on: ") == 1
    path.write_text('{"GracefulExit": 1}')
    assert file.asks()
    path.write_text("{")
    assert not file.asks()
    assert "asks for nothing" in capfd.readouterr().err


UNREADABLE: dict[str, Callable[[Path], Any]] = {
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path),
    "a pipe that nobody writes to": os.mkfifo,
}


@pytest.mark.parametrize("make", UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_request_asks_for_nothing_and_holds_no_rank_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], make: Callable[[Path], Any]
) -> None:
    path = tmp_path / "exit.json"
    make(path)
    assert not ExitFile(path).asks()
    assert "asks for nothing, training goes on" in capfd.readouterr().err


def test_sigterm_asks_in_any_case_and_each_signal_once() -> None:
    usr1, term = signal.SIGUSR1, signal.SIGTERM
    assert exit_signals([]) == (term,)
    assert exit_signals((usr1, int(term), usr1, signal.SIGINT)) == (term, usr1)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP", "SIGCHLD", "SIGSEGV"])
def test_a_signal_that_cannot_ask_is_refused_by_its_name(tmp_path: Path, join: Join, name: str) -> None:
    with pytest.raises(UserError, match=f"exit_signals has {name}, which cannot ask"):
        join({"exit_signals": [signal.Signals[name]]})


@pytest.mark.parametrize("given", [[0], [4711], ["SIGUSR1"], [None], signal.SIGUSR1, "SIGUSR1"])
def test_what_is_no_signal_is_refused(given: Any) -> None:
    with pytest.raises(UserError, match="exit_signals"):
        exit_signals(given)


def ask(by: str, file: Path) -> None:
    if by == "signal":
        os.kill(os.getpid(), signal.SIGUSR1)
    else:
        file.write_text('{"GracefulExit": 1}')


class Asking(Training):
    """One that is asked to leave in its third step, in the script's own way."""

    by, file = "", Path()

    def run(self, epochs: int = 2, stop: int | None = None) -> Training:
        step, session = self.session.step, self.session

        def asked(*, exhausted: bool = False) -> None:
            if session.steps_done + 1 == 3:
                ask(self.by, self.file)
            step(exhausted=exhausted)

        session.step = asked  # type: ignore[method-assign]
        return super().run(epochs, stop)


@pytest.mark.parametrize("by", ["signal", "file"])
def test_a_run_that_the_script_lets_be_asked_saves_leaves_and_goes_on(
    join: Join, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, by: str
) -> None:
    file = tmp_path_factory.mktemp("asked") / "exit.json"
    options = {"exit_signals": [signal.SIGUSR1], "exit_file": file}
    first = Asking(join(options, CHECK_SECONDS="0"))
    first.by, first.file = by, file
    with pytest.raises(Exit):
        first.run()
    file.unlink(missing_ok=True)
    final = entries(tmp_path)[-1]
    assert (final["kind"], final["step"], final["final"]) == ("Committed", 3, True)
    assert final["reason"] == ("SIGUSR1" if by == "signal" else f"GracefulExit in {file}")
    second = Training(join(options), seed=9).run()
    assert second.session.steps_done == 10
    assert entries(tmp_path)[-1]["kind"] == "Completed"


def should_stop(training: Training, *, stop: int | None = None, breaks: bool = True) -> bool:
    """Whether it was asked to stop."""
    session, told = training.session, False
    with session:
        for _ in session.epochs(2):
            for inputs, _ in training.batches:
                training.optimizer.zero_grad()
                training.net(inputs).square().mean().backward()
                training.optimizer.step()
                if stop == session.steps_done + 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                session.step()
                told = perdure.should_stop(session)
                if told and breaks:
                    break
            if told and breaks:
                break
        assert perdure.should_stop(session) is told
    return told


@pytest.mark.parametrize("stop", [2, 3, 5, 8, 10])
def test_a_script_that_is_told_to_stop_ends_by_itself_and_its_next_run_as_if_it_had_not(
    join: Join, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, stop: int
) -> None:
    assert should_stop(Training(join()), stop=stop)
    assert [entry["kind"] for entry in entries(tmp_path)] == ["Opened", "Committed"]
    second = Training(join(), seed=9)
    assert not should_stop(second)
    drawn = torch.rand(3).tolist()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.mktemp("undisturbed"))
        undisturbed = Training(type(second.session).from_env())
        assert not should_stop(undisturbed)
    assert (second.weights, drawn) == (undisturbed.weights, torch.rand(3).tolist())
    undisturbed.session.close()


@pytest.mark.parametrize("stop", [3, 5])
def test_a_script_that_goes_on_although_it_was_told_gets_no_further_batch(join: Join, stop: int) -> None:
    training = Training(join())
    with pytest.raises(Exit):
        should_stop(training, stop=stop, breaks=False)
    assert training.session.steps_done == stop


def test_another_loop_after_the_one_that_was_left_trains_nothing(join: Join, tmp_path: Path) -> None:
    training = Training(join())
    assert should_stop(training, stop=3)
    with pytest.raises(Exit):
        next(training.session.epochs(1))
    assert [entry["kind"] for entry in entries(tmp_path)] == ["Opened", "Committed"]


def test_between_the_batches_of_one_step_nobody_is_told_to_stop(join: Join) -> None:
    training = Training(join())
    told = []
    for _ in training.session.epochs(1):
        for number, _ in enumerate(training.batches):
            if number == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            if number % 2 == 1:
                training.session.step()
            told.append(perdure.should_stop(training.session))
            if told[-1]:
                break
        break
    assert told == [False, False, False, True]


def test_before_the_training_is_restored_the_question_is_a_mistake_that_is_named(join: Join) -> None:
    with pytest.raises(UserError, match="nothing is restored yet"):
        perdure.should_stop(join())
