"""One write that fails, or one event that nobody hears, must not hold up what does not rest on it."""

from __future__ import annotations

from perdure.contract import (
    ErrorKind,
    ExitKind,
    Failure,
    Outcome,
    write_outcome,
)
from perdure_operator.cluster.protocol import (
    EVENTS,
    JOBS,
    NODES,
    Json,
    Resource,
    Unavailable,
)
from tests.unit.operator.builders import job
from tests.unit.operator.memory_cluster import MemoryCluster
from tests.unit.operator.stage import Stage


def training(cluster: MemoryCluster | None = None) -> Stage:
    stage = Stage(cluster)
    for node in ("n1", "n2", "n3", "n4"):
        stage.node(node)
    stage.apply()
    stage.start()
    stage.run_pods(["n1", "n2"])
    stage.settle()
    return stage


def elapse(stage: Stage, seconds: int) -> None:
    for _ in range(seconds):
        stage.wait(1)


def test_an_event_that_could_not_be_sent_is_sent_when_it_is_told_again() -> None:
    class NoEvents(MemoryCluster):
        down = True

        async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
            if self.down and resource == EVENTS:
                raise Unavailable("no answer")
            return await super().create(resource, namespace, body, dry_run=dry_run)

    cluster = NoEvents()
    stage = training(cluster)
    stage.cordon("n1")
    stage.settle()
    cluster.change(NODES, "", "n1", lambda raw: raw["spec"].update(unschedulable=False))
    stage.settle()
    cluster.down = False
    elapse(stage, 1)
    stage.cordon("n1")
    elapse(stage, 1)
    sent = [raw["reason"] for (resource, _, _), raw in cluster._objects.items() if resource == EVENTS]
    assert "NodeLeaving" in sent


def test_a_job_keeps_its_root_through_the_pause_after_a_failure() -> None:
    stage = Stage()
    for node in ("n1", "n2"):
        stage.node(node)
    stage.apply(job("another", checkpoint={"uri": "s3://bucket/digits"}, suspend=True))
    stage.apply()
    stage.start()
    stage.run_pods(["n1", "n2"])
    stage.settle()
    stage.cluster.change(JOBS, "ns", "another", lambda raw: raw["spec"].update(suspend=False))
    elapse(stage, 2)
    failure = Failure(ErrorKind.EXCEPTION, "ValueError", "Traceback")
    for name in stage.names():
        stage.end_pod(name, write_outcome(Outcome(ExitKind.FAILED, run=1, rank=0, error=failure)), exit_code=1)
    elapse(stage, 15)
    assert {name.partition("-")[0] for name in stage.names()} == {"digits"}
