"""A cluster with an S3 bucket and the operator installed: the base of demo, scenarios and benches.

The only module of the harness that knows the local cluster tool.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import boto3
from botocore.config import Config

from e2e.cluster import Cluster
from e2e.cluster.s3 import S3
from e2e.harness import operator
from e2e.harness.devices import Devices
from e2e.harness.drain import Drain
from e2e.harness.job import Bucket, Job, Manifest, load, merged
from e2e.harness.kubectl import Kubectl
from e2e.prepare import Progress, tool_folders

REPOSITORY = Path(__file__).resolve().parents[2]
DIGITS = REPOSITORY / "examples" / "digits"
TINYGPT = REPOSITORY / "examples" / "tinygpt"
TRACE = "PERDURE_TRACE"


@dataclass(frozen=True)
class Lab:
    """A cluster that is up, with everything a job needs; leaving the `with` block removes it."""

    cluster: Cluster

    @classmethod
    def up(cls, name: str, progress: Progress, *, nodes: int = 3, owner: int | None = None) -> Lab:
        """Boots the cluster and installs the operator with its chart; when process `owner` ends, it is removed."""
        lab = cls(Cluster.up(name, nodes, progress, owner=owner))
        try:
            progress.say("helm install perdure helm/perdure")
            lab.install()
            progress.say("the operator is ready")
        except BaseException:
            lab.cluster.down()
            raise
        return lab

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.down()

    @cached_property
    def kubectl(self) -> Kubectl:
        return Kubectl(self.cluster.env)

    @property
    def tools(self) -> Path:
        """Where kubectl is."""
        return tool_folders()["kubernetes"]

    @property
    def operator(self) -> operator.Operator:
        return operator.Operator(self.kubectl, self.cluster.pod_processes)

    def install(self, signals: Sequence[Mapping[str, Any]] = (), /, **values: str) -> None:
        """helm install, with this cluster's images; `signals` are rows in the form of the chart's value."""
        operator.install(self.cluster.helm, self.kubectl, values, signals)

    def roll_back(self) -> None:
        """helm rollback to the revision before."""
        operator.rollback(self.cluster.helm)

    @cached_property
    def _reports(self) -> dict[str, Any]:
        """For /etc/hosts of members, as the cluster has no DNS."""
        name = f"{operator.REPORTS}.{operator.NAMESPACE}.svc"
        service = self.kubectl.json("get", "service", operator.REPORTS, "--namespace", operator.NAMESPACE)
        return {"ip": service["spec"]["clusterIP"], "hostnames": [name]}

    @property
    def bucket(self) -> Bucket:
        return bucket_of(self.cluster.s3)

    def job(self, manifest: Manifest, namespace: str, s3: S3 | None = None) -> Job:
        """The job with this S3 server's endpoint, or the cluster's; its namespace, bucket and Secret are made here."""
        server = s3 or self.cluster.s3
        endpoint = {"endpoint": server.endpoint, "pathStyle": True, "region": server.region}
        pods = {"template": {"spec": {"hostAliases": [self._reports]}}}
        changed = merged(manifest, {"spec": {"checkpoint": {"s3": endpoint}} | pods})
        job = Job(self.kubectl, bucket_of(server), changed, namespace)
        make_bucket(server, job.bucket_name)
        job.prepare()
        return job

    def image(self, name: str, files: Sequence[Path]) -> None:
        """An image with these Python files side by side in its working directory."""
        with tempfile.TemporaryDirectory() as folder:
            for file in files:
                (Path(folder) / file.name).write_bytes(file.read_bytes())
            self.cluster.image(name, Path(folder))

    def devices(self, nodes: Sequence[str], resource: str, *, each: int) -> Devices:
        """This many devices on each of these nodes, during the `with` block."""
        ids = [f"device-{number}" for number in range(each)]
        plugins = {node: self.cluster.device_plugin(node, resource, ids) for node in nodes}
        return Devices(self.kubectl, resource, each, plugins)

    def drain(self, node: str) -> Drain:
        """Starts `kubectl drain NODE --ignore-daemonsets`."""
        return Drain(self.kubectl, node)

    def processes(self, pod: Mapping[str, Any]) -> dict[int, str]:
        """The pod's processes on this machine, with their command lines."""
        return operator.commands(self.cluster.pod_processes(str(pod["metadata"]["uid"])))

    def kill(self, pod: Mapping[str, Any]) -> None:
        """SIGKILL to every process of the pod: the first may be the init of the others' namespace, and they die with
        it."""
        for pid in self.processes(pod):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def trainers(self, pod: Mapping[str, Any], script: str) -> list[int]:
        """Those that run the script, executed or forked from the zygote."""
        found = self.processes(pod)
        executed = f"python {script}"
        return [pid for pid, command in found.items() if command.startswith(executed) or runs_as(pid) == script[:15]]


def runs_as(pid: int) -> str:
    """The process's name, which a forked trainer has from its script; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def bucket_of(s3: S3) -> Bucket:
    """How pods and this machine reach that server."""
    return Bucket(s3.endpoint, s3.access_key, s3.secret_key, s3.folder)


def make_bucket(s3: S3, name: str) -> None:
    """The bucket, present or not."""
    client = boto3.client(
        "s3",
        endpoint_url=s3.endpoint,
        region_name=s3.region,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=s3.secret_key,
        config=Config(s3={"addressing_style": "path"}, proxies={}),
    )
    with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):  # the other lane may be first
        client.create_bucket(Bucket=name)
    client.close()


def digits(changes: Mapping[str, Any] | None = None) -> Manifest:
    """examples/digits/job.yaml, with changes."""
    return example(DIGITS, changes)


def example(folder: Path, changes: Mapping[str, Any] | None = None) -> Manifest:
    """The TrainingJob of an example, with changes."""
    manifests = [document for document in load(folder / "job.yaml") if document["kind"] == "TrainingJob"]
    return merged(manifests[0], changes or {})
