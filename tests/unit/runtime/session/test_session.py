"""A session in a world of one, in this process: what is restored, when it saves, how it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from perdure import Fenced, Session, UserError
from perdure.channel import read_report
from perdure.checkpoint.log import Log
from perdure.checkpoint.writer import Resume, Writer
from perdure.contract import Env
from perdure.errors import StorageError
from perdure.session.leaving import Exit, stop_without_step
from perdure.store.file import FileStore

Join = Callable[..., Session]


@pytest.fixture
def join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Join]:
    """Joins a new run under the test's own root."""
    for name in [name for name in os.environ if name.startswith("PERDURE_")]:
        monkeypatch.delenv(name)
    sessions: list[Session] = []

    def joined(**environ: str) -> Session:
        for session in sessions:
            session.close()
        with monkeypatch.context() as context:
            for name, value in environ.items():
                context.setenv(f"PERDURE_{name}", value)
            sessions.append(Session.from_env(tmp_path))
        return sessions[-1]

    yield joined
    for session in sessions:
        session.close()


def samples(size: int = 40) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(size, 4, generator=generator), torch.arange(size))


def other_draws() -> tuple[float, float]:
    return random.random(), np.random.rand()  # noqa: S311


class Training:
    """A small training on a session; `stop` sends SIGTERM right before that step is told."""

    def __init__(self, session: Session, *, seed: int = 0, loader: str | None = "train") -> None:
        self.session = session
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        session.register(net=self.net, optimizer=self.optimizer)
        if loader:
            self.batches = session.loader(samples(), 8, name=loader)
        self.begun: list[float] = []
        self.draws: list[tuple[float, float, float]] = []

    def run(self, epochs: int = 2, stop: int | None = None) -> Training:
        for _ in self.session.epochs(epochs):
            self.begun.append(torch.rand(1).item())
            for inputs, _ in self.batches:
                self.optimizer.zero_grad()
                self.session.weighted(self.net(inputs).square().mean()).backward()
                self.optimizer.step()
                self.draws.append((torch.rand(1).item(), *other_draws()))
                if stop == self.session.steps + 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                self.session.step()
        return self

    def left(self, **options: Any) -> Training:
        with pytest.raises(Exit) as exit_:
            self.run(**options)
        assert exit_.value.code == 0
        return self

    @property
    def weights(self) -> list[float]:
        return [value.item() for parameter in self.net.parameters() for value in parameter.flatten()]


def entries(root: Path) -> list[dict[str, Any]]:
    """The log, oldest first."""
    return [json.loads(path.read_text()) for path in sorted((root / "log").glob("*.json"), reverse=True)]


def kinds(root: Path) -> list[str]:
    return [entry["kind"] for entry in entries(root)]


@pytest.mark.parametrize("stop", [1, 3, 5, 7])
def test_random_numbers_and_weights_go_on_as_if_nothing_had_happened(
    join: Join, tmp_path_factory: pytest.TempPathFactory, stop: int
) -> None:
    first = Training(join()).left(stop=stop)
    second = Training(join())
    second.session.restore()
    torch.manual_seed(99)  # what a script draws or seeds before its first batch is forgotten
    second.run()
    straight = Training(Session.from_env(tmp_path_factory.mktemp("straight"))).run()
    straight.session.close()
    assert [draw[0] for draw in first.draws + second.draws] == [draw[0] for draw in straight.draws]
    assert second.weights == straight.weights


def test_python_and_numpy_random_numbers_go_on_too(join: Join) -> None:
    Training(join()).left(stop=4)
    before = random.getstate(), np.random.get_state()
    expected = other_draws()
    random.setstate(before[0])
    np.random.set_state(before[1])
    second = Training(join())
    random.seed(5)
    np.random.seed(5)
    assert second.run().draws[0][1:] == expected


