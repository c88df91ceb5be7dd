"""The life of a job: where it is complete, which exits are a break, and one loop after the other."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import perdure
from perdure import Session, UserError
from perdure.loop.data.loader import Loader
from perdure.loop.leaving import Exit
from tests.unit.runtime.records import entries, kinds
from tests.unit.runtime.session.training import Join, Training

Step = Callable[[int], None]


def numbers(session: Session) -> Loader:
    """Two batches an epoch."""
    return session.loader(TensorDataset(torch.arange(8)), 4, name="a")


def train(session: Session, count: int, *, batches: Any, then: Step = lambda _: None) -> list[int]:
    """`count` epochs, `then` after each step; which epochs there were."""
    seen = []
    for epoch in session.epochs(count):
        seen.append(epoch)
        for _ in batches:
            session.step()
            then(session.steps_done)
    return seen


def test_a_job_is_complete_where_with_is_left_and_no_sooner(join: Join, tmp_path: Path) -> None:
    with Training(join()).session as session:
        train(session, 1, batches=numbers(session))
        assert kinds(tmp_path) == ["Opened", "Committed"]
        assert entries(tmp_path)[-1]["final"]
    assert kinds(tmp_path) == ["Opened", "Committed", "Completed"]
    assert entries(tmp_path)[-1]["goal"]["epochs"] == 1


def trained_and_exported(session: Session, export: Callable[[], Any]) -> None:
    with session:
        train(session, 1, batches=numbers(session))
        export()


@pytest.mark.parametrize("error", [ValueError("no room for the export"), SystemExit(3), KeyboardInterrupt()])
def test_an_export_that_fails_completes_nothing_and_is_repeated_alone(
    join: Join, tmp_path: Path, error: BaseException
) -> None:
    def export() -> None:
        raise error

    with pytest.raises(type(error)):
        trained_and_exported(Training(join()).session, export)
    assert kinds(tmp_path) == ["Opened", "Committed"]
    with Training(join()).session as session:
        assert train(session, 1, batches=()) == []
    assert kinds(tmp_path) == ["Opened", "Committed", "Opened", "Completed"]


def test_a_script_that_exits_with_0_is_done(join: Join, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        trained_and_exported(Training(join()).session, lambda: sys.exit(0))
    assert kinds(tmp_path)[-1] == "Completed"


def through(loop: Iterable[int]) -> Iterator[int]:
    """As a progress bar does it."""
    try:
        yield from loop
    finally:
        pass


def by_break(loop: Iterable[int], step: Step) -> None:
    for epoch in loop:
        step(epoch)
        if epoch == 1:
            break


def by_return(loop: Iterable[int], step: Step) -> None:
    for epoch in loop:
        step(epoch)
        if epoch == 1:
            return


def by_break_of_a_bar(loop: Iterable[int], step: Step) -> None:
    for number, epoch in enumerate(through(loop)):
        with contextlib.suppress(KeyError):
            step(epoch)
            if number == 1:
                break


def by_break_of_a_kept_iterator(loop: Iterable[int], step: Step) -> None:
    KEPT.append(loop)
    for epoch in loop:
        step(epoch)
        if epoch == 1:
            break


KEPT: list[Iterable[int]] = []


@pytest.mark.parametrize("leave", [by_break, by_return, by_break_of_a_bar, by_break_of_a_kept_iterator])
def test_a_break_counts_its_epoch_and_completes_the_job(
    join: Join, tmp_path: Path, leave: Callable[[Iterable[int], Step], None]
) -> None:
    with Training(join()).session as session:
        batches = numbers(session)

        def step(_: int) -> None:
            for _ in batches:
                session.step()

        leave(session.epochs(5), step)
    KEPT.clear()
    committed, completed = entries(tmp_path)[-2:]
    assert (committed["epoch"], committed["step"], committed["final"]) == (2, 4, True)
    assert (completed["kind"], completed["goal"]) == ("Completed", {"epochs": 5, "stop": ["break"]})
    with Training(join()).session as session:
        assert train(session, 5, batches=()) == []
    assert kinds(tmp_path)[-1] == "Completed"
    with Training(join()).session as session:
        assert train(session, 6, batches=numbers(session)) == [2, 3, 4, 5]


def raising(session: Session) -> None:
    for _ in session.epochs(5):
        for _ in numbers(session):
            session.step()
        raise KeyError("label")


def calling(session: Session) -> None:
    for _ in session.epochs(5):
        for _ in numbers(session):
            session.step()
        int("label")


@pytest.mark.parametrize("script", [raising, calling])
def test_an_exception_is_no_break_also_one_that_is_caught(
    join: Join, tmp_path: Path, script: Callable[[Session], None]
) -> None:
    with Training(join()).session as session:
        with contextlib.suppress(KeyError, ValueError):
            script(session)
        with pytest.raises(UserError, match="an error has left the epoch loop"):
            script(session)
    assert kinds(tmp_path) == ["Opened"]


def test_a_break_for_a_request_is_the_requests_exit(
    join: Join, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="perdure")
    with Training(join()).session as session:
        for _ in session.epochs(5):
            for _ in numbers(session):
                session.step()
            os.kill(os.getpid(), signal.SIGTERM)
            if perdure.exit_requested(session):
                break
        with pytest.raises(Exit):
            next(iter(session.epochs(3)))
    last = entries(tmp_path)[-1]
    assert (last["kind"], last["final"], last["reason"], last["epoch"]) == ("Committed", True, "SIGTERM", 0)
    assert "has left its epoch loop at step 2 while it was asked to leave: the epoch is not counted" in caplog.text


def test_a_break_that_a_request_happens_upon_counts_and_its_epochs_body_is_not_done_again(
    join: Join, tmp_path: Path
) -> None:
    """What the body does after its batches, a scheduler's step say, would be done twice."""
    bodies = []
    for ask in (True, False):
        with contextlib.suppress(Exit), Training(join()).session as session:
            for _ in session.epochs(5):
                for _ in numbers(session):
                    session.step()
                session.state["bodies"] = session.state.get("bodies", 0) + 1
                if ask:
                    os.kill(os.getpid(), signal.SIGTERM)
                break
            for _ in session.epochs(1):
                for _ in numbers(session):
                    session.step()
            bodies.append(session.state["bodies"])
    assert bodies == [1]


