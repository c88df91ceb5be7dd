"""The same drain under JobSet, with a script that saves on SIGTERM: from its start to the first step after it.

On the cluster of e2e.bench.moves, which calls this last, because JobSet's webhooks see every new pod.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.bench import jobset
from e2e.harness.drain import uncordon
from e2e.harness.evidence import NoEvidence
from e2e.harness.lab import DIGITS, Lab, make_bucket
from e2e.harness.watching import Late
from e2e.prepare import Progress

DRAINS: Final = 3
MEMBERS: Final = 2
NAME: Final = "careful"
NAMESPACE: Final = "bench-jobset"
IMAGE: Final = "perdure-careful:dev"
SCRIPT: Final = Path(__file__).with_name("careful_trainer.py")
SECONDS: Final = 180.0
POLL_SECONDS: Final = 0.1
TRAINS_SECONDS: Final = 3.0
"""How long it trains before its node is drained."""


@dataclass(frozen=True)
class Begun:
    """The first step of one attempt."""

    at: float
    step: int


def measure(lab: Lab, progress: Progress) -> tuple[float, ...]:
    """Seconds from each drain's start to the next step. NoEvidence if a step was lost or repeated."""
    _start(lab)
    lab.image(IMAGE, [SCRIPT, DIGITS / "train.py"])
    server = lab.cluster.s3
    make_bucket(server, NAME)
    keys = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
    lab.kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": NAME, "namespace": NAMESPACE},
            "stringData": keys | {"AWS_DEFAULT_REGION": server.region},
        },
    )
    lab.kubectl.apply(_job_set(server.endpoint))
    found = []
    _wait(lab, 0.0)
    for number in range(DRAINS):
        progress.say(f"kubectl drain of a member's node: JobSet, {number + 1} of {DRAINS}")
        found.append(_drain(lab))
    lab.kubectl("delete", "jobset", NAME, "--namespace", NAMESPACE)
    return tuple(found)


def _start(lab: Lab) -> None:
    cluster = lab.cluster
    address, folder = str(cluster.names.control_plane), cluster.folder.root
    host = jobset.Host(cluster.kubectl, address, folder, cluster.kubeconfig, cluster.certificate("jobset"))
    cluster.run_beside("jobset", jobset.prepare(host))
    jobset.serve(host)


def _drain(lab: Lab) -> float:
    time.sleep(TRAINS_SECONDS)
    leader = lab.operator.leader()["spec"]["nodeName"]
    nodes = {_index(pod): str(pod["spec"]["nodeName"]) for pod in _pods(lab)}
    node = next(node for _, node in sorted(nodes.items(), reverse=True) if node != leader)
    with lab.drain(node) as drain:
        drained = drain.finish()
    begun = _wait(lab, drained.started)
    uncordon(lab.kubectl, lab.cluster.nodes)
    return begun.at - drained.started


def _wait(lab: Lab, since: float) -> Begun:
    """The first attempt that began after that; NoEvidence if it began below an earlier one, as without a save."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        begun = _begun(lab.cluster.s3.folder / NAME)
        if begun and begun[-1].at > since:
            before = [one for one in begun if one.at <= since]
            later = begun[len(before)]
            if before and later.step <= before[-1].step:
                raise NoEvidence(f"JobSet's script began again at step {later.step}: nothing was saved")
            return later
        time.sleep(POLL_SECONDS)
    pods = lab.kubectl.run("get", "pods", "--namespace", NAMESPACE, "-o", "wide").stdout
    raise Late(f"JobSet's pods have not trained within {SECONDS:g} s:\n{pods}")


def _begun(folder: Path) -> list[Begun]:
    """The records of rank 0 of each attempt, oldest first."""
    notes = [path.read_text().split() for path in folder.glob("first-*")]
    return sorted((Begun(float(time), int(step)) for time, step in notes), key=lambda one: one.at)


def _pods(lab: Lab) -> list[dict[str, Any]]:
    pods = lab.kubectl.json("get", "pods", "--namespace", NAMESPACE)["items"]
    return [pod for pod in pods if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]]


def _index(pod: dict[str, Any]) -> int:
    return int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])


def _job_set(endpoint: str) -> dict[str, Any]:
    labels = {"app": NAME}
    job = {
        "parallelism": MEMBERS,
        "completions": MEMBERS,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"metadata": {"labels": labels}, "spec": _pod(endpoint, labels)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {
            "failurePolicy": {"maxRestarts": 1000},
            "replicatedJobs": [{"name": "members", "replicas": 1, "template": {"spec": job}}],
        },
    }


def _pod(endpoint: str, labels: dict[str, str]) -> dict[str, Any]:
    attempt = {"fieldRef": {"fieldPath": "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"}}
    environ = [
        {"name": "BUCKET", "value": NAME},
        {"name": "ENDPOINT", "value": endpoint},
        {"name": "WORLD", "value": str(MEMBERS)},
        {"name": "ATTEMPT", "valueFrom": attempt},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "TMPDIR", "value": "/dev/shm"},
        {"name": "OMP_NUM_THREADS", "value": "1"},
    ]
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 120,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532},
        "topologySpreadConstraints": [
            {**spread, "nodeTaintsPolicy": "Honor", "labelSelector": {"matchLabels": labels}}
        ],
        "containers": [
            {
                "name": "trainer",
                "image": IMAGE,
                "imagePullPolicy": "IfNotPresent",
                "command": ["python", SCRIPT.name],
                "env": environ,
                "envFrom": [{"secretRef": {"name": NAME}}],
                "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}},
            }
        ],
    }
