"""The command lines of etcd, kube-apiserver, kube-controller-manager and kube-scheduler.

Only words: starting them is the business of cluster.py (in a network namespace) and apiserver.py (on loopback).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.pki import Pki

ISSUER = "https://kubernetes.default.svc"
AUDIT_LOG_MEGABYTES = 10_000  # a rotated log would be evidence lost
# Everything that happens, once per request: the RBAC test compares it with the Role.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@dataclass(frozen=True)
class Etcd:
    """One etcd without peers, whose data is thrown away."""

    binary: Path
    data: Path
    address: str
    port: int

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"http://{self.address}:{self.port}"

    def argv(self) -> list[str]:
        """Its command line."""
        peer = f"http://{self.address}:{self.port + 1}"
        return [
            str(self.binary),
            f"--data-dir={self.data}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=error",
        ]


@dataclass(frozen=True)
class KubeApiserver:
    """The API server in front of that etcd."""

    binary: Path
    pki: Pki
    etcd: Etcd
    address: str
    port: int
    services: str
    audit_policy: Path
    audit_log: Path
    extra: Sequence[str] = ()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"https://{self.address}:{self.port}"

    def argv(self) -> list[str]:
        """Its command line; `kubelet-client` and `apiserver` are issued by the pki under these names."""
        return [
            str(self.binary),
            f"--etcd-servers={self.etcd.url}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={self.port}",
            f"--client-ca-file={self.pki.authority}",
            f"--tls-cert-file={self.pki.certificate('apiserver')}",
            f"--tls-private-key-file={self.pki.key('apiserver')}",
            f"--kubelet-client-certificate={self.pki.certificate('kubelet-client')}",
            f"--kubelet-client-key={self.pki.key('kubelet-client')}",
            f"--kubelet-certificate-authority={self.pki.authority}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-key-file={self.pki.tokens_public}",
            f"--service-account-signing-key-file={self.pki.tokens_key}",
            f"--service-account-issuer={ISSUER}",
            f"--service-cluster-ip-range={self.services}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--audit-policy-file={self.audit_policy}",
            f"--audit-log-path={self.audit_log}",
            f"--audit-log-maxsize={AUDIT_LOG_MEGABYTES}",
            # nothing waits for requests of a cluster that is thrown away
            "--shutdown-delay-duration=0s",
            *self.extra,
        ]


def issue_certificates(pki: Pki, addresses: Sequence[str]) -> None:
    """The authority and the certificates of every control plane."""
    pki.create()
    names = ["DNS:kubernetes", "DNS:kubernetes.default.svc", "DNS:localhost"]
    pki.issue("apiserver", "/CN=kube-apiserver", [*names, *(f"IP:{address}" for address in addresses)])
    pki.issue("kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client")
    pki.issue("admin", "/O=system:masters/CN=admin")
    pki.issue("controller-manager", "/CN=system:kube-controller-manager")


def controller_manager_argv(binary: Path, pki: Pki, kubeconfig: Path, extra: Sequence[str] = ()) -> list[str]:
    """The controllers: the garbage collector, endpoints, disruption, node life cycle and so on."""
    return [
        str(binary),
        f"--kubeconfig={kubeconfig}",
        f"--service-account-private-key-file={pki.tokens_key}",
        f"--root-ca-file={pki.authority}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--secure-port=0",
        *extra,
    ]


def scheduler_argv(binary: Path, kubeconfig: Path) -> list[str]:
    """The scheduler."""
    return [str(binary), f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0"]
