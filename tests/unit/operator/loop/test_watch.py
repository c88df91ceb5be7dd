"""An event fills the cache and makes exactly the jobs due that a decision could change for."""

from __future__ import annotations

import asyncio

import kopf
import pytest
from kopf._cogs.structs.references import Resource as KopfResource

from perdure.wire import LABEL_JOB
from perdure_operator.api.names import LABEL_UID
from perdure_operator.cluster.protocol import BUDGETS, EVICTIONS, JOBS, NODES, PODS, Json, Resource
from perdure_operator.loop import watch
from perdure_operator.loop.queue import Queue
from perdure_operator.serving.metrics.counted import Echoes
from tests.support.raw import job
from tests.support.stage import KEY, Stage
from tests.unit.operator.cluster.read.test_observe import COMPLETED


def stage() -> Stage:
    """One job with a pod on n1, and nothing due."""
    made = Stage()
    made.node("n1")
    made.apply()
    metadata = {"name": "p", "labels": {LABEL_JOB: "digits"}}
    asyncio.run(made.cluster.create(PODS, "ns", {"metadata": metadata, "spec": {"nodeName": "n1"}}))
    due(made)
    return made


def due(made: Stage) -> list[tuple[str, str]]:
    found = []
    while key := made.queue._schedule.pop(made.now.timestamp()):
        found.append(key)
    for key in found:
        made.queue.done(key)
    return found


def test_a_change_of_a_pod_makes_its_job_due() -> None:
    made = stage()
    made.cluster.change(PODS, "ns", "p", lambda raw: raw["status"].update(phase="Running"))
    assert due(made) == [KEY]
    made.cluster.remove(PODS, "ns", "p")
    assert due(made) == [KEY]


def _probed(raw: Json) -> None:
    """What kubelets report all day: other containers, probes, resource usage, and who wrote it."""
    raw["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    raw["metadata"].setdefault("annotations", {})["cni/ips"] = "10.0.0.1"
    raw["status"]["conditions"] = [{"type": "Ready", "status": "False", "lastProbeTime": "now"}]
    raw["status"]["containerStatuses"] = [{"name": "metrics", "restartCount": 7, "state": {"running": {}}}]


def test_an_unread_field_of_a_pod_makes_nothing_due_and_its_version_is_known() -> None:
    made = stage()
    made.cluster.change(PODS, "ns", "p", _probed)
    assert due(made) == []
    (record,) = made.cache.pods(KEY)
    stored = asyncio.run(made.cluster.get(PODS, "ns", "p"))
    assert record.view.resource_version == stored["metadata"]["resourceVersion"]


def test_a_pod_that_changes_its_job_makes_both_due() -> None:
    made = stage()
    made.cluster.change(PODS, "ns", "p", lambda raw: raw["metadata"]["labels"].update({LABEL_JOB: "another"}))
    assert sorted(due(made)) == [("ns", "another"), KEY]


def test_an_unread_field_of_a_job_makes_nothing_due() -> None:
    made = stage()
    made.cluster.change(JOBS, *KEY, lambda raw: raw["metadata"].update(labels={"team": "a"}, managedFields=[{}]))
    assert due(made) == []


def test_a_nodes_heartbeat_makes_nothing_due_and_its_cordon_does() -> None:
    made = stage()
    made.cluster.change(NODES, "", "n1", lambda raw: raw["status"].update(images=["new"]))
    assert due(made) == []
    made.cordon("n1")
    assert due(made) == [KEY]
    made.cluster.remove(NODES, "", "n1")
    assert due(made) == [KEY]


def test_a_node_without_our_pods_makes_nothing_due() -> None:
    made = stage()
    made.node("n2")
    made.cordon("n2")
    assert due(made) == []


def test_other_nodes_concern_a_job_with_an_unready_node_by_whether_they_are_ready() -> None:
    made = stage()
    made.node("n2")
    assert due(made) == []
    dark = {"unready": [{"node": "n1", "since": "2026-01-02T03:04:05Z"}]}
    made.cluster.change(JOBS, *KEY, lambda raw: raw.update(status=dark))
    due(made)
    made.cluster.change(NODES, "", "n2", lambda raw: raw["spec"].update(unschedulable=True))
    assert due(made) == []
    made.cluster.change(NODES, "", "n2", lambda raw: raw.update(status={}))
    assert due(made) == [KEY]
    made.cluster.remove(NODES, "", "n2")
    assert due(made) == [KEY]
    made.cluster.change(JOBS, *KEY, lambda raw: raw.update(status={}))
    due(made)
    made.node("n3")
    assert due(made) == []


def test_a_budgets_status_makes_nothing_due_and_its_spec_does() -> None:
    made = stage()
    asyncio.run(made.cluster.create(JOBS, "ns", job("elsewhere")))
    due(made)
    budget: Json = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {}}}
    asyncio.run(made.cluster.create(BUDGETS, "ns", budget))
    assert due(made) == [KEY]  # the other job has no pod that it could cover
    made.cluster.change(BUDGETS, "ns", "b", lambda raw: raw.update(status={"currentHealthy": 1}))
    assert due(made) == []
    made.cluster.change(BUDGETS, "ns", "b", lambda raw: raw["spec"].update(minAvailable=2))
    assert due(made) == [KEY]


