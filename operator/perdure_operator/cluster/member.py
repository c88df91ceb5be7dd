"""Builds a member's pod: the pod contract. Pure.

Raw dictionaries in and out: all fields of the user's template that are not ours stay as they are. Called by
`write.act`, which creates the pod, and by `read.observe`, which compares its hash with those of existing pods.
"""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any, Final

from perdure import wire
from perdure.wire import CommitSelector, Env, ResumeFrom
from perdure_operator.api import names
from perdure_operator.api.marks import marks
from perdure_operator.api.spec import S3, CheckpointPolicy, From
from perdure_operator.cluster.protocol import JOBS, Json
from perdure_operator.state.snapshot import KeptTemplate, Snapshot

_HOSTNAME: Final = "kubernetes.io/hostname"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_MOST_RESPONDERS: Final = 10
"""The API server's limit for a pod."""
_WARM_TRIES: Final = 1800
"""The kubelet kills a container that is not warm by then: its agent will never read its assignment. Each lasts as
long as `perdure warm` waits, 5 s, or 1 s in an image with an older Perdure."""

_TOKEN_SECONDS: Final = 3600
"""The kubelet renews the token when 80 % of this are over."""


def pod(
    job: Snapshot,
    name: str,
    *,
    apart: bool = False,
    away_from_members: bool = False,
    avoid: tuple[str, ...] = (),
    kept: KeptTemplate | None = None,
    priority_class: str = "",
    channel: str = "",
) -> Json:
    """A new member: a standby with the agent in front of the user's command.

    `apart` keeps it off nodes with a former member of the job. `away_from_members` prefers nodes without a member, and
    `avoid` nodes other than these. `kept` replaces the job's template, `priority_class` the template's class. `channel`
    is the annotation that says where the member reports; "" for one that does not.
    """
    body = _hashed_pod(job, name, apart=apart, kept=kept)
    annotations = body["metadata"]["annotations"]
    annotations |= marks(job.spec.disruption.autoscaler, wire.Role.STANDBY)
    annotations.setdefault(names.ANNOTATION_CONTAINER, str(body["spec"]["containers"][0].get("name", "")))
    if away_from_members:
        body["spec"]["affinity"] = _prefer_apart_from_members(job, body["spec"].get("affinity") or {})
    if avoid:
        body["spec"]["affinity"] = _prefer_other_nodes(avoid, body["spec"].get("affinity") or {})
    spec = _with_node_name(_with_keys_mounted(job.spec.checkpoint, body["spec"]))
    spec = _with_limits(job, _with_priority_class(priority_class, spec))
    if channel:
        annotations[wire.ANNOTATION_REPORT] = channel
        spec = _with_channel(job, spec)
    return body | {"spec": _with_responder(spec) if job.responds else spec}


def _with_responder(spec: Json) -> Json:
    """Add the operator to the template's eviction responders; pods of a PodGroup cannot have any."""
    others: list[Json] = spec.get("evictionResponders") or []
    named = any(one.get("name") == names.RESPONDER for one in others)
    if named or spec.get("schedulingGroup") or len(others) >= _MOST_RESPONDERS:
        return spec
    return spec | {"evictionResponders": [*others, {"name": names.RESPONDER, "priority": names.RESPONDER_PRIORITY}]}


def _hashed_pod(job: Snapshot, name: str, *, apart: bool = False, kept: KeptTemplate | None = None) -> Json:
    """The part of a pod that its hash covers: what comes from the spec. Its form must never change."""
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
        spec["affinity"] = _apart_from_formers(job, spec.get("affinity") or {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def template_hash(job: Snapshot, kept: KeptTemplate | None = None) -> str:
    """The hash of the pod that would be created now: it changes with the spec's part of the pod and with nothing else.

    It excludes what an operator version adds, because an upgrade would replace starting members, and marks, which
    change in running pods.
    """
    body = _hashed_pod(job.model_copy(update={"template_hash": ""}), job.name, kept=kept)
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def owner(job: Snapshot) -> Json:
    """The owner reference that makes an object the job's, so that it is deleted with the job."""
    return {
        "apiVersion": JOBS.api_version,
        "kind": "TrainingJob",
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        # True would need the right to change the job's finalizers, and would delay the job's deletion.
        "blockOwnerDeletion": False,
    }


def _pod_spec(job: Snapshot, name: str, template: Json) -> Json:
    spec: Json = template.get("spec") or {}
    spec["restartPolicy"] = "Never"
    spec["automountServiceAccountToken"] = False
    if spec.get("terminationGracePeriodSeconds") is None:
        spec["terminationGracePeriodSeconds"] = wire.DEFAULT_GRACE_SECONDS
    spec["volumes"] = [*(spec.get("volumes") or []), _assignment_volume(), *_origin_keys_volumes(job.spec.checkpoint)]
    if spec.get("topologySpreadConstraints") is None:
        spec["topologySpreadConstraints"] = [_soft_spread(job)]
    containers = spec.get("containers") or [{}]
    spec["containers"] = [_trainer(job, name, spec, containers[0]), *containers[1:]]
    return spec


def _assignment_volume() -> Json:
    item = _annotation_file(wire.ASSIGNMENT_FILE, wire.ANNOTATION_ASSIGNMENT)
    return {"name": names.ASSIGNMENT_VOLUME, "downwardAPI": {"items": [item], "defaultMode": 0o644}}


def _annotation_file(path: str, annotation: str) -> Json:
    """An item of the assignment's volume."""
    field = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}
    return {"path": path.removeprefix(f"{wire.ASSIGNMENT_FOLDER}/"), "fieldRef": field}


def _soft_spread(job: Snapshot) -> Json:
    """Spread members over nodes, so that one leaving node takes few of them; a full cluster does not block the
    start."""
    return {
        "maxSkew": 1,
        "topologyKey": _HOSTNAME,
        "whenUnsatisfiable": "ScheduleAnyway",
        "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": names.labels(job.name, job.uid)},
    }


