"""A member's pod as it is created; the pod contract is written down here. Pure.

Raw dictionaries in and out: the template is the user's, and every field of it that is not ours stays as it is. Called
by `write.act`, which creates it, and by `read.observe`, which tells by its hash whether a pod is of the template as it
is now.
"""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any, Final

from perdure import wire
from perdure.wire import Env, ResumeFrom, Wanted
from perdure_operator.api import names
from perdure_operator.api.marks import marks
from perdure_operator.api.spec import Checkpoint, From
from perdure_operator.cluster.protocol import JOBS, Json
from perdure_operator.state.snapshot import KeptTemplate, Snapshot

_HOSTNAME: Final = "kubernetes.io/hostname"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_MOST_RESPONDERS: Final = 10
"""Of a pod, for the API server."""
_WARM_SECONDS: Final = 1800
"""A container that is not warm by then is killed: an agent that cannot read its assignment never will."""


def pod(
    job: Snapshot,
    name: str,
    *,
    apart: bool = False,
    beside: bool = False,
    avoid: tuple[str, ...] = (),
    kept: KeptTemplate | None = None,
    priority_class: str = "",
) -> Json:
    """A member as it is created: a standby with the agent in front of the user's command.

    `apart` keeps it off nodes that have a former of the job; `beside` off those that have a member, `avoid` off these,
    where it can be; `kept` is its template instead of the job's own; `priority_class` counts instead of the
    template's.
    """
    body = _hashed_pod(job, name, apart=apart, kept=kept)
    annotations = body["metadata"]["annotations"]
    annotations |= marks(job.spec.disruption.autoscaler, wire.Role.STANDBY)
    annotations.setdefault(names.ANNOTATION_CONTAINER, str(body["spec"]["containers"][0].get("name", "")))
    if beside:
        body["spec"]["affinity"] = _rather_away_from_members(job, body["spec"].get("affinity") or {})
    if avoid:
        body["spec"]["affinity"] = _rather_elsewhere(avoid, body["spec"].get("affinity") or {})
    spec = _told_its_node(_with_keys_mounted(job.spec.checkpoint, body["spec"]))
    spec = _with_batch(job, _of_class(priority_class, spec))
    return body | {"spec": _with_responder(spec) if job.responds else spec}


def _with_responder(spec: Json) -> Json:
    """The operator answers beside whoever the template names; the API server takes nobody's answers for a PodGroup."""
    others: list[Json] = spec.get("evictionResponders") or []
    named = any(one.get("name") == names.RESPONDER for one in others)
    if named or spec.get("schedulingGroup") or len(others) >= _MOST_RESPONDERS:
        return spec
    return spec | {"evictionResponders": [*others, {"name": names.RESPONDER, "priority": names.RESPONDER_PRIORITY}]}


