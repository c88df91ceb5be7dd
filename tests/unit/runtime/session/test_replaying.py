"""Which code a resumed run runs again: hooks, the first batch of a second loader, what stands behind the last loop."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import perdure
from perdure import Session, UserError, load
from perdure.loop.leaving import Exit
from tests.unit.runtime.records import entries
from tests.unit.runtime.session.training import Join, Training, samples


class Crash(Exception):
    """The process is gone."""


def leave(*, when: bool) -> None:
    if when:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_sum_in_the_first_batch_that_a_loader_is_ever_trained_on_is_not_read_again_behind_it(join: Join) -> None:
    def script(stop: int | None) -> list[dict[str, float]]:
        session = Training(join(), loader=None).session
        first, second = (session.loader(samples(16), 8, name=name) for name in ("first", "second"))
        seen, read = perdure.accumulator(session, "seen"), []
        with session:
            for _ in session.epochs(2):
                seen.add(above=1)
                for _ in first:
                    session.step()
                read.append(seen.sum())
                for number, _ in enumerate(second, second.batch_index):
                    seen.add({f"batch {number}": 1})
                    if number == 0:
                        read.append(seen.sum())
                    leave(when=session.steps_done + 1 == stop)
                    session.step()
                read.append(seen.sum())
        return read

    with pytest.raises(Exit):
        script(stop=3)
    assert script(stop=None) == [
        *({"above": 1}, {"batch 1": 1}),
        *({"above": 1}, {"batch 0": 1}, {"batch 1": 1}),
    ]


@pytest.mark.parametrize("hook", ["committed", "resumed", "leaving", "reported"])
def test_nothing_is_read_in_a_hook_that_a_resumed_run_calls_elsewhere(join: Join, hook: str) -> None:
    refused: list[str] = []

    def script(stop: int | None) -> list[dict[str, float]]:
        session = Training(join(EVERY_EPOCHS="1"), loader=None).session
        batches, seen, read = session.loader(samples(16), 8), perdure.accumulator(session, "seen"), []

        def act(*_: Any) -> None:
            with pytest.raises(UserError, match=f"within the hook '{hook}': .*: read it in an epoch") as error:
                seen.sum()
            refused.append(str(error.value))

        session.on(hook, act)
        with session:
            for _ in session.epochs(2):
                for _, ids in batches:
                    seen.add(n=len(ids))
                    perdure.report(session, n=1)
                    leave(when=session.steps_done + 1 == stop)
                    session.step()
                read.append(seen.sum())
        return read

    with pytest.raises(Exit):
        script(stop=3)
    assert script(stop=None) == [{"n": 16}]
    assert refused


def evaluating_in_init(session: Session, stop: int | None) -> list[tuple[str, dict[str, float]]]:
    """Evaluates in its hook, and before its first loop; asked to leave there behind sample `stop`."""
    Training(session, loader=None)
    valid, seen = session.loader(samples(12), 4, name="valid", train=False), perdure.accumulator(session, "seen")
    read: list[tuple[str, dict[str, float]]] = []

    def evaluate(name: str) -> None:
        for _, ids in valid:
            seen.add(n=len(ids), **{name: 1})
            leave(when=name == "before" and stop in ids.tolist())
        read.append((name, seen.sum()))

    session.on("init", lambda: evaluate("init"))
    with session:
        perdure.restore(session)
        evaluate("before")
        for _ in session.epochs(1):
            for _ in session.steps(2):
                session.step()
    return read


def test_an_evaluation_in_init_is_no_pass_that_a_resumed_run_leaves_out_or_reads_again(join: Join) -> None:
    with pytest.raises(Exit):
        evaluating_in_init(join(), stop=7)
    assert evaluating_in_init(join(), stop=None) == [("before", {"before": 3, "n": 12})]


def test_nothing_is_saved_in_the_middle_of_init(join: Join, tmp_path: Path) -> None:
    session = join()
    Training(session, loader=None)
    begun: list[Any] = []

    def init() -> None:
        session.save()
        for _ in session.loader(samples(12), 4, name="valid", train=False):
            perdure.poll(session)
        begun.append([entry["kind"] for entry in entries(tmp_path)])

    session.on("init", init)
    perdure.restore(session)
    assert begun == [["Opened"]], "the next run resumes from what is saved, and calls no init"


@pytest.mark.parametrize("behind", [False, True])
def test_a_pin_behind_the_last_evaluation_is_made(join: Join, tmp_path: Path, *, behind: bool) -> None:
    training = Training(join())
    valid = training.session.loader(samples(8), 4, name="valid", train=False)
    with training.session as session:
        for _ in session.epochs(1):
            for _ in training.batches:
                session.step()
        for _, ids in valid:
            if not behind and ids[0] == 4:
                session.save(pin="best")
        if behind:
            session.save(pin="best")
    assert load(tmp_path, pin="best").commit.step == 5
    assert entries(tmp_path)[-1]["kind"] == "Completed"


def test_random_numbers_behind_the_last_loop_are_drawn_again(join: Join) -> None:
    drawn: list[float] = []

    def script(*, crash: bool) -> None:
        training = Training(join())
        valid = training.session.loader(samples(8), 4, name="valid", train=False)
        with training.session as session:
            for _ in session.epochs(1):
                for _ in training.batches:
                    session.step()
            drawn.append(torch.rand(1).item())
            for _ in valid:
                drawn.append(torch.rand(1).item())
                if crash:
                    raise Crash

    with pytest.raises(Crash):
        script(crash=True)
    once = drawn.copy()
    script(crash=False)
    assert drawn[2:4] == once


def test_a_loader_that_was_looked_at_before_is_trained_on_in_several_loops(join: Join) -> None:
    session = Training(join(), loader=None).session
    first, second = (session.loader(samples(16), 4, name=name) for name in ("first", "second"))
    trained: list[int] = []
    with session:
        for _ in session.epochs(1):
            assert len(list(second)) == 4
            for _ in first:
                session.step()
            for number in range(2):
                for _, ids in second:
                    trained += ids.tolist()
                    session.step()
                    if number == 0:
                        break
    assert sorted(trained) == list(range(16))
