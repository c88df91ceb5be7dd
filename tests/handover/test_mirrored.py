"""Real agents and trainers of a model that is sharded over all ranks, whose parts are mirrored in another pod: one rank
is killed, stands still or raises an error at each place of a step. At most one finished step is lost.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from e2e.harness import evidence, twin
from e2e.harness.lab import DIGITS
from e2e.harness.local_members import LocalMembers
from perdure.wire import ExitKind
from tests.handover import forking
from tests.handover.test_images import begins, begun_from, ends

HERE = Path(__file__).parent
SCRIPT = HERE / "sharded_digits.py"
ARGUMENTS = ("--epochs=1", "--batch=48")
AT = 6
LONGER = pytest.mark.chaos
PLACES = ("forward", "backward", "gradient", "stepped", "counted")


@pytest.fixture(scope="module")
def undisturbed() -> twin.Twin:
    return forking.undisturbed(ARGUMENTS, world=3, script=SCRIPT)


def mirrored(folder: Path, harm: str = "SIGKILL,9,9,nowhere", every: int = 1, **more: str) -> LocalMembers:
    command = [sys.executable, str(HERE / "harmed_shards.py"), str(SCRIPT), *ARGUMENTS]
    pace = {"PACE_SECONDS": "0.02", "PACED_RUNS": "1", "PACE_RECORDED": "1", "PACE_HOLDS": "99", **more}
    return forking.members(command, folder, {**pace, "HARM": harm, "PERDURE_MIRROR_EVERY_STEPS": str(every)})


def judge(job: LocalMembers, undisturbed: twin.Twin, every: int = 1, lost: int = 1) -> None:
    entries, steps = job.root.entries(), job.root.trace().steps
    begun = begun_from(job, lost + 1)
    assert begun, [member.said for member in job.members.values()]
    assert begun["run"] == lost
    assert evidence.steps_lost(entries, steps) <= 2 * every - 1
    assert job.root.weight_hash() == undisturbed.weights


@pytest.mark.parametrize(
    ("where", "rank"),
    [
        pytest.param(where, rank, marks=() if (where, rank) == ("gradient", 2) else LONGER)
        for where in PLACES
        for rank in (0, 2)
    ],
)
def test_a_rank_that_dies_costs_one_finished_step_at_most(
    tmp_path: Path, undisturbed: twin.Twin, where: str, rank: int
) -> None:
    new = "abc".replace("abc"[rank], "d")
    with mirrored(tmp_path, f"SIGKILL,{rank},{AT},{where}") as job:
        job.first_run(*"abc", beside="d")
        job.members["abc"[rank]].outcome()
        begins(job, 2, new, [1])
        ends(job, new)
    assert "all parts are mirrored: a member that dies costs one finished step at most" in job.members["a"].said
    judge(job, undisturbed)


@LONGER
@pytest.mark.parametrize("every", [2, 3])
def test_with_a_snapshot_every_few_steps_it_costs_less_than_two_of_them(
    tmp_path: Path, undisturbed: twin.Twin, every: int
) -> None:
    with mirrored(tmp_path, f"SIGKILL,1,{AT},stepped", every) as job:
        job.first_run(*"abc", beside="d")
        job.members["b"].outcome()
        begins(job, 2, "adc", [1])
        ends(job, "adc")
    judge(job, undisturbed, every)


@LONGER
@pytest.mark.parametrize("where", PLACES)
def test_so_does_one_whose_script_raises_an_error(tmp_path: Path, undisturbed: twin.Twin, where: str) -> None:
    with mirrored(tmp_path, f"RAISE,1,{AT},{where}") as job:
        job.first_run(*"abc", beside="d")
        assert job.members["b"].outcome().outcome is ExitKind.FAILED
        begins(job, 2, "adc", [1])
        ends(job, "adc")
    judge(job, undisturbed)


@LONGER
@pytest.mark.parametrize("where", PLACES)
def test_one_that_stands_still_and_goes_on_when_the_next_run_trains_changes_nothing(
    tmp_path: Path, undisturbed: twin.Twin, where: str
) -> None:
    with mirrored(tmp_path, f"SIGSTOP,1,{AT},{where}") as job:
        job.first_run(*"abc", beside="d")
        job.waits("it stands still", lambda: f"HARM at {where}" in job.members["b"].said)
        begins(job, 2, "adc", [1])
        job.waits("run 2 is open", lambda: any(entry.run == 2 for entry in job.root.entries()))
        process = int(re.findall(r"HARM at \w+: process (\d+)", job.members["b"].said)[0])
        os.kill(process, signal.SIGCONT)
        ends(job, "adc")
    judge(job, undisturbed)


def test_after_a_live_hand_over_the_new_rank_is_mirrored_and_mirrors_too(
    tmp_path: Path, undisturbed: twin.Twin
) -> None:
    with mirrored(tmp_path, PACE_SECONDS="0.15", PACED_RUNS="2") as job:
        job.first_run(*"abc", beside="de")
        job.trains(1, 4)
        job.moves("abc", "adc", run=1)
        job.trains(2, 4)
        job.kill("a")  # its part is at the new one
        begins(job, 3, "edc", [2])
        ends(job, "edc")
    judge(job, undisturbed, lost=2)


@LONGER
def test_members_that_do_not_all_mirror_train_without(tmp_path: Path, undisturbed: twin.Twin) -> None:
    """As after a rollback of the operator: it creates a replacement without the variable."""
    with mirrored(tmp_path) as job:
        started = [job.standby("a"), job.standby("b")]
        job.environ = {name: value for name, value in job.environ.items() if name != "PERDURE_MIRROR_EVERY_STEPS"}
        started.append(job.standby("c"))
        job.waits("all members are warm", lambda: all(member.warm for member in started))
        job.begins(1, "abc")
        ends(job, "abc")
        assert "nothing is mirrored: another rank cannot leave images, or has no" in job.members["a"].said
    assert job.root.weight_hash() == undisturbed.weights


@LONGER
def test_of_a_whole_model_nothing_is_mirrored_and_that_is_said(tmp_path: Path) -> None:
    command = [sys.executable, str(DIGITS / "train.py"), *ARGUMENTS]
    with forking.members(command, tmp_path, {"PERDURE_MIRROR_EVERY_STEPS": "1"}) as job:
        job.first_run("a", "b")
        assert {job.members[name].outcome().outcome for name in "ab"} == {ExitKind.COMPLETED}
        assert "nothing is mirrored: each rank's state is on another rank, too" in job.members["a"].said


def test_two_that_die_at_once_cost_the_steps_since_the_commit(tmp_path: Path) -> None:
    """A part and its mirror are gone."""
    with mirrored(tmp_path, f"SIGKILL,1,{AT},gradient") as job:
        job.first_run(*"abc", beside="de")
        job.members["b"].outcome()
        job.kill("c")  # it mirrors the part of the first
        begins(job, 2, "ade", [1])
        ends(job, "ade")
    assert not begun_from(job, 2)
    assert evidence.steps_lost(job.root.entries(), job.root.trace().steps) == AT
