"""One failed write, or one event without a listener, must not delay anything that does not rest on it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from perdure.wire import (
    ANNOTATION_ASSIGNMENT,
    ErrorKind,
    ExitKind,
    Failure,
    Leave,
    Outcome,
    read_assignment,
    write_outcome,
)
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import MemberOutcome
from perdure_operator.cluster.protocol import (
    BUDGETS,
    EVENTS,
    JOBS,
    NODES,
    PODS,
    Forbidden,
    Json,
    Operation,
    Resource,
    Unavailable,
)
from tests.support.memory_cluster import MemoryCluster
from tests.support.raw import job
from tests.support.stage import KEY, Stage


class WebhookDown(MemoryCluster):
    """The webhook that is asked about new pods does not answer: 500 from the API server."""

    down = False

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        if self.down and resource == PODS:
            raise Unavailable("failed calling webhook", status=500)
        return await super().create(resource, namespace, body, dry_run=dry_run)


class BudgetsForbidden(MemoryCluster):
    """The right to create budgets was revoked."""

    down = False

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        if self.down and resource == BUDGETS:
            raise Forbidden("exceeded quota: budgets", status=403)
        return await super().create(resource, namespace, body, dry_run=dry_run)


class DeletesForbidden(MemoryCluster):
    """Admission refuses deletions of pods."""

    down = False

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, version: str = "", grace: int | None = None
    ) -> None:
        if self.down and resource == PODS:
            raise Forbidden("admission webhook keep-pods denied the request", status=403)
        await super().delete(resource, namespace, name, uid=uid, version=version, grace=grace)


def training(cluster: MemoryCluster | None = None) -> Stage:
    stage = Stage(cluster)
    for node in ("n1", "n2", "n3", "n4"):
        stage.node(node)
    stage.apply()
    stage.start()
    stage.run_pods(["n1", "n2"])
    stage.settle()
    return stage


def told_to_leave(stage: Stage) -> bool:
    told = [read_assignment(pod["metadata"]["annotations"][ANNOTATION_ASSIGNMENT]) for pod in stage.pods()]
    return all(isinstance(one, Leave) for one in told)


def outcomes(stage: Stage) -> tuple[MemberOutcome, ...]:
    current = stage.status().current
    assert current is not None
    return current.outcomes


def elapse(stage: Stage, seconds: int) -> None:
    for _ in range(seconds):
        stage.wait(1)


def test_members_are_asked_to_leave_in_time_while_an_edited_template_cannot_be_tried() -> None:
    cluster = WebhookDown()
    stage = training(cluster)
    cluster.down = True
    stage.cluster.change(JOBS, *KEY, lambda raw: raw["spec"]["template"]["spec"]["containers"][0].update(image="new"))
    elapse(stage, 200)
    stage.cordon("n1")
    elapse(stage, 6)
    assert told_to_leave(stage)


def test_members_are_asked_to_leave_in_time_while_the_budget_cannot_be_put_back() -> None:
    cluster = BudgetsForbidden()
    stage = training(cluster)
    cluster.down = True
    name = next(key[2] for key in cluster._objects if key[0] == BUDGETS)
    cluster.remove(BUDGETS, "ns", name)
    elapse(stage, 200)
    stage.cordon("n1")
    elapse(stage, 6)
    assert told_to_leave(stage)


def test_the_next_members_are_created_while_pods_of_the_run_before_cannot_be_deleted() -> None:
    cluster = DeletesForbidden()
    stage = training(cluster)
    cluster.down = True
    before = set(stage.names())
    trainer = {"image": "new"}  # no replacement is created for them while the others leave
    stage.cluster.change(JOBS, *KEY, lambda raw: raw["spec"]["template"]["spec"]["containers"][0].update(trainer))
    stage.cordon("n1")
    elapse(stage, 3)
    assert told_to_leave(stage)
    assert set(stage.names()) == before
    for name in before:
        stage.end_pod(name, write_outcome(Outcome(ExitKind.CHECKPOINTED, run=1, rank=0, step=5)))
    elapse(stage, 5)
    assert set(stage.names()) - before


def _set_ready(stage: Stage, node: str, status: str) -> None:
    ready = {"conditions": [{"type": "Ready", "status": status}]}
    stage.cluster.change(NODES, "", node, lambda raw: raw.update(status=ready))


def test_a_job_on_a_dead_node_is_looked_at_when_the_outage_around_it_ends() -> None:
    stage = training()
    for node in ("n1", "n2", "n3", "n4"):
        _set_ready(stage, node, "False")
    elapse(stage, 3)
    assert all(one.outage for one in stage.status().unready)
    elapse(stage, 10)
    for node in ("n3", "n4"):
        _set_ready(stage, node, "True")
    elapse(stage, 10)
    assert not any(one.outage for one in stage.status().unready)


def test_a_member_on_a_lost_node_is_written_off_without_a_conflict_of_our_own_making(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = training()
    _set_ready(stage, "n1", "False")
    elapse(stage, 59)
    with caplog.at_level(logging.DEBUG, logger="perdure_operator.loop.worker"):
        elapse(stage, 4)
    assert "overtaken" not in caplog.text


class OneCannotBePatched(MemoryCluster):
    """Admission refuses changes of one pod."""

    kept = ""

    async def patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> Json:
        if name == self.kept:
            raise Forbidden("admission webhook keep-pod denied the request", status=403)
        return await super().patch(resource, namespace, name, operations)


def test_members_beyond_the_sixteenth_are_annotated_although_the_first_cannot_be() -> None:
    cluster = OneCannotBePatched()
    stage = Stage(cluster)
    for node in ("n1", "n2"):
        stage.node(node)
    stage.apply(job(replicas=100))
    stage.start()
    stage.run_pods(["n1", "n2"])
    stage.settle()
    cluster.kept = stage.names()[0]
    stage.cordon("n1")
    elapse(stage, 3)
    told = [read_assignment(pod["metadata"]["annotations"][ANNOTATION_ASSIGNMENT]) for pod in stage.pods()]
    assert sum(isinstance(one, Leave) for one in told) == 99


def test_the_outcome_of_a_member_whose_deletion_the_watch_tells_after_a_live_list_is_kept() -> None:
    stage = training()
    first, second = stage.names()
    late: list[tuple[str, Resource, Json]] = []
    told = stage.cluster.watch
    stage.end_pod(second, write_outcome(Outcome(ExitKind.PEER_LOST, run=1, rank=1, step=5)), exit_code=1)
    stage.cluster.watch = lambda kind, resource, raw: late.append((kind, resource, raw))
    failure = Failure(ErrorKind.EXCEPTION, "ValueError", "Traceback")
    stage.end_pod(first, write_outcome(Outcome(ExitKind.FAILED, run=1, rank=0, step=5, error=failure)), exit_code=1)
    stage.cluster.remove(PODS, "ns", first)
    elapse(stage, 2)
    stage.cluster.watch = told
    for event in late:
        told(*event)
    elapse(stage, 5)
    assert (stage.status().failures.code, stage.status().failures.infrastructure) == (1, 0)


def test_a_watch_that_never_tells_how_a_member_ended_is_not_waited_for_long() -> None:
    stage = training()
    first, _ = stage.names()
    told = stage.cluster.watch
    stage.cluster.watch = lambda *_: None
    stage.cluster.remove(PODS, "ns", first)
    stage.cluster.watch = told
    stage.sync()
    elapse(stage, 1)
    assert [one.name for one in outcomes(stage)] == []
    elapse(stage, 4)
    assert [one.name for one in outcomes(stage)] == [first]


def test_an_event_that_could_not_be_sent_is_sent_at_the_next_report() -> None:
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


class BudgetsCannotBePatched(MemoryCluster):
    """The right to change budgets was revoked."""

    async def patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> Json:
        if resource == BUDGETS:
            raise Forbidden("poddisruptionbudgets is forbidden", status=403)
        return await super().patch(resource, namespace, name, operations)


def test_a_budget_that_cannot_be_raised_is_named_as_the_reason_for_waiting() -> None:
    stage = training(BudgetsCannotBePatched())
    members = stage.names()
    stage.cluster.change(JOBS, *KEY, lambda raw: raw["spec"].update(replicas=3))
    elapse(stage, 3)
    for name in members:
        stage.end_pod(name, write_outcome(Outcome(ExitKind.CHECKPOINTED, run=1, rank=0, step=5)))
    elapse(stage, 5)
    running = stage.status().find(ConditionType.RUNNING)
    assert running is not None
    assert "poddisruptionbudgets is forbidden" in running.message
