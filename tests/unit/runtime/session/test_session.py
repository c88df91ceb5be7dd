"""A session in a world of one, in this process: what it restores, when it saves, how it leaves."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import perdure
from perdure import Fenced, Session, UserError
from perdure.checkpoint import checkpointer
from perdure.errors import StorageError
from perdure.log.reader import Log
from perdure.log.writer import Resume, Writer
from perdure.loop.leaving import Exit, stop_without_step
from perdure.loop.telemetry.own_time import OwnTime, Scheduled
from perdure.store.file import FileStore
from perdure.wire import Env
from perdure.wire.channel import Figures, Watched, read_report
from perdure.wire.report import DeathCost, TrainerPhase
from tests.unit.runtime.checkpoint.test_checkpointer import Unreliable
from tests.unit.runtime.records import entries, kinds, traced
from tests.unit.runtime.session.training import Join, Training, other_draws, samples


@pytest.mark.parametrize("stop", [2, 3, 5, 7])
def test_random_numbers_and_weights_go_on_as_if_nothing_had_happened(
    join: Join, tmp_path_factory: pytest.TempPathFactory, stop: int
) -> None:
    first = Training(join()).left(stop=stop)
    second = Training(join())
    perdure.restore(second.session)
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


class Dies(Exception):
    """As far as a process can within a test."""


def drawn_between(session: Session, *, dies: int = 0, head: bool = False) -> dict[str, Any]:
    """What a script draws behind its first loader and in its second one, or `head`: behind an evaluation above them."""
    drawn: dict[str, Any] = {}
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    session.register(net=net, optimizer=torch.optim.SGD(net.parameters()))
    first, second = (session.loader(samples(16), 8, name=name) for name in ("first", "second"))
    valid = session.loader(samples(9), 4, name="valid")
    with session:
        for epoch in session.epochs(2):
            for _ in valid if head else ():
                torch.rand(1)
            drawn[f"head {epoch}"] = torch.rand(1).item(), *other_draws()
            if head:
                session.save()
            for name, batches in (("first", first), ("second", second)):
                for number, _ in enumerate(batches, batches.batch_index):
                    drawn[f"{name} {epoch}/{number}"] = torch.rand(1).item(), *other_draws()
                    if session.steps_done + 1 == dies:
                        raise Dies
                    session.step()
                drawn[f"behind {name} {epoch}"] = torch.rand(1).item(), *other_draws()
    return drawn


@pytest.mark.parametrize(("dies", "head"), [(7, False), (1, True)])
def test_what_is_drawn_above_the_loop_that_comes_next_is_drawn_again_by_a_run_that_resumes_there(
    join: Join, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, dies: int, *, head: bool
) -> None:
    """Where the commit is that of a loader's first batch, and another loader is over before."""
    random.seed(1)
    np.random.seed(2)
    with Session.from_env(tmp_path_factory.mktemp("straight")) as straight:
        expected = drawn_between(straight, head=head)
    random.seed(1)
    np.random.seed(2)
    with pytest.raises(Dies):
        drawn_between(join(EVERY_STEPS="1"), dies=dies, head=head)
    assert entries(tmp_path)[-1]["step"] == dies - 1
    found = drawn_between(join(), head=head)
    skipped = {"head 1", "behind first 0", "behind second 0"} if dies > 1 else set()  # above a loop that is resumed
    assert {at: drawn for at, drawn in found.items() if at not in skipped} == {
        at: expected[at] for at in found if at not in skipped
    }
    assert "second 1/0" in found