def _apart_from_formers(job: Snapshot, given: Json) -> Json:
    """Keep off nodes with former members. Karpenter makes no node for a pod with `hostname NotIn` or `matchFields`."""
    labels = names.labels(job.name, job.uid) | {wire.LABEL_ROLE: wire.Role.FORMER.value}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": _HOSTNAME}
    anti: Json = given.get("podAntiAffinity") or {}
    required = [*(anti.get(_REQUIRED) or []), term]
    return given | {"podAntiAffinity": anti | {_REQUIRED: required}}


def _prefer_apart_from_members(job: Snapshot, given: Json) -> Json:
    labels = names.labels(job.name, job.uid) | {wire.LABEL_ROLE: wire.Role.MEMBER.value}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": _HOSTNAME}
    anti: Json = given.get("podAntiAffinity") or {}
    preferred = [*(anti.get(_PREFERRED) or []), {"weight": 100, "podAffinityTerm": term}]
    return given | {"podAntiAffinity": anti | {_PREFERRED: preferred}}


def _prefer_other_nodes(nodes: tuple[str, ...], given: Json) -> Json:
    """Prefer other nodes, by metadata.name: Karpenter ignores names, but makes no node for another hostname."""
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]  # one value per field
    affinity: Json = given.get("nodeAffinity") or {}
    preferred = [*(affinity.get(_PREFERRED) or []), {"weight": 100, "preference": {"matchFields": fields}}]
    return given | {"nodeAffinity": affinity | {_PREFERRED: preferred}}


def _trainer(job: Snapshot, name: str, spec: Json, container: Json) -> Json:
    command = [*(container.get("command") or []), *(container.get("args") or [])]
    keys = [
        {"name": volume["name"], "mountPath": wire.FROM_CREDENTIALS_FOLDER, "readOnly": True}
        for volume in _origin_keys_volumes(job.spec.checkpoint)
    ]
    mount = {"name": names.ASSIGNMENT_VOLUME, "mountPath": wire.ASSIGNMENT_FOLDER, "readOnly": True}
    trainer = {key: value for key, value in container.items() if key != "args"}
    return trainer | {
        "command": ["perdure", "run", "--", *command],
        "env": _env(job, name, spec, container.get("env") or []),
        "volumeMounts": [*(container.get("volumeMounts") or []), mount, *keys],
        "terminationMessagePath": wire.TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        # A process without a handler yet would lose SIGTERM. A preStop hook of the user's replaces this one.
        "lifecycle": {"preStop": {"exec": {"command": ["perdure", "stop"]}}} | (container.get("lifecycle") or {}),
        "startupProbe": {
            "exec": {"command": ["perdure", "warm"]},
            "periodSeconds": 1,
            "timeoutSeconds": 10,
            "failureThreshold": _WARM_TRIES,
        },
    }


def _env(job: Snapshot, name: str, spec: Json, given: list[Json]) -> list[Json]:
    """Ours first, so that the user's variables can refer to them. The contract's names cannot be redefined."""
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


def _checkpoint_env(checkpoint: CheckpointPolicy) -> dict[str, str]:
    values: dict[str, Any] = {
        Env.FROM: _from(checkpoint.from_),
        Env.KEEP: checkpoint.keep,
        Env.KEEP_EVERY_STEPS: checkpoint.keep_every_steps,
        Env.EVERY_STEPS: checkpoint.every_steps,
        Env.EVERY_SECONDS: checkpoint.every_seconds,
        Env.EVERY_EPOCHS: checkpoint.every_epochs,
        Env.MIRROR_EVERY_STEPS: checkpoint.mirror and checkpoint.mirror.every_steps,
    }
    if checkpoint.s3:
        values |= {
            Env.S3_ENDPOINT: checkpoint.s3.endpoint,
            Env.S3_REGION: checkpoint.s3.region,
            Env.S3_PATH_STYLE: "true" if checkpoint.s3.path_style else "false",
        }
    if there := _origin_s3(checkpoint):
        values |= {
            Env.FROM_S3_ENDPOINT: there.endpoint,
            Env.FROM_S3_REGION: there.region,
            Env.FROM_S3_PATH_STYLE: "true" if there.path_style else "false",
            Env.FROM_S3_CREDENTIALS: wire.FROM_CREDENTIALS_FOLDER if there.credentials_secret else None,
        }
    return {name: str(value) for name, value in values.items() if value is not None}


