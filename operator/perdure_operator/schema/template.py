"""The schema of spec.template: an ordinary pod template, and Perdure's rules for it.

Every field of a pod is declared, so that the API server reports a mistyped one at once, and nothing can be nested
deeper than a pod. The operator's server-side dry run checks the values. CEL reads only lists and strings with an upper
bound. The rules refuse what would break Perdure silently: a pod that stops being Ready loses the protection of its
PodDisruptionBudget, and the operator would overwrite fields that it sets itself. Used by `crd`.
"""

from __future__ import annotations

from typing import Final

from perdure import wire
from perdure.wire import Env
from perdure_operator.api.cel import VALIDATIONS, Json, Rule, checked, forbidden
from perdure_operator.api.names import (
    ASSIGNMENT_VOLUME,
    CREDENTIALS_VOLUME,
    ORIGIN_CREDENTIALS_VOLUME,
    REPORT_VOLUME,
)
from perdure_operator.schema import pod

USER_ENV: Final = (
    *(Env.TRACE, Env.RENDEZVOUS_SECONDS, Env.CHECK_SECONDS, Env.BACKGROUND_BYTES, Env.HANG_SECONDS, Env.PRELOAD),
    Env.LIVE,
)
"""The variables PERDURE_* that users may set."""

DESCRIPTION: Final = (
    "An ordinary pod template. Container 0 is the trainer: Perdure puts its agent in front of that container's "
    "command, so the command must be given, and the image must have perdure installed."
)

_MOUNTS: Final = (
    *(wire.ASSIGNMENT_FOLDER, wire.CREDENTIALS_FOLDER, wire.FROM_CREDENTIALS_FOLDER),
    wire.REPORT_TOKEN_FOLDER,
)
_VOLUMES: Final = (ASSIGNMENT_VOLUME, CREDENTIALS_VOLUME, ORIGIN_CREDENTIALS_VOLUME, REPORT_VOLUME)


def _of_trainer(holds: str, message: str) -> Rule:
    """A rule about container 0. The first rule checks that there is one."""
    return Rule(f"self.size() == 0 || ({holds})", message)


_TRAINER_RULES: Final = (
    Rule(
        "self.size() > 0 && has(self[0].command) && self[0].command.size() > 0",
        "containers[0].command is missing: containers[0] is the trainer and Perdure puts its agent in front of its "
        "command, which cannot be read from the image: write it out, such as [python, train.py]",
    ),
    _of_trainer(
        "!has(self[0].startupProbe)",
        "containers[0].startupProbe is Perdure's own, it detects when a member is warm: remove it",
    ),
    _of_trainer(
        "!has(self[0].terminationMessagePath) && !has(self[0].terminationMessagePolicy)",
        "containers[0].terminationMessagePath and terminationMessagePolicy are Perdure's, members report there how "
        "their run ended: remove them",
    ),
    _of_trainer(
        "!has(self[0].volumeMounts) || self[0].volumeMounts.all(m, "
        + " && ".join(f"m.mountPath != '{mount}' && !m.mountPath.startsWith('{mount}/')" for mount in _MOUNTS)
        + ")",
        f"containers[0].volumeMounts must leave {', '.join(_MOUNTS)} to Perdure: mount the volume elsewhere",
    ),
    _of_trainer(
        "!has(self[0].env) || self[0].env.all(e, !e.name.startsWith('PERDURE_') || "
        f"e.name in [{', '.join(repr(name) for name in USER_ENV)}])",
        "containers[0].env: names that start with PERDURE_ are set by Perdure: remove them and use the fields of spec "
        f"({', '.join(USER_ENV)} are yours)",
    ),
)

_POD_RULES: Final = (
    Rule(
        "!has(self.restartPolicy) || self.restartPolicy == 'Never'",
        "restartPolicy must be Never or absent: Perdure replaces members itself, see spec.failure",
        ".restartPolicy",
    ),
    forbidden(
        "activeDeadlineSeconds",
        "activeDeadlineSeconds would kill members without a save: use spec.activeDeadlineSeconds",
    ),
    forbidden(
        "readinessGates",
        "readinessGates: a member that is not Ready loses the protection of its budget: remove them",
    ),
    forbidden(
        "nodeName",
        "nodeName would put every member back on the node it has to leave: use nodeSelector or affinity",
    ),
    Rule(
        "!has(self.automountServiceAccountToken) || !self.automountServiceAccountToken",
        "automountServiceAccountToken must be false or absent, members carry no token that the API server accepts: "
        "add a projected volume with a serviceAccountToken if the script needs one",
        ".automountServiceAccountToken",
        forbids=True,
    ),
    Rule(
        f"!has(self.volumes) || self.volumes.all(v, !(v.name in [{', '.join(repr(name) for name in _VOLUMES)}]))",
        f"volumes: the names {', '.join(_VOLUMES)} are Perdure's: give the volume another name",
        ".volumes",
    ),
)


_READINESS: Final = forbidden(
    "readinessProbe",
    "readinessProbe: a pod that stops being Ready loses the protection of its budget and is evicted without a "
    "save: remove it from every container",
)


def template_schema() -> Json:
    """The structural schema of spec.template."""
    metadata = {
        "type": "object",
        "description": "Labels and annotations of the members. Perdure chooses the pods' names.",
        "properties": {"labels": _names("labels"), "annotations": _names("annotations")},
    }
    return {
        "type": "object",
        "description": DESCRIPTION,
        "required": ["spec"],
        "properties": {"metadata": metadata, "spec": _pod_schema()},
    }


def _names(field: str) -> Json:
    return checked(
        Rule(
            "self.all(name, !name.startsWith('perdure.dev/'))",
            f"{field}: names that start with perdure.dev/ are Perdure's: use a domain of your own",
            forbids=True,
        ),
        type="object",
        additionalProperties={"type": "string"},
        maxProperties=128,
    )


def _pod_schema() -> Json:
    schema = pod.schema()
    schema["description"] = f"An ordinary pod spec, as Kubernetes {pod.source()['kubernetes']} has it."
    schema |= checked(*_POD_RULES)
    fields = schema["properties"]
    fields["containers"] |= checked(*_TRAINER_RULES, **_by_name(32))
    fields["initContainers"] |= _by_name(32)
    fields["volumes"] |= _by_name(256)
    fields["volumes"]["items"]["properties"]["name"]["maxLength"] = 63
    fields["restartPolicy"]["maxLength"] = 16
    fields["nodeName"]["maxLength"] = 253
    fields["readinessGates"]["maxItems"] = 16
    for containers in ("containers", "initContainers"):
        _bound_container(fields[containers]["items"])
    return schema


def _by_name(most: int) -> Json:
    """A list whose items may have different owners in a server-side apply. Every other list has one owner."""
    return {"maxItems": most, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


def _bound_container(schema: Json) -> None:
    schema[VALIDATIONS] = [_READINESS.schema()]
    fields = schema["properties"]
    fields["name"]["maxLength"] = 63
    fields["command"]["maxItems"] = 1024
    fields["env"]["maxItems"] = 512
    fields["env"]["items"]["properties"]["name"]["maxLength"] = 256
    fields["volumeMounts"]["maxItems"] = 256
    fields["volumeMounts"]["items"]["properties"]["mountPath"]["maxLength"] = 1024
    fields["terminationMessagePath"]["maxLength"] = 1024
    fields["terminationMessagePolicy"]["maxLength"] = 64
