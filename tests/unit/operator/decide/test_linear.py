"""The work of a round grows with the job's members, and not with their square: one thread decides for all jobs.

Calls are counted, as times depend on the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from perdure.wire import ExitKind
from perdure_operator.api.spec import Elastic
from perdure_operator.cluster.read import parse
from perdure_operator.decide import decide
from perdure_operator.state.snapshot import NodeView, Snapshot
from tests.support import evictions
from tests.support.jobs import PATIENT, Job, job

FEW, MANY = 40, 160
MOST = 4.3
"""Four times the members may take this many times the calls. What grows with the square takes sixteen times as many."""


def _running(members: int, **spec: Any) -> Job:
    nodes = tuple(NodeView(name=f"n{number}") for number in range(1, 3 * members))
    return job(disruption=PATIENT, **spec).having(nodes=nodes).running(world=members)


def _cordoned(members: int) -> Job:
    here = _running(members)
    return here.cordon(*(f"n{number}" for number in range(1, members + 1)))


def _evicted(members: int) -> Job:
    here = _running(members)
    seen = []
    for pod in here.snapshot.pods:
        raw = evictions.eviction("default", pod.name, pod.uid, f"evict-{pod.name}")
        raw["metadata"]["uid"] = f"uid-of-evict-{pod.name}"
        seen.append(parse.eviction(raw | {"status": evictions.turn_of_the_operator(here.snapshot.now)}))
    return here.having(evictions=tuple(seen))


def _with_spares(members: int) -> Job:
    elastic = Elastic(min_replicas=1, max_replicas=members, spares=members // 2)
    return _running(members, elastic=elastic).after(60).settle()


def _dark(members: int) -> Job:
    here = _running(members)
    for number in range(1, members + 1):
        here = here.node(f"n{number}", ready=False)
    return here


def _offered(members: int) -> Job:
    return _cordoned(members).settle().after(1).settle().ready().settle()


def _with_dead_newcomers(members: int) -> Job:
    here = _offered(members)
    for number in range(members, 2 * members):
        here = here.ended(number, ExitKind.HANDOVER_FAILED, run=2)
    return here


def _handed_over(members: int) -> Job:
    here = _offered(members)
    for number in range(members):
        here = here.ended(number, ExitKind.HANDED_OVER, run=1, step=20, commit=(4, 10), opened=2)
    return here


def _on_leaving_nodes(here: Job) -> Job:
    spares = here.spares()
    return here.cordon(*(pod.node for pod in here.snapshot.pods if pod.name in spares))


MOMENTS: dict[str, Callable[[int], Job]] = {
    "starting": lambda members: job().having(nodes=()).starting(world=members),
    "running": _running,
    "all nodes are cordoned": _cordoned,
    "all members are to be evicted": _evicted,
    "standbys start": lambda members: _cordoned(members).settle().after(1),
    "standbys are there": lambda members: _cordoned(members).settle().after(1).settle(),
    "standbys are there, and all members are to be evicted": lambda members: _evicted(members).settle().after(25),
    "standbys are ready": lambda members: _cordoned(members).settle().after(1).settle().ready(),
    "offered": _offered,
    "newcomers have died": _with_dead_newcomers,
    "leavers have gone": _handed_over,
    "one is lost": lambda members: _running(members).exited(0, code=137),
    "all are lost": lambda members: _running(members).all_ended(ExitKind.PEER_LOST),
    "all nodes are silent": _dark,
    "all nodes are given up": lambda members: _dark(members).settle().after(900),
    "spares": _with_spares,
    "spares on nodes that leave": lambda members: _on_leaving_nodes(_with_spares(members)),
    "suspended": lambda members: _running(members).spec(suspend=True),
    "smaller": lambda members: _running(members).spec(replicas=members // 2).settle().after(2),
    "completed": lambda members: _running(members).all_ended(ExitKind.COMPLETED),
    "finished": lambda members: _running(members).all_ended(ExitKind.COMPLETED).settle(),
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_four_times_the_members_take_about_four_times_the_work(moment: Callable[[int], Job]) -> None:
    few, many = (_calls(moment(members).snapshot) for members in (FEW, MANY))
    assert many <= MOST * few, f"{few} calls for {FEW} members, {many} for {MANY}"


def _calls(snapshot: Snapshot) -> int:
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        decide(snapshot)
    finally:
        sys.setprofile(before)
    return count
