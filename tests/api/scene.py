"""A job on a real API server without nodes: the test plays kubelets and users with the administrator's rights."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from e2e.cluster.apiserver import ApiServer
from e2e.cluster.processes import looks
from perdure.wire import (
    ANNOTATION_ASSIGNMENT,
    LABEL_ROLE,
    Assignment,
    CommitRef,
    ErrorKind,
    ErrorName,
    ExitKind,
    Failure,
    Outcome,
    read_assignment,
    write_outcome,
)
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import Condition, Phase, TrainingJobStatus
from tests.support.raw import job as job_body

T = TypeVar("T")
SECONDS = 120.0
NODES = "/api/v1/nodes"


class Late(AssertionError):
    """The awaited event did not happen in time."""


def until(what: str, look: Callable[[], T | None], seconds: float = SECONDS) -> T:
    """The first true answer of `look`."""
    deadline = time.monotonic() + seconds
    for _ in looks():
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            break
    raise Late(f"{what} did not happen within {seconds:g} s")


@dataclass(frozen=True)
class Scene:
    """One namespace with one job."""

    server: ApiServer
    namespace: str
    name: str = "digits"

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return self.server.kubectl(*words, f"--namespace={self.namespace}", input=stdin).stdout

    def apply(self, **spec: Any) -> None:
        root = {"checkpoint": {"uri": f"s3://bucket/{self.namespace}/{self.name}"}}  # jobs that share one wait
        self.kubectl("apply", "-f", "-", stdin=json.dumps(job_body(self.name, **root | spec)))

    def node(self, name: str) -> str:
        """A node of this scene's own; its real name is returned."""
        full = f"{self.namespace}-{name}"
        self.server.ask(NODES, "POST", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": full}})
        self._patch_status(f"{NODES}/{full}", {"conditions": [{"type": "Ready", "status": "True"}]})
        return full

    def cordon(self, node: str) -> None:
        self.server.kubectl("cordon", node)

    def status(self) -> TrainingJobStatus:
        return TrainingJobStatus.model_validate(self._job().get("status") or {})

    def pods(self) -> list[dict[str, Any]]:
        items = self._list("api/v1", "pods")
        return sorted(items, key=lambda pod: str(pod["metadata"]["creationTimestamp"]) + str(pod["metadata"]["name"]))

    def names(self) -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in self.pods())

    def budgets(self) -> list[dict[str, Any]]:
        return self._list("apis/policy/v1", "poddisruptionbudgets")

    def revisions(self) -> list[dict[str, Any]]:
        return self._list("apis/apps/v1", "controllerrevisions")

    def shows(self, reason: str) -> bool:
        """Whether a condition has this reason."""
        return any(one.reason == reason for one in self.status().conditions)

    def condition(self, kind: ConditionType, reason: str) -> Condition | None:
        """This condition, once it has this reason."""
        found = self.status().find(kind)
        return found if found and found.reason == reason else None

    def says(self, kind: ConditionType, words: str) -> Condition | None:
        """This condition, once its message has these words."""
        found = self.status().find(kind)
        return found if found and words in found.message else None

    def selected(self) -> list[str]:
        """Names of the pods that an autoscaler of pods finds by the scale subresource."""
        selector = self._job()["status"]["selector"]
        words = self.kubectl("get", "pods", f"--selector={selector}", "--output=name").split()
        return [word.removeprefix("pod/") for word in words]

    def members(self) -> list[dict[str, Any]]:
        """Pods that have, or had, a rank: no standby is among them."""
        return [pod for pod in self.pods() if pod["metadata"]["labels"].get(LABEL_ROLE) == "member"]

    def assignments(self) -> list[Assignment]:
        """The members'."""
        return [read_assignment(pod["metadata"]["annotations"][ANNOTATION_ASSIGNMENT]) for pod in self.members()]

    def run_pods(self, *nodes: str) -> None:
        """Bind every pod that has no node and make it Ready."""
        for index, pod in enumerate(self.pods()):
            if not pod["spec"].get("nodeName"):
                self._bind(pod["metadata"]["name"], nodes[index % len(nodes)], index)

    def finds_no_room(self, name: str) -> None:
        """The scheduler's word about a pod."""
        words = {"reason": "Unschedulable", "message": "0/2 nodes are available: 2 Insufficient cpu."}
        refused = {"type": "PodScheduled", "status": "False"} | words
        self._patch_status(self._path("api/v1", f"pods/{name}"), {"conditions": [refused]})

    def end_pod(self, name: str, message: str, *, exit_code: int = 0) -> None:
        """The kubelet's last report."""
        terminated = {"exitCode": exit_code, "reason": "Completed" if exit_code == 0 else "Error", "message": message}
        times = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z"}
        phase = "Succeeded" if exit_code == 0 else "Failed"
        ended = {"phase": phase, "conditions": [_ready("False")], **_container({"terminated": terminated | times})}
        self._patch_status(self._path("api/v1", f"pods/{name}"), ended)

    def save_all(self, run: int, step: int) -> None:
        """Every member has saved and exits."""
        for rank, name in enumerate(sorted(pod["metadata"]["name"] for pod in self.members())):
            self.end_pod(name, saved(run, rank, step))

    def _bind(self, name: str, node: str, index: int) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        pod = self._path("api/v1", f"pods/{name}")
        self.server.ask(f"{pod}/binding", "POST", binding)
        running = {"startedAt": "2026-01-01T00:00:00Z"}
        status = {"phase": "Running", "podIP": f"10.9.0.{index + 1}", "podIPs": [{"ip": f"10.9.0.{index + 1}"}]}
        status |= {"conditions": [_ready("True")], **_container({"running": running}, ready=True)}
        self._patch_status(pod, status)

    def _patch_status(self, path: str, status: dict[str, Any]) -> None:
        self.server.ask(f"{path}/status", "PATCH", {"status": status}, "application/strategic-merge-patch+json")

    def _job(self) -> dict[str, Any]:
        return self.server.ask(self._path("apis/perdure.dev/v1alpha1", f"trainingjobs/{self.name}"))

    def _list(self, group: str, resource: str) -> list[dict[str, Any]]:
        return list(self.server.ask(self._path(group, resource))["items"])

    def _path(self, group: str, what: str) -> str:
        return f"/{group}/namespaces/{self.namespace}/{what}"


