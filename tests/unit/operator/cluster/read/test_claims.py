"""The deadline of a node that Karpenter takes away: on its NodeClaim alone, got once, and never a reason to stop."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from perdure_operator.api.signal_rows import Reaction, SignalRow, SignalSource
from perdure_operator.cluster.protocol import (
    NODE_CLAIMS,
    NODES,
    ApiError,
    Forbidden,
    Json,
    NotFound,
    Resource,
    Unavailable,
)
from perdure_operator.cluster.read import parse
from perdure_operator.state.snapshot import NodeView
from tests.support.memory_cluster import MemoryCluster
from tests.support.raw import NOW
from tests.support.stage import KEY, Stage

ENDS = NOW + timedelta(minutes=10)
ANNOTATION = "karpenter.sh/nodeclaim-termination-timestamp"


class Cluster(MemoryCluster):
    """Counts the claims that are asked for, and answers as `refuses` says."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.refuses: ApiError | None = None

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        if resource == NODE_CLAIMS:
            self.asked.append(name)
            if self.refuses:
                raise self.refuses
        return await super().get(resource, namespace, name)


def training(*, node_claims: bool = True, signals: tuple[SignalRow, ...] = ()) -> tuple[Stage, Cluster]:
    """A job on two nodes that Karpenter has made."""
    cluster = Cluster()
    stage = Stage(cluster, signals=signals, node_claims=node_claims)
    for name in ("n1", "n2"):
        stage.node(name)
        cluster.change(NODES, "", name, partial(_own, claim=f"pool-{name}"))
        asyncio.run(cluster.create(NODE_CLAIMS, "", {"metadata": {"name": f"pool-{name}"}, "spec": {}}))
    stage.apply()
    stage.start()
    stage.run_pods(["n1", "n2"])
    stage.settle()
    return stage, cluster


def _own(raw: Json, claim: str) -> None:
    owner = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "name": claim,
        "uid": "c",
        "blockOwnerDeletion": True,
    }
    raw["metadata"]["ownerReferences"] = [owner]


def taint(stage: Stage, name: str = "n1") -> None:
    gone = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
    stage.cluster.change(NODES, "", name, lambda raw: raw["spec"].update(taints=[gone]))


def end(stage: Stage, text: str = ENDS.isoformat(), claim: str = "pool-n1") -> None:
    stage.cluster.change(NODE_CLAIMS, "", claim, lambda raw: raw["metadata"].update(annotations={ANNOTATION: text}))


def ends(stage: Stage, name: str = "n1") -> datetime | None:
    seen = asyncio.run(stage.observer.observe(KEY))
    assert seen
    return next(node.claim_ends for node in seen.nodes if node.name == name)


def test_a_node_that_stays_has_its_claim_left_alone() -> None:
    stage, cluster = training()
    end(stage)
    assert (ends(stage), cluster.asked) == (None, [])


def test_of_a_node_that_goes_the_one_claim_is_got_once() -> None:
    stage, cluster = training()
    end(stage)
    taint(stage)
    assert [ends(stage), ends(stage)] == [ENDS, ENDS]
    stage.now += timedelta(minutes=4)
    assert ends(stage) == ENDS
    assert cluster.asked == ["pool-n1"]


def test_without_the_option_no_claim_is_read() -> None:
    stage, cluster = training(node_claims=False)
    end(stage)
    taint(stage)
    assert (ends(stage), cluster.asked) == (None, [])


def test_where_no_row_asks_for_it_no_claim_is_read() -> None:
    plain = SignalRow(
        name="karpenter", source=SignalSource.TAINT, key="karpenter.sh/disrupted", reaction=Reaction.VACATE
    )
    stage, cluster = training(signals=(plain,))
    end(stage)
    taint(stage)
    assert (ends(stage), cluster.asked) == (None, [])


def test_a_time_that_comes_a_moment_after_the_taint_is_found() -> None:
    stage, cluster = training()
    taint(stage)
    assert ends(stage) is None
    end(stage)
    stage.now += timedelta(seconds=1)
    assert ends(stage) is None
    stage.now += timedelta(seconds=5)
    assert ends(stage) == ENDS
    assert len(cluster.asked) == 2


