"""A HorizontalPodAutoscaler of a job, and its metric, whose value a test sets.

The autoscaler is Kubernetes' own, in kube-controller-manager. The metric is served as by any adapter: an API server of
its own, here in the test's process, to which the cluster's API server forwards requests for its group.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from e2e.harness.job import Job
from e2e.harness.lab import Lab
from e2e.harness.tls_server import TlsServer
from e2e.harness.watching import Object, Seen, Watch

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
ROOT = f"/apis/{GROUP}/{VERSION}"
METRIC = "demand"
NAMESPACE = "default"
AT_ONCE = {"stabilizationWindowSeconds": 0}
SERVED_SECONDS = 60


class Metric:
    """The metric `demand` of every namespace, during the `with` block; one in a cluster."""

    def __init__(self, lab: Lab, value: int) -> None:
        self.value = value
        self._lab = lab
        self._name = "metrics"
        self._server = TlsServer(lab, self._name, self._answer, also_named=f"{self._name}.{NAMESPACE}.svc")

    def __enter__(self) -> Self:
        self._server.__enter__()
        self._lab.kubectl.apply(*self._manifests())
        available = ["--for=condition=Available", f"apiservice/{VERSION}.{GROUP}"]
        self._lab.kubectl("wait", *available, f"--timeout={SERVED_SECONDS}s", seconds=SERVED_SECONDS + 10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lab.kubectl("delete", f"apiservice/{VERSION}.{GROUP}")
        self._lab.kubectl("delete", f"service/{self._name}", "--namespace", NAMESPACE)
        self._server.__exit__(kind, error, trace)

    def _manifests(self) -> list[dict[str, Any]]:
        service = {"name": self._name, "namespace": NAMESPACE}
        return [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": service,
                "spec": {"type": "ExternalName", "externalName": self._server.host},
            },
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"{VERSION}.{GROUP}"},
                "spec": {
                    "group": GROUP,
                    "version": VERSION,
                    "service": {**service, "port": self._server.port},
                    "caBundle": self._server.authority,
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                },
            },
        ]

    def _answer(self, path: str, _: Object) -> Object | None:
        if path == ROOT:
            resource = {"name": METRIC, "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
            named = {"singularName": "", **resource}
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": ROOT[6:], "resources": [named]}
        if not (path.startswith(f"{ROOT}/namespaces/") and path.endswith(f"/{METRIC}")):
            return None
        item = {"metricName": METRIC, "metricLabels": {}, "timestamp": "2026-01-01T00:00:00Z", "value": str(self.value)}
        return {"kind": "ExternalMetricValueList", "apiVersion": ROOT[6:], "metadata": {}, "items": [item]}


class Horizontal:
    """A HorizontalPodAutoscaler of this job: the present number of members, multiplied by the metric divided by 100."""

    def __init__(self, job: Job, *, least: int, most: int) -> None:
        self._job = job
        self._bounds = {"minReplicas": least, "maxReplicas": most}
        self.watch: Watch = Watch(job.kubectl, job.namespace, self.describe, ("horizontalpodautoscalers",))

    def __enter__(self) -> Self:
        self._job.kubectl.apply(self._manifest())
        self.watch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.watch.__exit__(kind, error, trace)
        self._job.kubectl("delete", "hpa", self._job.name, "--namespace", self._job.namespace)

    def wants(self, replicas: int, *, seconds: float) -> Object:
        """Wait until it has scaled the job to this number, or found that it already has it; returns its status."""

        def told(history: Sequence[Seen]) -> Object | None:
            status: Object = history[-1].object.get("status", {}) if history else {}
            return status if status.get("desiredReplicas") == replicas else None

        return self.watch.wait(f"{replicas} replicas are wanted", told, seconds=seconds)

    def sees(self, replicas: int, *, seconds: float) -> Object:
        """Wait until it reports this number, and wants no other; returns its status."""

        def told(history: Sequence[Seen]) -> Object | None:
            status: Object = history[-1].object.get("status", {}) if history else {}
            counted = status.get("currentReplicas"), status.get("desiredReplicas")
            return status if counted == (replicas, replicas) else None

        return self.watch.wait(f"{replicas} replicas are seen", told, seconds=seconds)

    def describe(self) -> str:
        """The first things to look at."""
        return self._job.kubectl.run("describe", "hpa", "--namespace", self._job.namespace).stdout

    def _manifest(self) -> dict[str, Any]:
        target = {"apiVersion": "perdure.dev/v1alpha1", "kind": "TrainingJob", "name": self._job.name}
        external = {"metric": {"name": METRIC}, "target": {"type": "Value", "value": "100"}}
        return {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": self._job.name, "namespace": self._job.namespace},
            "spec": {
                "scaleTargetRef": target,
                **self._bounds,
                "metrics": [{"type": "External", "external": external}],
                "behavior": {"scaleUp": AT_ONCE, "scaleDown": AT_ONCE},
            },
        }