def test_what_an_epochs_body_draws_before_its_first_batch_goes_on_too(
    join: Join, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = Training(join()).run(epochs=1)
    second = Training(join(), seed=7).run(epochs=2)
    straight = Training(Session.from_env(tmp_path_factory.mktemp("straight"))).run(epochs=2)
    straight.session.close()
    assert first.begun + second.begun == straight.begun
    assert second.weights == straight.weights


@pytest.mark.parametrize("loader", [None, "train"])
def test_a_save_before_the_first_batch_keeps_position_and_random_numbers(
    join: Join, tmp_path_factory: pytest.TempPathFactory, loader: str | None
) -> None:
    first = Training(join()).left(stop=3)
    second = Training(join(), seed=7, loader=loader)
    second.session.restore()
    assert second.session.save()
    third = Training(join(), seed=8).run()
    straight = Training(Session.from_env(tmp_path_factory.mktemp("straight"))).run()
    straight.session.close()
    assert [draw[0] for draw in first.draws + third.draws] == [draw[0] for draw in straight.draws]
    assert third.weights == straight.weights


def test_checkpoint_0_changes_nothing(join: Join, tmp_path_factory: pytest.TempPathFactory) -> None:
    saved = Training(join())
    hooks = []
    saved.optimizer.register_step_pre_hook(lambda *_: hooks.append(1))
    saved.session.restore()
    assert saved.session.save()
    assert (len(saved.optimizer.state), hooks) == (0, [])
    resumed = Training(join(), seed=1)
    resumed.run()
    plain = Training(Session.from_env(tmp_path_factory.mktemp("plain")))
    plain.run()
    plain.session.close()
    assert resumed.weights == plain.weights


def test_the_goal_beats_a_request_in_the_last_step(join: Join, tmp_path: Path) -> None:
    training = Training(join()).run(stop=10)
    assert training.session.steps == 10
    assert kinds(tmp_path) == ["Opened", "Committed", "Committed", "Completed"]


def test_a_request_in_the_last_epochs_evaluation_saves_once_and_goes_on(join: Join, tmp_path: Path) -> None:
    training = Training(join())
    for _ in training.session.epochs(1):
        for _ in training.batches:
            training.session.step()
        os.kill(os.getpid(), signal.SIGTERM)
        training.session.poll()
        assert (kinds(tmp_path), entries(tmp_path)[-1]["step"]) == (["Opened", "Committed"], 5)
        training.session.poll()
    assert kinds(tmp_path) == ["Opened", "Committed", "Committed", "Completed"]


def test_a_save_at_the_end_of_an_epochs_body_is_made_once_the_body_is_done(join: Join, tmp_path: Path) -> None:
    training = Training(join())
    for _ in training.session.epochs(2):
        for _ in training.batches:
            training.session.step()
        assert training.session.save()
    commits = [entry for entry in entries(tmp_path) if entry["kind"] == "Committed"]
    assert [(entry["epoch"], entry["cursors"]["train"]["consumed"], entry["reason"]) for entry in commits] == [
        (1, 0, "script"),
        (2, 0, "goal"),
    ]


def test_a_request_seen_in_a_save_at_the_end_of_an_epochs_body_leaves_once_the_body_is_done(
    join: Join, tmp_path: Path
) -> None:
    training = Training(join())

    def train() -> None:
        for _ in training.session.epochs(2):
            for _ in training.batches:
                training.session.step()
            os.kill(os.getpid(), signal.SIGTERM)
            training.session.save()

    with pytest.raises(Exit):
        train()
    last = entries(tmp_path)[-1]
    assert (last["epoch"], last["cursors"]["train"]["consumed"], last["reason"]) == (1, 0, "SIGTERM")


def test_micro_batches_without_a_step_at_an_epochs_end_are_a_mistake_that_is_named(join: Join) -> None:
    training = Training(join())

    def accumulate() -> None:
        for _ in training.session.epochs(1):
            for number, _ in enumerate(training.batches):
                if number % 3 == 2:
                    training.session.step()

    with pytest.raises(UserError, match=r"2 batches of loader 'train'.*step\(\)"):
        accumulate()


def test_an_epoch_that_is_cut_short_is_no_mistake(join: Join) -> None:
    training = Training(join())
    for _ in training.session.epochs(2):
        for number, _ in enumerate(training.batches):
            if number == 2:
                break
            training.session.step()
    assert training.session.steps == 4


def test_a_save_of_the_script_counts_for_the_clock(join: Join, tmp_path: Path) -> None:
    session = join(EVERY_SECONDS="3600")
    session.restore()
    session._run.schedule.saved_at -= 3601
    session.save()
    session.step()
    assert kinds(tmp_path) == ["Opened", "Committed"]


def test_a_request_leaves_with_a_final_commit_that_names_its_cause(join: Join, tmp_path: Path) -> None:
    Training(join()).left(stop=4)
    last = entries(tmp_path)[-1]
    assert (last["kind"], last["step"], last["final"], last["reason"]) == ("Committed", 4, True, "SIGTERM")
    assert last["cursors"]["train"]["consumed"] == 32


@pytest.mark.parametrize(
    ("cadence", "steps"),
    [({"EVERY_STEPS": "3"}, [3, 6, 9, 10]), ({"EVERY_EPOCHS": "1"}, [5, 10]), ({"EVERY_SECONDS": "3600"}, [10])],
)
def test_checkpoints_are_made_as_often_as_asked(
    join: Join, tmp_path: Path, cadence: dict[str, str], steps: list[int]
) -> None:
    Training(join(**cadence)).run()
    assert [entry["step"] for entry in entries(tmp_path) if entry["kind"] == "Committed"] == steps


def test_the_checkpoint_after_an_epoch_begins_the_next_one(join: Join, tmp_path: Path) -> None:
    Training(join(EVERY_EPOCHS="1")).run()
    first = next(entry for entry in entries(tmp_path) if entry["kind"] == "Committed")
    assert (first["epoch"], first["cursors"]["train"]["consumed"]) == (1, 0)


def test_an_epoch_that_ended_in_the_resumed_step_is_not_trained_again(join: Join) -> None:
    Training(join()).left(epochs=3, stop=5)
    second = Training(join()).run(epochs=3)
    assert len(second.draws) == 10


def test_the_trace_tells_each_sample_once_an_epoch_and_when_the_request_was_seen(join: Join, tmp_path: Path) -> None:
    Training(join(TRACE="1")).left(stop=7)
    Training(join(TRACE="1")).run()
    lines = [json.loads(line) for path in tmp_path.glob("trace/*.jsonl") for line in path.read_text().splitlines()]
    used = Counter((line["epoch"], sample) for line in lines for sample in line.get("ids", []))
    assert used == Counter((epoch, sample) for epoch in range(2) for sample in range(40))
    events = [(line["run"], line["event"]) for line in sorted(lines, key=lambda line: line["t"]) if "event" in line]
    assert events == [(1, "resumed"), (1, "request-seen"), (1, "exit"), (2, "resumed"), (2, "completed")]


def test_poll_leaves_between_two_steps(join: Join, tmp_path: Path) -> None:
    training = Training(join())

    def evaluate_after_a_step() -> None:
        for _ in training.session.epochs(1):
            for _ in training.batches:
                training.session.step()
                os.kill(os.getpid(), signal.SIGTERM)
                training.session.poll()

    with pytest.raises(Exit):
        evaluate_after_a_step()
    assert training.session.exit_requested
    assert entries(tmp_path)[-1]["step"] == 1


def test_a_run_that_a_newer_one_has_replaced_writes_nothing_more(join: Join, tmp_path: Path) -> None:
    training = Training(join())
    training.session.restore()
    newer = Writer(Log(FileStore(tmp_path)), uid="local", run=2)
    assert isinstance(newer.try_open(1, wait_over=True), Resume)
    with pytest.raises(Fenced, match="run 2 has written after it"):
        training.run()
    assert kinds(tmp_path) == ["Opened", "Opened"]


def test_a_script_with_samples_of_its_own_learns_that_they_are_used_up(join: Join) -> None:
    session = join()
    session.restore()
    session.step()
    assert not session.exhausted
    session.step(exhausted=True)
    assert session.exhausted


def test_a_step_outside_of_a_restored_training_is_a_mistake_that_is_named(join: Join) -> None:
    with pytest.raises(UserError, match="restore"):
        join().step()


def test_registering_after_restoring_is_a_mistake_that_is_named(join: Join) -> None:
    session = join()
    session.restore()
    with pytest.raises(UserError, match="register before"):
        session.register(net=nn.Linear(1, 1))


def test_two_loaders_need_two_names(join: Join) -> None:
    session = join()
    session.loader(samples(), 8)
    with pytest.raises(UserError, match="name of its own"):
        session.loader(samples(), 4)


def test_a_loader_that_the_checkpoint_knows_and_the_script_does_not_is_named(join: Join) -> None:
    Training(join()).left(stop=3)
    session = join()
    other = Training(session, loader="other")
    with pytest.raises(UserError, match="'train'"):
        other.run()


def test_a_closed_session_has_given_the_signals_and_the_hook_back(join: Join) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), sys.excepthook
    session = join()
    assert signal.getsignal(signal.SIGTERM) != before[0]
    session.close()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), sys.excepthook) == before
    assert Env.ROOT not in os.environ


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def reports(reader: int) -> list[Any]:
    return [read_report(line) for line in os.read(reader, 1 << 16).splitlines()]