def _hashed_pod(job: Snapshot, name: str, *, apart: bool = False, kept: KeptTemplate | None = None) -> Json:
    """All of a pod that its hash is of: what comes from the spec, in the form in which it was hashed first."""
    template = copy.deepcopy(kept.template if kept else job.spec.template)
    given: Json = template.get("metadata") or {}
    labels = names.labels(job.name, job.uid) | {wire.LABEL_ROLE: wire.Role.STANDBY.value}
    annotations = {
        wire.ANNOTATION_ASSIGNMENT: wire.write_assignment(wire.Standby()),
        names.ANNOTATION_TEMPLATE: kept.hash if kept else job.template_hash,
    }
    metadata = {
        "name": name,
        "namespace": job.namespace,
        "labels": (given.get("labels") or {}) | labels,
        "annotations": (given.get("annotations") or {}) | annotations,
        "ownerReferences": [owner(job)],
    }
    spec = _pod_spec(job, name, template)
    if apart:
        spec["affinity"] = _away_from_formers(job, spec.get("affinity") or {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def template_hash(job: Snapshot, kept: KeptTemplate | None = None) -> str:
    """Of the pod that would be created now: changes with whatever of the spec goes into it, and with nothing else.

    A form that a version of the operator gives to pods is left out: its upgrade would replace members that start. So
    are marks, which change in pods that live.
    """
    body = _hashed_pod(job.model_copy(update={"template_hash": ""}), job.name, kept=kept)
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def owner(job: Snapshot) -> Json:
    """The reference by which an object is the job's, and goes with it."""
    return {
        "apiVersion": JOBS.api_version,
        "kind": "TrainingJob",
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        # True would need the right to change the job's finalizers, and would hold its deletion up.
        "blockOwnerDeletion": False,
    }


def _pod_spec(job: Snapshot, name: str, template: Json) -> Json:
    spec: Json = template.get("spec") or {}
    spec["restartPolicy"] = "Never"
    spec["automountServiceAccountToken"] = False
    if spec.get("terminationGracePeriodSeconds") is None:
        spec["terminationGracePeriodSeconds"] = wire.DEFAULT_GRACE_SECONDS
    spec["volumes"] = [*(spec.get("volumes") or []), _assignment_volume()]
    if spec.get("topologySpreadConstraints") is None:
        spec["topologySpreadConstraints"] = [_soft_spread(job)]
    containers = spec.get("containers") or [{}]
    spec["containers"] = [_trainer(job, name, spec, containers[0]), *containers[1:]]
    return spec


def _assignment_volume() -> Json:
    field = f"metadata.annotations['{wire.ANNOTATION_ASSIGNMENT}']"
    item = {"path": "assignment", "fieldRef": {"apiVersion": "v1", "fieldPath": field}}
    return {"name": names.ASSIGNMENT_VOLUME, "downwardAPI": {"items": [item], "defaultMode": 0o644}}


def _soft_spread(job: Snapshot) -> Json:
    """One node leaving should take few members; a full cluster must not keep the job from starting."""
    return {
        "maxSkew": 1,
        "topologyKey": _HOSTNAME,
        "whenUnsatisfiable": "ScheduleAnyway",
        "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": names.labels(job.name, job.uid)},
    }


def _away_from_formers(job: Snapshot, given: Json) -> Json:
    """No `hostname NotIn` and no `matchFields`: Karpenter makes no node for a pod that has one."""
    labels = names.labels(job.name, job.uid) | {wire.LABEL_ROLE: wire.Role.FORMER.value}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": _HOSTNAME}
    anti: Json = given.get("podAntiAffinity") or {}
    required = [*(anti.get(_REQUIRED) or []), term]
    return given | {"podAntiAffinity": anti | {_REQUIRED: required}}


def _rather_away_from_members(job: Snapshot, given: Json) -> Json:
    labels = names.labels(job.name, job.uid) | {wire.LABEL_ROLE: wire.Role.MEMBER.value}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": _HOSTNAME}
    anti: Json = given.get("podAntiAffinity") or {}
    preferred = [*(anti.get(_PREFERRED) or []), {"weight": 100, "podAffinityTerm": term}]
    return given | {"podAntiAffinity": anti | {_PREFERRED: preferred}}


def _rather_elsewhere(nodes: tuple[str, ...], given: Json) -> Json:
    """By their names: Karpenter makes no node for a pod that asks for another hostname, and does not look at names."""
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]  # one value for each
    affinity: Json = given.get("nodeAffinity") or {}
    preferred = [*(affinity.get(_PREFERRED) or []), {"weight": 100, "preference": {"matchFields": fields}}]
    return given | {"nodeAffinity": affinity | {_PREFERRED: preferred}}


def _trainer(job: Snapshot, name: str, spec: Json, container: Json) -> Json:
    command = [*(container.get("command") or []), *(container.get("args") or [])]
    mount = {"name": names.ASSIGNMENT_VOLUME, "mountPath": wire.ASSIGNMENT_FOLDER, "readOnly": True}
    trainer = {key: value for key, value in container.items() if key != "args"}
    return trainer | {
        "command": ["perdure", "run", "--", *command],
        "env": _env(job, name, spec, container.get("env") or []),
        "volumeMounts": [*(container.get("volumeMounts") or []), mount],
        "terminationMessagePath": wire.TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        # SIGTERM is lost on a process that has no handler yet; a hook of the user's goes before it all the same.
        "lifecycle": {"preStop": {"exec": {"command": ["perdure", "stop"]}}} | (container.get("lifecycle") or {}),
        "startupProbe": {
            "exec": {"command": ["perdure", "warm"]},
            "periodSeconds": 1,
            "timeoutSeconds": 10,
            "failureThreshold": _WARM_SECONDS,
        },
    }


def _env(job: Snapshot, name: str, spec: Json, given: list[Json]) -> list[Json]:
    """Ours first, so that the user's variables can refer to them; the contract's names cannot be redefined."""
    fixed = {
        Env.ROOT: job.spec.checkpoint.uri,
        Env.UID: job.uid,
        Env.JOB: f"{job.namespace}/{job.name}",
        Env.MEMBER: name,
        Env.PROCESSES: str(job.spec.processes_per_replica),
        Env.GRACE_SECONDS: str(spec["terminationGracePeriodSeconds"]),
        Env.COMPLETION: job.spec.completion.value,
    } | _checkpoint_env(job.spec.checkpoint)
    # A read-only root leaves /dev/shm writable; an emptyDir would make kubectl drain refuse the node.
    defaults = [{"name": "TMPDIR", "value": "/dev/shm"}, *_credentials(job.spec.checkpoint)]  # noqa: S108
    mine = {str(variable.get("name")) for variable in given}
    return [
        *({"name": key, "value": value} for key, value in fixed.items()),
        *(variable for variable in defaults if variable["name"] not in mine),
        *(variable for variable in given if variable.get("name") not in fixed),
    ]


