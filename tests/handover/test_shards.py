"""Real agents and trainers of a model whose two shards two ranks hold each: one rank is killed, stands still or raises
an error at each place of a step. The others leave images of one step, of which no shard is missing, and no finished
step is lost.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.harness import evidence, twin
from e2e.harness.local_members import LocalMembers
from perdure.wire import ExitKind, Outcome, Rescue
from tests.handover import forking
from tests.handover.test_images import begins, begun_from, ends

HERE = Path(__file__).parent
SCRIPT = HERE / "sharded_digits.py"
ARGUMENTS = ("--epochs=1", "--batch=64", "--shards=2")
AT = 6
LONGER = pytest.mark.chaos
PLACES = ("forward", "backward", "gradient", "meeting", "met", "stepped", "counted")
PASSED = ("met", "stepped", "counted")
"""Where another rank may have the step behind it."""
IN_SHORT = {("gradient", 3), ("backward", 0)}
CASES = [
    pytest.param(where, rank, id=f"{where}-{rank}", marks=() if (where, rank) in IN_SHORT else LONGER)
    for where in PLACES
    for rank in (0, 3)
]


@pytest.fixture(scope="module")
def undisturbed() -> twin.Twin:
    return forking.undisturbed(ARGUMENTS, world=4, script=SCRIPT)


def hsdp(folder: Path, harm: str, *more: str, **environ: str) -> LocalMembers:
    command = [sys.executable, str(HERE / "harmed_shards.py"), str(SCRIPT), *ARGUMENTS, *more]
    pace = {"PACE_SECONDS": "0.02", "PACED_RUNS": "1", "PACE_RECORDED": "1", "PACE_HOLDS": "99", **environ}
    return forking.members(command, folder, {**pace, "HARM": harm})


def judge(job: LocalMembers, where: str, ended: Sequence[Outcome], undisturbed: twin.Twin) -> None:
    step = loses_nothing(job, ended, undisturbed, lost=1)
    assert step in ((AT + 1,) if where in PASSED else (AT, AT + 1))


def loses_nothing(job: LocalMembers, ended: Sequence[Outcome], undisturbed: twin.Twin, *, lost: int) -> int:
    """The step from which the run behind the lost one has begun."""
    begun = begun_from(job, lost + 1)
    assert begun, [member.said for member in job.members.values()]
    assert begun["run"] == lost
    assert {one.rescue for one in ended} == {Rescue(lost + 1, begun["step"], lost)}
    assert evidence.steps_lost(job.root.entries(), job.root.trace().steps) == 0
    assert job.root.weight_hash() == undisturbed.weights
    return int(begun["step"])


def loses(folder: Path, undisturbed: twin.Twin, harm: str, rank: int, where: str) -> Outcome:
    """One rank ends in this way and place, and another one takes its place in the next run; what the lost one's agent
    said of it."""
    lost = "abcd"[rank]
    new = "abcd".replace(lost, "e")
    with hsdp(folder, f"{harm},{rank},{AT},{where}") as job:
        job.first_run(*"abcd", beside="e")
        outcome = job.members[lost].outcome()
        begins(job, 2, new, [1])
        ended = ends(job, new)
    judge(job, where, ended, undisturbed)
    return outcome


@pytest.mark.parametrize(("where", "rank"), CASES)
def test_a_rank_of_a_sharded_model_that_dies_costs_no_finished_step(
    tmp_path: Path, undisturbed: twin.Twin, where: str, rank: int
) -> None:
    loses(tmp_path, undisturbed, "SIGKILL", rank, where)


@LONGER
@pytest.mark.parametrize(("where", "rank"), [(where, rank) for where in PLACES for rank in (0, 3)])
def test_nor_does_one_whose_script_raises_an_error(
    tmp_path: Path, undisturbed: twin.Twin, where: str, rank: int
) -> None:
    assert loses(tmp_path, undisturbed, "RAISE", rank, where).outcome is ExitKind.FAILED


@LONGER
@pytest.mark.parametrize(("where", "rank"), [(where, rank) for where in PLACES for rank in (0, 3)])
def test_nor_does_one_that_stands_still_and_goes_on_when_the_next_run_trains(
    tmp_path: Path, undisturbed: twin.Twin, where: str, rank: int
) -> None:
    frozen = "abcd"[rank]
    new = "abcd".replace(frozen, "e")
    with hsdp(tmp_path, f"SIGSTOP,{rank},{AT},{where}") as job:
        job.first_run(*"abcd", beside="e")
        job.waits("it stands still", lambda: f"HARM at {where}" in job.members[frozen].said)
        begins(job, 2, new, [1])
        job.waits("run 2 is open", lambda: any(entry.run == 2 for entry in job.root.entries()))
        process = int(re.findall(r"HARM at \w+: process (\d+)", job.members[frozen].said)[0])
        os.kill(process, signal.SIGCONT)
        ended = ends(job, new)
    judge(job, where, ended, undisturbed)


@LONGER
@pytest.mark.parametrize(
    ("old", "new", "dies"), [("abcd", "abce", "a"), ("abcd", "ebcd", "e"), ("ab", "aefb", "a"), ("abcdef", "abef", "f")]
)
def test_one_that_dies_after_a_live_hand_over_costs_no_finished_step(
    tmp_path: Path, undisturbed: twin.Twin, old: str, new: str, dies: str
) -> None:
    """One that was there before, or one that has come with it: those that are left hold what it did."""
    with hsdp(tmp_path, "SIGKILL,9,9,nowhere", PACE_SECONDS="0.15", PACED_RUNS="2") as job:
        job.first_run(*old, beside=sorted({*new, "g"} - set(old)))
        job.trains(1, 4)
        job.moves(old, new, run=1)
        job.trains(2, 4)
        job.kill(dies)
        after = new.replace(dies, "g")
        begins(job, 3, after, [2])
        ended = ends(job, after)
    assert evidence.took_over(job.root.entries(), 2)
    if len(old) == len(new):
        loses_nothing(job, ended, undisturbed, lost=2)
        return
    assert begun_from(job, 3)["run"] == 2
    assert evidence.steps_lost(job.root.entries(), job.root.trace().steps) == 0


@LONGER
def test_one_that_dies_between_the_two_optimizers_of_a_step_costs_the_steps_since_the_commit_and_that_is_said(
    tmp_path: Path,
) -> None:
    """Nobody can finish the second backward pass without it, and the first optimizer has changed the place before."""
    with hsdp(tmp_path, f"SIGKILL,3,{AT},stepped", "--twice", PERDURE_EVERY_STEPS="4") as job:
        job.first_run(*"abcd", beside="e")
        job.members["d"].outcome()
        begins(job, 2, "abce", [1])
        ended = ends(job, "abce")
    said = job.members["a"].said
    assert said.count("two optimizers of a step: if one dies there, the newest commit counts") == 2  # in each run
    assert said.index("two optimizers of a step") < said.index(f"PACE run 1: {AT} steps")
    assert "leaves no image: it is in the middle of a step" in said
    assert {one.rescue for one in ended} == {None}
    entries = job.root.entries()
    first, second = (entry for entry in entries if entry.kind == "Opened")
    commits = {entry.seq: entry.body["step"] for entry in entries if entry.kind == "Committed" and entry.run == 1}
    assert (second.body["resumes"] or first.seq) == max(commits, default=first.seq)
    assert evidence.steps_lost(entries, job.root.trace().steps) == AT - max(commits.values(), default=0)
    alone = forking.undisturbed((*ARGUMENTS, "--twice"), world=4, script=SCRIPT)
    assert job.root.weight_hash() == alone.weights
