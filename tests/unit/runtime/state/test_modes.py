"""A module trains on in the mode in which it was: scripts call train() and eval() once, or forget to undo them.

So do its parameters, frozen or not.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn
from torch.nn.parallel import DataParallel

import perdure
from perdure import Session
from perdure.checkpoint.state import RankState
from perdure.loop.leaving import Exit
from perdure.state.modes import MODES, TRAINED, Modes
from perdure.state.registry import Registry
from tests.support.covering import covering
from tests.unit.runtime.session.training import Join, samples

EPOCHS = 3
Way = Callable[["Moody", int], None]


def nothing(_: Moody, __: int) -> None: ...


class Moody:
    """Layers of which each behaves in another way in evaluation mode."""

    def __init__(self, session: Session) -> None:
        torch.manual_seed(0)
        self.session = session
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.model = session.wrap(self.net)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        session.register(model=self.model, optimizer=self.optimizer)
        self.batches = session.loader(samples(), 8)
        self.valid = session.loader(samples(16), 8, name="valid", train=False)

    def run(self, before: Way, above: Way, within: Way, below: Way, stop: int | None = None) -> list[object]:
        session = self.session
        with session:
            before(self, 0)
            for epoch in session.epochs(EPOCHS):
                above(self, epoch)
                for inputs, _ in self.batches:
                    self.optimizer.zero_grad()
                    self.model(inputs).square().mean().backward()
                    self.optimizer.step()
                    if stop == session.steps_done + 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
                    within(self, session.steps_done)
                below(self, epoch)
        state = [value.tolist() for value in self.net.state_dict().values()]
        modes = [part.training for part in (self.model, *self.net.modules())]
        return [state, modes, [parameter.requires_grad for parameter in self.net.parameters()]]


def trains(moody: Moody, _: int) -> None:
    moody.model.train()


def scores_and_stays_in_evaluation(moody: Moody, _: int) -> None:
    moody.model.eval()
    for inputs, _ in moody.valid:
        moody.net(inputs)
    perdure.poll(moody.session)


def scores_every_third_step(moody: Moody, step: int) -> None:
    if step % 3 == 0:
        moody.model.eval()


def freezes_statistics_once(moody: Moody, epoch: int) -> None:
    if epoch == 0:
        moody.net[1].eval()


def built_for_evaluation(moody: Moody, _: int) -> None:
    moody.model.eval()


def trains_from_the_second_epoch_on(moody: Moody, epoch: int) -> None:
    if epoch == 1:
        moody.model.train()


def scores_and_trains_on(moody: Moody, epoch: int) -> None:
    modes = [part.training for part in moody.net.modules()]
    scores_and_stays_in_evaluation(moody, epoch)
    for part, mode in zip(moody.net.modules(), modes, strict=True):
        part.training = mode


def freezes_in_the_fourth_step(moody: Moody, step: int) -> None:
    if step == 4:
        moody.net[1].eval()


def thaws_in_the_second_epoch(moody: Moody, epoch: int) -> None:
    if epoch == 1:
        moody.net[0].requires_grad_(True)


def thaws_it_for_a_part_of_an_epoch(moody: Moody, step: int) -> None:
    moody.net[0].requires_grad_(step % 4 == 2)


def built_with_a_frozen_layer(moody: Moody, _: int) -> None:
    moody.net[0].requires_grad_(False)


def freezes_in_the_second_epoch(moody: Moody, epoch: int) -> None:
    if epoch == 1:
        moody.net[3].requires_grad_(False)


WAYS: dict[str, tuple[Way, Way, Way, Way]] = {
    "forgets to train on": (trains, nothing, nothing, scores_and_stays_in_evaluation),
    "forgets it within the epoch": (nothing, trains, scores_every_third_step, nothing),
    "freezes once above": (nothing, freezes_statistics_once, nothing, scores_and_trains_on),
    "freezes once within": (nothing, nothing, freezes_in_the_fourth_step, nothing),
    "freezes once below": (nothing, nothing, nothing, freezes_statistics_once),
    "thaws once": (built_for_evaluation, trains_from_the_second_epoch_on, nothing, scores_and_trains_on),
    "thaws a layer once": (built_with_a_frozen_layer, thaws_in_the_second_epoch, nothing, nothing),
    "freezes a layer once": (nothing, freezes_in_the_second_epoch, nothing, nothing),
    "thaws within": (nothing, built_with_a_frozen_layer, thaws_it_for_a_part_of_an_epoch, nothing),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[object]]:
    """What a way comes to undisturbed."""

    @cache
    def found(way: str) -> list[object]:
        return Moody(Session.from_env(tmp_path_factory.mktemp("whole"))).run(*WAYS[way])

    return found


@pytest.mark.parametrize(("way", "stop"), covering(list(WAYS), (5, 7, 10, 11), times=2))
def test_a_resumed_run_trains_on_in_the_mode_in_which_it_was(
    join: Join, whole: Callable[[str], list[object]], way: str, stop: int
) -> None:
    undisturbed = whole(way)
    with pytest.raises(Exit):
        Moody(join()).run(*WAYS[way], stop=stop)
    assert Moody(join()).run(*WAYS[way]) == undisturbed


def test_one_that_was_registered_late_has_its_mode_where_it_is_registered_again(join: Join, tmp_path: Path) -> None:
    def modes(stop: int | None, root: str) -> list[bool]:
        moody, found = Moody(join(ROOT=f"file://{tmp_path}/{root}")), []
        late: list[nn.Module] = []

        def above(_: Moody, epoch: int) -> None:
            if epoch >= 1 and not late:
                late.append(nn.Dropout())
                moody.session.register(late=late[0])

        def within(_: Moody, step: int) -> None:
            if step == 8:
                late[0].eval()
            found.append(late[0].training if late else True)

        moody.run(nothing, above, within, nothing, stop)
        return found

    whole = modes(None, "whole")
    for stop in (9, 10, 12):
        with pytest.raises(Exit):
            modes(stop, f"{stop}")
        assert modes(None, f"{stop}") == whole[stop:]


def test_a_checkpoint_of_a_version_that_knew_no_modes_leaves_them_as_the_script_has_set_them() -> None:
    registry, net = Registry(), nn.Sequential(nn.Dropout())
    registry.add("net", net)
    state = registry.state(None)
    saved = replace(state, objects={"net": {key: value for key, value in state.objects["net"].items() if key != MODES}})
    net.eval()
    registry.load(saved)
    registry.modes.take()
    assert not net.training
    registry.load(state)
    registry.modes.take()
    assert net.training


def test_an_image_has_the_modes_of_the_place_where_it_was_taken() -> None:
    registry, part = Registry(), nn.Sequential(nn.Dropout(), nn.Dropout())
    registry.add("net", net := nn.Sequential(nn.Dropout(), part))
    part.eval()
    part[0].train()
    small = registry.small()
    net.eval()
    assert registry.state(None, small).objects["net"][MODES] == {"1": False, "1.0": True}
    assert registry.state(None).objects["net"][MODES] == {"": False}


def test_an_image_has_the_parameters_that_were_frozen_where_it_was_taken() -> None:
    registry, net = Registry(), nn.Linear(2, 2)
    net.bias.requires_grad_(False)
    registry.add("net", net)
    registry.modes.begin()
    small = registry.small()
    net.requires_grad_(True)
    net.weight.requires_grad_(False)
    assert registry.state(None, small).objects["net"][TRAINED] == {"bias": [False, False]}
    assert registry.state(None).objects["net"][TRAINED] == {"weight": [False, True], "bias": [True, False]}


def trained_after(begins: str, then: str, resumed: str, by_now: str, *, old: bool = False) -> str:
    """A run begins with so many frozen of four parameters (f) and trains the others (t), and is saved `then`; a resumed
    run begins as `resumed`, and stands `by_now` where training goes on. Returns how it does."""
    state, found = RankState({}, {}, {}, None), ""
    for first, later in ((begins, then), (resumed, by_now)):
        registry, net = Registry(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        registry.add("net", net)
        sets(net, first)
        registry.modes.begin()
        if state.objects:
            registry.load(state)
        sets(net, later)
        registry.modes.take()
        found = "".join("ft"[parameter.requires_grad] for parameter in net.parameters())
        state = registry.state(None)
        if old:
            state = replace(state, objects={"net": {k: v for k, v in state.objects["net"].items() if k != TRAINED}})
    return found


def sets(net: nn.Module, flags: str) -> None:
    for parameter, flag in zip(net.parameters(), flags, strict=True):
        parameter.requires_grad_(flag == "t")


def test_what_a_script_has_frozen_since_its_run_began_is_frozen_again_and_what_it_thawed_is_trained() -> None:
    assert trained_after("fftt", "ftft", "fftt", "fftt") == "ftft"
    assert trained_after("tttt", "tttt", "tttt", "fttt") == "tttt", "the code above the batch loop runs again"


def test_a_script_that_was_changed_to_freeze_others_has_its_way_where_it_was_changed() -> None:
    assert trained_after("fftt", "fftt", "tttf", "tttf") == "tttf"
    assert trained_after("fftt", "tftt", "fttt", "fttt") == "tttt"


def test_a_script_that_was_changed_to_train_all_does_so_from_the_next_batch_on(join: Join, tmp_path: Path) -> None:
    with pytest.raises(Exit):
        Moody(join(ROOT=(root := f"file://{tmp_path}"))).run(
            built_with_a_frozen_layer, nothing, nothing, nothing, stop=7
        )
    (_, _, trained) = Moody(join(ROOT=root)).run(nothing, nothing, nothing, nothing)
    assert isinstance(trained, list)
    assert all(trained)


def resumed_over(first: Way, then: Way, join: Join, root: Path, restores: Way = nothing) -> list[bool]:
    """A run does `first` in its loop and is left; the resumed one `restores` above its loop and does `then` in it.
    Which parameters it trains at the end."""
    with pytest.raises(Exit):
        Moody(join(ROOT=f"file://{root}")).run(nothing, first, nothing, nothing, stop=7)
    (_, _, trained) = Moody(join(ROOT=f"file://{root}")).run(restores, then, nothing, nothing)
    return cast("list[bool]", trained)


def freezes_in_the_first_epoch(moody: Moody, epoch: int) -> None:
    if epoch == 0:
        moody.net[0].requires_grad_(False)


def test_a_line_of_the_loop_that_was_removed_is_not_undone_and_the_log_names_the_parameters(
    join: Join, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert resumed_over(freezes_in_the_first_epoch, nothing, join, tmp_path)[:2] == [False, False]
    words = "model: 2 parameters are frozen or trained as the loop of the resumed run had left them"
    assert capfd.readouterr().err.count(words) == 1


def test_a_line_that_trains_them_in_each_epoch_counts_from_the_next_one_on(join: Join, tmp_path: Path) -> None:
    def trains_all(moody: Moody, _: int) -> None:
        moody.net.requires_grad_(True)

    assert all(resumed_over(freezes_in_the_first_epoch, trains_all, join, tmp_path))


def test_what_is_frozen_after_an_early_restore_stays_frozen(
    join: Join, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def restores_and_freezes(moody: Moody, epoch: int) -> None:
        perdure.restore(moody.session)
        built_with_a_frozen_layer(moody, epoch)

    assert resumed_over(nothing, nothing, join, tmp_path, restores_and_freezes)[:2] == [False, False]
    assert "frozen or trained as" not in capfd.readouterr().err


def test_a_part_of_which_the_checkpoint_says_nothing_stays_as_the_script_has_made_it() -> None:
    registry, net = Registry(), nn.Sequential(nn.Linear(2, 2))
    registry.add("net", net)
    registry.modes.begin()
    registry.modes.resume({"net": net_modes(registry)})
    net.append(nn.Linear(2, 2).requires_grad_(False))
    registry.modes.take()
    assert [parameter.requires_grad for parameter in net.parameters()] == [True, True, False, False]


def net_modes(registry: Registry) -> Modes:
    return registry.modes.state()["net"]


def test_a_checkpoint_of_a_version_that_did_not_say_which_are_frozen_leaves_them_as_the_script_has_them() -> None:
    assert trained_after("fftt", "ttff", "fftt", "ftft", old=True) == "ftft"


def test_a_frozen_parameter_is_known_by_its_new_name() -> None:
    registry, net = Registry(), nn.Sequential(nn.Linear(2, 2))
    registry.add("net", net)
    registry.modes.begin()
    net[0].bias.requires_grad_(False)
    other, fresh = Registry(), nn.Sequential()
    fresh.add_module("first", nn.Linear(2, 2))
    other.rename({"net": "model", "net.0": "model.first"})
    other.add("model", fresh)
    other.modes.begin()
    other.load(registry.state(None))
    other.modes.take()
    assert [parameter.requires_grad for parameter in fresh.parameters()] == [True, False]


def test_one_that_is_registered_late_begins_there() -> None:
    registry, late = Registry(), nn.Linear(2, 2).requires_grad_(False)
    registry.modes.begin()
    registry.add("late", late, late=True)
    late.bias.requires_grad_(True)
    assert registry.state(None).objects["late"][TRAINED] == {"weight": [False, False], "bias": [True, False]}


def test_a_module_that_was_registered_late_has_the_parameters_frozen_that_were(join: Join, tmp_path: Path) -> None:
    def trained(stop: int | None, root: str) -> list[bool]:
        moody, found = Moody(join(ROOT=f"file://{tmp_path}/{root}")), []
        late: list[nn.Module] = []

        def above(_: Moody, epoch: int) -> None:
            if epoch >= 1 and not late:
                late.append(nn.Linear(2, 2).requires_grad_(False))
                moody.session.register(late=late[0])

        def within(_: Moody, step: int) -> None:
            if step == 8:
                late[0].requires_grad_(True)
            found.append(bool(late) and next(late[0].parameters()).requires_grad)

        moody.run(nothing, above, within, nothing, stop)
        return found

    whole = trained(None, "whole")
    for stop in (9, 12):
        with pytest.raises(Exit):
            trained(stop, f"{stop}")
        assert trained(None, f"{stop}") == whole[stop:]


def test_what_is_around_a_module_has_its_mode_too_and_no_train_of_the_scripts_is_called() -> None:
    class Frozen(nn.Sequential):
        def train(self, mode: bool = True) -> Frozen:
            super().train(mode)
            self[0].train(mode=False)
            return self

    inner = Frozen(nn.Dropout(), nn.Dropout())
    wrapped = DataParallel(nn.Sequential(cast("nn.Module", torch.compile(inner))))
    registry = Registry()
    registry.add("net", wrapped)
    wrapped.train()
    inner[0].training = True
    state = registry.state(None)
    wrapped.eval()
    registry.load(state)
    registry.modes.take()
    assert [part.training for part in wrapped.modules()] == [True] * len(list(wrapped.modules()))
