"""Each party disturbed in each act of a hand-over, the store and the links too, and storms: judged by their evidence.

The promises and their checks are in e2e/storms/judge.py. A storm's evidence is in build/storms, and `python -m
e2e.storms build/storms/NAME` judges it again.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

import pytest

from e2e.harness.lab import Lab
from e2e.prepare.basics import REPOSITORY
from e2e.scenarios import lanes
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import Config, Trouble
from e2e.storms import judge
from e2e.storms.harm import Store
from e2e.storms.storm import ENVIRON, OF_PROCESSES, OF_THE_STORE, Act, Harm, Move, Storm, Victim
from perdure.wire import LABEL_JOB

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]

BUILD = REPOSITORY / "build" / "storms"
LONG = Config(members=3, epochs=45, batch=48, deterministic=True)
STORM_SECONDS = 360.0
MEMBERS_LANES = [lane for lane in lanes.LANES if lane != lanes.OPERATORS]
PLACEMENT = {
    "nodeSelector": None,
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": lanes.LABEL, "operator": "In", "values": MEMBERS_LANES}]}
                ]
            }
        }
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {LABEL_JOB: "digits"}},
        }
    ],
}
"""A node for each member: on one lane all members gather on one node in time, and its drain leaves no stayer."""
SPEC = {"disruption": {"exitTimeoutSeconds": 240}, "template": {"spec": PLACEMENT}}

Raise = Callable[[str, int], contextlib.AbstractContextManager[Storm]]


@pytest.fixture
def storm(lab: Lab, train: Train) -> Raise:
    """A job that trains, on a store of its own, ready to be harmed."""

    @contextlib.contextmanager
    def begun(name: str, seed: int) -> Iterator[Storm]:
        draw = random.Random(f"{seed} {name}")  # noqa: S311 - it has to be repeatable
        with Store.started(lab, "s3-storm") as store:
            trouble = Trouble(script="holding.py", environ=ENVIRON, spec=SPEC, s3=store.front)
            with train(LONG, trouble) as training, Storm(lab, training, store, BUILD / name, draw) as storm:
                storm.is_calm()
                yield storm
                training.hurries()
                training.completes()

    return begun


def is_judged(storm: Storm, undisturbed: Undisturbed) -> None:
    """No promise is broken, and the weights are those of an undisturbed training."""
    found = judge.read(storm.folder)
    wrong = judge.judge(found)
    start = min(poll.time for poll in found.polls)
    print("\n".join([*judge.told(found), *judge.summed_up(wrong, start)]))
    assert storm.training.job.root.weight_hash() == undisturbed(LONG).weights
    assert not wrong


def all_are_played(storm: Storm, moves: list[Move]) -> None:
    """In any order; each meets its party in its act, while the job trains."""
    storm.draw.shuffle(moves)
    for move in moves:
        storm.moves(move)
    assert (storm.missed, storm.over) == ([], False)


@pytest.mark.parametrize("act", Act)
def test_each_party_is_killed_and_frozen_in_an_act_of_a_hand_over(
    storm: Raise, undisturbed: Undisturbed, seed: int, act: Act
) -> None:
    with storm(f"act-{act}", seed) as begun:
        all_are_played(begun, [Move(act, victim, harm) for victim, harm in product(Victim, OF_PROCESSES)])
    is_judged(begun, undisturbed)


@pytest.mark.parametrize("act", Act)
def test_the_store_is_harmed_in_an_act_of_a_hand_over(
    storm: Raise, undisturbed: Undisturbed, seed: int, act: Act
) -> None:
    with storm(f"store-{act}", seed) as begun:
        all_are_played(begun, [Move(act, Victim.DECIDER, harm) for harm in OF_THE_STORE])
    is_judged(begun, undisturbed)


@pytest.mark.parametrize("act", Act)
def test_links_are_cut_in_an_act_of_a_hand_over(storm: Raise, undisturbed: Undisturbed, seed: int, act: Act) -> None:
    with storm(f"links-{act}", seed) as begun:
        all_are_played(begun, [Move(act, victim, Harm.CUT) for victim in Victim])
    is_judged(begun, undisturbed)


@pytest.mark.parametrize("number", range(3))
def test_a_storm_of_six_minutes(storm: Raise, undisturbed: Undisturbed, seed: int, number: int) -> None:
    with storm(f"storm-{number}", seed) as begun:
        end = time.monotonic() + STORM_SECONDS
        while time.monotonic() < end and not begun.over:
            gust(begun)
            if begun.draw.random() < 0.8:  # else the next one comes before all is well
                begun.is_calm()
        begun.is_calm()
    is_judged(begun, undisturbed)


def gust(storm: Storm) -> None:
    """One of the many things that may happen."""
    draw = storm.draw
    seconds, rank = draw.uniform(2, 25), draw.randrange(LONG.members)
    others = [other for other in range(LONG.members) if other != rank]
    kinds: Sequence[Callable[[], None]] = [
        storm.drains_a_node,
        *[
            partial(
                storm.moves, Move(draw.choice(list(Act)), draw.choice(list(Victim)), draw.choice(list(Harm)), seconds)
            )
        ]
        * 4,
        partial(storm.kills, rank, everything=False),
        partial(storm.kills, rank, everything=True),
        partial(storm.freezes, rank, seconds),
        partial(storm.cuts, rank, others[: draw.randint(1, 2)], seconds),
        partial(storm.harms_the_store, draw.choice(OF_THE_STORE), seconds),
    ]
    draw.choice(kinds)()
