"""Parses raw Kubernetes objects into the values that `decide` reads. Pure: facts only, no conclusions.

Absent and null mean the same everywhere in Kubernetes. Called by `records`.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from pydantic import ValidationError

from perdure import wire
from perdure_operator.api import names
from perdure_operator.api.marks import MARKS
from perdure_operator.api.signal_rows import SignalSource
from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.cluster.protocol import Json
from perdure_operator.cluster.read import roots
from perdure_operator.cluster.read.containers import Containers, trainer
from perdure_operator.state.signal_table import SHIPPED_TABLE, SignalTable
from perdure_operator.state.snapshot import (
    Budget,
    Device,
    EvictionView,
    NodeCondition,
    NodeView,
    PodCondition,
    PodView,
    Taint,
    Terminated,
    Toleration,
)

ZONE: Final = "topology.kubernetes.io/zone"
_MOST_BEHIND: Final = timedelta(days=1)
"""A clock that is further off is no clock."""
CLAIM_ENDS: Final = "karpenter.sh/nodeclaim-termination-timestamp"


def meta(raw: Json) -> Json:
    """metadata; {} if there is none."""
    return raw.get("metadata") or {}


def uid(raw: Json) -> str:
    """metadata.uid."""
    return str(meta(raw).get("uid", ""))


def controller(raw: Json) -> str:
    """uid of the controlling owner; "" if there is none."""
    return str(_controlling(raw).get("uid", ""))


def _controlling(raw: Json) -> Json:
    owners: Iterable[Json] = meta(raw).get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), {})


def channel_digest(text: str) -> str:
    """Equal for equal channels of reports; "" for none. The text itself takes more memory than all else of a pod."""
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""


def spec(raw: Json) -> tuple[TrainingJobSpec, tuple[str, ...]]:
    """A job's spec without the fields and enum values that only a newer CRD knows, and the paths of those.

    Raises ValidationError.
    """
    try:
        return TrainingJobSpec.model_validate(raw), ()
    except ValidationError as error:
        unknown = [one["loc"] for one in error.errors() if one["type"] in ("extra_forbidden", "enum")]
    known = copy.deepcopy(raw)
    for *parents, name in unknown:
        fields: Any = known
        for parent in parents:
            fields = fields[parent]
        del fields[name]
    return TrainingJobSpec.model_validate(known), tuple(sorted(".".join(map(str, path)) for path in unknown))


def time(value: object) -> datetime | None:
    """An RFC 3339 time; None for anything else."""
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


def node(raw: Json, signals: SignalTable = SHIPPED_TABLE) -> NodeView:
    """An existing node, with only the conditions, labels and annotations that the signal table knows."""
    spec, labels = raw.get("spec") or {}, meta(raw).get("labels") or {}
    ready = _condition(raw, "Ready") or {}
    is_ready = ready.get("status") == "True"
    return NodeView(
        name=meta(raw)["name"],
        cordoned=bool(spec.get("unschedulable")),
        deleting=bool(meta(raw).get("deletionTimestamp")),
        ready=is_ready,
        unready_since=None if is_ready else time(ready.get("lastTransitionTime")),
        zone=str(labels.get(ZONE) or ""),
        taints=tuple(
            Taint(
                key=taint["key"],
                value=taint.get("value") or "",
                effect=taint["effect"],
                added=time(taint.get("timeAdded")),
            )
            for taint in spec.get("taints") or []
        ),
        conditions=tuple(NodeCondition(**one) for one in _conditions(raw, SignalSource.CONDITION, signals)),
        labels=_known_marks(signals, SignalSource.LABEL, labels),
        annotations=_known_marks(signals, SignalSource.ANNOTATION, meta(raw).get("annotations") or {}),
        claim=_claim(raw),
    )


def _claim(raw: Json) -> str:
    """The NodeClaim that owns a node; Karpenter sets the owner once the node has registered."""
    owners: Iterable[Json] = meta(raw).get("ownerReferences") or []
    ours = (one for one in owners if one.get("kind") == "NodeClaim")
    return next((str(one["name"]) for one in ours if str(one.get("apiVersion")).startswith("karpenter.sh/")), "")


def claim_ends(raw: Json) -> datetime | None:
    """When a NodeClaim is terminated; None if it has no such time."""
    ends = time((meta(raw).get("annotations") or {}).get(CLAIM_ENDS))
    return ends if ends and ends.tzinfo else None


def _known_marks(signals: SignalTable, source: SignalSource, marks: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in marks.items() if signals.knows(source, key, value)}


def _conditions(raw: Json, source: SignalSource, signals: SignalTable) -> Iterable[Json]:
    """The conditions that the signal table knows."""
    for one in (raw.get("status") or {}).get("conditions") or []:
        kind, status, reason = one.get("type", ""), one.get("status", ""), one.get("reason") or ""
        if signals.knows(source, kind, status, reason):
            since = time(one.get("lastTransitionTime"))
            yield {"type": kind, "status": status, "reason": reason, "since": since}


def _devices(status: Json, signals: SignalTable) -> Iterable[Device]:
    """The health of the containers' devices, as the kubelet reports it (KEP-4680)."""
    for container in status.get("containerStatuses") or []:
        for resource in container.get("allocatedResourcesStatus") or []:
            name = str(resource.get("name", ""))
            for one in resource.get("resources") or []:
                health = str(one.get("health") or "")
                if signals.knows(SignalSource.DEVICE, name, health):
                    yield Device(resource=name, id=str(one.get("resourceID", "")), health=health)


