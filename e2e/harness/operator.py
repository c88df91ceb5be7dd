"""The operator, installed with its Helm chart: where its leader is, and how to kill it without notice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.harness.kubectl import Kubectl
from e2e.harness.watching import Late

CHART = Path(__file__).resolve().parents[2] / "helm" / "perdure"
NAMESPACE = "perdure-system"
RELEASE = "perdure"
IMAGE = {"image.repository": "perdure-operator", "image.tag": "dev"}
REPORTS = f"{RELEASE}-operator-reports"
"""The Service at which members report."""
READY_SECONDS = 120.0
POLL_SECONDS = 0.2


class InstallError(RuntimeError):
    """helm failed; the message is its output and the pods' state."""


@dataclass(frozen=True)
class Operator:
    """An installed operator."""

    kubectl: Kubectl
    pod_processes: Callable[[str], set[int]]
    """The processes of the pod with this uid, on this machine."""

    def leader(self) -> dict[str, Any]:
        """The leader's pod; the Lease's holder is that pod's name followed by `_` and a number."""
        leases = self.kubectl.json("get", "leases", "--namespace", NAMESPACE)["items"]
        holders = [str(lease["spec"].get("holderIdentity", "")).partition("_")[0] for lease in leases]
        pods = self.kubectl.json("get", "pods", "--namespace", NAMESPACE)["items"]
        found = [dict(pod) for pod in pods if pod["metadata"]["name"] in holders]
        if len(found) != 1:
            raise Late(f"no one leader in {NAMESPACE}: the Leases there are held by {holders}")
        return found[0]

    def leader_of(self, version: str, *, seconds: float) -> dict[str, Any]:
        """The leader, once it is of this version: while helm replaces the pods, another old one may lead. Late after
        `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(Late):  # between two
                found = self.leader()
                if version_of(found) == version:
                    return found
            if time.monotonic() > deadline:
                raise Late(f"no pod of version {version} leads after {seconds:g} s")
            time.sleep(POLL_SECONDS)

    def kill(self, pod: Mapping[str, Any]) -> None:
        """SIGKILL to the pod's Python: nothing is released."""
        kill(pid for pid, command in commands(self.pod_processes(pod["metadata"]["uid"])).items() if is_ours(command))


def version_of(pod: Mapping[str, Any]) -> str:
    """The tag of its image."""
    return str(pod["spec"]["containers"][0]["image"]).rpartition(":")[2]


def is_ours(command: str) -> bool:
    """Whether a process of a pod is the operator, not the pause container."""
    return "perdure-operator" in command or "perdure_operator" in command


def install(
    helm: Callable[..., subprocess.CompletedProcess[str]],
    kubectl: Kubectl,
    values: Mapping[str, str],
    signals: Sequence[Mapping[str, Any]] = (),
) -> None:
    """helm install, waiting until every replica is ready; `signals` are rows in the form of the chart's value."""
    settings = [f"--set-string={name}={value}" for name, value in (IMAGE | dict(values)).items()]
    settings += [f"--set-json=signals={json.dumps(list(signals))}"]
    words = ["upgrade", "--install", RELEASE, CHART, "--namespace", NAMESPACE, "--create-namespace"]
    done = helm(*words, "--wait", f"--timeout={READY_SECONDS:.0f}s", *settings, check=False, timeout=READY_SECONDS + 30)
    if done.returncode:
        pods = kubectl.run("describe", "pods", "--namespace", NAMESPACE).stdout
        logs = kubectl.run("logs", "--namespace", NAMESPACE, "--selector=app.kubernetes.io/name=perdure", "--tail=30")
        raise InstallError(f"helm install {CHART.name}: {done.stderr.strip()}\n{pods[-3000:]}\n{logs.stdout}")


def rollback(helm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """helm rollback to the revision before, waiting until every replica is ready."""
    words = ["rollback", RELEASE, "--namespace", NAMESPACE, "--wait", f"--timeout={READY_SECONDS:.0f}s"]
    helm(*words, timeout=READY_SECONDS + 30)


def commands(pids: Iterable[int]) -> dict[int, str]:
    """The command lines of those still running."""
    found = {}
    for pid in pids:
        try:
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
    return found


def kill(pids: Iterable[int]) -> None:
    """SIGKILL to all of them; Late if there are none."""
    wanted = list(pids)
    if not wanted:
        raise Late("no process to kill: it has ended already, or never started")
    for pid in wanted:
        os.kill(pid, signal.SIGKILL)
