"""What one round costs where something is said of every member, in steps of the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure_operator.decide import decide
from perdure_operator.state.snapshot import EvictionView, NodeView
from tests.support.jobs import Job, job
from tests.support.steps import steps

FEW, MANY = 16, 128


def _named(here: Job) -> Job:
    return here.having(vacate=",".join(pod.name for pod in here.living()))


def _evicted(here: Job) -> Job:
    wanted = (EvictionView(name=pod.name, uid=pod.name, pod=pod.uid, place=0, state="Active") for pod in here.living())
    return here.having(evictions=tuple(wanted))


def _cost(of_all: Callable[[Job], Job], members: int) -> int:
    nodes = tuple(NodeView(name=f"n{number}") for number in range(1, members + 1))
    seen = of_all(job(disruption={}).having(nodes=nodes).running(world=members)).snapshot
    decide(seen)  # caches filled for the next time
    return steps(lambda: decide(seen))


@pytest.mark.parametrize("of_all", [_named, _evicted])
def test_who_has_to_leave_is_looked_up_and_not_searched_for(of_all: Callable[[Job], Job]) -> None:
    """Eight times the members cost about eight times as much, and not sixty-four times."""
    assert _cost(of_all, MANY) < 10 * _cost(of_all, FEW)