def pod(raw: Json, signals: SignalTable = SHIPPED_TABLE) -> PodView:
    """A pod, with only the conditions and devices that the signal table knows."""
    metadata, spec, status = meta(raw), raw.get("spec") or {}, raw.get("status") or {}
    containers, owner = Containers(spec, status), _controlling(raw)
    stuck, (init_failed, init_end) = containers.stuck, containers.init_failed
    ended, ready = containers.trainer.get("terminated"), _condition(raw, "Ready") or {}
    is_ready = ready.get("status") == "True"
    reason, message = _ended_from_outside(raw)
    reported_ready, behind = time(ready.get("lastTransitionTime")), _seconds_behind(metadata, containers.trainer)
    ready_at = reported_ready + behind if reported_ready else None
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return PodView(
        name=metadata["name"],
        uid=uid(raw),
        resource_version=str(metadata.get("resourceVersion", "")),
        owner_uid=str(owner.get("uid", "")),
        role=labels.get(wire.LABEL_ROLE, ""),
        labelled=_labelled(owner, labels),
        has_labels="labels" in metadata,
        has_annotations="annotations" in metadata,
        assignment=annotations.get(wire.ANNOTATION_ASSIGNMENT, ""),
        node=spec.get("nodeName") or "",
        ip=status.get("podIP") or "",
        phase=status.get("phase") or "Pending",
        ready=is_ready,
        ready_since=ready_at if is_ready else None,
        unready_since=None if is_ready else ready_at,
        deleting=bool(metadata.get("deletionTimestamp")),
        deletion_deadline=time(metadata.get("deletionTimestamp")),
        grace=_grace(spec.get("terminationGracePeriodSeconds")),
        waiting_container=stuck.container,
        waiting_reason=stuck.reason,
        waiting_message=stuck.message,
        initializing=containers.initializing,
        pulling=containers.pulling,
        init_failed="" if ended else init_failed,
        terminated=_terminated(ended or init_end, behind),
        others_run=ended is not None and containers.others_run,
        unschedulable=_unschedulable(raw),
        reason=reason,
        message=message,
        priority=int(spec.get("priority") or 0),
        priority_class=spec.get("priorityClassName") or "",
        preemption_policy=spec.get("preemptionPolicy") or "",
        tolerations=tolerations(spec),
        template_hash=annotations.get(names.ANNOTATION_TEMPLATE, ""),
        root=roots.of_pod(trainer(spec)),
        conditions=tuple(PodCondition(**one) for one in _conditions(raw, SignalSource.POD_CONDITION, signals)),
        devices=tuple(dict.fromkeys(_devices(status, signals))),
        nudge=annotations.get(names.ANNOTATION_NUDGE, ""),
        marks={name: annotations[name] for name in MARKS if name in annotations},
    )


def _grace(given: object) -> int:
    return given if isinstance(given, int) else wire.DEFAULT_GRACE_SECONDS


def _labelled(owner: Json, labels: Json) -> bool:
    """Whether a pod has the labels of the job that owns it."""
    ours = names.labels(str(owner.get("name")), str(owner.get("uid")))
    return not owner or all(labels.get(name) == value for name, value in ours.items())


def budget(raw: Json) -> Budget:
    """A PodDisruptionBudget of ours in its current state; users may have changed it."""
    least = (raw.get("spec") or {}).get("minAvailable")
    return Budget(
        min_available=least if isinstance(least, int) else -1,
        altered=_altered(raw),
        uid=uid(raw),
        resource_version=str(meta(raw).get("resourceVersion", "")),
    )


def _altered(raw: Json) -> str:
    """What others changed in the operator's budget; "" for nothing."""
    spec = raw.get("spec") or {}
    if not isinstance(spec.get("minAvailable"), int):
        return f"minAvailable is {spec.get('minAvailable')!r}"
    if spec.get("maxUnavailable") is not None:
        return f"maxUnavailable is {spec['maxUnavailable']!r}"
    owner = _controlling(raw)
    if spec.get("selector") != names.members_selector(str(owner.get("name")), str(owner.get("uid"))):
        return "its selector was changed"
    if spec.get("unhealthyPodEvictionPolicy") != names.EVICTION_POLICY:
        return "its unhealthyPodEvictionPolicy was changed"
    return ""


