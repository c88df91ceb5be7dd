"""A party is killed or frozen in each phase of a hand-over: no sample is trained twice, and nothing is lost.

Real agents and trainers. A killed member costs what a lost member costs; one that is only frozen, nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from e2e.harness import evidence, twin
from perdure.wire import ExitKind
from tests.handover import forking
from tests.handover.judging import NOTHING, broken, drawn, lost, with_last_words
from tests.handover.moving import LONG_SECONDS, WORLD, Came, Fault, Harm, Job, Phase, Victim, arguments

KILLED = (
    Fault(Harm.KILLED, Victim.NEWCOMER, Phase.RECEIVING),
    Fault(Harm.KILLED, Victim.DECIDER, Phase.CONNECTING),
)
OTHERS_KILLED = (
    Fault(Harm.KILLED, Victim.LEAVER, Phase.PUT),
    Fault(Harm.KILLED, Victim.STAYER, Phase.VOTING),
)
FROZEN = (
    Fault(Harm.BLINKS, Victim.STAYER, Phase.RECEIVING),
    Fault(Harm.FROZEN, Victim.DECIDER, Phase.PUT),
    Fault(Harm.STUCK, Victim.DECIDER, Phase.VOTING),
)
OTHERS_FROZEN = (
    Fault(Harm.BLINKS, Victim.NEWCOMER, Phase.CONNECTING),
    Fault(Harm.FROZEN, Victim.LEAVER, Phase.VOTING),
)
AGENTS = tuple(Fault(Harm.AGENT, victim, Phase.RECEIVING) for victim in Victim)
STUCK = tuple(Fault(Harm.STUCK, victim, phase) for phase in list(Phase)[1:] for victim in Victim)
"""An old rank that stands still before is one that stands still in its training."""
ALL = (
    *(Fault(harm, victim, phase) for harm in Harm if harm is not Harm.STUCK for victim in Victim for phase in Phase),
    *STUCK,
)
JOBS, ROUNDS = 20, 10
FEW, SHORT, LONG = 4, 10, 16
"""Epochs. A hand-over takes about 12 steps of the 32 in each, and 30 more if an agent stands still in it."""


Undisturbed = Callable[[int], twin.Twin]


@pytest.fixture(scope="module")
def undisturbed() -> Undisturbed:
    """An undisturbed training, of so many epochs."""

    def found(epochs: int) -> twin.Twin:
        return forking.undisturbed(arguments(epochs), world=WORLD)

    return found


def judge(folder: Path, epochs: int, undisturbed: Undisturbed, faults: Sequence[Fault], draw: random.Random) -> None:
    """Lets it all happen to one job, one after the other, and judges what the job has left."""
    with Job(folder, epochs) as job:
        for fault in faults:
            came = job.hand_over(fault, draw.randrange(WORLD))
            print(f"{fault}: {came}")
            assert came in fault.expected, f"{fault}: {came}"
        completed = job.completes()
        ended = job.ended()
    alone = undisturbed(epochs)
    entries, steps = job.members.root.entries(), job.members.root.trace().steps
    assert [one.outcome for one in completed] == [ExitKind.COMPLETED] * WORLD
    assert list(broken(entries, ended.values())) == []
    said = [member.said for member in job.members.members.values()]
    assert drawn(said, lost=Came.LOST in job.came) == set()
    if Came.LOST in job.came:
        steps = tuple(with_last_words(entries, steps, alone.batches))
    steps_lost, samples, untraced = lost(entries, steps, epochs=epochs)
    assert (samples.lost, samples.repeated, samples.foreign, untraced) == (0, 0, 0, [])
    assert steps_lost <= job.came.count(Came.LOST)  # a killed rank may have been a step ahead of all others
    assert tuple(evidence.batches(entries, steps)) == alone.batches
    assert job.members.root.weight_hash() == alone.weights


@pytest.mark.parametrize(
    ("faults", "epochs"),
    [
        pytest.param(KILLED, FEW, id="killed"),
        pytest.param(FROZEN, FEW, id="frozen"),
        pytest.param(OTHERS_KILLED, FEW, id="others-killed", marks=pytest.mark.chaos),
        pytest.param(OTHERS_FROZEN, FEW, id="others-frozen", marks=pytest.mark.chaos),
        pytest.param(AGENTS, SHORT, id="agents", marks=pytest.mark.chaos),
        *(pytest.param([fault], FEW, id=f"{fault}", marks=pytest.mark.chaos) for fault in STUCK),
    ],
)
def test_each_party_is_harmed_in_a_phase(
    tmp_path: Path, undisturbed: Undisturbed, faults: Sequence[Fault], epochs: int
) -> None:
    judge(tmp_path, epochs, undisturbed, faults, random.Random(0))  # noqa: S311 - it has to be repeatable


@pytest.mark.chaos
def test_agents_that_stand_still_outside_of_a_hand_over_disturb_no_member(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with Job(tmp_path, SHORT) as job:
        job.stands_without_agents(LONG_SECONDS)
        came = job.hand_over(Fault(Harm.BLINKS, Victim.LEAVER, Phase.RECEIVING), 1)
        job.stands_without_agents(LONG_SECONDS)
        completed = job.completes()
        ended = job.ended()
    entries, steps = job.members.root.entries(), job.members.root.trace().steps
    assert came is Came.WENT
    assert [one.outcome for one in completed] == [ExitKind.COMPLETED] * WORLD
    assert list(broken(entries, ended.values())) == []
    assert lost(entries, steps, epochs=SHORT) == NOTHING
    assert job.members.root.weight_hash() == undisturbed(SHORT).weights


@pytest.mark.chaos
@pytest.mark.parametrize("number", range(JOBS))
def test_each_party_is_harmed_in_any_phase(tmp_path: Path, undisturbed: Undisturbed, seed: int, number: int) -> None:
    draw = random.Random(f"{seed} {number}")  # noqa: S311 - it has to be repeatable
    judge(tmp_path, LONG, undisturbed, [draw.choice(ALL) for _ in range(ROUNDS)], draw)
