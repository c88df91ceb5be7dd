"""`kubectl perdure bundle`: one support file of a job, without what may be secret. Pure.

Only fields that are listed here are taken of a pod, so a field of a newer Kubernetes is left out and not leaked. Of an
environment variable that is its name; of a command its first word. Tokens of hand-overs are removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from perdure.wire import ANNOTATION_ASSIGNMENT, GROUP
from perdure_operator.cluster.protocol import Json

FORMAT: Final = 1
REMOVED: Final = "(removed)"

_METADATA: Final = (
    *("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"),
    *("deletionGracePeriodSeconds", "finalizers", "labels", "ownerReferences"),
)
_POD: Final = (
    *("nodeName", "nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "schedulerName"),
    *("priority", "priorityClassName", "preemptionPolicy", "serviceAccountName", "restartPolicy", "hostNetwork"),
    *("terminationGracePeriodSeconds", "runtimeClassName", "resourceClaims", "schedulingGates"),
)
_CONTAINER: Final = (
    *("name", "image", "imagePullPolicy", "resources", "ports", "restartPolicy", "volumeMounts"),
    *("terminationMessagePath", "terminationMessagePolicy"),
)
_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")
_EVENT: Final = ("eventTime", "type", "reason", "note", "action", "reportingController", "series")


@dataclass(frozen=True)
class Parts:
    """What was read for a bundle, as the API server stores it."""

    job: Json
    pods: Sequence[Json] = ()
    events: Sequence[Json] = ()
    budgets: Sequence[Json] = ()
    nodes: Sequence[Json] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    """What could not be read, and why."""


def bundle(parts: Parts, log: Iterable[str], *, version: str, now: datetime) -> Json:
    """The support file's content; `log` are lines of the operator's log, of which only the job's are taken."""
    named = {(pod.get("spec") or {}).get("nodeName") for pod in parts.pods}
    namespace, name = parts.job["metadata"].get("namespace", ""), parts.job["metadata"]["name"]
    return {
        "format": FORMAT,
        "version": version,
        "made": now.isoformat(),
        "job": job(parts.job),
        "pods": [pod(one) for one in parts.pods],
        "events": [_only(one, _EVENT) for one in parts.events],
        "podDisruptionBudgets": [_metadata(one) | _only(one, ("spec", "status")) for one in parts.budgets],
        "nodes": [node(one) for one in parts.nodes if one["metadata"]["name"] in named],
        "operatorLog": list(lines_about(log, namespace, name)),
        "missing": dict(parts.missing),
    }


def job(raw: Json) -> Json:
    """A TrainingJob with its status; its template as `pod`."""
    spec = dict(raw.get("spec") or {})
    if isinstance(template := spec.get("template"), dict):
        spec["template"] = {"spec": _pod_spec(template.get("spec") or {})}
    return {**_metadata(raw), "spec": spec, "status": raw.get("status") or {}}


def pod(raw: Json) -> Json:
    """A pod with its status, its own annotations of Perdure, and the listed fields of its spec."""
    return {**_metadata(raw), "spec": _pod_spec(raw.get("spec") or {}), "status": raw.get("status") or {}}


def node(raw: Json) -> Json:
    """A node's name, marks and conditions, without addresses."""
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    return {
        "metadata": _only(raw.get("metadata") or {}, ("name", "creationTimestamp", "deletionTimestamp")),
        "spec": _only(spec, ("unschedulable", "taints")),
        "status": _only(status, ("conditions", "allocatable")),
    }


def lines_about(log: Iterable[str], namespace: str, name: str) -> Iterator[str]:
    """The log's lines that name this job, and no other whose name only begins or ends like it."""
    there = re.compile(rf"(?<![\w./-]){re.escape(f'{namespace}/{name}')}(?![\w/-]|\.\w)")
    return (line.rstrip("\n") for line in log if there.search(line))


def _metadata(raw: Json) -> Json:
    metadata = raw.get("metadata") or {}
    ours = {key: _shown(key, str(value)) for key, value in (metadata.get("annotations") or {}).items() if _is_ours(key)}
    return {"metadata": _only(metadata, _METADATA) | ({"annotations": ours} if ours else {})}


def _is_ours(key: str) -> bool:
    return key.partition("/")[0] == GROUP


def _shown(key: str, value: str) -> str:
    """An annotation of Perdure's; an assignment without the token of its hand-over."""
    if key != ANNOTATION_ASSIGNMENT:
        return value
    try:
        assignment = json.loads(value)
    except ValueError:
        return REMOVED
    if isinstance(assignment, dict) and isinstance(offer := assignment.get("handover"), dict):
        assignment["handover"] = offer | {"token": REMOVED}
    return json.dumps(assignment)


def _pod_spec(spec: Json) -> Json:
    containers = {kind: [_container(one) for one in spec[kind]] for kind in _LISTS if isinstance(spec.get(kind), list)}
    volumes = [_volume(one) for one in spec.get("volumes") or ()]
    return _only(spec, _POD) | containers | ({"volumes": volumes} if volumes else {})


def _container(raw: Json) -> Json:
    kept = _only(raw, _CONTAINER)
    for words in ("command", "args"):
        if given := raw.get(words):
            kept[words] = [given[0] if words == "command" else REMOVED, *[REMOVED] * (len(given) - 1)]
    if given := raw.get("env"):
        kept["env"] = [{"name": one.get("name"), **_kind_of(one)} for one in given]
    if given := raw.get("envFrom"):
        kept["envFrom"] = [_only(one, ("configMapRef", "secretRef", "prefix")) for one in given]
    return kept


def _kind_of(variable: Json) -> Json:
    """Where a variable comes from, without its value: names of Secrets and keys are not secret."""
    return _only(variable, ("valueFrom",)) if variable.get("valueFrom") else {"value": REMOVED}


def _volume(raw: Json) -> Json:
    """A volume's name and kind, and the name of what it shows."""
    known = {"configMap": "name", "secret": "secretName", "persistentVolumeClaim": "claimName"}
    kinds = {kind: value for kind, value in raw.items() if kind != "name"}
    return {"name": raw.get("name")} | {kind: _only(value, (known.get(kind, ""),)) for kind, value in kinds.items()}


def _only(raw: Any, names: Sequence[str]) -> Json:
    """These fields of an object; {} if `raw` is no object."""
    return {name: raw[name] for name in names if name in raw} if isinstance(raw, dict) else {}