def starts(scene: Scene, *nodes: str) -> list[str]:
    """Wait for two new pods, run them, and wait until the job does."""
    until("two pods", lambda: len(scene.names()) == 2)
    names = scene.names()
    scene.run_pods(*nodes)
    until("phase Running", lambda: scene.status().phase is Phase.RUNNING)
    return names


def completed(run: int, rank: int, step: int) -> str:
    """The outcome of a member whose job has reached its goal."""
    commit = CommitRef(seq=step + 1, step=step)
    return write_outcome(Outcome(ExitKind.COMPLETED, run=run, rank=rank, step=step, commit=commit, opened=run))


def saved(run: int, rank: int, step: int) -> str:
    """The outcome of a member that has saved `step`."""
    commit = CommitRef(seq=step + 1, step=step)
    return write_outcome(Outcome(ExitKind.CHECKPOINTED, run=run, rank=rank, step=step, commit=commit, opened=run))


def refused(run: int, rank: int, why: str) -> str:
    """The outcome of a member whose store has refused it."""
    error = Failure(ErrorKind.STORAGE, ErrorName.STORAGE_REFUSED, why)
    return write_outcome(Outcome(ExitKind.FAILED, run=run, rank=rank, error=error))


def _ready(value: str) -> dict[str, str]:
    return {"type": "Ready", "status": value}


def _container(state: dict[str, Any], *, ready: bool = False) -> dict[str, Any]:
    status = {"name": "trainer", "image": "i", "imageID": "i", "ready": ready, "restartCount": 0, "state": state}
    return {"containerStatuses": [status]}
