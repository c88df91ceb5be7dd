"""Where a run may stop: whatever a script does around its steps, a resumed run ends with the undisturbed one's weights.

Each script is disturbed at every point it names, by a request or by a crash, and run again until it is done.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import perdure
from perdure import Session, UserError
from perdure.loop.leaving import Exit
from tests.unit.runtime.records import entries
from tests.unit.runtime.session.training import Join, Training, samples

EPOCHS = 3
STEPS = 5
"""Batches of an epoch."""


class Crash(Exception):
    """The process is gone: nothing is saved."""


class Act:
    """One process of a script, and what disturbs it: a request or a crash, when `point` is reached."""

    def __init__(self, session: Session, *, request: str = "", crash: str = "") -> None:
        self.session = session
        self.request, self.crash, self.hit = request, crash, False
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9)
        session.register(net=self.net, optimizer=self.optimizer, scheduler=self.scheduler)
        self.train = session.loader(samples(), 8)
        self.seen: list[Any] = []

    def at(self, point: str) -> None:
        """The script is here."""
        self.hit = self.hit or point in (self.request, self.crash)
        if point == self.request:
            os.kill(os.getpid(), signal.SIGTERM)
        if point == self.crash:
            raise Crash(point)

    def backward(self, inputs: torch.Tensor, parts: int = 1) -> torch.Tensor:
        loss: torch.Tensor = self.session.weighted(self.net(inputs).square().mean()) / parts
        loss.backward()
        return loss

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def evaluate(self, *, poll: bool = False) -> float:
        """With dropout on, over an own DataLoader: all of it draws from the global generators."""
        total = 0.0
        with torch.no_grad():
            for number, (inputs, _) in enumerate(DataLoader(samples(12), 4, shuffle=True)):
                total += self.net(inputs).sum().item()
                self.at(f"evaluation {self.session.steps_done}.{number}")
                if poll:
                    perdure.poll(self.session)
        return total


Script = Callable[[Act], None]


def result(act: Act) -> Any:
    state = [value.tolist() for value in act.net.state_dict().values()]
    return state, act.optimizer.param_groups[0]["lr"], torch.rand(3).tolist()


def undisturbed(root: Path, script: Script) -> Any:
    with Session.from_env(root) as session:
        act = Act(session)
        script(act)
        return result(act)


def disturbed(join: Join, script: Script, **trouble: str) -> Any:
    """The result at the end, after as many processes as it takes."""
    for number in range(1, 9):
        act = Act(join(EVERY_STEPS="3"), **(trouble if number == 1 else {}))
        try:
            with act.session:
                script(act)
                return result(act)
        except (Exit, Crash):
            assert act.hit
    raise AssertionError("the script makes no progress")


def scheduled(act: Act) -> None:
    """The scheduler's step comes after the session's."""
    for _ in act.session.epochs(EPOCHS):
        for inputs, _ in act.train:
            act.backward(inputs)
            act.update()
            act.at(f"step {act.session.steps_done}")
            act.session.step()
            act.scheduler.step()


def evaluating(act: Act) -> None:
    """Every 2 steps there is an evaluation, of which the learning rate depends."""
    for _ in act.session.epochs(EPOCHS):
        for inputs, _ in act.train:
            act.backward(inputs)
            act.update()
            act.at(f"step {act.session.steps_done}")
            act.session.step()
            if act.session.steps_done % 2 == 0 and act.evaluate(poll=True) > 0:
                act.scheduler.step()


def evaluating_at_the_end(act: Act) -> None:
    """The body of an epoch begins and ends with random numbers, and with a loss of the batches before."""
    for _ in act.session.epochs(EPOCHS):
        torch.rand(1)
        perdure.poll(act.session)
        for inputs, _ in act.train:
            act.backward(inputs)
            act.update()
            act.at(f"step {act.session.steps_done}")
            act.session.step()
        if act.evaluate(poll=True) > 0:
            act.scheduler.step()
        act.at(f"end {act.session.steps_done}")


def accumulating(act: Act) -> None:
    """A step takes 2 batches, the last one of an epoch the rest."""
    for _ in act.session.epochs(EPOCHS):
        for i, (inputs, _) in enumerate(act.train, perdure.progress(act.session).batch_index):
            act.backward(inputs, 2)
            act.at(f"batch {i} after {act.session.steps_done}")
            perdure.poll(act.session)
            if (i + 1) % 2 == 0 or i + 1 == len(act.train):
                act.at(f"step {act.session.steps_done}")
                act.update()
                act.session.step()
                act.scheduler.step()


def saving_before_its_step(act: Act) -> None:
    """A checkpoint is wanted between the optimizer's step and the session's."""
    for _ in act.session.epochs(EPOCHS):
        for inputs, _ in act.train:
            act.backward(inputs)
            act.update()
            act.session.save()
            act.at(f"saved {act.session.steps_done}")
            act.session.step()
            act.scheduler.step()
            act.at(f"step {act.session.steps_done - 1}")


def by_numbers(act: Act) -> None:
    """Samples of the script's own."""
    for _ in act.session.epochs(EPOCHS):
        for i in act.session.steps(STEPS):
            act.backward(torch.full((4, 4), float(i)) + torch.rand(4, 4))
            act.update()
            act.at(f"step {act.session.steps_done}")
            act.session.step()
            act.scheduler.step()


