"""Ranks of a model that is sharded over all of them are replaced live, one after the other, and killed or frozen then.

No rank has a whole copy, so a lost rank costs the steps since the newest commit, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

import pytest

from e2e.harness import evidence, twin
from e2e.harness.evidence import Entry
from perdure.wire import ExitKind
from tests.handover import forking
from tests.handover.judging import broken, lost, with_last_words
from tests.handover.moving import WORLD, Came, Fault, Harm, Job, Phase, Victim, arguments

pytestmark = pytest.mark.chaos

SCRIPT = Path(__file__).parent / "sharded_digits.py"
EPOCHS = 4
MOVES = (1, 0, 1, 0, 1)
"""The ranks that are replaced; a former newcomer hands over, too."""
RANK_THAT_STAYS = 2
KILLED = (
    Fault(Harm.KILLED, Victim.STAYER, Phase.RECEIVING),
    Fault(Harm.KILLED, Victim.DECIDER, Phase.PUT),
    Fault(Harm.KILLED, Victim.LEAVER, Phase.VOTING),
    Fault(Harm.KILLED, Victim.NEWCOMER, Phase.RECEIVING),
)
FROZEN = (
    Fault(Harm.FROZEN, Victim.STAYER, Phase.RECEIVING),
    Fault(Harm.FROZEN, Victim.DECIDER, Phase.PUT),
    Fault(Harm.FROZEN, Victim.NEWCOMER, Phase.VOTING),
    Fault(Harm.FROZEN, Victim.LEAVER, Phase.RECEIVING),
)
HELD = "it listens on port"
"""An agent's words for a trainer that keeps what the pod's next one may need."""

Undisturbed = Callable[[], twin.Twin]


@pytest.fixture(scope="module")
def undisturbed() -> Undisturbed:
    return lambda: forking.undisturbed(arguments(EPOCHS), world=WORLD, script=SCRIPT)


def judge(job: Job, undisturbed: Undisturbed) -> None:
    """Lets the job complete, and judges what it has left."""
    completed = job.completes()
    ended = job.ended()
    alone = undisturbed()
    entries, steps = job.members.root.entries(), job.members.root.trace().steps
    assert [one.outcome for one in completed] == [ExitKind.COMPLETED] * WORLD
    assert list(broken(entries, ended.values())) == []
    assert list(not_the_newest(entries)) == []
    if Came.LOST in job.came:
        steps = tuple(with_last_words(entries, steps, alone.batches))
    steps_lost, samples, untraced = lost(entries, steps, epochs=EPOCHS)
    assert (samples.lost, samples.repeated, samples.foreign, untraced) == (0, 0, 0, [])
    assert steps_lost == 0 or Came.LOST in job.came
    assert tuple(evidence.batches(entries, steps)) == alone.batches
    assert job.members.root.weight_hash() == alone.weights


def not_the_newest(entries: Sequence[Entry]) -> list[int]:
    """Runs that took over no living one and did not begin at the newest commit."""
    commits, found = [0], []
    for entry in entries:
        if entry.kind == "Committed":
            commits.append(entry.seq)
        elif entry.kind == "Opened" and not entry.body.get("takesOver") and (entry.body["resumes"] or 0) != commits[-1]:
            found.append(entry.run)
    return found


def kept(process: int) -> tuple[int, int]:
    """Threads and open files of a process."""
    here = Path(f"/proc/{process}")
    return len(list((here / "task").iterdir())), len(list((here / "fd").iterdir()))


def test_ranks_of_a_sharded_model_are_replaced_again_and_again(tmp_path: Path, undisturbed: Undisturbed) -> None:
    with Job(tmp_path, EPOCHS, SCRIPT) as job:
        stays = job.trainer(RANK_THAT_STAYS)
        at_first = kept(stays)
        for rank in MOVES:
            assert job.replace(rank) is Came.WENT
        job.members.waits(
            "no more threads and files than at first",
            lambda: all(now <= first for now, first in zip(kept(stays), at_first, strict=True)),
        )
        assert job.trainer(RANK_THAT_STAYS) == stays
        judge(job, undisturbed)
    assert [name for name, member in job.members.members.items() if HELD in member.said] == []


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(KILLED, id="killed"),
        pytest.param(FROZEN, id="frozen"),
    ],
)
def test_parties_are_harmed_while_a_sharded_model_moves(
    tmp_path: Path, undisturbed: Undisturbed, faults: Sequence[Fault]
) -> None:
    with Job(tmp_path, EPOCHS, SCRIPT) as job:
        for fault, rank in zip(faults, cycle(MOVES), strict=False):
            came = job.hand_over(fault, rank)
            print(f"{fault}: {came}")
            assert came in fault.expected, f"{fault}: {came}"
        judge(job, undisturbed)
