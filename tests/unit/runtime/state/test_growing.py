"""Groups that are added to an optimizer in a run, and parts that a module gets in it, go on where they were."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import perdure
from perdure import Session, UserError
from perdure.loop.leaving import Exit
from tests.support.covering import covering
from tests.unit.runtime.session.ranks import Scene, play
from tests.unit.runtime.session.scenarios import joined
from tests.unit.runtime.session.training import Join, samples
from tests.unit.runtime.state.test_holding import SAM

GROWS = 2
"""The epoch, of five steps each."""
LEAVES = {"before": 8, "at its begin": 10, "in its middle": 12, "after it": 17}
STEP = 12
"""The one with which a body grows."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        self.more: nn.Module | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        inside = self.body(inputs).tanh()
        found: torch.Tensor = self.head(inside)
        return found if self.more is None else found + self.more(inside)


class Growing:
    """Trains the head; later on the body as well, and a part that is made then."""

    def __init__(self, session: Session, how: str) -> None:
        torch.manual_seed(session.rank)  # else ranks that begin unlike would not show
        self.session, self.how = session, how
        self.net = Net()
        self.net.body.requires_grad_(requires_grad=False)
        self.model = session.wrap(self.net)
        head = list(self.net.head.parameters())
        self.optimizer: Any = (
            SAM(head, torch.optim.SGD, lr=0.05, momentum=0.9) if how == "SAM" else torch.optim.AdamW(head, lr=0.05)
        )
        session.register(model=self.model, optimizer=self.optimizer)

    @property
    def grown(self) -> bool:
        return len(self.optimizer.param_groups) > 1

    def grow(self) -> None:
        self.net.body.requires_grad_(requires_grad=True)
        if self.how == "late module":
            late = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
            self.session.register(late=late)
            self.net.more = late
        elif self.how != "registered parameters":
            self.net.more = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.optimizer.add_param_group({"params": list(self.net.body.parameters()), "lr": 0.02})
        if self.net.more:
            self.optimizer.add_param_group({"params": list(self.net.more.parameters()), "lr": 0.03})

    def run(self, leave: int | None = None, rank: int = 0, epochs: int = 4) -> Growing:
        session = self.session
        for epoch in session.epochs(epochs):
            if self.how != "in the body" and epoch >= GROWS and not self.grown:
                self.grow()
            for inputs, _ in session.loader(samples(), 8):
                if self.how == "in the body" and session.steps_done >= STEP - 1 and not self.grown:
                    self.grow()

                def closure(inputs: torch.Tensor = inputs) -> None:
                    self.optimizer.zero_grad()
                    session.weighted(self.model(inputs).square().mean()).backward()

                closure()
                self.optimizer.step(closure) if self.how == "SAM" else self.optimizer.step()
                for group in self.optimizer.param_groups:
                    group["lr"] *= 0.97
                if leave == session.steps_done + 1 and rank == session.rank:
                    os.kill(os.getpid(), signal.SIGTERM)
                session.step()
        return self

    def left(self, leave: int) -> None:
        with pytest.raises(Exit), self.session:
            self.run(leave)

    @property
    def whole(self) -> list[float]:
        return [value for tensor in self.net.state_dict().values() for value in tensor.flatten().tolist()]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[float]]:
    """The weights of an undisturbed training."""

    @cache
    def found(how: str) -> list[float]:
        with Session.from_env(tmp_path_factory.mktemp("straight")) as session:
            return Growing(session, how).run().whole

    return found


HOWS = ["registered parameters", "new parameters", "late module", "in the body", "SAM"]


@pytest.mark.parametrize(("how", "leave"), covering(HOWS, list(LEAVES.values()), times=2))
def test_what_was_added_in_a_run_goes_on_where_it_was(
    join: Join, straight: Callable[[str], list[float]], how: str, leave: int
) -> None:
    undisturbed = straight(how)
    Growing(join(), how).left(leave)
    with join() as session:
        found = Growing(session, how).run()
    assert found.whole == undisturbed
    assert "add_param_group" not in vars(found.optimizer)


@pytest.mark.parametrize("how", HOWS)
def test_until_it_is_added_again_each_save_keeps_it(
    join: Join, tmp_path: Path, straight: Callable[[str], list[float]], how: str
) -> None:
    undisturbed = straight(how)
    Growing(join(), how).left(17)
    before = perdure.load(tmp_path)
    with join() as session:
        training = Growing(session, how)
        assert list(session.epochs(2)) == []
        for inputs, _ in session.loader(samples(), 8, name="valid", train=False):
            training.model(inputs)
    (newest, *_) = perdure.history(tmp_path)
    assert (newest.run, newest.reason) == (2, "evaluation")
    after = perdure.load(tmp_path)
    assert repr(after["optimizer"]) == repr(before["optimizer"])
    assert repr(after["model"]) == repr(before["model"])
    with join() as session:
        assert Growing(session, how).run().whole == undisturbed