def eviction(raw: Json) -> EvictionView | None:
    """An Eviction of a pod; None if the operator is not one of its responders."""
    target = ((raw.get("spec") or {}).get("target") or {}).get("pod") or {}
    status = raw.get("status") or {}
    answers: list[Json] = status.get("responders") or []
    place = next((place for place, one in enumerate(answers) if one.get("name") == names.RESPONDER), None)
    turn = next((one for one in status.get("targetResponders") or [] if one.get("name") == names.RESPONDER), None)
    if place is None or turn is None:
        return None
    requesters: list[Json] = status.get("requesters") or []
    wanted = sorted(str(one.get("name")) for one in requesters if one.get("intent") != "Withdrawn")
    mine = answers[place]
    return EvictionView(
        name=meta(raw)["name"],
        uid=uid(raw),
        pod=str(target.get("uid", "")),
        place=place,
        state=str(turn.get("state", "")),
        over=any((_condition(raw, kind) or {}).get("status") == "True" for kind in ("TargetEvicted", "Failed")),
        requesters=tuple(wanted),
        withdrawn=bool(requesters) and not wanted,
        started=time(mine.get("startTime")),
        heartbeat=time(mine.get("heartbeatTime")),
        expected=time(mine.get("expectedCompletionTime")),
        completed=time(mine.get("completionTime")),
        message=str(mine.get("message") or ""),
    )


def evicted_pod(raw: Json) -> str:
    """The name of the pod that an Eviction is about; "" if it is not about a pod."""
    return str((((raw.get("spec") or {}).get("target") or {}).get("pod") or {}).get("name", ""))


def kept_template(raw: Json) -> Json | None:
    """The template in a ControllerRevision of ours; None if it holds something else."""
    data = raw.get("data")
    template = data.get("template") if isinstance(data, dict) else None
    return template if isinstance(template, dict) else None


def selects(selector: Json | None, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector matches; an empty one matches everything, an absent one nothing."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    exact = all(labels.get(key) == value for key, value in wanted.items())
    return exact and all(_expression(one, labels) for one in selector.get("matchExpressions") or [])


def _expression(expression: Json, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _condition(raw: Json, kind: str) -> Json | None:
    conditions: Iterable[Json] = (raw.get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def _seconds_behind(metadata: Json, trainer: Json) -> timedelta:
    """How far the kubelet's clock is behind the API server's, as far as it is certain: no container starts before its
    pod is created."""
    created = time(metadata.get("creationTimestamp"))
    state = trainer.get("running") or trainer.get("terminated") or {}
    started = time(state.get("startedAt"))
    behind = created - started if created and started else timedelta()
    return behind if timedelta() < behind < _MOST_BEHIND else timedelta()


def _terminated(state: Json | None, behind: timedelta) -> Terminated | None:
    if not state:
        return None
    finished = time(state.get("finishedAt"))
    return Terminated(
        exit_code=int(state.get("exitCode", 0)),
        reason=state.get("reason") or "",
        message=state.get("message") or "",
        finished_at=finished + behind if finished else None,
    )


def _ended_from_outside(raw: Json) -> tuple[str, str]:
    """Why Kubernetes ends or refuses the whole pod, and its words; ("", "") if it does not."""
    status, doomed = raw.get("status") or {}, _condition(raw, "DisruptionTarget") or {}
    if reason := status.get("reason"):
        return str(reason), str(status.get("message") or "")
    if doomed.get("status") != "True":
        return "", ""
    return str(doomed.get("reason") or doomed["type"]), str(doomed.get("message") or "")


def _unschedulable(raw: Json) -> str:
    scheduled = _condition(raw, "PodScheduled") or {}
    return str(scheduled.get("message") or "") if scheduled.get("status") == "False" else ""


def tolerations(spec: Json) -> tuple[Toleration, ...]:
    """The tolerations of a pod's spec, or of a template's."""
    return _tolerations(*map(_toleration, spec.get("tolerations") or []))


@lru_cache(maxsize=1024)
def _tolerations(*given: tuple[str, str, str, str, int | None]) -> tuple[Toleration, ...]:
    """Cached, because all pods of a job share them."""
    return tuple(
        Toleration(key=key, operator=operator, value=value, effect=effect, toleration_seconds=seconds)
        for key, operator, value, effect, seconds in given
    )


def _toleration(raw: Json) -> tuple[str, str, str, str, int | None]:
    words = (raw.get("key") or "", raw.get("operator") or "Equal", raw.get("value") or "", raw.get("effect") or "")
    return *words, raw.get("tolerationSeconds")