def test_a_second_loop_is_a_phase_of_its_own(join: Join, tmp_path: Path) -> None:
    with Training(join()).session as session:
        batches = numbers(session)
        assert train(session, 2, batches=batches) == [0, 1]
        assert train(session, 1, batches=batches) == [0]
        assert perdure.progress(session).finished_epochs == 3
    assert [(entry.get("final"), entry["step"]) for entry in entries(tmp_path)[1:-1]] == [
        (True, 4),
        (False, 4),
        (True, 6),
    ]
    with Training(join()).session as session:
        batches = numbers(session)
        assert train(session, 2, batches=batches) == []
        assert train(session, 3, batches=batches) == [1, 2]


def test_a_request_in_a_second_loop_is_heard(join: Join, tmp_path: Path) -> None:
    def request(step: int) -> None:
        if step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    def script(session: Session) -> None:
        with session:
            batches = numbers(session)
            train(session, 2, batches=batches)
            train(session, 2, batches=batches, then=request)

    with pytest.raises(Exit):
        script(Training(join()).session)
    last = entries(tmp_path)[-1]
    assert (last["step"], last["final"], last["cursors"]["epochs"]["loop"]) == (6, True, 1)


def test_a_script_that_only_evaluates_completes_nothing_and_says_so(
    join: Join, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Training(join()).session as session:
        perdure.restore(session)
    assert kinds(tmp_path) == ["Opened", "Closed"]
    assert "nothing is completed" in capfd.readouterr().err


def test_a_resumed_run_names_the_epoch_that_it_begins_with_and_what_it_skips(
    join: Join, capfd: pytest.CaptureFixture[str]
) -> None:
    def said() -> list[str]:
        return re.findall(r"begins with .*", capfd.readouterr().err)

    Training(join()).left(stop=3)
    assert said() == []
    Training(join()).left(stop=5)
    assert said() == ["begins with epoch 0, in its middle"]
    Training(join()).left(stop=8)
    assert said() == ["begins with epoch 1; skips epoch 0"]
    Training(join()).left(epochs=4, stop=18)
    assert said() == ["begins with epoch 1, in its middle; skips epoch 0"]
    Training(join()).run(4)
    assert said() == ["begins with epoch 3, in its middle; skips epochs 0 to 2"]


@pytest.mark.parametrize(
    ("loops", "said"),
    [
        (
            lambda session: [session.epochs(count) for count in (1, 1, 2)],
            [
                [],
                ["begins with epoch 0, in its middle"],
                ["begins with epoch 0 of loop 3, in its middle; skips loops 1 to 2"],
                ["begins with epoch 1 of loop 3, in its middle; skips epoch 0 and loops 1 to 2"],
            ],
        ),
        (
            lambda _: [perdure.remaining_epochs_until(count) for count in (1, 2, 4)],
            [
                [],
                ["begins with epoch 0, in its middle"],
                ["begins with epoch 2, in its middle; skips epochs 0 to 1"],
                ["begins with epoch 3, in its middle; skips epochs 0 to 2"],
            ],
        ),
    ],
    ids=["each with its own numbers", "with the numbers of all"],
)
def test_of_several_loops_it_names_the_one_that_it_begins_with(
    join: Join,
    capfd: pytest.CaptureFixture[str],
    loops: Callable[[Session], list[Iterable[int]]],
    said: list[list[str]],
) -> None:
    told = []
    for stop in (2, 7, 10, 0):  # not in the first step: a process without one ends at once, and pytest with it
        with contextlib.suppress(Exit), Training(join()).session as session:
            batches = session.loader(TensorDataset(torch.arange(12)), 4, name="a")  # three batches an epoch
            for _ in itertools.chain.from_iterable(loops(session)):
                for _ in batches:
                    if session.steps_done + 1 == stop:
                        os.kill(os.getpid(), signal.SIGTERM)
                    session.step()
        told.append(re.findall(r"begins with .*", capfd.readouterr().err))
    assert told == said


def test_what_a_run_starts_from_is_said(join: Join, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def said() -> str:
        return capfd.readouterr().err

    root = f"{tmp_path.as_uri()}"
    Training(join()).left(stop=3)
    assert f"starting fresh at {root}, step 0" in said()
    with contextlib.suppress(ZeroDivisionError), Training(join()).session as session:
        perdure.restore(session)
        assert re.search(rf"resumed from commit 2, step 3, made 20\S+ by 1 rank, at {root}\n", said())
        raise ZeroDivisionError
    Training(join()).run()
    assert "already complete" not in said()
    Training(join()).run()
    assert f"already complete at {root}, step 10" in said()