def _checkpoint_env(checkpoint: Checkpoint) -> dict[str, str]:
    values: dict[str, Any] = {
        Env.FROM: _from(checkpoint.from_),
        Env.KEEP: checkpoint.keep,
        Env.EVERY_STEPS: checkpoint.every_steps,
        Env.EVERY_SECONDS: checkpoint.every_seconds,
        Env.EVERY_EPOCHS: checkpoint.every_epochs,
    }
    if checkpoint.s3:
        values |= {
            Env.S3_ENDPOINT: checkpoint.s3.endpoint,
            Env.S3_REGION: checkpoint.s3.region,
            Env.S3_PATH_STYLE: "true" if checkpoint.s3.path_style else "false",
        }
    return {name: str(value) for name, value in values.items() if value is not None}


def _told_its_node(spec: Json) -> Json:
    """The trainer records which node its member was on; the kubelet alone knows when it starts the container."""
    trainer, *others = spec["containers"]
    node = {"name": Env.NODE, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}}
    return spec | {"containers": [trainer | {"env": [node, *trainer["env"]]}, *others]}


def _from(chosen: From | None) -> str | None:
    if chosen is None:
        return None
    wanted = Wanted(chosen.epoch, chosen.step, chosen.seq, chosen.pin)
    return ResumeFrom(wanted, chosen.uri).write()


def _credentials(checkpoint: Checkpoint) -> list[Json]:
    """By reference: the kubelet reads the Secret, the operator may not."""
    secret = _secret(checkpoint)
    if not secret:
        return []

    def variable(key: str, *, optional: bool) -> Json:
        return {"name": key, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": optional}}}

    return [
        variable("AWS_ACCESS_KEY_ID", optional=False),
        variable("AWS_SECRET_ACCESS_KEY", optional=False),
        variable("AWS_SESSION_TOKEN", optional=True),
    ]


def _with_keys_mounted(checkpoint: Checkpoint, spec: Json) -> Json:
    """The Secret as files too: a variable never changes in a running pod, and keys that expire cost the exit save.

    Without them where the template sets a key itself: the files would count before it. The variables stay, for images
    that do not know the files, and because a Secret that is missing is told by them.
    """
    secret, (trainer, *others) = _secret(checkpoint), spec["containers"]
    if not secret or any(variable not in trainer["env"] for variable in _credentials(checkpoint)):
        return spec
    folder = {"name": Env.S3_CREDENTIALS, "value": wire.CREDENTIALS_FOLDER}
    # No subPath: the kubelet never updates one.
    mount = {"name": names.CREDENTIALS_VOLUME, "mountPath": wire.CREDENTIALS_FOLDER, "readOnly": True}
    trainer = trainer | {
        "env": [folder, *(variable for variable in trainer["env"] if variable.get("name") != Env.S3_CREDENTIALS)],
        "volumeMounts": [*trainer["volumeMounts"], mount],
    }
    return spec | {"volumes": [*spec["volumes"], _keys_volume(secret)], "containers": [trainer, *others]}


def _with_batch(job: Snapshot, spec: Json) -> Json:
    """Only to be compared with what the script does: an edit replaces nobody, and no hand-over is in place for it."""
    batch = job.spec.elastic.global_batch_size if job.spec.elastic else None
    if batch is None:
        return spec
    trainer, *others = spec["containers"]
    told = {"name": Env.GLOBAL_BATCH_SIZE, "value": str(batch)}
    variables = [told, *(one for one in trainer["env"] if one.get("name") != Env.GLOBAL_BATCH_SIZE)]
    return spec | {"containers": [trainer | {"env": variables}, *others]}


def _of_class(name: str, spec: Json) -> Json:
    """What follows from the class is admission's to fill in, and refused where it is of another class."""
    if not name:
        return spec
    kept = {key: value for key, value in spec.items() if key not in ("priority", "preemptionPolicy")}
    return kept | {"priorityClassName": name}


def _keys_volume(secret: str) -> Json:
    """The keys and nothing else of the Secret, for whatever user the image has; fsGroup is the template's to set."""
    source = {
        "secretName": secret,
        "items": [{"key": key, "path": key} for key in wire.CREDENTIALS],
        # Keys that a Secret does not have are left out, and so is a Secret that is not there.
        "optional": True,
        "defaultMode": 0o444,
    }
    return {"name": names.CREDENTIALS_VOLUME, "secret": source}


def _secret(checkpoint: Checkpoint) -> str | None:
    return checkpoint.s3.credentials_secret if checkpoint.s3 else None
