"""The schema of spec.template: an ordinary pod template in which only what Perdure has a say in is declared.

CEL reads declared fields only, and only lists with an upper bound; everything else of the pod is preserved as it is and
checked by the operator's server-side dry run. Refused is what would break the promise silently: a pod that stops being
Ready loses the protection of its PodDisruptionBudget, and whatever the operator sets itself would be overwritten.
Used by `api.spec`.
"""

from __future__ import annotations

from typing import Final

from perdure import contract
from perdure.contract import Env
from perdure_operator.api.names import ASSIGNMENT_VOLUME
from perdure_operator.schema.cel import Json, Rule, checked, forbidden

USER_ENV: Final = (Env.TRACE, Env.RENDEZVOUS_SECONDS)
"""The variables named PERDURE_* that are the user's to set."""

_PRESERVED: Final[Json] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_MOUNT = contract.ASSIGNMENT_FOLDER


def _of_trainer(holds: str, message: str) -> Rule:
    """About container 0; that there is one is the first rule's business."""
    return Rule(f"self.size() == 0 || ({holds})", message)


_TRAINER_RULES: Final = (
    Rule(
        "self.size() > 0 && has(self[0].command) && self[0].command.size() > 0",
        "containers[0].command is missing: containers[0] is the trainer and Perdure puts its agent in front of its "
        "command, which cannot be read from the image: write it out, such as [python, train.py]",
    ),
    _of_trainer(
        "!has(self[0].startupProbe)",
        "containers[0].startupProbe is Perdure's own, it tells when a member is warm: remove it",
    ),
    _of_trainer(
        "!has(self[0].terminationMessagePath) && !has(self[0].terminationMessagePolicy)",
        "containers[0].terminationMessagePath and terminationMessagePolicy are Perdure's, a member tells there how its "
        "run ended: remove them",
    ),
    _of_trainer(
        "!has(self[0].volumeMounts) || self[0].volumeMounts.all(m, "
        f"m.mountPath != '{_MOUNT}' && !m.mountPath.startsWith('{_MOUNT}/'))",
        f"containers[0].volumeMounts must leave {_MOUNT} to Perdure's assignment: mount the volume elsewhere",
    ),
    _of_trainer(
        "!has(self[0].env) || self[0].env.all(e, !e.name.startsWith('PERDURE_') || "
        f"e.name in [{', '.join(repr(name) for name in USER_ENV)}])",
        "containers[0].env: names that start with PERDURE_ are set by Perdure: remove them and use the fields of spec "
        f"({' and '.join(USER_ENV)} are yours)",
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
        "automountServiceAccountToken must be false or absent, members carry no token of the API server: "
        "add a projected volume with a serviceAccountToken if the script needs one",
        ".automountServiceAccountToken",
        forbids=True,
    ),
    Rule(
        f"!has(self.volumes) || self.volumes.all(v, v.name != '{ASSIGNMENT_VOLUME}')",
        f"volumes: the name {ASSIGNMENT_VOLUME} is Perdure's: give the volume another name",
        ".volumes",
    ),
)


def template_schema() -> Json:
    """The structural schema of spec.template."""
    metadata = {
        "type": "object",
        "additionalProperties": False,
        "description": "Labels and annotations of the members; their names are Perdure's.",
        "properties": {"labels": _names("labels"), "annotations": _names("annotations")},
    }
    return {
        "type": "object",
        "additionalProperties": False,
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
    properties: Json = {
        "containers": checked(*_TRAINER_RULES, **_list(_container_schema(), 32)),
        "initContainers": _list(_container_schema(), 32),
        "volumes": _list(_object("name", 63), 256),
        "restartPolicy": {"type": "string", "maxLength": 16},
        "activeDeadlineSeconds": {"type": "integer", "format": "int64"},
        "automountServiceAccountToken": {"type": "boolean"},
        "nodeName": {"type": "string", "maxLength": 253},
        "readinessGates": _list(_PRESERVED, 16),
    }
    description = "An ordinary pod spec; what is not listed here is passed on as it is."
    rules = checked(*_POD_RULES, **_PRESERVED, description=description)
    return {**rules, "required": ["containers"], "properties": properties}


def _container_schema() -> Json:
    rule = forbidden(
        "readinessProbe",
        "readinessProbe: a pod that stops being Ready loses the protection of its budget and is evicted without a "
        "save: remove it from every container",
    )
    named = _object("name", 63)
    properties: Json = {
        **named["properties"],
        "command": _list({"type": "string"}, 1024),
        "env": _list(_object("name", 256), 512),
        "volumeMounts": _list(_object("mountPath", 1024), 256),
        "readinessProbe": _PRESERVED,
        "startupProbe": _PRESERVED,
        "terminationMessagePath": {"type": "string", "maxLength": 1024},
        "terminationMessagePolicy": {"type": "string", "maxLength": 64},
    }
    return {**checked(rule, **named), "properties": properties}


def _object(key: str, length: int) -> Json:
    """An object of which one string is declared."""
    return {**_PRESERVED, "required": [key], "properties": {key: {"type": "string", "maxLength": length}}}


def _list(items: Json, most: int) -> Json:
    return {"type": "array", "items": items, "maxItems": most}
