"""Real agents, real trainers, no cluster: the membership changes while all train, and nothing shows it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.harness import evidence, twin
from e2e.harness.lab import DIGITS
from e2e.harness.local_members import LocalMembers
from perdure.wire import ExitKind
from tests.handover import forking
from tests.handover.judging import NOTHING, drawn, lost, seconds_told, seconds_traced

PACED = Path(__file__).parents[2] / "e2e" / "scenarios" / "trainers" / "paced.py"
SCRIPT = DIGITS / "train.py"
EPOCHS = 4
STEPS = EPOCHS * 24
STALLED = 0.5
"""A busy machine may stop a process so long between two looks at the clock."""
PACE = {"PACE_SECONDS": "0.03", "PACE_HOLD_SECONDS": "1", "PACED_RUNS": "1"}
LONGER = pytest.mark.chaos
LEAVERS = [pytest.param("ab", "ac", id="rank-1-leaves", marks=LONGER), pytest.param("ab", "cb", id="rank-0-leaves")]
SIZES = [
    *(("ab", "abc"), ("abc", "ab")),
    *(pytest.param(old, new, marks=LONGER) for old, new in (("a", "ab"), ("ab", "b"))),
]


@pytest.fixture(scope="module")
def undisturbed() -> twin.Twin:
    return forking.undisturbed([f"--epochs={EPOCHS}"], world=2)


def digits(folder: Path, script: Path = SCRIPT, **environ: str) -> LocalMembers:
    command = [sys.executable, str(PACED), str(script), f"--epochs={EPOCHS}"]
    return forking.members(command, folder, {**PACE, **environ})


@pytest.mark.parametrize(("old", "new"), LEAVERS)
def test_a_newcomer_takes_the_leavers_place_between_two_batches(
    tmp_path: Path, undisturbed: twin.Twin, old: str, new: str
) -> None:
    (leaver,), (newcomer,) = set(old) - set(new), set(new) - set(old)
    with digits(tmp_path) as job:
        job.first_run(*old, beside=newcomer)
        job.trains(1, 10)
        job.moves(old, new, run=1)
        left = job.members[leaver].outcome()
        ended = [job.members[name].outcome() for name in new]
    entries, steps = job.root.entries(), job.root.trace().steps
    assert left.outcome is ExitKind.HANDED_OVER
    assert "waiting for the trainer's end" not in job.members[leaver].said  # it has released everything
    assert [one.outcome for one in ended] == [ExitKind.COMPLETED, ExitKind.COMPLETED]
    stood_still = [record.parts["pause"] for one in ended for record in one.handovers if "pause" in record.parts]
    assert len(stood_still) == 1  # the stayer's: a newcomer has nothing to stop
    assert stood_still[0] > 0
    (stayer,) = (one for one in ended if len(one.accounts) == len("ab"))
    first, second = stayer.accounts
    assert [one.live for one in (first, second)] == [False, True]
    assert (first.step, second.began, second.step) == (second.began, left.step, STEPS)
    assert first.handover + second.handover == pytest.approx(stood_still[0], abs=STALLED)
    assert seconds_told(stayer) == pytest.approx(seconds_traced(stayer, job.root.trace().marks), abs=STALLED)
    assert evidence.took_over(entries, 2)
    assert lost(entries, steps, epochs=EPOCHS) == NOTHING
    assert drawn(member.said for member in job.members.values()) == set()
    assert job.root.weight_hash() == undisturbed.weights


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_the_world_changes_between_two_batches(tmp_path: Path, undisturbed: twin.Twin, old: str, new: str) -> None:
    with digits(tmp_path) as job:
        job.first_run(*old, beside=sorted(set(new) - set(old)))
        job.trains(1, 10)
        job.moves(old, new, run=1)
        ended = [job.members[name].outcome() for name in new]
    entries, steps = job.root.entries(), job.root.trace().steps
    assert {one.outcome for one in ended} == {ExitKind.COMPLETED}
    assert evidence.took_over(entries, 2)
    assert lost(entries, steps, epochs=EPOCHS) == NOTHING
    assert tuple(evidence.batches(entries, steps)) == undisturbed.batches


@pytest.mark.parametrize(("old", "new"), LEAVERS)
def test_a_newcomer_that_gets_no_hand_over_begins_in_place_when_the_older_run_has_ended(
    tmp_path: Path, undisturbed: twin.Twin, old: str, new: str
) -> None:
    (newcomer,) = set(new) - set(old)
    with digits(tmp_path, PERDURE_LIVE="no") as job:
        job.first_run(*old, beside=newcomer)
        job.trains(1, 10)
        job.moves(old, new, run=1)
        ended = [job.members[name].outcome() for name in new]
    entries, steps = job.root.entries(), job.root.trace().steps
    assert [one.outcome for one in ended] == [ExitKind.COMPLETED, ExitKind.COMPLETED]
    assert not evidence.took_over(entries, 2)
    (stayer,) = (one for one in ended if len(one.accounts) == len("ab"))
    assert [(one.live, one.unsaved_steps) for one in stayer.accounts] == [(False, 0), (False, 0)]
    again = replace(stayer, accounts=stayer.accounts[1:])
    assert seconds_told(again) == pytest.approx(seconds_traced(again, job.root.trace().marks), abs=STALLED)
    assert lost(entries, steps, epochs=EPOCHS) == NOTHING
    assert drawn(member.said for member in job.members.values()) == set()
    assert job.root.weight_hash() == undisturbed.weights


@pytest.mark.parametrize(
    "kernel", [pytest.param(kernel, marks=() if kernel == "fused" else LONGER) for kernel in forking.KERNELS]
)
def test_weights_and_moments_of_other_memory_orders_come_back_in_a_run_that_begins_in_place(
    tmp_path: Path, kernel: str
) -> None:
    script = forking.in_other_orders(tmp_path, kernel)
    with digits(tmp_path, script, PERDURE_LIVE="no") as job:
        job.first_run("a", "b", beside="c")
        job.trains(1, 10)
        job.moves("ab", "ac", run=1)
        ended = [job.members[name].outcome() for name in "ac"]
    entries, steps = job.root.entries(), job.root.trace().steps
    assert [one.outcome for one in ended] == [ExitKind.COMPLETED, ExitKind.COMPLETED]
    assert not evidence.took_over(entries, 2)
    assert lost(entries, steps, epochs=EPOCHS) == NOTHING
    assert job.root.weight_hash() == forking.undisturbed([f"--epochs={EPOCHS}"], world=2, script=script).weights
