"""JobSet's manager with its CRD and its webhooks, as shipped, for any of our control planes.

Two benches compare Perdure with it: e2e.bench.scale on fake nodes, e2e.bench.careful on a real cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import yaml

from e2e.prepare.tools import manifests_of, special_programs

QPS, BURST = 1000, 2000
WEBHOOK_PORT = 9443
CRD = "jobsets.jobset.x-k8s.io"


@dataclass(frozen=True)
class Host:
    """Where its manager runs."""

    kubectl: Callable[..., CompletedProcess[str]]
    address: str
    """The manager's address for the API server's webhook calls."""
    folder: Path
    kubeconfig: Path
    """The administrator's."""
    keys: tuple[Path, Path]
    """A certificate for the address, by the API server's own authority, and its key."""


def is_built() -> bool:
    """Whether `e2e.prepare` has built it."""
    return special_programs()["jobset"].exists()


def prepare(host: Host) -> list[str]:
    """Its CRD and its configuration; the command that starts it."""
    host.kubectl("apply", "--server-side", "-f", manifests_of("jobset") / "crd" / "bases")
    wait_for_crd(host.kubectl, CRD, "JobSet")
    certificates = host.folder / "jobset"
    certificates.mkdir()
    for name, path in zip(("tls.crt", "tls.key"), host.keys, strict=True):
        (certificates / name).write_bytes(path.read_bytes())
    config = host.folder / "jobset.json"
    config.write_text(json.dumps(_config(host.address, certificates)))
    return [str(special_programs()["jobset"]), f"--config={config}"]


def serve(host: Host) -> None:
    """Let the API server call its webhooks, once it is started."""
    authority = json.loads(host.kubeconfig.read_text())["clusters"][0]["cluster"]["certificate-authority-data"]
    shown = yaml.safe_load_all(host.kubectl("kustomize", manifests_of("jobset") / "webhook").stdout)
    configurations = [document for document in shown if "webhooks" in document]
    for webhook in (webhook for document in configurations for webhook in document["webhooks"]):
        path = webhook["clientConfig"]["service"]["path"]
        url = f"https://{host.address}:{WEBHOOK_PORT}{path}"
        webhook["clientConfig"] = {"url": url, "caBundle": authority}
    body = {"apiVersion": "v1", "kind": "List", "items": configurations}
    host.kubectl("create", "-f", "-", input=json.dumps(body))


def wait_for_crd(kubectl: Callable[..., CompletedProcess[str]], name: str, kind: str) -> None:
    """Until objects of that kind can be created."""
    # the names first: `kubectl wait` gives up on an object whose conditions are still null
    for state in (f"jsonpath={{.status.acceptedNames.kind}}={kind}", "condition=Established"):
        kubectl("wait", f"--for={state}", f"crd/{name}", "--timeout=30s")


def _config(address: str, certificates: Path) -> dict[str, Any]:
    return {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": address, "port": WEBHOOK_PORT, "certDir": str(certificates)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"{address}:8081"},
        "clientConnection": {"qps": QPS, "burst": BURST},
    }