def one_after_the_other(act: Act) -> None:
    """Two loaders in one epoch, of which the first is used up when the second begins."""
    second = act.session.loader(samples(16), 8, name="second")
    for _ in act.session.epochs(EPOCHS):
        for batches in (act.train, second):
            torch.rand(1)
            for inputs, _ in batches:
                act.backward(inputs)
                act.update()
                act.at(f"step {act.session.steps_done}")
                act.session.step()
                act.scheduler.step()


def together(act: Act) -> None:
    """Two loaders side by side, whose samples draw random numbers as they are made."""

    class Noisy(Dataset[torch.Tensor]):
        def __init__(self, size: int) -> None:
            self.rows = samples(size).tensors[0]

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, n: int) -> torch.Tensor:
            return self.rows[n] + torch.rand(4)

    one = act.session.loader(Noisy(40), 8, name="one")
    two = act.session.loader(Noisy(20), 4, name="two")
    for _ in act.session.epochs(EPOCHS):
        for inputs, more in zip(one, two, strict=True):
            act.backward(torch.cat([inputs, more]))
            act.update()
            act.at(f"step {act.session.steps_done}")
            act.session.step()
            act.scheduler.step()


def made_in_the_loop(act: Act) -> None:
    """The loaders are made where they are used; one without steps is an evaluation."""
    for _ in act.session.epochs(EPOCHS):
        for inputs, _ in act.session.loader(samples(24), 8, name="inner", collate_fn=torch.utils.data.default_collate):
            act.backward(inputs)
            act.update()
            act.at(f"step {act.session.steps_done}")
            act.session.step()
            if act.session.steps_done % 2 == 0:
                for more, _ in act.session.loader(samples(12), 4, name="validation", shuffle=False):
                    act.net(more)
                    perdure.poll(act.session)
                act.scheduler.step()
        for more, _ in act.session.loader(samples(12), 4, name="validation", shuffle=False):
            act.net(more)
            perdure.poll(act.session)


def cut_short(act: Act) -> None:
    """An epoch takes 3 of 5 batches; its evaluation polls."""
    for _ in act.session.epochs(EPOCHS):
        for i, (inputs, _) in enumerate(act.train, perdure.progress(act.session).batch_index):
            if i == 3:
                break
            act.backward(inputs)
            act.update()
            act.at(f"step {act.session.steps_done}")
            act.session.step()
        if act.evaluate(poll=True) > 0:
            act.scheduler.step()


def in_two_loops(act: Act) -> None:
    """Warm-up, then training."""
    for loop, epochs in enumerate((1, 2)):
        torch.rand(1)
        for _ in act.session.epochs(epochs):
            for inputs, _ in act.train:
                act.backward(inputs * (loop + 1))
                act.update()
                act.at(f"step {act.session.steps_done}")
                act.session.step()
                act.scheduler.step()


