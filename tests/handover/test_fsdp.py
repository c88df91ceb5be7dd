"""Ranks of a model that is sharded over all of them are replaced live, one after the other, and killed or frozen then.

No rank has a whole copy, so a lost rank costs the steps since the newest commit, and nothing else. With a mirror it
costs one step, if no part and its mirror are in the pods of the killed rank and of the leaver.
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


def judge(job: Job, undisturbed: Undisturbed, most: int | None = None) -> None:
    """Lets the job complete, and judges what it has left. `most`: how many finished steps may be lost; None: those
    since the newest commit."""
    completed = job.completes()
    ended = job.ended()
    alone = undisturbed()
    entries, steps = job.members.root.entries(), job.members.root.trace().steps
    assert [one.outcome for one in completed] == [ExitKind.COMPLETED] * job.world
    assert [law for law in broken(entries, ended.values()) if not named_lost(job, law)] == []
    assert list(not_the_newest(entries)) == []
    if Came.LOST in job.came:
        steps = tuple(with_last_words(entries, steps, alone.batches))
    steps_lost, samples, untraced = lost(entries, steps, epochs=job.epochs)
    assert (samples.lost, samples.repeated, samples.foreign, untraced) == (0, 0, 0, [])
    assert steps_lost <= most if most is not None else steps_lost == 0 or Came.LOST in job.came
    assert tuple(evidence.batches(entries, steps)) == alone.batches
    assert job.members.root.weight_hash() == alone.weights


def named_lost(job: Job, law: str) -> bool:
    """Whether this law may be broken: whoever is still ending when its run is named lost is killed."""
    return Came.LOST in job.came and law.startswith("H8")


def not_the_newest(entries: Sequence[Entry]) -> list[int]:
    """Runs that took over no living one, and began neither at the newest commit nor at an image."""
    commits, found = [0], []
    for entry in entries:
        if entry.kind == "Committed":
            commits.append(entry.seq)
        elif entry.kind == "Opened" and not entry.body.get("takesOver") and not entry.body.get("image"):
            found += [entry.run] if (entry.body["resumes"] or 0) != commits[-1] else []
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


PARTIES = (
    *(Fault(Harm.KILLED, victim, Phase.RECEIVING) for victim in Victim),
    *(Fault(Harm.KILLED, victim, Phase.PUT) for victim in (Victim.DECIDER, Victim.STAYER)),
)
SHARED_MIRROR = (Victim.STAYER,)
"""Of rank 1, whose mirror is the leaver's, rank 2."""


@pytest.mark.parametrize("fault", PARTIES, ids=str)
def test_a_party_of_a_mirrored_model_that_is_killed_while_it_moves_costs_one_step_unless_its_mirror_leaves(
    tmp_path: Path, fault: Fault
) -> None:
    mirror = {"PERDURE_MIRROR_EVERY_STEPS": "1"}
    with Job(tmp_path, 2, SCRIPT, world=4, environ=mirror) as job:
        came = job.hand_over(fault, 2)
        assert came in fault.expected, f"{fault}: {came}"
        lost_with_its_mirror = came is Came.LOST and fault.victim in SHARED_MIRROR
        judge(
            job,
            lambda: forking.undisturbed(arguments(2), world=4, script=SCRIPT),
            most=None if lost_with_its_mirror else job.came.count(Came.LOST),
        )


@pytest.mark.parametrize("fault", [PARTIES[0], PARTIES[-2]], ids=str)
def test_a_party_of_a_model_with_replicas_that_is_killed_while_it_moves_costs_the_steps_since_the_commit(
    tmp_path: Path, fault: Fault
) -> None:
    replicas = ("--shards=2",)
    with Job(tmp_path, 2, SCRIPT, world=4, more=replicas) as job:
        came = job.hand_over(fault, 2)
        assert came in fault.expected, f"{fault}: {came}"
        judge(job, lambda: forking.undisturbed((*arguments(2), *replicas), world=4, script=SCRIPT))
