"""Objects that the schema no longer allows, and that an older CRD has stored: they harm themselves, no other job."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from perdure_operator.api.status import Phase
from perdure_operator.cluster import decode
from perdure_operator.cluster.protocol import BUDGETS, JOBS, NODES, PODS, Json, Resource
from tests.support.raw import job
from tests.support.stage import Stage

STRANGE: tuple[Any, ...] = (None, [], {}, "a", 7, [None], [[]], {"a": None}, True)

PATHS: dict[Resource, tuple[str, ...]] = {
    JOBS: (
        "spec",
        "spec.replicas",
        "spec.elastic",
        "spec.checkpoint",
        "spec.checkpoint.uri",
        "spec.checkpoint.s3",
        "spec.template",
        "spec.template.metadata",
        "spec.template.spec",
        "spec.template.spec.containers",
        "spec.template.spec.volumes",
        "spec.failure",
        "spec.suspend",
        "status",
        "status.phase",
        "status.current",
        "status.next",
        "status.conditions",
        "status.run",
        "metadata.labels",
        "metadata.creationTimestamp",
        "metadata.resourceVersion",
        "metadata.ownerReferences",
    ),
    PODS: ("metadata.labels", "metadata.annotations", "metadata.ownerReferences", "metadata.deletionTimestamp"),
    NODES: ("metadata.labels", "metadata.deletionTimestamp"),
    BUDGETS: ("metadata.labels", "metadata.ownerReferences", "spec.minAvailable"),
}
"""Of typed objects only what the API server does not know better."""


def hostile(resource: Resource, path: str, value: Any, name: str) -> Json:
    """An object of that kind as the API server would send it, with `value` in one place."""
    raw = copy.deepcopy(job(name))
    if resource != JOBS:
        raw = {"metadata": {"name": name}, "spec": {"selector": {}, "nodeName": "n1"}, "status": {}}
    raw["metadata"] |= {"namespace": "ns", "uid": name, "resourceVersion": "3", "generation": 1}
    raw["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    parent = raw
    *names, last = path.split(".")
    for part in names:
        parent = parent.setdefault(part, {})
    parent[last] = value
    known = decode.known_part(raw)
    assert known is not None
    return known


@pytest.mark.parametrize(("resource", "path"), [(resource, path) for resource in PATHS for path in PATHS[resource]])
def test_strange_objects_cost_no_other_job_anything(resource: Resource, path: str) -> None:
    strange = [hostile(resource, path, value, f"hostile-{number}") for number, value in enumerate(STRANGE)]
    made = Stage()
    told, made.cluster.watch = made.cluster.watch, lambda *_: None  # they were there before the operator
    for raw in strange:
        store(made, resource, raw)
    made.cluster.watch = told
    for node in ("n1", "n2"):
        made.node(node)
    made.apply()
    made.sync()
    for kind in ("ADDED", "MODIFIED", "DELETED"):
        for raw in strange:
            made.cluster.watch(kind, resource, raw)
    made.settle(rounds=500)
    for pod in made.names():
        if not pod.startswith("digits"):
            made.cluster.remove(PODS, "ns", pod)  # no API server would have taken it
    made.run_pods(["n1", "n2"])
    made.settle(rounds=500)
    assert made.status().phase is Phase.RUNNING


def store(made: Stage, resource: Resource, raw: Json) -> None:
    namespace, name = "ns" if resource.namespaced else "", raw["metadata"]["name"]
    asyncio.run(made.cluster.create(resource, namespace, {"metadata": {"name": name}}))
    made.cluster.change(resource, namespace, name, lambda stored: stored.update(copy.deepcopy(raw)))