class Witness(FileStore):
    """A folder that takes the trace only once the ending is told, and notes when it was asked to."""

    def __init__(self, root: Path, told: Callable[[], bool]) -> None:
        super().__init__(root)
        self._told = told
        self.asked: list[bool] = []

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        if key.startswith("trace/"):
            self.asked.append(self._told())
            if not self.asked[-1]:
                raise StorageError("no route to the store")
        super().put(key, data, if_absent=if_absent)


@pytest.mark.parametrize("stop", [4, None])
def test_the_ending_is_told_before_what_can_wait(
    join: Join, tmp_path: Path, pipe: tuple[int, int], stop: int | None
) -> None:
    session = join(TRACE="1", REPORT_FD=str(pipe[1]), EVERY_STEPS="100")
    store = Witness(tmp_path, lambda: session._run.reporter.ended)
    session._run.store = store
    training = Training(session)
    training.left(stop=stop) if stop else training.run(epochs=1)
    told = [type(report).__name__ for report in reports(pipe[0])]
    assert told[-2:] == ["Committed", "Exiting"]
    assert (store.asked[0], store.asked[-1]) == (False, True)
    lines = [line for path in tmp_path.glob("trace/*.jsonl") for line in path.read_text().splitlines()]
    assert [json.loads(line)["step"] for line in lines if "ids" in line] == [1, 2, 3, 4, 5][: stop or 5]


def test_after_the_goal_an_agents_sigterm_does_not_kill_what_the_script_still_does(
    join: Join, pipe: tuple[int, int]
) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    training = Training(join(REPORT_FD=str(pipe[1]))).run(epochs=1)
    assert signal.getsignal(signal.SIGTERM) != before[0]
    assert signal.getsignal(signal.SIGINT) == before[1]
    os.kill(os.getpid(), signal.SIGTERM)
    assert training.session.exit_requested


def test_a_forked_child_tells_the_agent_nothing(join: Join, pipe: tuple[int, int]) -> None:
    join(REPORT_FD=str(pipe[1]))
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            sys.excepthook(ValueError, ValueError("of the child"), None)
        os._exit(0)
    os.waitpid(child, 0)
    assert [type(report).__name__ for report in reports(pipe[0])] == ["Attached"]


def test_only_rank_0_stops_a_run_before_its_first_step(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    session = join()
    session.restore()
    monkeypatch.setattr(session._run, "settings", replace(session._run.settings, rank=1))
    stop_without_step(session._run)
    assert (ended, kinds(tmp_path)) == ([], ["Opened"])