POINTS: list[tuple[Script, list[str], list[str]]] = [
    (scheduled, ["step 3", "step 4", "step 14"], ["step 4", "step 9"]),
    (evaluating, ["step 1", "step 3", "evaluation 2.0", "evaluation 4.1"], ["evaluation 10.2"]),
    (evaluating_at_the_end, ["step 4", "evaluation 5.0", "evaluation 15.1", "end 10"], ["evaluation 10.1", "end 10"]),
    (accumulating, ["step 2", "batch 2 after 1", "batch 0 after 3"], ["step 2", "batch 3 after 1"]),
    (saving_before_its_step, ["saved 2"], ["step 0", "step 3", "saved 4"]),
    (by_numbers, ["step 3", "step 4"], ["step 7"]),
    (one_after_the_other, ["step 4", "step 5", "step 6"], ["step 5", "step 7"]),
    (together, ["step 2", "step 4"], ["step 6"]),
    (made_in_the_loop, ["step 1", "step 2", "step 3"], ["step 4"]),
    (cut_short, ["step 1", "step 2", "evaluation 3.0"], ["step 3", "evaluation 6.1"]),
    (in_two_loops, ["step 3", "step 4", "step 5", "step 13"], ["step 5", "step 10"]),
]
"""Where a request comes, and where a crash does."""
CASES = [
    pytest.param(script, {how: point}, id=f"{script.__name__}-{how}-{point}".replace(" ", "-"))
    for script, requests, crashes in POINTS
    for how, points in (("request", requests), ("crash", crashes))
    for point in points
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Script], Any]:
    """Of undisturbed runs, each made once."""
    known: dict[str, Any] = {}

    def result_of(script: Script) -> Any:
        name = script.__name__
        if name not in known:
            known[name] = undisturbed(tmp_path_factory.mktemp(name), script)
        return known[name]

    return result_of


@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler:UserWarning")  # torch counts within a process
@pytest.mark.parametrize(("script", "trouble"), CASES)
def test_a_disturbed_script_ends_as_if_nothing_had_happened(
    join: Join, results: Callable[[Script], Any], script: Script, trouble: dict[str, str]
) -> None:
    expected = results(script)
    assert disturbed(join, script, **trouble) == expected


def messages(join: Join, script: Script, capfd: pytest.CaptureFixture[str]) -> str:
    with join() as session:
        script(Act(session))
    return capfd.readouterr().err


def refused(join: Join, script: Script) -> str:
    """The message for a script that cannot be resumed as it is."""
    with pytest.raises(UserError) as error, join() as session:
        script(Act(session))
    return str(error.value)


def left(act: Act, script: Script) -> None:
    with pytest.raises(Exit), act.session:
        script(act)


def test_the_length_of_a_loader_is_that_of_a_whole_epoch_also_in_a_resumed_one(join: Join) -> None:
    left(Act(join(), request="step 2"), scheduled)
    again = Act(join())
    with again.session as session:
        for epoch in session.epochs(EPOCHS):
            index = perdure.progress(session).batch_index
            assert (len(again.train), again.train.remaining) == (STEPS, STEPS - index)
            now = perdure.progress(session)
            assert (now.epoch, now.epoch_resumed, index) == (epoch, epoch == 0, 3 * (epoch == 0))
            assert (now.finished_epochs, now.remaining) == (epoch, EPOCHS - epoch)
            for number, _ in enumerate(again.train, index):
                assert again.train.remaining == STEPS - number - 1
                session.step()
        now = perdure.progress(session)
        assert (session.steps_done, now.epoch, now.remaining) == (EPOCHS * STEPS, None, None)


def consumed(root: Path) -> list[tuple[int, int, str]]:
    """Of each commit: finished epochs, samples of the present one, and why it was made."""
    commits = [entry for entry in entries(root) if entry["kind"] == "Committed"]
    return [(entry["epoch"], entry["cursors"]["train"]["consumed"], entry["reason"]) for entry in commits]


def test_a_commit_that_falls_due_in_an_epochs_last_step_is_made_once_its_body_is_done(
    join: Join, tmp_path: Path
) -> None:
    with join(EVERY_STEPS="5") as session:
        act = Act(session)
        for _ in session.epochs(EPOCHS):
            for inputs, _ in act.train:
                act.backward(inputs)
                act.update()
                session.step()
            assert len(consumed(tmp_path)) == perdure.progress(session).finished_epochs
    assert consumed(tmp_path) == [(1, 0, "cadence"), (2, 0, "cadence"), (3, 0, "goal")]


