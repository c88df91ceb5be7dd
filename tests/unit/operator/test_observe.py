"""Snapshots hold facts: absence counts only after a live LIST, and a node is gone only if the API server says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.contract import LABEL_JOB
from perdure.errors import UserError
from perdure_operator.cluster.protocol import BUDGETS, JOBS, NODES, PODS, Json
from perdure_operator.cluster.write import manifests
from perdure_operator.state.snapshot import Snapshot
from tests.unit.operator.builders import job, template
from tests.unit.operator.stage import KEY, Stage


def stage() -> Stage:
    made = Stage()
    made.apply()
    asyncio.run(made.observer.sync())
    return made


def look(made: Stage) -> Snapshot:
    seen = asyncio.run(made.observer.observe(KEY))
    assert seen
    return seen


def create_pod(made: Stage, name: str, *, owner: str = "", node: str = "") -> None:
    owners = [{"uid": owner, "controller": True}] if owner else []
    metadata = {"name": name, "labels": {LABEL_JOB: "digits", "app": "x"}, "ownerReferences": owners}
    asyncio.run(made.cluster.create(PODS, "ns", {"metadata": metadata, "spec": {"nodeName": node}}))


def test_the_first_look_is_live_even_if_no_event_has_arrived() -> None:
    made = stage()
    made.cluster.watch = lambda *_: None  # the watch has not caught up
    create_pod(made, "digits-x-0")
    seen = look(made)
    assert [pod.name for pod in seen.pods] == ["digits-x-0"]
    assert seen.pods_complete


def test_between_writes_the_watch_is_enough() -> None:
    made = stage()
    look(made)
    create_pod(made, "digits-x-0")
    assert [pod.name for pod in look(made).pods] == ["digits-x-0"]
    made.cluster.watch = lambda *_: None
    create_pod(made, "digits-x-1")
    assert len(look(made).pods) == 1
    made.observer.distrust(KEY)
    assert len(look(made).pods) == 2


def test_a_deleted_pod_is_seen_as_gone_as_long_as_status_names_it() -> None:
    made = stage()
    create_pod(made, "digits-x-0")
    create_pod(made, "digits-x-1")
    made.cluster.change(JOBS, *KEY, lambda raw: raw.update(status={"next": {"run": 1, "members": ["digits-x-0"]}}))
    made.cluster.remove(PODS, "ns", "digits-x-0")
    made.cluster.remove(PODS, "ns", "digits-x-1")
    assert [(pod.name, pod.gone) for pod in look(made).pods] == [("digits-x-0", True)]
    made.cluster.change(JOBS, *KEY, lambda raw: raw.update(status={"next": {"run": 1, "members": []}}))
    assert look(made).pods == ()


def test_pods_of_a_predecessor_and_of_nobody_are_shown_too() -> None:
    made = stage()
    create_pod(made, "a", owner="predecessor")
    create_pod(made, "b")
    assert [pod.owner_uid for pod in look(made).pods] == ["predecessor", ""]


def test_a_node_that_no_event_has_told_is_asked_for() -> None:
    made = stage()
    made.cluster.watch = lambda _kind, resource, raw: made.cache.apply(resource, raw) if resource == PODS else None
    made.node("n1")
    create_pod(made, "a", node="n1")
    create_pod(made, "b", node="n2")
    assert [(node.name, node.exists) for node in look(made).nodes] == [("n1", True), ("n2", False)]


def test_nothing_is_known_of_nodes_before_they_have_been_listed() -> None:
    made = Stage()
    made.apply()
    assert not look(made).nodes_complete


def test_own_and_foreign_budgets_are_told_apart() -> None:
    made = stage()
    uid = look(made).uid
    create_pod(made, "a", owner=uid)
    own = manifests.budget(look(made), 1)
    for raw in (own, _budget("theirs", {"app": "x"}), _budget("others", {"app": "y"})):
        asyncio.run(made.cluster.create(BUDGETS, "ns", raw))
    seen = look(made)
    assert seen.budget
    assert seen.budget.min_available == 1
    assert seen.foreign_budgets == ("theirs",)


def test_an_older_live_job_with_the_same_root_is_named() -> None:
    made = stage()
    same = job("another") | {"spec": job()["spec"]}
    asyncio.run(made.cluster.create(JOBS, "ns", same))
    assert look(made).same_uri == ("ns/another",)  # created in the same second, and first by name
    assert _other(made, "another").same_uri == ()
    made.cluster.change(JOBS, "ns", "another", lambda raw: raw.update(status={"phase": "Completed"}))
    assert look(made).same_uri == ()


def test_fields_of_a_newer_crd_are_left_out_and_told_once_for_each_generation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = stage()
    before = look(made).spec

    def write(value: int) -> None:
        made.cluster.change(JOBS, *KEY, lambda raw: raw["spec"].update(fromTheFuture=value))
        made.cluster.change(JOBS, *KEY, lambda raw: raw["spec"]["checkpoint"].update(later={"a": value}))

    write(1)
    assert look(made).spec == look(made).spec == before
    (told,) = [record.getMessage() for record in caplog.records]
    assert "ns/digits" in told
    assert "checkpoint.later, fromTheFuture" in told
    assert look(made).unknown_fields == ("spec.checkpoint.later", "spec.fromTheFuture")
    assert "matching" in told
    caplog.clear()
    write(2)
    look(made)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("field", "value"), [("replicas", "many"), ("checkpoint", None), ("checkpoint", {"later": 1})])
def test_a_spec_that_cannot_be_read_is_told_and_not_guessed(field: str, value: Any) -> None:
    made = stage()
    made.cluster.change(JOBS, *KEY, lambda raw: raw["spec"].update({field: value, "fromTheFuture": 1}))
    with pytest.raises(UserError, match=rf"ns/digits: field {field}.*matching CRD"):
        look(made)


def _changed(**spec: Any) -> str:
    made = stage()
    uid = "3f2a0000-0000-4000-8000-000000000000"
    made.cluster.change(JOBS, *KEY, lambda raw: raw["metadata"].update(uid=uid))
    made.cluster.change(JOBS, *KEY, lambda raw: raw["spec"].update(spec))
    return look(made).template_hash


@pytest.mark.parametrize(
    "spec",
    [
        {"template": template(image="another")},
        {"processesPerReplica": 2},
        {"checkpoint": {"uri": "s3://bucket/digits", "keep": 9}},
        {"checkpoint": {"uri": "s3://bucket/digits", "everySteps": 5}},
        {"checkpoint": {"uri": "s3://bucket/digits", "s3": {"credentialsSecret": "keys"}}},
    ],
)
def test_whatever_makes_another_pod_changes_the_hash(spec: dict[str, Any]) -> None:
    assert _changed(**spec) != _changed()


@pytest.mark.parametrize("spec", [{"replicas": 7}, {"suspend": True}, {"failure": {"maxCodeFailures": 1}}])
def test_what_makes_the_same_pod_leaves_the_hash(spec: dict[str, Any]) -> None:
    assert _changed(**spec) == _changed()


def test_the_hash_does_not_depend_on_the_order_of_fields() -> None:
    container = template()["spec"]["containers"][0]
    turned = {"spec": {"containers": [dict(reversed(container.items()))]}}
    assert _changed(template=turned) == _changed(template=template())


def test_a_job_that_is_gone_is_none_and_its_pods_are_forgotten() -> None:
    made = stage()
    create_pod(made, "a")
    look(made)
    made.cluster.remove(PODS, "ns", "a")
    made.cluster.remove(JOBS, *KEY)
    made.observer.distrust(KEY)
    assert asyncio.run(made.observer.observe(KEY)) is None
    assert made.cache.gone(KEY) == []


def test_a_resync_notices_what_the_watch_has_missed() -> None:
    made = stage()
    made.node("n1")
    made.cluster.watch = lambda *_: None
    made.cluster.remove(NODES, "", "n1")
    made.cluster.remove(JOBS, *KEY)
    assert asyncio.run(made.observer.sync()) == set()
    assert made.cache.known(NODES) == {}


def test_a_job_restored_to_an_older_version_is_seen_as_it_is() -> None:
    made = stage()
    older = asyncio.run(made.cluster.get(JOBS, *KEY))
    made.cluster.change(JOBS, *KEY, lambda raw: raw["spec"].update(replicas=3))
    assert look(made).spec.replicas == 3
    made.cluster.restore(JOBS, older)
    made.observer.distrust(KEY)
    assert look(made).spec.replicas == 2


def test_a_snapshot_survives_json() -> None:
    seen = look(stage())
    assert Snapshot.model_validate_json(seen.model_dump_json(by_alias=True, exclude_none=True)) == seen


def _other(made: Stage, name: str) -> Snapshot:
    seen = asyncio.run(made.observer.observe(("ns", name)))
    assert seen
    return seen


def _budget(name: str, labels: dict[str, str]) -> Json:
    spec: dict[str, Any] = {"minAvailable": 1, "selector": {"matchLabels": labels}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}
