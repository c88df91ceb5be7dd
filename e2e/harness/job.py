"""One TrainingJob under test, in its own namespace: apply it, watch it, read its bucket."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from e2e.harness.kubectl import Kubectl
from e2e.harness.root import Root
from e2e.harness.watching import Log, Watch

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Bucket:
    """How pods and this machine reach the S3 server."""

    endpoint: str
    access_key: str
    secret_key: str
    folder: Path
    """Where the server keeps buckets as folders."""


def load(path: Path) -> list[Manifest]:
    """The objects of a manifest file."""
    return [dict(document) for document in yaml.safe_load_all(path.read_text()) if document]


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Manifest:
    """`base` with `changes` merged into it: mappings are merged, None removes, everything else is replaced."""
    result = copy.deepcopy(dict(base))
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return {key: value for key, value in result.items() if value is not None}


def with_container(manifest: Manifest, environ: Mapping[str, str], **fields: Any) -> Manifest:
    """The manifest with fields of container 0 replaced and variables added to its environment."""
    result = copy.deepcopy(manifest)
    container = result["spec"]["template"]["spec"]["containers"][0]
    kept = [entry for entry in container.get("env", []) if entry["name"] not in environ]
    container["env"] = [*kept, *({"name": name, "value": value} for name, value in environ.items())]
    container.update(fields)
    return result


class Job:
    """A TrainingJob, present or to be applied."""

    def __init__(self, kubectl: Kubectl, bucket: Bucket, manifest: Manifest, namespace: str) -> None:
        self.kubectl = kubectl
        self.manifest = merged(manifest, {"metadata": {"namespace": namespace}})
        self.namespace = namespace
        self.name: str = manifest["metadata"]["name"]
        parts = urlsplit(manifest["spec"]["checkpoint"]["uri"])
        self.bucket_name = parts.netloc
        self.root = Root(bucket.folder / parts.netloc / parts.path.strip("/"))
        self._bucket = bucket

    def prepare(self) -> None:
        """The namespace, under restricted pod security, and the bucket's keys in it."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace, "labels": labels}}
        self.kubectl.apply(namespace)
        self.gives_keys(self._bucket)

    def gives_keys(self, bucket: Bucket) -> None:
        """From now on the job's Secret, if it names one, has this bucket's keys."""
        secret = self.manifest["spec"]["checkpoint"].get("s3", {}).get("credentialsSecret")
        if secret:
            keys = {"AWS_ACCESS_KEY_ID": bucket.access_key, "AWS_SECRET_ACCESS_KEY": bucket.secret_key}
            metadata = {"name": secret, "namespace": self.namespace}
            self.kubectl.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": keys})

    def apply(self) -> None:
        self.kubectl.apply(self.manifest)

    def delete(self) -> None:
        """kubectl delete; its pods are deleted with it."""
        words = ["--namespace", self.namespace, "--ignore-not-found"]
        self.kubectl("delete", "trainingjob", self.name, *words, seconds=180)

    def watch(self) -> Watch:
        return Watch(self.kubectl, self.namespace, self.describe)

    def log(self, pod: str) -> Log:
        return Log(self.kubectl, self.namespace, pod)

    def describe(self) -> str:
        """Status, pods and events: the first things to look at."""
        job = self.kubectl.run("get", "trainingjob", self.name, "-n", self.namespace, "-o", "json")
        status = json.loads(job.stdout).get("status") if job.returncode == 0 else job.stderr
        pods = self.kubectl.run("get", "pods", "-n", self.namespace, "-o", "wide")
        events = self.kubectl.run("events", "-n", self.namespace)
        tail = "\n".join(events.stdout.splitlines()[-15:])
        return f"status: {json.dumps(status, indent=1)}\n{pods.stdout or pods.stderr}\n{tail or events.stderr}"
