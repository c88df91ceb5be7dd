"""What status showed, against traces: a step before it was done, a stale one, a commit that was not there."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from e2e.harness import reported
from e2e.harness.watching import Seen
from tests.unit.e2e.harness.builders import Training

TRAINED = Training().opened(1).trained(1, 1, 3).committed(1, 3).passed(50).trained(1, 4, 40)
"""Step 3 is done at 1003, step 4 at 1054, step 40 at 1090. Every entry is of 1000."""


def time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def seen(**status: Any) -> Seen:
    return Seen(0.0, "MODIFIED", {"kind": "TrainingJob", "metadata": {"name": "digits", "uid": "u"}, "status": status})


def progress(step: int, at: float, run: int = 1) -> Seen:
    return seen(progress={"run": run, "step": step, "observedAt": time(at)})


def saved(step: int, at: float) -> Seen:
    return seen(lastSave={"step": step, "time": time(at), "observedAt": time(at)})


def progressing(status: str, at: float) -> Seen:
    return seen(conditions=[{"type": "Progressing", "status": status, "lastTransitionTime": time(at)}])


TOLD = progress(3, 1003)
"""What was so."""


@pytest.mark.parametrize(
    "shown",
    [
        [progress(3, 1003), progress(3, 1050), progress(40, 1090)],
        [progress(10, 1090)],
        [progress(4, 1053.5)],
        [saved(3, 1000)],
        [progressing("False", 1050), progressing("True", 1055)],
        [seen(), seen(phase="Running")],
    ],
    ids=["steps", "half-a-minute-late", "a-time-that-is-cut", "a-save", "it-stands", "nothing-shown"],
)
def test_what_was_so_is_no_contradiction(shown: list[Seen]) -> None:
    assert reported.untrue([TOLD, *shown], TRAINED.entries, TRAINED.trace) == []


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (progress(4, 1050), "progress says step 4 of run 1 at .*, and rank 0 had done 3, 3 of them 30 s before"),
        (progress(3, 1090), "rank 0 had done 40, 10 of them"),
        (progress(3, 1003, run=0), "step 3 of run 0 .* had done 0, 0 of"),
        (saved(3, 998), "lastSave says step 3 .* had no such commit"),
        (saved(4, 1090), "lastSave says step 4"),
        (progressing("False", 1060), "Progressing became False within 10 s after step 10 was done"),
    ],
    ids=["early", "stale", "of-another-run", "a-save-before-its-commit", "no-such-save", "it-goes-on"],
)
def test_what_was_not_so_is_named_once(shown: Seen, words: str) -> None:
    (line,) = reported.untrue([TOLD, shown, shown], TRAINED.entries, TRAINED.trace)
    assert re.search(words, line), line


@pytest.mark.parametrize(
    "shown", [[], [seen(phase="Running")], [saved(3, 1000)]], ids=["nothing", "no progress", "a save alone"]
)
def test_a_training_of_more_than_a_minute_of_which_status_showed_no_step_is_no_evidence(shown: list[Seen]) -> None:
    (line,) = reported.untrue(shown, TRAINED.entries, TRAINED.trace)
    assert line == "rank 0 of run 1 trained for 89 s, and no status had a step of it: did it report?"
    assert reported.untrue(shown, TRAINED.entries, TRAINED.trace, reports=False) == []


@pytest.mark.parametrize(
    "trained",
    [
        Training(),
        Training().opened(1).trained(1, 1, 61),
        Training().opened(1).trained(1, 1, 50).passed(60).opened(2, resumes=1).trained(2, 51, 100),
        Training().opened(1).trained(1, 1, 50).without(1, 0, 50).passed(60).trained(1, 51, 51).without(1, 0, 51),
    ],
    ids=["none", "a minute", "two runs", "another rank"],
)
def test_of_a_training_that_was_over_in_a_minute_nothing_need_be_heard(trained: Training) -> None:
    assert reported.untrue([seen()], trained.entries, trained.trace) == []


def test_steps_that_status_showed_are_told_once_each() -> None:
    assert reported.shown([seen(), progress(3, 1003), progress(3, 1050), progress(4, 1060)]) == [3, 4]
