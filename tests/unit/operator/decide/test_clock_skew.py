"""The API server's clock is set back: the next round waits for nothing longer than if the job had come there just now.

Every time in status counts, so a new field is held to it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from perdure.wire import ExitKind
from perdure_operator.api.model import Model
from perdure_operator.api.spec import Elastic
from perdure_operator.decide import Stage, stage_of
from perdure_operator.decide.clock_skew import correct_times
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.handing_over import NEWS_SECONDS
from perdure_operator.state.snapshot import NodeView
from tests.support.full_status import FULL, NOON
from tests.support.jobs import PATIENT, Job, job, raised

BACK = timedelta(days=3)
AHEAD = frozenset({"ready_by", "grow_by", "not_before", "deadline", "until"})
"""Times that lie ahead by their meaning."""
LONGEST = timedelta(hours=2)
"""No wait of these jobs is longer."""
FOR_PEOPLE = frozenset({"history"})


def _offered() -> Job:
    nodes = tuple(NodeView(name=f"n{number}") for number in range(1, 7))
    here = job(disruption=PATIENT).having(nodes=nodes).running(world=2)
    return here.cordon("n2").settle().after(1).settle().ready().settle()


def _one_ended() -> Job:
    return _offered().exited(1, code=137).settle()


def _unconfirmed() -> Job:
    return _one_ended().after(NEWS_SECONDS).settle()


def _failed() -> Job:
    return job().running(world=2).all_ended(ExitKind.FAILED, error=raised()).settle()


def _growing() -> Job:
    elastic = Elastic(min_replicas=1, max_replicas=4, sizes=(1, 2, 3, 4), grow_timeout_seconds=60)
    here = job(disruption=PATIENT, elastic=elastic).running(world=2).after(60).spec(replicas=3).settle()
    return here.after(1).settle().after(61).settle()


def _without_its_node() -> Job:
    return job().running(world=2).node("n1", ready=False).settle()


MOMENTS: dict[str, Callable[[], Job]] = {
    "starting": lambda: job().starting(world=2),
    "running": lambda: job().running(world=2),
    "quiet": lambda: job(disruption=PATIENT).running(world=2).cordon("n2").settle(),
    "preparing": lambda: job(disruption=PATIENT).running(world=2).cordon("n2").settle().after(1).settle(),
    "offered": _offered,
    "one of an offered run has ended": _one_ended,
    "unconfirmed": _unconfirmed,
    "leaving": lambda: job().running(world=2).leaving("n1"),
    "failed": _failed,
    "growth given up": _growing,
    "node not ready": _without_its_node,
    "finished": lambda: job(ttl_seconds_after_finished=60).running(world=2).ended(0, ExitKind.COMPLETED).settle(),
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_no_time_in_status_is_ahead_of_now(moment: Callable[[], Job]) -> None:
    here = moment().after(-BACK.total_seconds()).settle()
    late = here.snapshot.now + LONGEST
    times = dict(_times(here.now))
    assert times
    ahead = {path: at for path, at in times.items() if at > (late if _name(path) in AHEAD else here.snapshot.now)}
    assert ahead == {}


def test_no_time_of_a_full_status_is_forgotten() -> None:
    here = job(disruption=PATIENT)
    draft = correct_times(Draft(snapshot=here.snapshot.model_copy(update={"now": NOON - BACK}), status=FULL))
    times = dict(_times(draft.status))
    assert {path for path, at in times.items() if _name(path) not in AHEAD and at != draft.now} == set()
    assert {path for path, at in times.items() if at > draft.now + LONGEST} == set()


def test_a_run_without_evidence_is_not_waited_for_until_the_clock_is_where_it_was() -> None:
    here = _one_ended()
    assert stage_of(here.now) is Stage.HANDING_OVER
    here = here.after(-BACK.total_seconds()).settle().after(NEWS_SECONDS).settle()
    assert stage_of(here.now) is not Stage.HANDING_OVER


def _times(value: Any, path: str = "") -> Iterator[tuple[str, datetime]]:
    if isinstance(value, datetime):
        yield path, value
    elif isinstance(value, Model):
        for name, inner in value:
            if name not in FOR_PEOPLE:
                yield from _times(inner, f"{path}.{name}")
    elif isinstance(value, tuple):
        for inner in value:
            yield from _times(inner, path)


def _name(path: str) -> str:
    return path.rpartition(".")[2]