def test_a_change_of_the_node_is_a_reason_to_look_again_at_once() -> None:
    stage, _ = training()
    taint(stage)
    assert ends(stage) is None
    end(stage)
    stage.cluster.change(NODES, "", "n1", lambda raw: raw["metadata"].update(deletionTimestamp=NOW.isoformat()))
    assert ends(stage) == ENDS


@pytest.mark.parametrize("text", ["", "soon", "2026-01-02T03:14:05"])
def test_what_is_no_time_is_none(text: str) -> None:
    assert parse.claim_ends({"metadata": {"annotations": {ANNOTATION: text}}}) is None
    assert parse.claim_ends({"metadata": {}}) is None


@pytest.mark.parametrize(
    "error", [Forbidden("no right", status=403), NotFound("no such kind", status=404), Unavailable("no answer")]
)
def test_a_claim_that_cannot_be_read_costs_the_deadline_and_is_reported_once(
    error: ApiError, caplog: pytest.LogCaptureFixture
) -> None:
    stage, cluster = training()
    end(stage)
    cluster.refuses = error
    taint(stage)
    taint(stage, "n2")
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            assert ends(stage) is None
            stage.now += timedelta(seconds=10)
    assert [str(error) in said.getMessage() for said in caplog.records] == [True]
    stage.settle()
    current = stage.status().current
    assert current is not None
    assert current.intent is not None  # members leave all the same


def test_without_the_right_no_claim_is_read_again_for_minutes() -> None:
    stage, cluster = training()
    cluster.refuses = Forbidden("no right", status=403)
    taint(stage)
    for _ in range(10):
        ends(stage)
        stage.now += timedelta(seconds=20)
    assert len(cluster.asked) == 1
    cluster.refuses = None
    end(stage)
    stage.sync()
    assert ends(stage) == ENDS


def test_a_time_that_was_known_outlives_a_server_that_does_not_answer() -> None:
    stage, cluster = training()
    end(stage)
    taint(stage)
    assert ends(stage) == ENDS
    cluster.refuses = Unavailable("no answer")
    stage.sync()
    assert ends(stage) == ENDS


@pytest.mark.parametrize("error", [Unavailable("no answer"), Forbidden("no right", status=403)])
def test_and_a_change_of_the_node_that_it_does_not_answer_for(error: ApiError) -> None:
    stage, cluster = training()
    end(stage)
    taint(stage)
    assert ends(stage) == ENDS
    cluster.refuses = error
    for at in ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"):
        change = partial(_taken_away, at=at)
        stage.cluster.change(NODES, "", "n1", change)
        assert ends(stage) == ENDS


def _taken_away(raw: Json, at: str) -> None:
    raw["metadata"]["deletionTimestamp"] = at
    raw["spec"]["taints"].append({"key": at[:4], "value": at[-3:-1], "effect": "NoSchedule"})


def test_a_resync_sees_a_time_that_was_changed() -> None:
    stage, _ = training()
    end(stage)
    taint(stage)
    assert ends(stage) == ENDS
    end(stage, NOW.isoformat())
    stage.sync()
    assert ends(stage) == NOW


def test_another_owner_is_no_claim() -> None:
    owners = [
        {"apiVersion": "example.com/v1", "kind": "NodeClaim", "name": "theirs"},
        {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "name": "machine"},
    ]
    assert parse.node({"metadata": {"name": "n1", "ownerReferences": owners}}) == NodeView(name="n1", ready=False)


def test_the_run_is_over_before_the_deadline() -> None:
    stage, _ = training()
    end(stage, (stage.now + timedelta(seconds=20)).astimezone(UTC).isoformat())
    taint(stage)
    stage.settle()
    current = stage.status().current
    assert current is not None
    assert current.intent is not None
    assert (current.intent.leave, current.intent.seconds <= 15) == (True, True)
