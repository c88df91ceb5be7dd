"""Two jobs that each fit alone both begin and end: the operator around a cluster in memory with six places."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from perdure.wire import CommitRef, ExitKind, Outcome, write_outcome
from perdure_operator.api.status import Phase, TrainingJobStatus
from perdure_operator.cluster.protocol import JOBS, PODS, Json
from tests.support.raw import job
from tests.support.stage import Stage

PLACES, MEMBERS = 6, 4
SECONDS = 10.0


class Crowd(Stage):
    """The scheduler binds pods as they come while there are places; a kubelet ends those that are deleted."""

    def status_of(self, name: str) -> TrainingJobStatus:
        raw = asyncio.run(self.cluster.get(JOBS, "ns", name))
        return TrainingJobStatus.model_validate(raw.get("status") or {})

    def of(self, name: str) -> list[Json]:
        return [pod for pod in self.pods() if pod["metadata"]["labels"]["perdure.dev/job"] == name]

    def placed(self, name: str) -> int:
        return sum(bool(pod["spec"].get("nodeName")) for pod in self.of(name))

    def schedule(self) -> None:
        for pod in self.pods():
            if pod["metadata"].get("deletionTimestamp"):
                self.cluster.remove(PODS, "ns", pod["metadata"]["name"])
        taken = sum(bool(pod["spec"].get("nodeName")) for pod in self.pods())
        waiting = [pod for pod in self.pods() if not pod["spec"].get("nodeName")]
        for index, pod in enumerate(sorted(waiting, key=_turn)):
            change = partial(_bound, number=index) if taken + index < PLACES else _roomless
            self.cluster.change(PODS, "ns", pod["metadata"]["name"], change)

    def goes_on(self, seconds: float = SECONDS) -> None:
        self.schedule()
        self.settle()
        self.wait(seconds)

    def completes(self, name: str) -> None:
        done = Outcome(ExitKind.COMPLETED, run=1, rank=0, step=9, commit=CommitRef(9, 9), opened=1)
        for pod in self.of(name):
            self.end_pod(pod["metadata"]["name"], write_outcome(done))
            self.settle()
        for pod in self.of(name):
            self.cluster.remove(PODS, "ns", pod["metadata"]["name"])


def _turn(pod: Json) -> tuple[int, str]:
    """One of each job in turn."""
    name = str(pod["metadata"]["name"])
    return int(name.rpartition("-")[2]), name


def _bound(pod: Json, number: int) -> None:
    pod["spec"]["nodeName"] = "n1"
    state = {"name": pod["spec"]["containers"][0]["name"], "state": {"running": {}}}
    ready = [{"type": "Ready", "status": "True"}]
    pod["status"] = {
        "phase": "Running",
        "podIP": f"10.0.0.{number + 1}",
        "conditions": ready,
        "containerStatuses": [state],
    }


def _roomless(pod: Json) -> None:
    no_room = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    pod["status"] = {"phase": "Pending", "conditions": [no_room]}


def _crowd(**spec: Any) -> Crowd:
    crowd = Crowd()
    crowd.node("n1")
    for name in ("first", "second"):
        crowd.apply(job(name, replicas=MEMBERS, **spec))
    crowd.start()
    crowd.goes_on()
    return crowd


def test_two_jobs_that_each_fit_alone_both_finish() -> None:
    crowd = _crowd()
    assert [crowd.placed(name) for name in ("first", "second")] == [3, 3]
    rounds = 0
    while crowd.status_of("first").phase is not Phase.RUNNING:
        rounds += 1
        assert rounds < 200, "nobody lets go"
        crowd.goes_on()
    assert crowd.status_of("first").gang is None, "the older one has let go as well"
    assert crowd.status_of("second").gang is not None
    crowd.completes("first")
    assert crowd.status_of("first").phase is Phase.COMPLETED
    while crowd.status_of("second").phase is not Phase.RUNNING:
        rounds += 1
        assert rounds < 400, "the younger one never begins"
        crowd.goes_on()
    crowd.completes("second")
    assert crowd.status_of("second").phase is Phase.COMPLETED


def test_one_that_can_never_begin_does_not_keep_the_other_from_it_for_ever() -> None:
    crowd = Crowd()
    crowd.node("n1")
    crowd.apply(job("first", replicas=PLACES + 1))
    crowd.apply(job("second", replicas=MEMBERS))
    crowd.start()
    rounds = 0
    while crowd.status_of("second").phase is not Phase.RUNNING:
        rounds += 1
        assert rounds < 2000, "it starves"
        crowd.goes_on()
    assert crowd.status_of("first").run == 0