def _with_node_name(spec: Json) -> Json:
    """Pass the node's name to the trainer, which records it; it is known when the kubelet starts the container."""
    trainer, *others = spec["containers"]
    node = {"name": Env.NODE, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}}
    return spec | {"containers": [trainer | {"env": [node, *trainer["env"]]}, *others]}


def _from(chosen: From | None) -> str | None:
    if chosen is None:
        return None
    wanted = CommitSelector(chosen.epoch, chosen.step, chosen.seq, chosen.pin)
    return ResumeFrom(wanted, chosen.uri).write()


def _credentials(checkpoint: CheckpointPolicy) -> list[Json]:
    """The keys by reference: the kubelet reads the Secret, the operator may not."""
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


def _with_keys_mounted(checkpoint: CheckpointPolicy, spec: Json) -> Json:
    """Mount the Secret as files too: a variable never changes in a running pod, and expired keys cost the exit save.

    Not if the template sets a key itself, because the files would override it. The variables stay for images that do
    not know the files, and because they make the kubelet report a missing Secret.
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
    return spec | {
        "volumes": [*spec["volumes"], _keys_volume(names.CREDENTIALS_VOLUME, secret)],
        "containers": [trainer, *others],
    }


def _with_limits(job: Snapshot, spec: Json) -> Json:
    """Pass on what members of one run may have in different values, so that it is not part of the hash.

    A trainer only compares globalBatchSize with the script's, and each process watches itself by its own
    progressTimeoutSeconds.
    """
    numbers = {
        Env.GLOBAL_BATCH_SIZE: job.spec.elastic.global_batch_size if job.spec.elastic else None,
        Env.PROGRESS_TIMEOUT_SECONDS: job.spec.failure.progress_timeout_seconds,
    }
    mine = {name: str(number) for name, number in numbers.items() if number is not None}
    trainer, *others = spec["containers"]
    variables = [{"name": name, "value": value} for name, value in mine.items()]
    variables += (one for one in trainer["env"] if one.get("name") not in mine)
    return spec | {"containers": [trainer | {"env": variables}, *others]}


def _with_channel(job: Snapshot, spec: Json) -> Json:
    """Let the member report: the channel beside its assignment, and a token that the API server takes for nothing else.

    Not part of the hash, so that no running or waiting member is replaced for it.
    """
    item = _annotation_file(wire.CHANNEL_FILE, wire.ANNOTATION_REPORT)
    volumes = [_with_item(volume, item) for volume in spec["volumes"]]
    trainer, *others = spec["containers"]
    mount = {"name": names.REPORT_VOLUME, "mountPath": wire.REPORT_TOKEN_FOLDER, "readOnly": True}
    trainer = trainer | {"volumeMounts": [*trainer["volumeMounts"], mount]}
    return spec | {"volumes": [*volumes, _token_volume(job)], "containers": [trainer, *others]}


def _with_item(volume: Json, item: Json) -> Json:
    if volume["name"] != names.ASSIGNMENT_VOLUME:
        return volume
    files = volume["downwardAPI"]
    return volume | {"downwardAPI": files | {"items": [*files["items"], item]}}


def _token_volume(job: Snapshot) -> Json:
    token = {
        "audience": names.report_audience(job.namespace, job.uid),
        "expirationSeconds": _TOKEN_SECONDS,
        "path": wire.REPORT_TOKEN_FILE.removeprefix(f"{wire.REPORT_TOKEN_FOLDER}/"),
    }
    return {"name": names.REPORT_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}


def _with_priority_class(name: str, spec: Json) -> Json:
    """Set the priority class. Admission fills in the fields that follow from it, and refuses those of another class."""
    if not name:
        return spec
    kept = {key: value for key, value in spec.items() if key not in ("priority", "preemptionPolicy")}
    return kept | {"priorityClassName": name}


def _keys_volume(volume: str, secret: str) -> Json:
    """Only the keys of the Secret, readable by every user of the image; fsGroup is up to the template."""
    source = {
        "secretName": secret,
        "items": [{"key": key, "path": key} for key in wire.CREDENTIALS],
        # Missing keys are skipped, and so is a missing Secret.
        "optional": True,
        "defaultMode": 0o444,
    }
    return {"name": volume, "secret": source}


def _origin_keys_volumes(checkpoint: CheckpointPolicy) -> list[Json]:
    """The keys of the root that the job begins from, for files alone: its later runs need neither, nor the Secret."""
    there = _origin_s3(checkpoint)
    if there is None or there.credentials_secret is None:
        return []
    return [_keys_volume(names.ORIGIN_CREDENTIALS_VOLUME, there.credentials_secret)]


def _origin_s3(checkpoint: CheckpointPolicy) -> S3 | None:
    return checkpoint.from_.s3 if checkpoint.from_ else None


def _secret(checkpoint: CheckpointPolicy) -> str | None:
    return checkpoint.s3.credentials_secret if checkpoint.s3 else None
