"""Evaluations with a position: batches and sums are the undisturbed run's, whatever happens in between."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import perdure
from perdure import Session, UserError
from perdure.loop.leaving import Exit
from perdure.wire import ExitKind
from perdure.wire.channel import CommitDone, Exiting, StepDone, read_report
from tests.support.covering import covering
from tests.unit.runtime.records import entries, kinds
from tests.unit.runtime.session.test_boundary import EPOCHS, Act, Crash
from tests.unit.runtime.session.training import Join, Training, samples

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler:UserWarning")  # that of a replay
Script = Callable[[Act, "Scores"], None]


class Scores:
    """Evaluates over loaders of the session; handed-out batches outlive a process, the session keeps sums."""

    def __init__(self, act: Act, handed: list[Any]) -> None:
        self.act, self.handed = act, handed
        session = act.session
        self.valid = session.loader(samples(14), 4, name="valid", train=False)
        self.sums = perdure.accumulator(session, "ids")
        self.test = session.loader(samples(12), 4, name="test", train=False, shuffle=True)

    def over(self, loader: Any, name: str) -> float:
        """A pass; with dropout on, so that it draws from the global generator."""
        act, state = self.act, self.act.session.state
        torch.rand(1)
        for inputs, ids in loader:
            with torch.no_grad():
                score = act.net(inputs).sum().item()
            self.handed.append((name, act.session.steps_done, ids.tolist(), score))
            state[name] = state.get(name, 0.0) + score
            self.sums.add(sum=ids.sum(), n=len(ids))
            act.at(f"{name} {act.session.steps_done}.{len(loader) - loader.remaining - 1}")
        samples = loader.plan.samples
        assert self.sums.sum() == {"sum": sum(range(samples)), "n": samples}, "also where it is read again"
        return float(state[name])

    def keep(self, *names: str) -> None:
        """Behind the last evaluation of a place."""
        state = self.act.session.state
        state["all"] = [*state.get("all", []), *(state.pop(name) for name in names)]


def train(act: Act, after: Callable[[], None] = lambda: None) -> None:
    for inputs, _ in act.train:
        act.backward(inputs)
        act.update()
        act.at(f"step {act.session.steps_done}")
        act.session.step()
        after()


def in_the_epochs(act: Act, scores: Scores) -> None:
    """Above the batch loop, in it every 2 steps, and three passes below it over two loaders, one of them twice."""

    def every_2_steps() -> None:
        if act.session.steps_done % 2 == 0 and scores.over(scores.valid, "within") > 0:
            act.scheduler.step()

    for _ in act.session.epochs(EPOCHS):
        scores.over(scores.valid, "above")
        train(act, every_2_steps)
        found = [scores.over(loader, name) for name, loader in (("a", scores.valid), ("b", scores.test))]
        found.append(scores.over(scores.valid, "c"))
        if sum(found) > 0:
            act.scheduler.step()
        scores.keep("above", "a", "b", "c")


def outside(act: Act, scores: Scores) -> None:
    """Before two loops, between them, and behind the last."""
    scores.over(scores.test, "before")
    scores.over(scores.valid, "before, too")
    for number in range(2):
        for _ in act.session.epochs(1):
            train(act)
        scores.over(scores.valid, f"behind {number}")
        scores.over(scores.test, f"behind {number}, too")
    scores.keep("before", "before, too", "behind 0", "behind 0, too", "behind 1", "behind 1, too")


def result(act: Act) -> Any:
    state = [value.tolist() for value in act.net.state_dict().values()]
    return state, act.optimizer.param_groups[0]["lr"], act.session.state["all"], torch.rand(3).tolist()


def play(join: Join, script: Script, trouble: dict[str, str]) -> tuple[Any, list[Any]]:
    """The result at the end, after as many processes as it takes, and all that was handed out to be evaluated."""
    handed: list[Any] = []
    for number in range(1, 4):
        act = Act(join({"timeout_seconds": 60}), **(trouble if number == 1 else {}))
        try:
            with act.session:
                script(act, Scores(act, handed))
                return result(act), handed
        except (Exit, Crash):
            assert act.hit
    raise AssertionError("the script makes no progress")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Script], tuple[Any, list[Any]]]:
    known: dict[str, tuple[Any, list[Any]]] = {}

    def found(script: Script) -> tuple[Any, list[Any]]:
        if script.__name__ not in known:
            handed: list[Any] = []
            with Session.from_env(tmp_path_factory.mktemp(script.__name__)) as session:
                act = Act(session)
                script(act, Scores(act, handed))
                known[script.__name__] = result(act), handed
        return known[script.__name__]

    return found


POINTS: list[tuple[Script, list[str]]] = [
    (in_the_epochs, ["above 0.1", "above 5.2", "above 5.3", "step 4", "a 5.0", "a 5.3", "b 5.1", "b 5.2", "c 10.1"]),
    (in_the_epochs, ["within 2.1", "within 4.3", "c 15.3", "step 14"]),
    (outside, ["before 0.1", "before 0.2", "before, too 0.0", "before, too 0.3", "step 3", "step 4", "behind 0 5.2"]),
    (outside, ["behind 0, too 5.0", "behind 0, too 5.2", "step 7", "behind 1 10.0", "behind 1, too 10.1"]),
]
"""Where a request comes."""


@pytest.mark.parametrize(("script", "point"), [(script, point) for script, points in POINTS for point in points])
def test_what_is_evaluated_is_handed_out_once_and_goes_on_where_it_was_broken(
    join: Join, undisturbed: Callable[[Script], tuple[Any, list[Any]]], script: Script, point: str
) -> None:
    assert play(join, script, {"request": point}) == undisturbed(script)


@pytest.mark.parametrize("point", ["a 5.1", "c 10.2"])
def test_a_crash_in_an_evaluation_repeats_what_no_commit_knows(
    join: Join, undisturbed: Callable[[Script], tuple[Any, list[Any]]], point: str
) -> None:
    (end, handed), (expected, once) = play(join, in_the_epochs, {"crash": point}), undisturbed(in_the_epochs)
    assert end == expected
    assert {tuple(map(str, one)) for one in handed} == {tuple(map(str, one)) for one in once}


def only_evaluating(session: Session, seen: list[int], stop: int | None = None) -> Session:
    """A script that trains nothing, asked to leave while it has batch `stop`."""
    training = Training(session, loader=None)
    with session:
        for inputs, ids in session.loader(samples(14), 4, name="valid", train=False):
            session.state["sum"] = session.state.get("sum", 0.0) + training.net(inputs).sum().item()
            seen.extend(ids.tolist())
            if stop == len(seen):
                os.kill(os.getpid(), signal.SIGTERM)
        session.result = {"samples": len(seen)}
    return session


def test_a_script_that_only_evaluates_goes_on_where_it_was_broken_and_is_complete(join: Join, tmp_path: Path) -> None:
    seen: list[int] = []
    with pytest.raises(Exit):
        only_evaluating(join(), seen, stop=8)
    assert seen == list(range(8))
    assert kinds(tmp_path) == ["Opened", "Committed"]
    first = join()
    assert only_evaluating(first, seen).state.keys() == {"sum"}
    assert seen == list(range(14))
    *_, last, completed = entries(tmp_path)
    assert (last["kind"], last["final"], last["step"]) == ("Committed", True, 0)
    assert (completed["kind"], completed["goal"]) == ("Completed", {"evaluated": ["valid"]})
    only_evaluating(join(), seen)
    assert seen == list(range(14)), "an evaluation that is done is left out"
    assert kinds(tmp_path)[-2:] == ["Opened", "Completed"]


def test_the_agent_is_told_that_there_is_something_to_save_and_that_the_work_is_done(
    join: Join, pipe: tuple[int, int]
) -> None:
    reader, writer = pipe
    only_evaluating(join(REPORT_FD=str(writer)), [])
    told = [read_report(line) for line in os.read(reader, 1 << 16).splitlines()]
    steps = [report for report in told if isinstance(report, StepDone)]
    commits = [report for report in told if isinstance(report, CommitDone)]
    assert steps == [StepDone(0, 0)]
    assert [commit.goal for commit in commits] == [True]
    assert isinstance(told[-1], Exiting)
    assert told[-1].outcome is ExitKind.COMPLETED


def test_a_poll_within_a_batch_of_an_evaluation_only_votes(join: Join) -> None:
    seen: list[int] = []

    def evaluate(session: Session, stop: bool) -> None:
        Training(session, loader=None)
        with session:
            for _, ids in session.loader(samples(14), 4, name="valid", train=False):
                seen.extend(ids.tolist())
                if stop and ids[0] == 4:
                    os.kill(os.getpid(), signal.SIGTERM)
                perdure.poll(session)
                seen.append(-1)

    with pytest.raises(Exit):
        evaluate(join(), stop=True)
    assert seen[-1] == -1, "the batch is done with"
    evaluate(join(), stop=False)
    assert [number for number in seen if number >= 0] == list(range(14))


def test_a_break_ends_a_pass_that_a_resumed_run_leaves_out(join: Join) -> None:
    seen: list[tuple[int, int]] = []

    def script(training: Training, stop: int | None) -> None:
        session, valid = training.session, training.session.loader(samples(14), 4, name="valid", train=False)
        with session:
            for _ in session.epochs(1):
                for inputs, _ in training.batches:
                    training.net(inputs).mean().backward()
                    training.optimizer.step()
                    session.step()
                for number in range(2):
                    for _, ids in valid:
                        seen.append((number, ids[0].item()))
                        if number == 1 and ids[0].item() == stop:
                            os.kill(os.getpid(), signal.SIGTERM)
                        if number == 0 and ids[0].item() == 4:
                            break

    with pytest.raises(Exit):
        script(Training(join()), stop=4)
    script(Training(join()), stop=None)
    assert seen == [(0, 0), (0, 4), (1, 0), (1, 4), (1, 8), (1, 12)]


def test_an_evaluation_behind_the_last_loop_goes_on_where_it_was_broken(join: Join, tmp_path: Path) -> None:
    seen: list[int] = []

    def script(stop: int | None) -> None:
        training = Training(join())
        valid = training.session.loader(samples(14), 4, name="valid", train=False)
        with training.session as session:
            for _ in session.epochs(1):
                for inputs, _ in training.batches:
                    training.net(inputs).mean().backward()
                    training.optimizer.step()
                    session.step()
            for _, ids in valid:
                seen.append(ids[0].item())
                if stop == seen[-1]:
                    os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Exit):
        script(stop=4)
    script(stop=None)
    assert seen == [0, 4, 8, 12]
    reasons = [(entry["reason"], entry["final"]) for entry in entries(tmp_path) if entry["kind"] == "Committed"]
    assert reasons == [("goal", True), ("evaluation", False), ("SIGTERM", True), ("evaluation", False)]
    assert kinds(tmp_path)[-1] == "Completed"


def test_an_epoch_that_a_raised_goal_adds_is_followed_by_a_new_evaluation(join: Join) -> None:
    seen: list[int] = []

    def script(epochs: int, stop: bool = False) -> None:
        training = Training(join())
        valid = training.session.loader(samples(14), 4, name="valid", train=False)
        with training.session as session:
            for _ in session.epochs(epochs):
                for inputs, _ in training.batches:
                    training.net(inputs).mean().backward()
                    training.optimizer.step()
                    session.step()
            for _, ids in valid:
                seen.append(ids[0].item())
                if stop and seen[-1] == 4:
                    os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Exit):
        script(1, stop=True)
    script(2)
    assert seen == [0, 4, 0, 4, 8, 12]


def test_a_step_uses_nothing_of_an_evaluation(join: Join) -> None:
    session = Training(join(), loader=None).session
    valid = session.loader(samples(8), 4, name="valid", train=False)
    for _ in session.epochs(1):
        for _ in valid:
            with pytest.raises(UserError, match="nothing of this epoch was handed out"):
                session.step()
        break


def test_a_loader_is_for_training_or_for_an_evaluation(join: Join) -> None:
    session = Training(join()).session
    with pytest.raises(UserError, match="exists already, with train=True and not False"):
        session.loader(samples(), 8, shuffle=True, train=False)
    valid = session.loader(samples(8), 4, name="valid", train=False)
    assert valid is session.loader(samples(8), 4, name="valid", train=False)
    assert not valid.plan.shuffle
    with pytest.raises(UserError, match="exists already, with train=False and not True"):
        session.loader(samples(8), 4, name="valid", shuffle=False)


def test_what_an_epoch_trains_on_cannot_be_evaluated_on_in_its_middle(join: Join) -> None:
    Training(join()).left(stop=3)
    training = Training(join(), loader=None)
    perdure.restore(training.session)
    with pytest.raises(UserError, match="in the middle of an epoch that trains on it: make it without train=False"):
        training.session.loader(samples(), 8, train=False)


class Averaged:
    """A training whose evaluation puts an average of the weights in, as many recipes do."""

    def __init__(self, session: Session, way: str, stop: int | None) -> None:
        torch.manual_seed(0)
        self.session, self.way, self.stop = session, way, stop
        self.net = nn.Linear(4, 1)
        self.average = copy.deepcopy(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.1)
        session.register(net=self.net, average=self.average, optimizer=self.optimizer)
        self.scores: list[float] = []

    def evaluate(self, valid: perdure.Loader) -> None:
        kept = copy.deepcopy(self.net.state_dict())
        self.net.load_state_dict(self.average.state_dict())
        if self.way.startswith("polling"):
            perdure.poll(self.session)
        for _ in valid if self.way.startswith("a pass") else range(2):
            pass
        if self.way == "saving":
            self.session.save()
        self.net.load_state_dict(kept)

    def train(self) -> Averaged:
        with self.session as session:
            valid = session.loader(samples(16), 8, name="valid", train=False)
            for _ in session.epochs(3):
                for inputs, _ in session.loader(samples(), 8):
                    self.optimizer.zero_grad()
                    session.weighted(self.net(inputs).square().mean()).backward()
                    self.optimizer.step()
                    for mine, its in zip(self.average.parameters(), self.net.parameters(), strict=True):
                        mine.data.lerp_(its.data, 0.1)
                    if self.stop == session.steps_done + 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
                    if self.way.endswith("in a step") and session.steps_done > 1:
                        self.evaluate(valid)
                if not self.way.endswith("in a step"):
                    self.evaluate(valid)
        return self


@pytest.mark.parametrize("grace", ["60", "8"])  # with 8 s the time presses at once
@pytest.mark.parametrize(
    ("way", "stop"),
    [
        *covering(["a pass", "polling", "saving"], [4, 5, 6, 10]),
        *covering(["a pass in a step", "polling in a step"], [2, 3, 8, 12]),
    ],
)
def test_an_evaluation_with_other_weights_put_in_is_never_what_is_saved(
    join: Join, tmp_path: Path, way: str, stop: int, grace: str
) -> None:
    whole = Averaged(join(ROOT=f"file://{tmp_path}/whole"), way, None).train()
    with pytest.raises(Exit):
        Averaged(join(GRACE_SECONDS=grace), way, stop).train()
    resumed = Averaged(join(), way, None).train()
    for name in ("net", "average"):
        expected, found = getattr(whole, name).state_dict(), getattr(resumed, name).state_dict()
        assert all(torch.equal(expected[key], found[key]) for key in expected)


def test_that_it_waits_for_the_own_weights_is_said_once(join: Join, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Exit):
        Averaged(join(), "polling", 5).train()
    assert capfd.readouterr().err.count("nothing is saved until they are back") == 1


def steps(training: Averaged, after_step: Callable[[int], None], request_after: int = 0) -> None:
    with training.session as session:
        for _ in session.epochs(1):
            for _ in session.loader(samples(), 8):
                if request_after and session.steps_done == request_after:
                    os.kill(os.getpid(), signal.SIGTERM)
                session.step()
                after_step(session.steps_done)


def test_weights_in_the_first_evaluation_between_two_steps_are_not_known_and_wait_for_the_next_batch(
    join: Join, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Averaged(join(GRACE_SECONDS="8"), "", None)

    def evaluate(step: int) -> None:
        for _ in range(3) if step == 2 else ():
            os.kill(os.getpid(), signal.SIGTERM)  # within it: nothing was looked at when the step was done
            perdure.poll(training.session)

    with pytest.raises(Exit):
        steps(training, evaluate)
    said = capfd.readouterr().err
    assert said.count("in the script's first evaluation between two steps, after step 2") == 1
    assert "nearly over" not in said
    assert [one["reason"] for one in entries(tmp_path) if one["kind"] == "Committed"] == ["SIGTERM"]


def test_modes_of_a_run_that_leaves_in_an_evaluation_between_two_steps_are_those_of_the_step(join: Join) -> None:
    left = Averaged(join(GRACE_SECONDS="8"), "", None)
    reached = []

    def evaluate(step: int) -> None:
        left.net.eval()
        perdure.poll(left.session)
        reached.append(step)
        left.net.train()

    with pytest.raises(Exit):
        steps(left, evaluate, request_after=2)
    assert reached == [1, 2]
    again = Averaged(join(), "", None)
    modes = []
    steps(again, lambda _: modes.append(again.net.training))
    assert modes == [True, True]
