"""Objects that no schema let through any more, and that an older CRD has stored: they cost themselves, nobody else."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from perdure_operator.api.status import Phase
from perdure_operator.cluster import decode
from perdure_operator.cluster.protocol import BUDGETS, JOBS, NODES, PODS, Json, Resource
from tests.unit.operator.builders import job
from tests.unit.operator.stage import Stage

STRANGE: tuple[Any, ...] = (None, [], {}, "a", 7, [None], [[]], {"a": None}, True)

PATHS: dict[Resource, tuple[str, ...]] = {
    JOBS: (
        "spec",
        "spec.replicas",
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
        "metadata.generation",
        "metadata.creationTimestamp",
        "metadata.resourceVersion",
        "metadata.ownerReferences",
    ),
    PODS: ("metadata.labels", "metadata.annotations", "metadata.ownerReferences", "metadata.deletionTimestamp"),
    NODES: ("metadata.labels", "metadata.deletionTimestamp"),
    BUDGETS: ("metadata.labels", "metadata.ownerReferences", "spec.minAvailable"),
}
"""Of typed objects only what the API server does not know better."""


def hostile(resource: Resource, path: str, value: Any) -> Json:
    """An object of that kind as the API server would send it, with `value` in one place."""
    raw = copy.deepcopy(job("hostile"))
    if resource != JOBS:
        raw = {"metadata": {"name": "hostile"}, "spec": {"selector": {}}, "status": {}}
    raw["metadata"] |= {"namespace": "ns", "uid": "hostile", "resourceVersion": "3", "generation": 1}
    raw["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    parent = raw
    *names, last = path.split(".")
    for name in names:
        parent = parent.setdefault(name, {})
    parent[last] = value
    known = decode.known_part(raw)
    assert known is not None
    return known


CASES = [(resource, path, value) for resource, paths in PATHS.items() for path in paths for value in STRANGE]


@pytest.mark.parametrize("resource", PATHS, ids=lambda resource: resource.plural)
def test_a_strange_object_costs_no_other_job_anything(resource: Resource) -> None:
    for path in PATHS[resource]:
        for value in STRANGE:
            assert running_beside(resource, hostile(resource, path, value)) is Phase.RUNNING, (path, value)


def running_beside(resource: Resource, raw: Json) -> Phase:
    """Where a job gets to whose neighbour is listed, changes and goes."""
    made = Stage()
    watch = made.cluster.watch
    for node in ("n1", "n2"):
        made.node(node)
    made.cluster.watch = lambda *_: None  # the neighbour was there before the operator
    asyncio.run(made.cluster.create(resource, "ns" if resource.namespaced else "", raw))
    made.cluster.watch = watch
    made.apply()
    made.start()
    for kind in ("MODIFIED", "DELETED"):
        watch(kind, resource, raw)
    made.settle()
    made.run_pods(["n1", "n2"])
    made.settle()
    return made.status().phase
