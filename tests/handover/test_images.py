"""Real agents, real trainers, no cluster: members die in the middle of training, and no finished step is lost."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from e2e.harness import evidence, twin
from e2e.harness.lab import DIGITS
from e2e.harness.local_members import LocalMember, LocalMembers
from e2e.harness.local_run import free_port
from perdure.wire import ExitKind, Leave, Outcome, Rescue, Train
from tests.handover import forking
from tests.handover.judging import drawn

REPOSITORY = Path(__file__).parents[2]
TRAINERS = REPOSITORY / "e2e" / "scenarios" / "trainers"
SCRIPT = DIGITS / "train.py"
EPOCHS = 2
STEPS = EPOCHS * 24
KILLED_AT = 12
LONGER = pytest.mark.chaos
PACE = {"PACE_SECONDS": "0.03", "PACED_RUNS": "1"}
PACE |= {"PACE_HOLDS": str(KILLED_AT + 2), "PACE_HOLD_SECONDS": "1.5"}
"""A trainer asked for an image while it rests between two steps has 4 s to finish the rest."""
MOVED_TWICE = {"PACE_SECONDS": "0.8", "PACE_HOLDS": "4", "PACE_HOLD_SECONDS": "2", "PACED_RUNS": "3"}


def arguments(world: int) -> list[str]:
    """With three, batches that all share equally: else each draws other numbers, and those of a lost rank are gone."""
    return [f"--epochs={EPOCHS}", *(["--deterministic", "--batch=48"] if world > 2 else [])]


@pytest.fixture(scope="module")
def two() -> twin.Twin:
    return forking.undisturbed(arguments(2), world=2)


@pytest.fixture(scope="module")
def one() -> twin.Twin:
    return forking.undisturbed(arguments(1), world=1)


@pytest.fixture(scope="module")
def three() -> twin.Twin:
    return forking.undisturbed(arguments(3), world=3)


def digits(
    folder: Path,
    *,
    world: int = 2,
    dies: str = "",
    script: str = "",
    pace: Mapping[str, str] = PACE,
    trains: Path = SCRIPT,
) -> LocalMembers:
    script = script or ("dying.py" if dies else "paced.py")
    command = [sys.executable, str(TRAINERS / script), str(trains), *arguments(world)]
    return forking.members(command, folder, {**PACE, **pace, "DIES": dies})


def begins(job: LocalMembers, run: int, members: Sequence[str], lost: Sequence[int]) -> None:
    """As the operator does once a replacement is warm."""
    master = f"127.0.0.1:{free_port()}"
    for rank, name in job.ranked(members):
        job.members[name].assign(Train(run, rank, job.world(members), master, "member lost", 60, 75, lost=tuple(lost)))


def ends(job: LocalMembers, members: Sequence[str]) -> list[Outcome]:
    ended = [job.members[name].outcome() for name in members]
    assert {one.outcome for one in ended} == {ExitKind.COMPLETED}
    assert drawn((member.said for member in job.members.values()), lost=True) == set()
    return ended


def begun_from(job: LocalMembers, run: int) -> Any:
    """The image, as the log has it."""
    return next(entry.body.get("image") for entry in job.root.entries() if (entry.kind, entry.run) == ("Opened", run))


def steps_lost(job: LocalMembers, *killed: tuple[int, int]) -> int:
    """Finished steps that were lost. `killed` are the runs and ranks that were killed wherever they were: such a rank
    may have finished a step that the others were still in, and none that lives has it."""
    steps = [one for one in job.root.trace().steps if (one.run, one.rank) not in killed]
    return evidence.steps_lost(job.root.entries(), steps)


@pytest.mark.parametrize(
    ("lost", "new"), [pytest.param("b", "ac", id="rank-1", marks=LONGER), pytest.param("a", "cb", id="rank-0")]
)
def test_a_member_that_dies_costs_no_finished_step(tmp_path: Path, two: twin.Twin, lost: str, new: str) -> None:
    with digits(tmp_path) as job:
        job.first_run("a", "b", beside="c")
        job.trains(1, KILLED_AT)
        job.kill(lost)
        begins(job, 2, new, [1])
        ended = ends(job, new)
    image = begun_from(job, 2)
    assert {one.rescue for one in ended} == {Rescue(2, image["step"], 1)}
    assert steps_lost(job, (1, "ab".index(lost))) == 0
    assert job.root.weight_hash() == two.weights


@pytest.mark.parametrize(
    "where",
    [pytest.param(where, marks=LONGER) for where in ("forward", "backward", "step")] + ["optimizer"],
)
def test_wherever_in_a_step_it_dies(tmp_path: Path, two: twin.Twin, where: str) -> None:
    """A rank that has given its part to the reduce has let the others finish the step: they are one ahead."""
    with digits(tmp_path, dies=f"1,{KILLED_AT},{where}") as job:
        job.first_run("a", "b", beside="c")
        assert job.members["b"].outcome().step == KILLED_AT
        begins(job, 2, "ac", [1])
        ends(job, "ac")
    ahead = where in ("optimizer", "step")
    assert begun_from(job, 2) == {"run": 1, "step": KILLED_AT + ahead}
    assert steps_lost(job) == 0
    assert job.root.weight_hash() == two.weights


@pytest.mark.parametrize(
    ("how", "where", "at"),
    [
        ("sleeps", "optimizer", 12),
        *(pytest.param(*case, marks=LONGER) for case in (("sleeps", "backward", 12), ("stops", "optimizer", 30))),
    ],
)
def test_a_rank_that_hangs_is_ended_and_costs_no_finished_step(
    tmp_path: Path, two: twin.Twin, how: str, where: str, at: int
) -> None:
    """Its own agent ends it; the other rank, which waits for it, loses a peer and leaves an image."""
    pace = {"HANGS": how, "PERDURE_PROGRESS_TIMEOUT_SECONDS": "6"}
    pace |= {"PACE_SECONDS": "0.5"} if how == "stops" else {}  # its agent needs to have heard how long a step takes
    with digits(tmp_path, dies=f"1,{at},{where}", pace=pace) as job:
        job.first_run("a", "b", beside="c")
        ended = job.members["b"].outcome()
        assert ended.error is not None
        assert (ended.outcome, ended.error.name, ended.step) == (ExitKind.FAILED, "NoProgress", at)
        begins(job, 2, "ac", [1])
        ends(job, "ac")
        assert job.members["b"].said.count("rank 1: no progress for") == (how == "sleeps")
    assert begun_from(job, 2) == {"run": 1, "step": at + (where == "optimizer")}
    assert steps_lost(job) == 0
    assert job.root.weight_hash() == two.weights


@LONGER  # test_members has them in a run that begins in place
@pytest.mark.parametrize("kernel", forking.KERNELS)
def test_weights_and_moments_of_other_memory_orders_come_back_from_an_image(tmp_path: Path, kernel: str) -> None:
    script = forking.in_other_orders(tmp_path, kernel)
    with digits(tmp_path, dies=f"1,{KILLED_AT},optimizer", trains=script) as job:
        job.first_run("a", "b", beside="c")
        assert job.members["b"].outcome().step == KILLED_AT
        begins(job, 2, "ac", [1])
        ends(job, "ac")
    assert begun_from(job, 2) == {"run": 1, "step": KILLED_AT + 1}
    assert job.root.weight_hash() == forking.undisturbed(arguments(2), world=2, script=script).weights


@LONGER
@pytest.mark.parametrize(("lost", "new"), [("b", "adc"), ("ab", "dec")], ids=["one-of-three", "two-of-three"])
def test_as_long_as_one_member_is_left(tmp_path: Path, three: twin.Twin, lost: str, new: str) -> None:
    with digits(tmp_path, world=3) as job:
        job.first_run("a", "b", "c", beside="de"[: len(lost)])
        job.trains(1, KILLED_AT)
        for name in lost:
            job.kill(name)
        begins(job, 2, new, [1])
        ends(job, new)
    assert steps_lost(job, *((1, "abc".index(name)) for name in lost)) == 0
    assert job.root.weight_hash() == three.weights


def test_a_survivor_that_joined_alive_knows_what_the_lost_one_drew(tmp_path: Path, two: twin.Twin) -> None:
    with digits(tmp_path, pace=MOVED_TWICE) as job:
        job.first_run("a", "b", beside="cde")
        job.trains(1, 2)
        job.moves("ab", "ac", run=1)
        job.trains(2, 2)
        job.moves("ac", "dc", run=2)
        job.trains(3, 2)
        job.kill("c")
        begins(job, 4, "de", [3])
        ends(job, "de")
    assert begun_from(job, 4)
    assert steps_lost(job, (3, 1)) == 0
    assert job.root.weight_hash() == two.weights


def test_a_decider_that_dies_when_all_have_voted_costs_no_finished_step(tmp_path: Path, two: twin.Twin) -> None:
    """The leaver is gone: the newcomer alone has the state, and has trained no step with it."""
    hold = tmp_path / "hold"
    hold.write_text("put decider 2")
    with digits(tmp_path, script="holding.py", pace={"HOLD": str(hold), "HOLD_SECONDS": "60"}) as job:
        job.first_run("a", "b", beside="cd")
        job.trains(1, KILLED_AT)
        job.moves("ab", "ac", run=1)
        job.waits("the decider holds", lambda: f"HOLD {hold.read_text()}" in job.members["a"].said)
        stood = job.members["a"].said.count("PACE run 1: ")
        job.waits("all traces of the last step", lambda: traced(job, stood) == {0, 1})
        job.waits("the newcomer votes", lambda: "votes for run 2" in job.members["c"].said)
        job.kill("a")
        job.waits("the newcomer has read the log", lambda: "run 2 has taken over" in job.members["c"].said)
        begins(job, 3, "dc", [1, 2])
        job.members["b"].assign(Leave(3, "member lost", 60, (1, 2)))
        ends(job, "dc")
    assert begun_from(job, 3) == {"run": 2, "step": stood}
    assert steps_lost(job) == 0
    assert job.root.weight_hash() == two.weights


@LONGER
def test_a_newcomer_that_may_be_the_last_to_hold_the_state_of_a_single_rank_keeps_it(
    tmp_path: Path, one: twin.Twin
) -> None:
    hold = tmp_path / "hold"
    hold.write_text("putting decider 2")
    with digits(tmp_path, world=1, script="holding.py", pace={"HOLD": str(hold), "HOLD_SECONDS": "60"}) as job:
        job.first_run("a", beside="b")
        job.trains(1, KILLED_AT)
        job.moves("a", "b", run=1)
        job.waits("the decider holds", lambda: f"HOLD {hold.read_text()}" in job.members["a"].said)
        stood = job.members["a"].said.count("PACE run 1: ")
        job.waits("the trace of the last step", lambda: traced(job, stood) == {0})
        job.waits("the newcomer votes", lambda: "votes for run 2" in job.members["b"].said)
        job.kill("a")
        job.waits("the newcomer keeps its seat", lambda: "holding the seat" in job.members["b"].said)
        begins(job, 3, "b", [1, 2])
        ends(job, "b")
    assert begun_from(job, 3) == {"run": 1, "step": stood}
    assert steps_lost(job) == 0
    assert job.root.weight_hash() == one.weights


@pytest.mark.parametrize(
    "goes",
    [pytest.param(False, id="its-seat-is-taken-again"), pytest.param(True, id="it-is-told-to-leave", marks=LONGER)],
)
def test_a_leaver_whose_newcomer_dies_before_it_knows_go_keeps_the_last_of_the_state(
    tmp_path: Path, one: twin.Twin, *, goes: bool
) -> None:
    hold = tmp_path / "hold"
    hold.write_text("put decider 2")
    with digits(tmp_path, world=1, script="holding.py", pace={"HOLD": str(hold), "HOLD_SECONDS": "60"}) as job:
        job.first_run("a", beside="bc")
        job.trains(1, KILLED_AT)
        job.moves("a", "b", run=1)
        job.waits("the decider holds", lambda: f"HOLD {hold.read_text()}" in job.members["a"].said)
        os.kill(trainer_of(job.members["b"], "holding.py"), signal.SIGKILL)
        assert job.members["b"].outcome().outcome is ExitKind.FAILED  # it hears nothing any more
        stood = stands_at_the_put(job, hold, "a", {0})
        hold.unlink()
        job.waits("the leaver keeps its seat", lambda: "holding the seat" in job.members["a"].said)
        if goes:
            job.members["a"].assign(Leave(3, "member lost", 60, (1, 2)))
            left = job.members["a"].outcome()
            assert left.commit
            assert (left.outcome, left.commit.step) == (ExitKind.PEER_LOST, stood)
        begins(job, 3, "c" if goes else "a", [1, 2])
        ends(job, "c" if goes else "a")
    assert begun_from(job, 3) == (None if goes else {"run": 1, "step": stood})
    assert steps_lost(job) == 0
    assert job.root.weight_hash() == one.weights


@pytest.mark.parametrize(
    ("old", "new", "phase"),
    [
        pytest.param("a", "ab", "putting", id="the-second-has-not-begun", marks=LONGER),
        pytest.param("ab", "a", "put", id="the-second-leaves"),
    ],
)
def test_the_death_of_the_only_rank_before_or_behind_a_change_of_size_costs_no_finished_step(
    tmp_path: Path, one: twin.Twin, old: str, new: str, phase: str
) -> None:
    """The other one, which is no rank yet or no more, keeps the state in its seat."""
    hold = tmp_path / "hold"
    hold.write_text(f"{phase} decider 2")
    pace = {"HOLD": str(hold), "HOLD_SECONDS": "60"}
    with digits(tmp_path, world=len(old), script="holding.py", pace=pace) as job:
        job.first_run(*old, beside=sorted({*new, "c"} - set(old)))
        job.trains(1, KILLED_AT)
        job.moves(old, new, run=1)
        stood = stands_at_the_put(job, hold, "a", set(range(len(old))))
        job.waits("the other votes", lambda: "votes for run 2" in job.members["b"].said)
        job.kill("a")
        job.waits("the other keeps its seat", lambda: "holding the seat" in job.members["b"].said)
        begins(job, 3, "bc", [1, 2])
        ends(job, "bc")
    assert begun_from(job, 3) == {"run": 1, "step": stood}
    entries, steps = job.root.entries(), job.root.trace().steps
    assert evidence.steps_lost(entries, steps) == 0
    assert tuple(evidence.batches(entries, steps)) == one.batches


def stands_at_the_put(job: LocalMembers, hold: Path, decider: str, ranks: set[int]) -> int:
    """The step where the old ranks stand, once the decider holds there and the traces of all `ranks` have that step."""
    job.waits("the decider holds", lambda: f"HOLD {hold.read_text()}" in job.members[decider].said)
    stood = job.members[decider].said.count("PACE run 1: ")
    job.waits("the traces of the last step", lambda: traced(job, stood) == ranks)
    return stood


@pytest.mark.parametrize(
    "phase",
    [pytest.param(phase, marks=LONGER) for phase in ("connecting", "voting", "putting")] + ["receiving"],
)
def test_what_a_leaver_alone_has_left_is_committed_before_its_pod_goes(
    tmp_path: Path, two: twin.Twin, phase: str
) -> None:
    """The decider dies, and with it the only member that was to stay."""
    hold = tmp_path / "hold"
    hold.write_text(f"{phase} decider 2")
    with digits(tmp_path, script="holding.py", pace={"HOLD": str(hold), "HOLD_SECONDS": "60"}) as job:
        job.first_run("a", "b", beside="cde")
        job.trains(1, KILLED_AT)
        job.moves("ab", "ac", run=1)
        job.waits("the decider holds", lambda: f"HOLD {hold.read_text()}" in job.members["a"].said)
        job.kill("a")
        leaver = job.members["b"].outcome()
        begins(job, 3, "de", [1, 2])
        ends(job, "de")
    assert leaver.commit
    assert leaver.commit.step == leaver.step
    commits = [entry.body for entry in job.root.entries() if (entry.kind, entry.run) == ("Committed", 1)]
    assert (commits[-1]["step"], commits[-1]["final"]) == (leaver.step, True)
    assert steps_lost(job) == 0
    assert job.root.weight_hash() == two.weights


def traced(job: LocalMembers, step: int) -> set[int]:
    """The ranks of run 1 whose trace has this step."""
    return {one.rank for one in job.root.trace().steps if (one.run, one.step) == (1, step)}


def test_another_loss_before_the_image_is_committed(tmp_path: Path, two: twin.Twin) -> None:
    with digits(tmp_path) as job:
        job.first_run("a", "b", beside="cd")
        job.trains(1, KILLED_AT)
        (job.folder / "root" / "data").touch()  # nothing can be saved below it
        job.kill("b")
        begins(job, 2, "ac", [1])
        job.waits("run 2 is open", lambda: any(entry.run == 2 for entry in job.root.entries()))
        job.kill("c")
        (job.folder / "root" / "data").unlink()
        begins(job, 3, "ad", [1, 2])
        ends(job, "ad")
    assert begun_from(job, 2) == begun_from(job, 3)
    assert steps_lost(job, (1, 1), (2, 1)) == 0
    assert job.root.weight_hash() == two.weights


def test_a_survivor_that_does_not_answer_leaves_the_newest_commit_and_the_log_says_so(tmp_path: Path) -> None:
    with digits(tmp_path) as job:
        job.first_run("a", "b", beside="c")
        job.trains(1, KILLED_AT)
        os.kill(trainer_of(job.members["a"]), signal.SIGSTOP)
        job.kill("b")
        begins(job, 2, "ac", [1])
        ends(job, "ac")
        said = job.members["a"].said
    assert begun_from(job, 2) is None
    assert "its trainer is asked for an image of its state" in said
    assert "leaves an image" not in said
    assert steps_lost(job) >= KILLED_AT


def trainer_of(member: LocalMember, script: str = "paced.py") -> int:
    """The process that the agent has forked: it is called like its script."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # of the others some end meanwhile
            if (folder / "comm").read_text().strip() == script:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == member.process.pid:
                    return int(folder.name)
    raise AssertionError("no trainer is found")
