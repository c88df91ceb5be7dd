"""Real agents, real trainers, no cluster: a member dies in the middle of training, and no finished step is lost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.harness import evidence, twin
from e2e.harness.lab import DIGITS
from e2e.harness.local_members import LocalMembers
from e2e.harness.local_run import free_port
from perdure.contract import ExitKind, Train

PACED = Path(__file__).parents[2] / "e2e" / "scenarios" / "trainers" / "paced.py"
SCRIPT = DIGITS / "train.py"
EPOCHS = 3
STEPS = EPOCHS * 24
PACE = {"PACE_SECONDS": "0.03", "PACED_RUNS": "1"}


@pytest.fixture(scope="module")
def undisturbed() -> twin.Twin:
    return twin.trained(Path(sys.executable), SCRIPT, [f"--epochs={EPOCHS}"], world=2)


def digits(folder: Path) -> LocalMembers:
    return LocalMembers([sys.executable, str(PACED), str(SCRIPT), f"--epochs={EPOCHS}"], folder, PACE)


def goes_on(job: LocalMembers, run: int, members: Sequence[str], lost: Sequence[int]) -> None:
    """As the operator does once a replacement is warm."""
    master = f"127.0.0.1:{free_port()}"
    for rank, name in enumerate(members):
        if name not in job.members:
            job.standby(name)
        train = Train(run, rank, len(members), master, "member lost", 60, 75, lost=tuple(lost))
        job.members[name].assign(train)


@pytest.mark.parametrize(("lost", "new"), [("b", "ac"), ("a", "cb")], ids=["rank-1", "rank-0"])
def test_a_member_that_dies_costs_no_finished_step(tmp_path: Path, undisturbed: twin.Twin, lost: str, new: str) -> None:
    with digits(tmp_path) as job:
        job.first_run("a", "b")
        warm = job.standby("c")
        job.waits("the standby is warm", lambda: warm.warm)
        job.trains(1, 10)
        job.kill(lost)
        goes_on(job, 2, new, [1])
        ended = [job.members[name].outcome() for name in new]
    assert [one.outcome for one in ended] == [ExitKind.COMPLETED, ExitKind.COMPLETED]
    entries, steps = job.root.entries(), job.root.trace().steps
    print([(e.seq, e.kind, e.run, e.body.get("step"), e.body.get("image")) for e in entries])
    print(job.members[new[0]].said)
    assert evidence.steps_lost(entries, steps) == 0
    assert job.root.weight_hash() == undisturbed.weights