def test_checkpoint_0_changes_nothing(join: Join, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    saved = Training(join())
    hooks = []
    saved.optimizer.register_step_pre_hook(lambda *_: hooks.append(1))
    perdure.restore(saved.session)
    saved.session.save()
    for _ in saved.session.epochs(2):
        next(iter(saved.batches))
        assert entries(tmp_path)[-1]["step"] == 0
        assert (len(saved.optimizer.state), hooks) == (0, [])
        break
    resumed = Training(join(), seed=1)
    resumed.run()
    plain = Training(Session.from_env(tmp_path_factory.mktemp("plain")))
    plain.run()
    plain.session.close()
    assert resumed.weights == plain.weights


def test_the_goal_beats_a_request_in_the_last_step(join: Join, tmp_path: Path) -> None:
    training = Training(join()).run(stop=10)
    assert training.session.steps_done == 10
    assert kinds(tmp_path) == ["Opened", "Committed", "Committed", "Completed"]


def test_an_epoch_that_is_cut_short_is_no_mistake(join: Join) -> None:
    training = Training(join())
    for _ in training.session.epochs(2):
        for number, _ in enumerate(training.batches):
            if number == 2:
                break
            training.session.step()
    assert training.session.steps_done == 4


def test_a_batch_that_is_taken_before_the_loop_is_reported_where_it_is_another_one(
    join: Join, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(stop: int | None = None) -> None:
        training = Training(join())
        with training.session:
            for _ in training.session.epochs(2):
                next(iter(training.batches))
                for _ in training.batches:
                    if stop == training.session.steps_done + 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    training.session.step()

    with pytest.raises(Exit):
        run(stop=2)
    assert "before its loop" not in capfd.readouterr().err
    run()
    assert capfd.readouterr().err.count("'train' is resumed at batch 2, and the script takes a batch before its") == 1


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
    lines = traced(tmp_path)
    used = Counter((line["epoch"], sample) for line in lines for sample in line.get("ids", []))
    assert used == Counter((epoch, sample) for epoch in range(2) for sample in range(40))
    events = [(line["run"], line["event"]) for line in sorted(lines, key=lambda line: line["t"]) if "event" in line]
    assert events == [(1, "resumed"), (1, "request-seen"), (1, "exit"), (2, "resumed"), (2, "completed")]


def test_a_run_that_a_newer_one_has_replaced_writes_nothing_more(join: Join, tmp_path: Path) -> None:
    training = Training(join())
    perdure.restore(training.session)
    newer = Writer(Log(FileStore(tmp_path)), uid="local", run=2)
    assert isinstance(newer.try_open(1, wait_over=True), Resume)
    with pytest.raises(Fenced, match="run 2 has written after it"):
        training.run()
    assert kinds(tmp_path) == ["Opened", "Opened"]


def test_a_script_with_samples_of_its_own_learns_that_they_are_used_up(join: Join) -> None:
    session = join()
    for _ in session.epochs(1):
        for number in session.steps(2):
            session.step(exhausted=number == 1)
            assert perdure.progress(session).exhausted == (number == 1)


def test_a_step_outside_of_a_restored_training_is_a_mistake_that_is_named(join: Join) -> None:
    session = join()
    with pytest.raises(UserError, match="restored"):
        session.step()
    perdure.restore(session)
    with pytest.raises(UserError, match="outside of an epoch"):
        session.step()


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


def reports(reader: int) -> list[Any]:
    return [read_report(line) for line in os.read(reader, 1 << 16).splitlines()]


class Witness(FileStore):
    """A folder that takes the trace only after the ending is reported, and records when it was asked to."""

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
def test_the_ending_is_reported_before_what_can_wait(
    join: Join, tmp_path: Path, pipe: tuple[int, int], stop: int | None
) -> None:
    session = join(TRACE="1", REPORT_FD=str(pipe[1]), EVERY_STEPS="100")
    store = Witness(tmp_path, lambda: session._core.run.reporter.ended)
    session._core.run.store = store
    training = Training(session)
    training.left(stop=stop) if stop else training.run(epochs=1)
    told = [type(report).__name__ for report in reports(pipe[0]) if not isinstance(report, Figures | Watched)]
    assert told[-2:] == ["CommitDone", "Exiting"]
    assert (store.asked[0], store.asked[-1]) == (False, True)
    assert [line["step"] for line in traced(tmp_path) if "ids" in line] == [1, 2, 3, 4, 5][: stop or 5]


def test_the_agent_hears_how_much_is_done_at_each_save_and_how_long_the_script_waited_for_it(
    join: Join, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.loop.telemetry.figures.SEND_SECONDS", math.inf)
    training = Training(join(REPORT_FD=str(pipe[1]), EVERY_STEPS="2", CHECK_SECONDS="0"))
    training.run(epochs=2)
    figures = [report for report in reports(pipe[0]) if isinstance(report, Figures)]
    saving = [one for one in figures if one.phase is TrainerPhase.SAVING]
    assert [one.progress for one in saving] == [0.2, 0.4, 0.6, 0.8]
    assert [(account.run, account.step) for account in saving[0].accounts] == [(1, 2)]
    told = replace(saving[0], accounts=())
    assert told == Figures(TrainerPhase.SAVING, progress=0.2, death_cost=DeathCost.SINCE_COMMIT)
    last = figures[-1]
    assert [(one.run, one.began, one.step) for one in last.accounts] == [(1, 0, 8)]
    assert min(last.accounts[0].productive, last.accounts[0].save, last.accounts[0].data) > 0
    assert (last.phase, last.progress) == (TrainerPhase.TRAINING, 0.8)
    assert min(last.save_stall_seconds or 0, last.required_grace_seconds or 0, last.remaining_seconds or 0) > 0


def test_what_the_script_waits_for_a_batch_counts_as_the_ranks_own_time(join: Join, pipe: tuple[int, int]) -> None:
    """Each look at the clock is a second. A rank with a slow disk was not told from one that waits for others."""
    session = join(REPORT_FD=str(pipe[1]), CHECK_SECONDS="0")
    seconds = itertools.count(0.0)
    own = session._core.run.figures.own_time = OwnTime(now=lambda: next(seconds), counted=lambda _: Scheduled(0.0, 0.0))
    training = Training(session)
    drawn = []
    for _ in session.epochs(1):
        for _ in training.batches:
            session.step()
            drawn.append(own._drawing)
    assert drawn == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_after_the_goal_an_agents_sigterm_does_not_kill_what_the_script_still_does(
    join: Join, pipe: tuple[int, int]
) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    training = Training(join(REPORT_FD=str(pipe[1])))
    for _ in training.session.epochs(1):
        for _ in training.batches:
            training.session.step()
    assert signal.getsignal(signal.SIGTERM) != before[0]
    assert signal.getsignal(signal.SIGINT) == before[1]
    os.kill(os.getpid(), signal.SIGTERM)
    assert perdure.exit_requested(training.session)


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
    perdure.restore(session)
    monkeypatch.setattr(session._core.run, "settings", replace(session._core.run.settings, rank=1))
    stop_without_step(session._core.run)
    assert (ended, kinds(tmp_path)) == ([], ["Opened"])


class Mixing:
    """A collate function with a generator."""

    def __init__(self) -> None:
        self.dice = random.Random(0)  # noqa: S311

    def __call__(self, items: list[Any]) -> Any:
        return items


def test_a_generator_that_a_dataset_or_a_function_keeps_for_itself_is_warned_of_once(
    join: Join, capfd: pytest.CaptureFixture[str]
) -> None:
    session = join()
    dataset, generator = samples(), random.Random(0)  # noqa: S311
    vars(dataset)["noise"] = np.random.default_rng(0)
    for _ in range(2):
        session.loader(dataset, 8, name="noisy")
        session.loader(samples(), 8, name="mixed", collate_fn=Mixing())
    session.on("epoch", lambda _: generator.random())
    said = capfd.readouterr().err
    assert said.count("the dataset has a private random generator, noise: its state is in no checkpoint") == 1
    assert said.count("loader 'mixed': the collate_fn has a private random generator, dice") == 1
    assert said.count("the hook 'epoch' has a private random generator, generator") == 1


def pinned(root: Path) -> list[tuple[int, str, bool]]:
    """Step, pin and whether it is final, of each commit that was pinned."""
    return [(entry["step"], entry["pin"], entry["final"]) for entry in entries(root) if entry.get("pin")]


def train_and_pin(training: Training, at: set[int], *, epochs: int = 2, stop: int | None = None) -> None:
    """Saves under a name where these steps are done, and in the last epoch's body behind its last step."""
    session = training.session
    with session:
        for _ in session.epochs(epochs):
            for _ in training.batches:
                if stop == session.steps_done + 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                session.step()
                if session.steps_done in at:
                    session.save(pin="best")


def test_a_checkpoint_is_pinned_where_it_is_asked_for_and_kept(join: Join, tmp_path: Path) -> None:
    train_and_pin(Training(join(EVERY_STEPS="1", KEEP="1")), {3})
    assert pinned(tmp_path) == [(3, "best", False)]
    assert [(one.step, one.pins) for one in perdure.history(tmp_path)] == [(10, ()), (3, ("best",))]
    assert perdure.load(tmp_path, pin="best").commit.step == 3


def test_the_goals_commit_is_pinned_if_the_last_epochs_body_asks_for_it(join: Join, tmp_path: Path) -> None:
    train_and_pin(Training(join()), {5, 10})
    assert pinned(tmp_path) == [(5, "best", False), (10, "best", True)]


def test_the_last_commit_before_an_exit_is_pinned_if_that_is_where_it_is_asked_for(join: Join, tmp_path: Path) -> None:
    with pytest.raises(Exit):
        train_and_pin(Training(join()), {4}, stop=4)
    assert pinned(tmp_path) == [(4, "best", True)]
    train_and_pin(Training(join(KEEP="1")), set())
    assert [one.step for one in perdure.history(tmp_path)] == [10, 4]


def test_what_is_pinned_behind_the_last_loop_is_saved_before_the_job_is_complete(join: Join, tmp_path: Path) -> None:
    training = Training(join(KEEP="1"))
    with training.session:
        for _ in training.session.epochs(1):
            for _ in training.batches:
                training.session.step()
        training.session.save()
        training.session.save(pin="done")
    assert pinned(tmp_path) == [(5, "done", False)]
    assert kinds(tmp_path) == ["Opened", "Committed", "Committed", "Completed"]
    assert perdure.load(tmp_path, pin="done").commit.step == 5
    assert Training(join()).run(1).draws == []


def test_what_is_saved_already_is_saved_once_more_to_be_pinned(join: Join, tmp_path: Path) -> None:
    Training(join()).left(stop=4)
    training = Training(join())
    perdure.restore(training.session)
    training.session.save(pin="before")
    training.run()
    assert pinned(tmp_path) == [(4, "before", False)]


def test_a_name_that_is_none_is_refused_at_once_and_a_save_that_fails_pins_nothing(
    join: Join, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(join())
    session = training.session
    perdure.restore(session)
    with pytest.raises(UserError, match=r"save\(pin='my best'\): give a name"):
        session.save(pin="my best")
    for _ in session.epochs(1):
        for number, _ in enumerate(training.batches):
            session.step()
            if number == 0:
                session.save(pin="best")
                (tmp_path / "data").write_text("in the way")
            elif number == 1:
                (tmp_path / "data").unlink()
    assert pinned(tmp_path) == []
    assert "training goes on, so nothing is pinned as 'best'" in capsys.readouterr().err


def test_a_script_that_has_changed_goes_on_from_where_the_older_one_was(
    join: Join, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Training(join()).left(stop=4)
    session = join()
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1), nn.Linear(1, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    session.register(model=net, optimizer=optimizer, absent="keep", rename={"net": "model"})
    batches = session.loader(samples(), 8)
    with session:
        for _ in session.epochs(2):
            if session.steps_done == 4:
                assert [value.item() for p in net[:3].parameters() for value in p.flatten()] == first.weights
            for inputs, _ in batches:
                optimizer.zero_grad()
                net(inputs).square().mean().backward()
                optimizer.step()
                session.step()
    assert (
        "not in the checkpoint, so as the script has made it: model.3.weight, model.3.bias" in capsys.readouterr().err
    )
    assert perdure.load(tmp_path)["model"].keys() == net.state_dict().keys()


def test_only_two_words_say_what_becomes_of_what_a_checkpoint_does_not_hold(join: Join) -> None:
    with pytest.raises(UserError, match=r"register\(absent='ignore'\): write absent='keep' or absent='refuse'"):
        join().register(absent="ignore", net=nn.Linear(1, 1))  # type: ignore[arg-type]


def test_a_script_that_asks_for_an_earlier_commit_goes_back_once(
    join: Join, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Training(join(EVERY_EPOCHS="1")).run()
    back = {"resume_from": {"epoch": 1}}
    again = Training(join(back)).left(stop=7)
    assert "goes back to the requested commit" in capsys.readouterr().err
    assert again.draws == first.draws[5:7]
    rest = Training(join(back)).run()
    assert rest.draws == first.draws[7:]
    assert rest.weights == first.weights
    found = [(one.step, one.bypassed) for one in perdure.history(tmp_path)]
    assert found == [(10, False), (7, False), (10, True), (5, False)]
    assert Training(join(back)).run().draws == []


def test_a_training_begins_from_another_ones_commit_and_needs_it_no_more(
    join: Join, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    first = Training(Session.from_env(other))
    first.session.on("epoch", lambda _: first.session.save())
    first.run()
    first.session.close()
    options = {"resume_from": {"uri": str(other), "epoch": 1}}
    begun = Training(join(options)).left(stop=7)
    assert begun.draws == first.draws[5:7]
    shutil.rmtree(other)
    assert [(entry["step"], entry["reason"]) for entry in entries(tmp_path) if entry["kind"] == "Committed"] == [
        (5, f"from file://{other}"),
        (7, "SIGTERM"),
    ]
    rest = Training(join(options)).run()
    assert (rest.draws, rest.weights) == (first.draws[7:], first.weights)


def test_what_comes_from_another_root_is_committed_here_before_it_is_trained_on_whatever_the_store_says(
    join: Join, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "AGAIN_SECONDS", 0.0)
    other = tmp_path_factory.mktemp("other")
    first = Training(Session.from_env(other)).run()
    first.session.close()
    options = {"resume_from": {"uri": str(other)}}
    refused = Unreliable(tmp_path)
    refused.refused, refused.refusals = "data/1/10-", 1000
    training = Training(join(options, RENDEZVOUS_SECONDS="0"))
    training.session._core.run.store = refused
    with pytest.raises(StorageError, match="no route to the store"):
        training.run(3)
    assert (training.draws, kinds(tmp_path)) == ([], ["Opened"])
    refused.refused, refused.refusals = "data/2/10-", 1
    training = Training(join(options))
    training.session._core.run.store = refused
    training.run(3)
    assert [entry["step"] for entry in entries(tmp_path) if entry["kind"] == "Committed"] == [10, 15]


def test_a_commit_that_there_is_not_is_refused_in_words_and_nothing_is_begun(join: Join, tmp_path: Path) -> None:
    Training(join()).run()
    before = kinds(tmp_path)
    with pytest.raises(UserError, match=r"has no commit of epoch 9: there are entry 2 \(step 10, epoch 2\)"):
        Training(join({"resume_from": {"epoch": 9}})).run()
    with pytest.raises(UserError, match="is this training's own root: name a commit of it"):
        join({"resume_from": {"uri": str(tmp_path)}})
    with pytest.raises(UserError, match="nothing was ever trained there"):
        Training(join({"resume_from": {"uri": str(tmp_path / "typo")}})).run()
    assert kinds(tmp_path) == before


def test_above_the_loop_over_numbers_of_steps_a_resumed_epoch_says_where_it_was_left(join: Join) -> None:
    """A script asks there whether it has to begin something with the epoch, a recurrent state say."""
    found = []
    for leave in (6, None):
        with contextlib.suppress(Exit), join() as session:
            session.register(net=nn.Linear(1, 1))
            for epoch in session.epochs(3):
                found.append((epoch, perdure.progress(session).epoch_resumed, perdure.progress(session).batch_index))
                for number in session.steps(4):
                    assert number >= perdure.progress(session).batch_index
                    if leave == session.steps_done + 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
    assert found == [(0, False, 0), (1, False, 0), (1, True, 2), (2, False, 0)]
