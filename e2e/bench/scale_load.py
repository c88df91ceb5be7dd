"""The load of the scale bench: jobs for Perdure, the same pods for JobSet and without a controller, and how all are
sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from e2e.cluster.apiserver import ApiServer
from e2e.harness.lab import digits

Json = dict[str, Any]
MEMBERS = 4
NAMESPACES = 20
CHUNK = 125
"""Fewer than kubectl sends without a pause."""
AT_ONCE = 4


def namespace_of(number: int) -> str:
    """The jobs are spread over some namespaces."""
    return f"team-{number % NAMESPACES:02d}"


def namespaces() -> list[Json]:
    """All of them."""
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace_of(number)}}
        for number in range(NAMESPACES)
    ]


def training_jobs(count: int, members: int = MEMBERS) -> list[Json]:
    """Jobs of four members that never end."""
    return [_training_job(number, members) for number in range(count)]


def _training_job(number: int, members: int) -> Json:
    name = f"job-{number:04d}"
    checkpoint = {"uri": f"s3://bucket/{name}", "s3": None, "everySeconds": 3600, "everySteps": None}
    changes = {
        "metadata": {"name": name, "namespace": namespace_of(number)},
        "spec": {"replicas": members, "checkpoint": checkpoint},
    }
    return digits(changes)


def bare_pods(jobs: int) -> list[Json]:
    """The same pods, without a controller."""
    return [_bare_pod(job, member) for job in range(jobs) for member in range(MEMBERS)]


def _bare_pod(job: int, member: int) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"job-{job:04d}-{member}", "namespace": namespace_of(job)},
        "spec": _pod()["spec"],
    }


def job_sets(count: int) -> list[Json]:
    """The same pods, managed by JobSet."""
    return [_job_set(number) for number in range(count)]


def _job_set(number: int) -> Json:
    job = {"parallelism": MEMBERS, "completions": MEMBERS, "backoffLimit": 0, "template": _pod()}
    replicated = {"name": "members", "replicas": 1, "template": {"spec": job}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": f"job-{number:04d}", "namespace": namespace_of(number)},
        "spec": {"replicatedJobs": [replicated]},
    }


def _pod() -> Json:
    template = digits()["spec"]["template"]
    return {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}


def create(server: ApiServer, objects: Sequence[Json]) -> None:
    """kubectl create, several at once: the load's own client must not be the bottleneck."""
    chunks = [objects[start : start + CHUNK] for start in range(0, len(objects), CHUNK)]

    def send(chunk: Sequence[Json]) -> None:
        body = {"apiVersion": "v1", "kind": "List", "items": list(chunk)}
        server.kubectl("create", "-f", "-", input=json.dumps(body), timeout=300)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(send, chunk) for chunk in chunks]:
            done.result()