def test_a_checkpoint_that_the_script_wants_is_made_at_the_next_hand_out(join: Join, tmp_path: Path) -> None:
    with join() as session:
        act = Act(session)
        for _ in session.epochs(1):
            for number, _ in enumerate(act.train):
                assert consumed(tmp_path) == [(0, 16, "script")][: max(0, number - 1)]
                session.step()
                if number == 1:
                    session.save()
                    assert consumed(tmp_path) == []
    assert consumed(tmp_path) == [(0, 16, "script"), (1, 0, "goal")]


def test_a_poll_at_the_end_of_an_epochs_body_leaves_and_the_rest_runs_again(join: Join, tmp_path: Path) -> None:
    left(Act(join(), request="evaluation 5.1"), evaluating_at_the_end)
    last = entries(tmp_path)[-1]
    assert (last["epoch"], last["cursors"]["train"]["consumed"], last["final"]) == (0, 40, True)
    assert last["cursors"]["epochs"]["epoch_rest"] == "pending"
    again = Act(join())
    with again.session as session:
        for epoch in session.epochs(EPOCHS):
            assert perdure.progress(session).epoch_resumed == (epoch == 0)
            before = session.steps_done
            for _ in again.train:
                session.step()
            assert session.steps_done - before == STEPS * (epoch > 0)


def test_a_request_with_a_deadline_in_an_epochs_last_step_is_saved_in_case_and_the_body_goes_on(
    join: Join, tmp_path: Path
) -> None:
    bodies = []

    def script(act: Act) -> None:
        for _ in act.session.epochs(EPOCHS):
            for _ in act.train:
                act.at(f"step {act.session.steps_done}")
                act.session.step()
            bodies.append(consumed(tmp_path))

    left(Act(join(), request="step 4"), script)
    assert bodies == [[(0, 40, "in case")]]
    assert consumed(tmp_path) == [(0, 40, "in case"), (1, 0, "SIGTERM")]


@pytest.mark.parametrize(("grace", "polls"), [("60", 3), ("8", 0)])
def test_between_two_steps_a_poll_leaves_only_where_the_time_is_nearly_over_and_says_so(
    join: Join, capfd: pytest.CaptureFixture[str], tmp_path: Path, grace: str, polls: int
) -> None:
    polled = []

    def script(act: Act) -> None:
        for _ in act.session.epochs(EPOCHS):
            for _ in act.train:
                act.at(f"step {act.session.steps_done}")
                act.session.step()
                for number in (1, 2, 3):
                    perdure.poll(act.session)
                    if perdure.exit_requested(act.session):
                        polled.append(number)

    left(Act(join(GRACE_SECONDS=grace), request="step 1"), script)
    assert len(polled) == polls
    assert consumed(tmp_path) == [*[(0, 16, "in case")][: bool(polls)], (0, 16, "SIGTERM")]
    assert ("leaves in the middle of an evaluation that follows step 2" in capfd.readouterr().err) is (not polls)


