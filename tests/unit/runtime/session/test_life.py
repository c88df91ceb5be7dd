"""The life of a training as its script sees it: hooks at their moments, values that come back."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from perdure import Session, UserError
from perdure.contract import CommitRef
from perdure.session.leaving import Exit

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
    """A training of four steps an epoch that notes what its hooks are told."""

    def __init__(self, session: Session, *, listen: tuple[str, ...] = ()) -> None:
        self.session = session
        self.told: list[tuple[Any, ...]] = []
        torch.manual_seed(0)
        self.net = nn.Linear(4, 1)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        session.register(net=self.net, optimizer=self.optimizer)
        for name in listen:
            session.on(name, self._listener(name))

    def _listener(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.told.append((name, *arguments))

    def run(self, *epochs: Any, stop_at: int | None = None, **options: Any) -> list[int]:
        """Trains; SIGTERM comes right before step `stop_at` is told. The epochs it was in."""
        batches = self.session.loader(TensorDataset(torch.ones(16, 4)), 4)
        seen = []
        for epoch in self.session.epochs(*epochs, **options):
            seen.append(epoch)
            for number, (inputs,) in enumerate(batches, start=1):
                self.optimizer.zero_grad()
                self.net(inputs).sum().backward()
                self.optimizer.step()
                if epoch * STEPS_PER_EPOCH + number == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
                self.session.step()
        return seen

    def left(self, *epochs: Any, stop_at: int) -> Script:
        with pytest.raises(Exit):
            self.run(*epochs, stop_at=stop_at)
        return self


def entries(root: Path) -> list[dict[str, Any]]:
    """The log, oldest first."""
    return [json.loads(path.read_text()) for path in sorted((root / "log").glob("*.json"), reverse=True)]


def test_init_is_for_a_fresh_start_and_resumed_for_a_resume(join: Join) -> None:
    both = ("init", "resumed", "ranks")
    first = Script(join(), listen=both).left(2, stop_at=2)
    assert first.told == [("init",)]
    second = Script(join(), listen=both)
    second.run(2)
    assert second.told == [("resumed", CommitRef(2, 2))]


def test_every_commit_is_told_and_leaving_comes_after_it(join: Join) -> None:
    script = Script(join(), listen=("leaving", "committed")).left(2, stop_at=2)
    assert script.told == [("committed", CommitRef(2, 2)), ("leaving", "SIGTERM")]


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
    session.restore()
    with pytest.raises(UserError, match=rf"on\('{name}'\).*restored already"):
        session.on(name, print)


def test_the_scripts_values_come_back(join: Join) -> None:
    script = Script(join())
    script.session.state["best"] = (0.5, 7)
    script.session.state["weights"] = {"all": [torch.ones(3), torch.zeros(1)]}
    script.left(2, stop_at=2)
    again = Script(join())
    again.session.state["best"], again.session.state["new"] = (0.0, 0), "default"
    again.session.restore()
    weights = again.session.state["weights"]["all"]
    assert again.session.state == {"best": (0.5, 7), "weights": {"all": weights}, "new": "default"}
    assert [tensor.tolist() for tensor in weights] == [[1, 1, 1], [0]]