@pytest.mark.parametrize(("how", "what"), [("registered parameters", "optimizer/groups/1"), ("new parameters", "more")])
def test_a_resumed_run_that_trains_without_it_is_refused_in_its_first_step_and_saves_nothing(
    join: Join, tmp_path: Path, how: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Growing(join(), how).left(17)
    monkeypatch.setattr(Growing, "grow", lambda _: None)
    with join() as session, pytest.raises(UserError, match=rf"holds .*{what}.*, which the script registered, made or"):
        Growing(session, how).run()
    assert [commit.step for commit in perdure.history(tmp_path)] == [17]


def add(training: Growing) -> None:
    training.optimizer.add_param_group({"params": list(nn.Linear(1, 1).parameters())})


def take_away(training: Growing) -> None:
    training.optimizer.param_groups[0]["params"].pop()


def put_in(training: Growing) -> None:
    training.optimizer.param_groups[0]["params"].append(training.net.body.weight)


def exchange(training: Growing) -> None:
    training.optimizer.param_groups[0]["params"].reverse()


def cut(training: Growing) -> None:
    prune.l1_unstructured(training.net.head, "weight", amount=0.5)


def replace(training: Growing) -> None:
    training.net.head.weight = nn.Parameter(torch.zeros(1, 8))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (add, r"owns a parameter of shape \(1, 1\) that is in no registered module: register the module too"),
        (take_away, "group 0 had 2 parameters, with model.head.bias at place 1, and has 1, with nothing"),
        (put_in, "group 0 had 2 parameters, with nothing at place 2, and has 3, with model.body.weight"),
        (exchange, "group 0 had 2 parameters, with model.head.weight at place 0, and has 2, with model.head.bias"),
        (cut, "group 0 had 2 parameters, with model.head.weight at place 0, and has 2, with model.head.weight_orig"),
        (replace, r"owns a parameter of shape \(1, 8\) that is in no registered module"),
    ],
)
def test_a_change_that_no_later_run_could_load_is_reported_in_the_step_in_which_it_is_made(
    join: Join, change: Callable[[Growing], None], words: str
) -> None:
    with join() as session, contextlib.suppress(UserError):
        training = Growing(session, "registered parameters")
        for _ in session.epochs(1):
            for _ in session.loader(samples(), 8):
                if session.steps_done == 2:
                    change(training)
                    with pytest.raises(UserError, match=words):
                        session.step()
                session.step()
    assert session.steps_done == 2


@pytest.mark.parametrize("bias", [True, False])
def test_a_pruning_that_is_made_permanent_within_a_step_is_no_change(join: Join, tmp_path: Path, bias: bool) -> None:
    with join() as session:
        net = nn.Linear(4, 1, bias=bias)
        session.register(net=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.01))
        for _ in session.epochs(1):
            for _ in session.loader(samples(), 8):
                prune.l1_unstructured(net, "weight", amount=1.0)
                prune.remove(net, "weight")
                session.step()
    assert perdure.load(tmp_path, ["net"])["net"]["weight"].count_nonzero() == 0


def test_another_group_than_the_checkpoint_holds_is_refused_where_it_is_added(join: Join) -> None:
    Growing(join(), "registered parameters").left(17)
    with join() as session:
        training = Growing(session, "registered parameters")
        perdure.restore(session)
        with pytest.raises(UserError, match="has other parameters or parameter groups than in the checkpoint: group 1"):
            training.optimizer.add_param_group({"params": [training.net.body.bias]})


def test_a_part_of_another_shape_than_the_checkpoint_holds_is_refused(join: Join) -> None:
    Growing(join(), "new parameters").left(17)
    with join() as session:
        training = Growing(session, "new parameters")
        perdure.restore(session)
        training.net.more = nn.Sequential(nn.Linear(8, 9))
        with pytest.raises(UserError, match=r"model.more.0.bias is float32 \[4\] in the checkpoint and float32 \[9\]"):
            training.optimizer.add_param_group({"params": [training.net.body.weight, training.net.body.bias]})


def test_it_may_be_there_from_the_start_instead(join: Join, straight: Callable[[str], list[float]]) -> None:
    undisturbed = straight("new parameters")
    Growing(join(), "new parameters").left(17)
    with join() as session:
        training = Growing(session, "new parameters")
        training.grow()
        assert training.run().whole == undisturbed


def test_a_process_that_joins_is_compared_by_what_training_began_with(join: Join) -> None:
    session = join()
    training = Growing(session, "new parameters")
    perdure.restore(session)
    begun = session._core.run.registry.kind()
    training.grow()
    session._core.run.state()
    assert session._core.run.registry.kind() == begun


def growing(root: str, *, leave: int | None = None) -> dict[str, Any]:
    """One rank's part in a scene."""
    with joined(root, deterministic=True) as session:
        training = Growing(session, "new parameters")
        try:
            return {"whole": training.run(leave, rank=session.world - 1).whole}
        except Exit:
            return {}


def scene(name: str, world: int, root: Path, leave: int | None = None) -> Scene:
    checks = {"PERDURE_CHECK_SECONDS": "0"}
    return Scene(name, "growing", world, {"root": str(root), "leave": leave}, checks, __name__)


def test_ranks_train_what_was_added_together_and_other_numbers_of_them_go_on_with_it(tmp_path: Path) -> None:
    played = play(
        tmp_path,
        [
            scene("straight", 2, tmp_path / "straight"),
            scene("left", 2, tmp_path / "left", 12),
            scene("again", 2, tmp_path / "left"),
            scene("two", 2, tmp_path / "worlds", 17),
            scene("one", 1, tmp_path / "worlds", 18),
            scene("three", 3, tmp_path / "worlds"),
        ],
    )
    whole = [rank.get("whole", rank) for rank in played["straight"]]
    assert [rank.get("whole", rank) for rank in played["again"]] == whole
    assert all(rank.get("whole") for rank in played["three"]), played["three"]
