"""A save requested while training goes on: made once for each request, and it changes nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from perdure.loop.saving import SaveRequests
from perdure.wire.channel import ask_for_save, read_save_request
from tests.unit.runtime.records import entries
from tests.unit.runtime.session.training import Join, Training


class Asked(Training):
    """One that is asked for a save before it reports some of its steps."""

    def asked(self, file: Path, at: dict[int, str]) -> Training:
        step, session = self.session.step, self.session

        def told(*, exhausted: bool = False) -> None:
            if word := at.get(session.steps_done + 1):
                ask_for_save(file, word)
            step(exhausted=exhausted)

        session.step = told  # type: ignore[method-assign]
        return self.run()


def commits(root: Path) -> list[tuple[int, str]]:
    return [(entry["step"], entry["reason"]) for entry in entries(root) if entry["kind"] == "Committed"]


@pytest.mark.parametrize(
    ("at", "made"),
    [
        ({}, []),
        ({3: "1 1"}, [3]),
        ({3: "1 1", 6: "1 1"}, [3]),
        ({3: "1 1", 6: "1 2"}, [3, 6]),
        ({3: "1 2", 6: "2 1"}, [3, 6]),
    ],
)
def test_each_other_word_is_one_save_and_the_training_is_the_same(
    join: Join, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, at: dict[int, str], made: list[int]
) -> None:
    file = tmp_path_factory.mktemp("agent") / "request.json"
    here = Asked(join(CHECK_SECONDS="0", REQUEST_FILE=str(file)))
    here.asked(file, at)
    assert [step for step, reason in commits(tmp_path) if reason == "asked"] == made
    assert entries(tmp_path)[-1]["kind"] == "Completed"
    assert len(here.draws) == 10


def test_the_losses_and_weights_are_those_of_a_run_without_a_request(
    join: Join, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("agent") / "request.json"
    told = []
    for at in ({}, {2: "1 1", 5: "1 2", 9: "1 3"}):
        root = tmp_path_factory.mktemp("root")
        here = Asked(join(CHECK_SECONDS="0", REQUEST_FILE=str(file), ROOT=root.as_uri()))
        random.seed(4)
        np.random.seed(4)
        here.asked(file, at)
        told.append((here.weights, here.draws, here.begun))
        assert len(commits(root)) == len(at) + 1
    assert told[0] == told[1]


def test_one_that_was_asked_before_its_first_step_saves_after_it(join: Join, tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    ask_for_save(file, "1 1")
    Training(join(CHECK_SECONDS="0", REQUEST_FILE=str(file))).run()
    assert (1, "asked") in commits(tmp_path)


def test_it_is_looked_for_no_more_often_than_ranks_agree(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    often, seldom = SaveRequests(file, 0.0), SaveRequests(file, 3600.0)
    assert (often.look(), seldom.look()) == (0, 0)
    ask_for_save(file, "1 1")
    assert (bool(often.look()), seldom.look()) == (True, 0)
    assert not often.look()


def test_what_all_make_already_is_not_asked_for_again_by_who_hears_of_it_later(tmp_path: Path) -> None:
    first, late = (SaveRequests(tmp_path / name, 0.0) for name in ("first.json", "late.json"))
    ask_for_save(tmp_path / "first.json", "3 1")
    late.agreed(first.look())
    ask_for_save(tmp_path / "late.json", "3 1")
    assert late.look() == 0
    ask_for_save(tmp_path / "late.json", "3 2")
    assert late.look() > 0


@pytest.mark.parametrize("content", [b"", b"\xff\xfe"])
def test_a_file_that_says_nothing_asks_for_nothing(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "request.json"
    ask_for_save(file, "1 1")
    next(tmp_path.glob("request.json.*")).write_bytes(content)
    assert read_save_request(file) == ""
    assert not SaveRequests(file, 0.0).look()
    assert not SaveRequests(None, 0.0).look()
