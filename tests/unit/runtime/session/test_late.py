"""What a script registers when its run has begun goes on where it was, and a run that forgets it is refused."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import perdure
from perdure import Session, UserError
from perdure.loop import survivor_snapshots
from perdure.loop.leaving import Exit
from perdure.session.late import register_late
from perdure.wire.channel import Imaged
from perdure.wire.names import PREVIEW_JSON
from tests.unit.runtime.loop.test_survivor_snapshots import Told, same
from tests.unit.runtime.loop.test_survivor_snapshots import Training as OneOfTwo
from tests.unit.runtime.session.ranks import Scene, play
from tests.unit.runtime.session.scenarios import joined
from tests.unit.runtime.session.training import Join, samples

UNFROZEN = 3
"""The epoch, of five steps each."""
LEAVES = {"before": 13, "at its begin": 15, "in its middle": 17, "after it": 22}


class Unfreezing:
    """Trains the second layer, from the fourth epoch on the first as well, by an optimizer that is made then."""

    def __init__(self, session: Session) -> None:
        self.session = session
        torch.manual_seed(0)
        self.body = nn.Linear(4, 8)
        self.net = nn.Sequential(self.body, nn.Dropout(0.3), nn.Linear(8, 1))
        self.body.requires_grad_(requires_grad=False)
        self.model = session.wrap(self.net)
        self.optimizers = [torch.optim.Adam(self.net[2].parameters(), lr=0.01)]
        session.register(model=self.model, optimizer=self.optimizers[0])
        self.ids: list[tuple[int, int]] = []

    def unfreeze(self, name: str = "late", **options: Any) -> None:
        self.body.requires_grad_(requires_grad=True)
        self.optimizers.append(torch.optim.Adam(self.body.parameters(), lr=0.02))
        things: dict[str, Any] = {name: self.optimizers[1], **options}
        self.session.register(**things)

    def run(self, leave: int | None = None, rank: int = 0, *, name: str = "late", **options: Any) -> Unfreezing:
        for epoch in self.session.epochs(5):
            if epoch >= UNFROZEN and len(self.optimizers) == 1:
                self.unfreeze(name, **options)
            for inputs, ids in self.session.loader(samples(), 8):
                for optimizer in self.optimizers:
                    optimizer.zero_grad()
                self.session.weighted(self.model(inputs).square().mean()).backward()
                for optimizer in self.optimizers:
                    optimizer.step()
                self.ids += [(epoch, number) for number in ids.tolist()]
                if leave == self.session.steps_done + 1 and rank == self.session.rank:
                    os.kill(os.getpid(), signal.SIGTERM)
                self.session.step()
        return self

    def left(self, leave: int) -> None:
        with pytest.raises(Exit), self.session:
            self.run(leave)

    @property
    def whole(self) -> list[float]:
        """All weights, and what the late optimizer has come to know."""
        state = self.optimizers[1].state[self.body.weight]
        tensors = [*self.net.parameters(), state["exp_avg"], state["exp_avg_sq"], state["step"]]
        return [value for tensor in tensors for value in tensor.flatten().tolist()]


def straight(root: Path) -> list[float]:
    with Session.from_env(root) as session:
        return Unfreezing(session).run().whole


@pytest.mark.parametrize("leave", LEAVES.values(), ids=LEAVES)
def test_an_optimizer_that_is_made_late_goes_on_where_it_was(
    join: Join, tmp_path_factory: pytest.TempPathFactory, leave: int
) -> None:
    Unfreezing(join()).left(leave)
    session = join()
    with session:
        second = Unfreezing(session).run()
    assert second.whole == straight(tmp_path_factory.mktemp("straight"))


def test_until_it_is_registered_again_a_save_keeps_it(join: Join, tmp_path: Path) -> None:
    Unfreezing(join()).left(leave=22)
    before = perdure.load(tmp_path, ["late"])["late"]["state"][0]["exp_avg"]
    session = join()
    with session:
        training = Unfreezing(session)
        for _ in session.epochs(5):
            session.save(pin="untouched")
            for _ in session.loader(samples(), 8):
                if len(training.optimizers) == 1:
                    training.unfreeze()
                session.step()
    found = perdure.load(tmp_path, pin="untouched")
    assert torch.equal(found["late"]["state"][0]["exp_avg"], before)
    assert set(found) == {"session", "model", "optimizer", "late"}


def test_a_resumed_run_that_trains_without_it_is_refused_and_saves_nothing_of_that(join: Join, tmp_path: Path) -> None:
    Unfreezing(join()).left(leave=22)
    with join() as session, contextlib.suppress(UserError):
        training = Unfreezing(session)
        training.optimizers *= 2  # so that none is made
        with pytest.raises(
            UserError, match="holds late, which the script registered, made or added when its run had begun"
        ):
            training.run()
        training.run()
    assert [commit.step for commit in perdure.history(tmp_path)] == [22]


def test_a_run_that_only_evaluates_keeps_it(join: Join, tmp_path: Path) -> None:
    with join() as session:
        Unfreezing(session).run()
    before = perdure.load(tmp_path, ["late"])["late"]["state"][0]["exp_avg"]
    with join() as session:
        training = Unfreezing(session)
        assert list(session.epochs(5)) == []
        for inputs, _ in session.loader(samples(), 8, name="valid", train=False):
            training.model(inputs)
    (newest, *_) = perdure.history(tmp_path)
    assert (newest.run, newest.reason) == (2, "evaluation")
    assert torch.equal(perdure.load(tmp_path, ["late"])["late"]["state"][0]["exp_avg"], before)


def test_what_does_not_fit_is_not_claimed_by_that(join: Join) -> None:
    Unfreezing(join()).left(leave=22)
    with join() as session:
        training = Unfreezing(session)
        perdure.restore(session)
        with pytest.raises(UserError, match="optimizer 'late' has other parameters"):
            session.register(late=torch.optim.Adam([training.body.weight]))
        with pytest.raises(UserError, match="the checkpoint holds late"):
            session.step()


def test_what_no_checkpoint_could_hold_is_refused_at_once(join: Join) -> None:
    with join() as session:
        perdure.restore(session)
        with pytest.raises(UserError, match="object"):
            session.register(odd=Counting(object()))


def test_it_may_have_another_name_now(join: Join, tmp_path_factory: pytest.TempPathFactory) -> None:
    Unfreezing(join()).left(leave=22)
    with join() as session:
        found = Unfreezing(session).run(name="body", rename={"late": "body"}).whole
    assert found == straight(tmp_path_factory.mktemp("straight"))


def test_what_the_checkpoint_does_not_hold_begins_or_is_refused_where_that_is_said(
    join: Join, capsys: pytest.CaptureFixture[str]
) -> None:
    Unfreezing(join()).left(leave=13)
    with join() as session:
        training = Unfreezing(session)
        perdure.restore(session)
        with pytest.raises(UserError, match=r"register\(late, absent='refuse'\): the checkpoint does not hold it: map"):
            training.unfreeze(absent="refuse")
    with join() as session:
        Unfreezing(session).run()
    assert "not in the checkpoint, so as the script has made it: late" in capsys.readouterr().err


def test_what_was_registered_before_restoring_has_to_be_so_again(join: Join) -> None:
    first = Unfreezing(join())
    first.unfreeze()
    first.left(leave=2)
    with join() as session, pytest.raises(UserError, match="register the same names before"):
        Unfreezing(session).run()


def test_a_module_and_an_average_are_registered_late_too(join: Join) -> None:
    def made(value: float) -> dict[str, Any]:
        net = nn.BatchNorm1d(2)
        nn.init.constant_(net.weight, value)
        assert net.running_mean is not None
        net.running_mean.fill_(value)
        return {"norm": net, "average": torch.optim.swa_utils.AveragedModel(net), "schedule": Counting(int(value))}

    for run, value in ((1, 3.0), (2, 5.0)):
        with join() as session:
            session.register(net=nn.Linear(1, 1))
            for _ in session.epochs(run):
                session.register(**(found := made(value)))
                for _ in session.steps(1):
                    session.step()
    assert found["norm"].weight.tolist() == found["norm"].running_mean.tolist() == [3.0, 3.0]
    assert found["average"].module.weight.tolist() == [3.0, 3.0]
    assert found["schedule"].value == 3


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "warm-up": lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1, 4),
    "one cycle, which moves the momentum too": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1.0, total_steps=12
    ),
}


@pytest.mark.parametrize("capturable", [False, True], ids=["numbers", "tensors"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_scheduler_that_is_made_late_resets_no_rate_in_a_resumed_run(
    join: Join, schedule: str, capturable: bool
) -> None:
    """Its constructor begins at its first step, whatever was restored into the optimizer."""

    def train(leave: int | None = None) -> list[tuple[float, ...]]:
        rates, scheduler = [], None
        with contextlib.suppress(Exit), join() as session:
            net = nn.Linear(1, 1)
            rate: Any = torch.tensor(0.1) if capturable else 0.1
            optimizer = torch.optim.Adam(net.parameters(), lr=rate, betas=(0.9, 0.99))
            session.register(net=net, optimizer=optimizer)
            for epoch in session.epochs(3):
                if epoch and scheduler is None:
                    session.register(scheduler=(scheduler := SCHEDULES[schedule](optimizer)))
                for _ in session.steps(4):
                    (group,) = optimizer.param_groups
                    rates.append((float(group["lr"]), *group["betas"]))
                    net(torch.ones(1, 1)).sum().backward()
                    optimizer.step()
                    if leave == session.steps_done + 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
                    if scheduler:
                        scheduler.step()
        return rates

    first = train(leave=6)
    second = train()
    assert (len(first), len(second)) == (6, 6)
    whole = undisturbed(SCHEDULES[schedule], capturable=capturable)
    assert first + second == whole


def undisturbed(schedule: Callable[[Any], Any], *, capturable: bool) -> list[tuple[float, ...]]:
    """The rates, by torch alone."""
    rates, scheduler = [], None
    rate: Any = torch.tensor(0.1) if capturable else 0.1
    net = nn.Linear(1, 1)
    optimizer = torch.optim.Adam(net.parameters(), lr=rate, betas=(0.9, 0.99))
    for epoch in range(3):
        scheduler = scheduler or (schedule(optimizer) if epoch else None)
        for _ in range(4):
            (group,) = optimizer.param_groups
            rates.append((float(group["lr"]), *group["betas"]))
            net(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            if scheduler:
                scheduler.step()
    return rates


def test_what_is_each_ranks_own_is_not_registered_late(join: Join) -> None:
    with join() as session:
        perdure.restore(session)
        with pytest.raises(UserError, match="register meter before epochs"):
            session.register(meter=Counting(1), merge={"meter": lambda states, *_: states[0]})


@pytest.mark.parametrize("said", ["early", "with another", "with it"])
def test_parts_of_a_late_module_may_have_other_names_now(join: Join, said: str) -> None:
    renames = {"head.first": "head.other"}
    for name in ("first", "other"):
        with join() as session:
            session.register(net=nn.Linear(1, 1), rename=renames if said == "early" else None)
            perdure.restore(session)
            session.register(one=nn.Linear(1, 1), rename=renames if said == "with another" else None)
            head, part = nn.Sequential(), nn.Linear(1, 1)
            head.add_module(name, part)
            session.register(head=head, rename=renames if said == "with it" else None)
            found = part.weight.item()
            for _ in session.epochs(1 if name == "first" else 2):
                for _ in session.steps(1):
                    part.weight.data.fill_(7.0)
                    session.step()
    assert found == 7.0


def test_what_is_registered_between_two_loops_is_there_when_a_run_goes_on_in_the_second(join: Join) -> None:
    for leave in (3, None):
        with contextlib.suppress(Exit), join() as session:
            session.register(net=nn.Linear(1, 1))
            for _ in session.epochs(1):
                for _ in session.steps(2):
                    session.step()
            session.register(head=(head := nn.Linear(1, 1, bias=False)))
            begun = head.weight.item()
            for _ in session.epochs(1):
                for _ in session.steps(3):
                    if leave == session.steps_done + 1:
                        head.weight.data.fill_(7.0)
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
    assert begun == 7.0
    assert session.steps_done == 5


def test_what_holds_early_parameters_may_be_registered_between_two_loops_and_what_changes_them_is_found(
    join: Join,
) -> None:
    def train(leave: int, *, changes: bool) -> None:
        with join() as session:
            session.register(net=(net := nn.Linear(1, 1)))
            for _ in session.epochs(1):
                for _ in session.steps(2):
                    session.step()
            session.register(whole=nn.Sequential(net))
            if changes:
                nn.init.constant_(net.weight, 7.0)
            for _ in session.epochs(1):
                for _ in session.steps(3):
                    if leave == session.steps_done + 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()

    with pytest.raises(Exit):
        train(3, changes=False)
    with pytest.raises(UserError, match="changed parameters between two"):
        train(4, changes=True)
    with pytest.raises(Exit):
        train(4, changes=False)


class Counting:
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "tensor": torch.tensor([3, self.value] if isinstance(self.value, int) else [])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["tensor"].tolist() == [3, state["value"]]
        self.value = state["value"]


@pytest.mark.parametrize("then", ["nothing", "a place", "a step"])
def test_an_image_is_of_the_next_place_again(tmp_path: Path, then: str) -> None:
    training, told = OneOfTwo(tmp_path), Told()
    training.run.reporter.add(told)
    training.step()
    register_late(training.run, {"late": Counting(1)}, {}, (), None)
    if then == "a place":
        training.run.images.reach_safe_point()
    if then == "a step":
        training.step()
    whole = training.whole()
    training.run.images.leave()
    training.run.images.end()
    (imaged,) = (event for event in told.events if isinstance(event, Imaged))
    assert "late" in whole["objects"]
    if then == "nothing":
        assert (training.image, imaged.why) == (
            None,
            "the script has registered more since its last batch was handed out",
        )
    else:
        assert training.image
        assert same(training.image, whole)


def test_what_is_too_large_to_be_copied_at_each_step_ends_the_images(tmp_path: Path) -> None:
    training, told = OneOfTwo(tmp_path), Told()
    training.run.reporter.add(told)
    training.step()
    register_late(training.run, {"average": nn.BatchNorm1d(survivor_snapshots.SMALL_BYTES, affine=False)}, {}, (), None)
    training.step()
    training.run.images.leave()
    training.run.images.end()
    assert training.image is None
    (imaged,) = (event for event in told.events if isinstance(event, Imaged))
    assert "too much to be copied at each step" in imaged.why


class TestDescribed:
    @pytest.mark.parametrize("leave", [LEAVES["at its begin"], LEAVES["after it"]])
    def test_it_is_found_registered_and_what_it_trains_counts(
        self, join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leave: int
    ) -> None:
        Unfreezing(join()).left(leave)
        found = described(join, tmp_path, monkeypatch)
        assert found["findings"] == []
        model, *_, late = found["registered"]
        assert (model["parameters"], model["trained"]) == (49, 49)
        assert late["name"] == "late"

    def test_so_it_is_under_another_name(self, join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        Unfreezing(join()).left(leave=22)
        assert described(join, tmp_path, monkeypatch, name="body", rename={"late": "body"})["findings"] == []

    def test_before_it_is_made_what_is_frozen_is_not_trained(
        self, join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Unfreezing(join()).left(leave=13)
        found = described(join, tmp_path, monkeypatch)
        assert found["findings"] == []
        assert (found["registered"][0]["parameters"], found["registered"][0]["trained"]) == (49, 9)

    def test_one_that_the_checkpoint_holds_and_is_not_registered_yet_is_named(
        self, join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Unfreezing(join()).left(leave=22)
        (finding,) = described(join, tmp_path, monkeypatch, unfreezes=False)["findings"]
        assert (finding["name"], finding["certain"]) == ("not-registered-yet", False)
        assert (
            "the checkpoint holds late, which the script registered, made or added when its run had begun"
            in finding["text"]
        )


def described(
    join: Join, root: Path, monkeypatch: pytest.MonkeyPatch, *, unfreezes: bool = True, **options: Any
) -> dict[str, Any]:
    """What `perdure describe` finds in the script, in this process."""
    session = join(PREVIEW=str(root))
    training = Unfreezing(session)
    if not unfreezes:
        monkeypatch.setattr(training, "unfreeze", lambda *_: None)
    with pytest.raises(Exit):
        training.run(**options)
    found: dict[str, Any] = json.loads((root / PREVIEW_JSON).read_text())
    return found


def unfreezing(root: str, *, leave: int | None = None) -> dict[str, Any]:
    """One rank's part in a scene."""
    with joined(root, deterministic=True) as session:
        training = Unfreezing(session)
        torch.manual_seed(session.rank)
        try:
            training.run(leave, rank=session.world - 1)
        except Exit:
            return {"ids": training.ids}
        return {"ids": training.ids, "whole": training.whole}


def scene(name: str, world: int, root: Path, leave: int | None = None) -> Scene:
    checks = {"PERDURE_CHECK_SECONDS": "0"}
    return Scene(name, "unfreezing", world, {"root": str(root), "leave": leave}, checks, __name__)


def test_two_ranks_and_other_numbers_of_them_go_on_with_it(tmp_path: Path) -> None:
    again = [scene(f"{where}, again", 2, tmp_path / where) for where in LEAVES]
    worlds = ((2, 17), (3, 22), (1, None))
    played = play(
        tmp_path,
        [
            scene("straight", 2, tmp_path / "straight"),
            *(scene(where, 2, tmp_path / where, leave) for where, leave in LEAVES.items()),
            *again,
            *(scene(f"world {world}", world, tmp_path / "worlds", leave) for world, leave in worlds),
        ],
    )
    for one in again:
        assert [rank.get("whole") for rank in played[one.name]] == [rank["whole"] for rank in played["straight"]], one
    found = Counter(tuple(one) for world, _ in worlds for rank in played[f"world {world}"] for one in rank["ids"])
    assert found == Counter((epoch, number) for epoch in range(5) for number in range(40))
    assert played["world 1"][0]["whole"][-1] == 10, "all steps of the late optimizer count"
