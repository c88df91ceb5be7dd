"""The long form of the scenarios: announced disruptions one after another, which ones and when drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from e2e.harness import observed
from e2e.harness.drain import uncordon
from e2e.harness.lab import Lab
from e2e.scenarios.conftest import Train, Undisturbed
from e2e.scenarios.training import Config, Training, Trouble, nothing_lost

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]

DISRUPTIONS = 12
LONG = Config(epochs=24)
ALWAYS_PACED = Trouble(environ={"PACED_RUNS": "1000"})

Disruption = Callable[[Lab, Training, int], None]


def a_drain(lab: Lab, training: Training, rank: int) -> None:
    node = training.node(rank)
    with lab.drain(node) as drain:
        drained = drain.finish()
    assert drained.status == 0, drained.output
    uncordon(lab.kubectl, [node])


def a_deleted_member(lab: Lab, training: Training, rank: int) -> None:
    lab.kubectl("delete", "pod", training.member(rank)["metadata"]["name"], "-n", training.job.namespace)


def a_killed_leader_in_a_drain(lab: Lab, training: Training, rank: int) -> None:
    node, run = training.node(rank), training.run()
    with lab.drain(node) as drain:
        training.watch.wait("the members are asked", lambda h: observed.asked_to_leave(h, run), seconds=90)
        lab.operator.kill(lab.operator.leader())
        drained = drain.finish()
    assert drained.status == 0, drained.output
    uncordon(lab.kubectl, [node])


def test_announced_disruptions_in_any_order_lose_nothing(
    lab: Lab, train: Train, undisturbed: Undisturbed, seed: int
) -> None:
    random = Random(seed)  # noqa: S311 - it has to be repeatable
    kinds: list[Disruption] = [a_drain, a_deleted_member, a_killed_leader_in_a_drain]
    with train(LONG, ALWAYS_PACED) as training:
        run = 1
        for _ in range(DISRUPTIONS):
            training.trains(steps=random.randint(1, 12), run=run)
            kind, rank = random.choice(kinds), random.randrange(2)
            print(f"run {run}: {kind.__name__} at rank {rank}")
            kind(lab, training, rank)
            training.changes_run(after=run)
            run = training.run()
        status = training.completes()
    assert training.verdict() == nothing_lost(undisturbed(LONG))
    assert (status["failures"]["code"], status["failures"]["infrastructure"]) == (0, 0)
