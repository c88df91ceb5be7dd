"""Evictions that come, are canceled, withdrawn and handed on while a job moves: every answer is one the API would take.

The rules are those of Kubernetes' own validation (k8s.io/kubernetes v1.37.0, pkg/apis/lifecycle/validation), and what
its types ask of those that answer.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pytest

from perdure.wire import ExitKind
from perdure_operator.api.spec import DisruptionPolicy, JobReaction
from perdure_operator.cluster.read import parse
from perdure_operator.state.decision import Answer, Decision
from perdure_operator.state.snapshot import EvictionView, Snapshot
from tests.support import evictions
from tests.support.jobs import Job, job

SEEDS = 30
STEPS = 40
SOONEST = timedelta(seconds=20)
GIVEN_UP = timedelta(minutes=20)
POLICIES = (
    DisruptionPolicy(),
    DisruptionPolicy(replacement_timeout_seconds=0),
    DisruptionPolicy(signals={"eviction-request": JobReaction.VACATE_IF_ROOM}),
    DisruptionPolicy(signals={"eviction-request": JobReaction.IGNORE}),
)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_answer_is_allowed_and_none_is_missing(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311
    here = job(disruption=rng.choice(POLICIES)).running(world=rng.choice((1, 2, 3)))
    for _ in range(STEPS):
        here = _rounds(_something(here, rng))
    for pod in [pod.uid for pod in here.snapshot.pods]:  # of several for one pod one is answered
        turns = [one for one in here.snapshot.evictions if one.pod == pod and one.state == "Active" and not one.over]
        assert not turns or any(_heard_lately(one, here.snapshot.now) for one in turns)


def _something(here: Job, rng: random.Random) -> Job:
    """What others do, or time that passes."""
    living = [pod.name for pod in here.living()]
    match rng.choice(
        ("ask", "ask", "cancel", "withdraw", "hand on", "over", "ready", "save", "cordon", "time", "time")
    ):
        case "ask" if living:
            return _ask(here, rng.choice(living))
        case "cancel" | "withdraw" | "hand on" | "over" as what if here.snapshot.evictions:
            return _change(here, rng.choice(here.snapshot.evictions), what)
        case "ready":
            return here.ready()
        case "save":
            return here.all_ended(ExitKind.CHECKPOINTED, step=7, commit=(4, 7)) if here.run_plan else here
        case "cordon":
            node = rng.choice(("n1", "n2", "n3"))
            return here.uncordon(node) if rng.random() < 0.5 else here.cordon(node)
        case _:
            return here.after(rng.choice((0.4, 3.0, 19.0, 61.0)))


def _ask(here: Job, pod: str) -> Job:
    uid = next(one.uid for one in here.snapshot.pods if one.name == pod)
    number = len(here.snapshot.evictions)
    raw = evictions.eviction("default", pod, uid, f"e{number}")
    raw["metadata"]["uid"] = f"uid-of-e{number}"
    raw["status"] = evictions.turn_of_the_operator(here.snapshot.now)
    seen = parse.eviction(raw)
    assert seen is not None
    return here.having(evictions=(*here.snapshot.evictions, seen))


def _change(here: Job, one: EvictionView, what: str) -> Job:
    """What the controller, or the last requester, writes."""
    written: dict[str, dict[str, Any]] = {
        "cancel": {"state": "Canceled", "over": True},
        "withdraw": {"withdrawn": True, "requesters": ()},
        "hand on": {"state": "Completed" if one.completed else "Interrupted"},
        "over": {"state": "Completed" if one.completed else one.state, "over": one.completed is not None},
    }
    if one.state != "Active":
        return here
    views = (other.model_copy(update=written[what]) if other is one else other for other in here.snapshot.evictions)
    return here.having(evictions=tuple(views))


def _rounds(here: Job) -> Job:
    """The operator's, until there is nothing to do; each answer is looked at."""
    for _ in range(40):
        plan = here.plan()
        _judge(here.snapshot, plan)
        if plan.status is None and not plan.actions:
            return here
        here = here.step()
    raise AssertionError(f"no rest: {here.plan().actions}")


def _judge(seen: Snapshot, plan: Decision) -> None:
    known = {one.uid: one for one in seen.evictions}
    for said in (action for action in plan.actions if isinstance(action, Answer)):
        one, now = known[said.uid], seen.now.replace(microsecond=0)
        assert one.state == "Active", "only whose turn it is may write"
        assert one.completed is None, "completionTime cannot be changed"
        assert one.started is not None
        assert said.heartbeat >= max(one.started, one.heartbeat or one.started), "cannot be decreased"
        assert abs(said.heartbeat - now) < timedelta(seconds=30), "must be set to the present time"
        assert said.expected is None or said.expected >= now, "cannot be set to the past time"
        assert said.completed in (None, said.heartbeat)
        assert one.heartbeat is None or said.completed or said.heartbeat - one.heartbeat >= SOONEST, "too often"
        assert 0 < len(said.message) <= 4000


def _heard_lately(one: EvictionView, now: datetime) -> bool:
    """Else Kubernetes hands it on: unless it need not be answered."""
    if one.completed or one.withdrawn:
        return True
    return one.heartbeat is not None and now - one.heartbeat < GIVEN_UP