def test_a_jobs_own_budget_concerns_it_alone() -> None:
    made = stage()
    asyncio.run(made.cluster.create(JOBS, "ns", job("another")))
    uid = asyncio.run(made.cluster.get(JOBS, *KEY))["metadata"]["uid"]
    due(made)
    owner = {"uid": uid, "controller": True}
    spec = {"minAvailable": 1, "selector": {"matchLabels": {LABEL_UID: uid}}}
    asyncio.run(
        made.cluster.create(BUDGETS, "ns", {"metadata": {"name": "b", "ownerReferences": [owner]}, "spec": spec})
    )
    assert due(made) == [KEY]
    made.cluster.remove(BUDGETS, "ns", "b")
    assert due(made) == [KEY]


def test_our_own_write_coming_back_makes_nothing_due() -> None:
    made = stage()
    raw = asyncio.run(made.cluster.get(JOBS, *KEY))
    watch.Watch(made.cache, made.queue, Echoes()).take_in(JOBS, "MODIFIED", raw)
    assert due(made) == []


@pytest.mark.parametrize("how", ["deleted", "completed"])
def test_the_end_of_a_job_makes_those_due_that_wait_for_its_root(how: str) -> None:
    made = stage()
    asyncio.run(made.cluster.create(JOBS, "ns", job("another") | {"spec": job()["spec"]}))
    asyncio.run(made.cluster.create(JOBS, "ns", job("unrelated")))
    due(made)
    if how == "deleted":
        made.cluster.remove(JOBS, *KEY)
    else:
        made.cluster.change(JOBS, *KEY, lambda raw: raw.update(status=COMPLETED))
    assert sorted(due(made)) == [("ns", "another"), KEY]


def test_kopf_only_watches_and_leaves_nothing_behind() -> None:
    registry = kopf.OperatorRegistry()
    watch.register(registry, watch.Watch(Stage().cache, Queue(), Echoes()))
    for resource in (JOBS, PODS, NODES, BUDGETS):
        assert registry._watching.has_handlers(_kopf(resource))
        for others in (registry._changing, registry._spawning, registry._indexing):
            assert not others.has_handlers(_kopf(resource))


def test_evictions_are_watched_only_where_they_are_served() -> None:
    for evictions in (False, True):
        registry = kopf.OperatorRegistry()
        watch.register(registry, watch.Watch(Stage().cache, Queue(), Echoes()), evictions=evictions)
        assert registry._watching.has_handlers(_kopf(EVICTIONS)) is evictions


def test_kopf_asks_the_server_for_our_pods_only() -> None:
    selectors = watch.settings().watching.label_selectors
    assert list(selectors.collect(_kopf(PODS))) == [LABEL_JOB]
    assert list(selectors.collect(_kopf(NODES))) == []


def _kopf(resource: Resource) -> KopfResource:
    return KopfResource(resource.group, resource.version, resource.plural, preferred=True)
