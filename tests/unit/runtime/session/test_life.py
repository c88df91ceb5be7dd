"""The life of a training as its script sees it: hooks at their moments, values that come back."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import perdure
from perdure import Session, UserError
from perdure.checkpoint.state import NewCommit
from perdure.loop.leaving import Exit
from perdure.wire import CommitRef
from perdure.wire.settings import Member
from tests.unit.runtime.records import entries

Join = Callable[[], Session]
STEPS_PER_EPOCH = 4


@pytest.fixture
def join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Join]:
    """Joins a new run under the test's own root."""
    for name in [name for name in os.environ if name.startswith("PERDURE_")]:
        monkeypatch.delenv(name)
    sessions: list[Session] = []

    def joined() -> Session:
        for session in sessions:
            session.close()
        sessions.append(Session.from_env(tmp_path))
        return sessions[-1]

    yield joined
    for session in sessions:
        session.close()


class Script:
    """A training of four steps an epoch that records its hooks' arguments."""

    def __init__(self, session: Session, *, listen: tuple[str, ...] = ()) -> None:
        self.session = session
        self.told: list[tuple[Any, ...]] = []
        self.before: Callable[[], object] | None = None
        """Called at the beginning of an epoch's body."""
        self.after: Callable[[int], object] | None = None
        """Called at the end of an epoch's body."""
        torch.manual_seed(0)
        self.net = nn.Linear(4, 1)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        session.register(net=self.net, optimizer=self.optimizer)
        for name in listen:
            session.on(name, self._listener(name))

    def _listener(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.told.append((name, *arguments))

    def run(self, *epochs: Any, stop_at: int | None = None, **options: Any) -> list[int]:
        """Trains; SIGTERM comes right before it reports step `stop_at`. Returns its epochs."""
        with self.session:
            return list(self.loop(*epochs, stop_at=stop_at, **options))

    def loop(self, *epochs: Any, stop_at: int | None = None, **options: Any) -> Iterator[int]:
        batches = self.session.loader(TensorDataset(torch.ones(16, 4)), 4)
        for epoch in self.session.epochs(*epochs, **options):
            yield epoch
            if self.before:
                self.before()
            for (inputs,) in batches:
                self.optimizer.zero_grad()
                self.net(inputs).sum().backward()
                self.optimizer.step()
                if self.session.steps_done + 1 == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
                self.session.step()
            if self.after:
                self.after(epoch)

    def left(self, *epochs: Any, stop_at: int) -> Script:
        with pytest.raises(Exit):
            self.run(*epochs, stop_at=stop_at)
        return self


def completed(root: Path) -> list[Any]:
    """The goals that were recorded."""
    return [entry["goal"] for entry in entries(root) if entry["kind"] == "Completed"]


def test_init_is_for_a_fresh_start_and_resumed_for_a_resume(join: Join) -> None:
    both = ("init", "resumed", "ranks")
    first = Script(join(), listen=both).left(2, stop_at=2)
    assert first.told == [("init",)]
    second = Script(join(), listen=both)
    second.run(2)
    assert second.told == [("resumed", CommitRef(2, 2))]


def test_every_commit_is_reported_and_leaving_comes_after_it(join: Join) -> None:
    script = Script(join(), listen=("leaving", "committed")).left(2, stop_at=2)
    (_, made), left = script.told
    here = Member(socket.gethostname(), socket.gethostname())
    root = script.session._core.run.store.uri
    assert made == NewCommit(2, 2, 0, root, world=1, members=(here,), seconds=made.seconds, slowest=0)
    assert [set(seconds) for seconds in made.seconds] == [{"stage", "upload", "commit"}]
    assert left == ("leaving", "SIGTERM")


def test_a_hook_may_be_given_as_a_decorator_and_keeps_its_name(join: Join) -> None:
    session, seen = join(), list[str]()

    @session.on("init")
    def announce() -> None:
        seen.append("init")

    Script(session).run(1)
    announce()
    assert seen == ["init", "init"]


def test_a_failing_hook_is_reported_and_the_training_completes(
    join: Join, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = join()
    session.on("committed", lambda commit: commit.no_such_field)
    with caplog.at_level(logging.ERROR, logger="perdure"), session:
        Script(session).run(1)
    assert "AttributeError" in caplog.text
    assert [entry["kind"] for entry in entries(tmp_path)] == ["Opened", "Committed", "Completed"]


def test_a_failing_init_ends_the_script_and_is_run_again_by_the_next_run(join: Join) -> None:
    session = join()

    @session.on("init")
    def download() -> None:
        raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        Script(session).run(1)
    again = Script(join(), listen=("init",))
    again.run(1)
    assert again.told == [("init",)]


@pytest.mark.parametrize("name", ["init", "resumed", "ranks"])
def test_a_hook_whose_moment_is_over_is_refused(join: Join, name: str) -> None:
    session = join()
    perdure.restore(session)
    with pytest.raises(UserError, match=rf"on\('{name}'\).*restored already"):
        session.on(name, print)


def test_the_scripts_values_come_back(join: Join) -> None:
    script = Script(join())
    script.session.state["best"] = (0.5, 7)
    script.session.state["weights"] = {"all": [torch.ones(3), torch.zeros(1)]}
    script.left(2, stop_at=2)
    again = Script(join())
    again.session.state["best"], again.session.state["new"] = (0.0, 0), "default"
    perdure.restore(again.session)
    weights = again.session.state["weights"]["all"]
    assert again.session.state == {"best": (0.5, 7), "weights": {"all": weights}, "new": "default"}
    assert [tensor.tolist() for tensor in weights] == [[1, 1, 1], [0]]


def plateau() -> bool:
    return True


@pytest.mark.parametrize(
    ("options", "epochs", "stop"),
    [
        ({"stop": [plateau]}, 1, ["plateau"]),
        ({"max_steps": 5}, 2, ["max_steps"]),
        ({"max_steps": 8}, 2, ["max_steps"]),
        ({"max_seconds": 1e-9, "stop": [plateau]}, 1, ["max_seconds", "plateau"]),
        ({"stop": [perdure.max_steps(9)]}, 3, ["max_steps"]),
    ],
    ids=["condition", "between", "exactly", "two", "in the list"],
)
def test_a_loop_ends_after_the_epoch_in_which_a_condition_came_true_and_the_log_says_which(
    join: Join, tmp_path: Path, options: dict[str, Any], epochs: int, stop: list[str]
) -> None:
    assert Script(join()).run(7, **options) == list(range(epochs))
    assert [entry["kind"] for entry in entries(tmp_path)] == ["Opened", "Committed", "Completed"]
    assert entries(tmp_path)[1]["step"] == epochs * STEPS_PER_EPOCH
    (goal,) = completed(tmp_path)
    assert (goal["epochs"], goal["stop"]) == (7, stop)


def test_a_condition_for_every_loop_ends_a_loop_without_a_number(join: Join, tmp_path: Path) -> None:
    script = Script(join())
    perdure.stop_when(script.session, "12 steps", lambda: script.session.steps_done >= 12)
    assert script.run() == [0, 1, 2]
    assert completed(tmp_path) == [{"stop": ["12 steps"]}]


def test_a_loop_that_nothing_could_end_is_refused_before_anything_is_opened(join: Join, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing would ever end this loop"):
        Script(join()).run()
    assert entries(tmp_path) == []


def test_a_script_ends_its_loop_in_its_own_words(join: Join, tmp_path: Path) -> None:
    script = Script(join())
    script.after = lambda epoch: script.session.stop("plateau") if epoch == 1 else None
    assert script.run(7) == [0, 1]
    assert completed(tmp_path) == [{"epochs": 7, "stop": ["plateau"]}]


def test_to_stop_outside_of_a_loop_is_refused(join: Join) -> None:
    with pytest.raises(UserError, match=r"stop\('plateau'\) is called outside"):
        join().stop("plateau")


def test_a_reason_that_was_given_in_an_epoch_outlives_an_exit_in_that_epoch(join: Join, tmp_path: Path) -> None:
    first = Script(join())
    first.before = lambda: first.session.stop("plateau")
    first.left(7, stop_at=2)
    assert Script(join()).run(7) == [0]
    assert completed(tmp_path) == [{"epochs": 7, "stop": ["plateau"]}]


def test_time_counts_over_all_runs(join: Join, tmp_path: Path) -> None:
    first = Script(join())
    first.session._core.run.stopping.clock.resume(500.0)
    first.left(7, stop_at=2)
    assert Script(join()).run(7, max_seconds=500) == [0]
    assert completed(tmp_path) == [{"epochs": 7, "max_seconds": 500, "stop": ["max_seconds"]}]


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [
        ({"stop": [plateau]}, {"stop": [plateau]}, []),
        ({"max_steps": 4}, {"max_steps": 4}, []),
        ({"max_steps": 4}, {"max_steps": 7}, [1]),
        ({"max_steps": 4}, {}, [1, 2]),
    ],
    ids=["the same", "same limit", "raised", "gone"],
)
def test_a_finished_job_goes_on_only_where_a_limit_is_raised_or_gone(
    join: Join, before: dict[str, Any], after: dict[str, Any], more: list[int]
) -> None:
    assert Script(join()).run(3, **before) == [0]
    assert Script(join()).run(3, **after) == more


def test_more_epochs_do_not_go_past_a_limit_that_is_reached(join: Join) -> None:
    assert Script(join()).run(3, max_steps=4) == [0]
    assert Script(join()).run(5, max_steps=4) == []


def test_an_epoch_that_was_resumed_past_a_limit_is_trained_to_its_end(join: Join) -> None:
    Script(join()).left(3, stop_at=3)
    assert Script(join()).run(3, max_steps=2) == [0]


@pytest.mark.parametrize(("ask", "stop"), [(False, ["break"]), (True, ["plateau"])])
def test_a_break_ends_the_loop_with_the_reason_that_was_given(
    join: Join, tmp_path: Path, ask: bool, stop: list[str]
) -> None:
    script = Script(join(), listen=("epoch",))
    with script.session as session:
        batches = session.loader(TensorDataset(torch.ones(16, 4)), 4)
        for _ in session.epochs(7):
            for _ in batches:
                session.step()
            if ask:
                session.stop("plateau")
            break
    assert completed(tmp_path) == [{"epochs": 7, "stop": stop}]
    assert script.told == [("epoch", 0)]


def test_what_an_epoch_hook_sets_is_in_that_epochs_commit(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_EVERY_EPOCHS", "1")
    script = Script(join())
    script.session.on("epoch", lambda epoch: script.session.state.update(seen=epoch))
    script.left(7, stop_at=2 * STEPS_PER_EPOCH + 1)
    again = Script(join())
    perdure.restore(again.session)
    assert dict(again.session.state) == {"seen": 1}


def test_what_a_committed_hook_draws_changes_nothing(
    join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on from that commit does not draw it."""
    monkeypatch.setenv("PERDURE_EVERY_STEPS", "1")
    drawn, seen = list[float](), list[float]()
    for root, hooks in (("without", 0), ("with", 1)):
        monkeypatch.setenv("PERDURE_ROOT", (tmp_path / root).as_uri())
        script = Script(join())
        for _ in range(hooks):
            script.session.on("committed", lambda _: drawn.append(torch.rand(1).item()))
        script.after = lambda _: seen.append(torch.rand(1).item())
        script.run(2)
    assert len(drawn) >= STEPS_PER_EPOCH
    assert seen[:2] == seen[2:]


def test_collect_and_exit_come_once_after_the_final_commit_and_before_the_job_is_complete(
    join: Join, tmp_path: Path
) -> None:
    script, kinds, names = Script(join()), list[list[str]](), list[str]()

    def collect(tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        kinds.append([entry["kind"] for entry in entries(tmp_path)])
        names.extend(name for name, _ in tensors)

    script.session.on("exit", lambda: kinds.append(["exit"]))
    script.session.on("collect", collect)
    script.session.state["vector"] = torch.ones(2)
    script.run(1)
    assert kinds == [["Opened", "Committed"], ["exit"]]
    assert sorted(names) == ["net.bias", "net.weight"]
    assert [entry["kind"] for entry in entries(tmp_path)] == ["Opened", "Committed", "Completed"]
    again = Script(join(), listen=("collect", "exit"))
    assert again.run(1) == []
    assert again.told == []


@pytest.mark.parametrize("name", ["collect", "exit"])
def test_a_failing_export_fails_the_script_and_is_all_that_the_next_run_does(
    join: Join, tmp_path: Path, name: str
) -> None:
    script = Script(join())

    def export(*_: object) -> None:
        raise OSError("disk full")

    script.session.on(name, export)
    with pytest.raises(OSError, match="disk full"):
        script.run(1)
    assert completed(tmp_path) == []
    again = Script(join(), listen=(name,))
    assert again.run(1) == []
    assert [told[0] for told in again.told] == [name]
    assert completed(tmp_path) == [{"epochs": 1}]


def test_a_later_loop_has_conditions_of_its_own_and_collect_waits_for_it(join: Join, tmp_path: Path) -> None:
    script = Script(join(), listen=("collect",))
    with script.session as session:
        assert list(script.loop(3, stop=[plateau])) == [0]
        assert script.told == []
        assert list(script.loop(2)) == [0, 1]
        assert perdure.progress(session).finished_epochs == 3
    assert [told[0] for told in script.told] == ["collect"]
    assert completed(tmp_path) == [{"epochs": 2}]