def test_left_over_micro_batches_are_reported_once_and_count_as_used(
    join: Join, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def script(act: Act) -> None:
        for _ in act.session.epochs(EPOCHS):
            for i, (inputs, _) in enumerate(act.train):
                act.backward(inputs)
                if (i + 1) % 2 == 0:
                    act.update()
                    act.session.step()

    said = messages(join, script, capfd)
    assert said.count("loader 'train': 1 batches at the end of an epoch") == 1
    assert [(epoch, samples) for epoch, samples, _ in consumed(tmp_path)] == [(EPOCHS, 0)]


def test_an_own_dataloader_in_epochs_is_refused_at_the_first_step(join: Join) -> None:
    def script(act: Act) -> None:
        for _ in act.session.epochs(1):
            for _ in DataLoader(samples(), 8):
                act.session.step()

    assert "session.steps(n)" in refused(join, script)


def test_an_epoch_without_a_step_is_refused(join: Join) -> None:
    def script(act: Act) -> None:
        for _ in act.session.epochs(1):
            list(act.train)

    assert "without a step()" in refused(join, script)


def ahead(act: Act) -> None:
    """One batch is fetched before it is its turn."""
    for _ in act.session.epochs(1):
        waiting = None
        for batch in act.train:
            if waiting:
                act.session.step()
            waiting = batch
        act.session.step()


def at_once(act: Act) -> None:
    """All batches are fetched before the first is trained."""
    for _ in act.session.epochs(1):
        for _ in list(act.train):
            act.session.step()


def ahead_and_accumulating(act: Act, every: int, ahead: int) -> None:
    """Batches are fetched before it is their turn, and a step takes several; the rest is a step of its own."""
    batches = act.session.loader(samples(56), 4, name="small")
    for _ in act.session.epochs(1):
        fetched, waiting = iter(batches), deque[Any]()
        waiting.extend(islice(fetched, ahead))
        number = 0
        while waiting or not number:
            waiting.extend(islice(fetched, 1))
            waiting.popleft()
            number += 1
            if number % every == 0 or not waiting:
                act.session.step()


ACCUMULATING = [
    pytest.param(partial(ahead_and_accumulating, every=every, ahead=ahead), id=f"{ahead}-ahead-{every}-a-step")
    for every, ahead in ((2, 1), (2, 2), (4, 1), (4, 3), (3, 1))
]


@pytest.mark.parametrize("steps", [[3, 2, 2, 2, 1], [2, 2, 2, 2, 2], [4, 4, 2], [1, 3, 3, 3], [5, 2, 2, 1]])
def test_an_accumulating_loop_whose_first_or_last_step_takes_another_number_of_batches_is_no_such_loop(
    join: Join, steps: list[int]
) -> None:
    left, taken = list(steps), 0
    with join() as session:
        for _ in session.epochs(1):
            for _ in session.loader(samples(4 * sum(steps)), 4, name="small"):
                taken += 1
                if taken == left[0]:
                    session.step()
                    left, taken = left[1:], 0
    assert not left


@pytest.mark.parametrize("script", ACCUMULATING)
def test_a_loop_that_fetches_ahead_and_accumulates_is_warned_at_the_epochs_end(
    join: Join, capfd: pytest.CaptureFixture[str], script: Script
) -> None:
    """Not refused: a loop whose first step is one batch late has the same steps."""
    assert messages(join, script, capfd).count("fetches batches before it trains on them") == 1


@pytest.mark.parametrize("script", [ahead, at_once])
def test_a_loop_that_fetches_ahead_is_refused_at_the_epochs_end(join: Join, script: Script) -> None:
    assert "fetches batches before it trains on them" in refused(join, script)


def test_two_steps_for_each_batch_are_none_of_that(join: Join) -> None:
    with join() as session:
        act = Act(session)
        for _ in session.epochs(2):
            for _ in act.train:
                session.step()
                session.step()
        assert session.steps_done == 2 * 2 * STEPS


def test_nested_loops_are_refused(join: Join) -> None:
    def script(act: Act) -> None:
        for _ in act.session.epochs(2):
            for _ in act.session.epochs(2):
                pass

    assert "inside of an epoch" in refused(join, script)


def test_a_loader_that_is_being_iterated_is_not_iterated_once_more(join: Join) -> None:
    def script(act: Act) -> None:
        for _ in act.session.epochs(1):
            for _ in act.train:
                for _ in act.train:
                    pass

    assert "being iterated already" in refused(join, script)


def test_a_name_means_one_loader(join: Join) -> None:
    session = join()
    first = session.loader(samples(), 8, name="a", num_workers=0)
    assert session.loader(samples(), 8, name="a", num_workers=0) is first
    for arguments in ({"batch_size": 4}, {"batch_size": 8, "shuffle": False}, {"batch_size": 8, "num_workers": 1}):
        with pytest.raises(UserError, match="its own name"):
            session.loader(samples(), name="a", **arguments)  # type: ignore[arg-type]
    for taken in ("steps", "epochs"):
        with pytest.raises(UserError, match="taken"):
            session.loader(samples(), 8, name=taken)


def test_a_poll_in_the_first_step_on_a_second_loader_only_votes(join: Join) -> None:
    """That loader had no step before: it is known as training at its first step."""
    polled = []
    training = Training(join())
    second = training.session.loader(samples(8), 8, name="second")

    def run() -> None:
        with training.session as session:
            for _ in session.epochs(2):
                for _ in training.batches:
                    session.step()
                for _ in second:
                    session.step()
                    os.kill(os.getpid(), signal.SIGTERM)
                    perdure.poll(session)
                    polled.append(session.steps_done)

    with pytest.raises(Exit):
        run()
    assert polled == [6]
