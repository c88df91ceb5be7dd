"""The root that a job writes to, so that two jobs with one root can be detected. Pure.

The same uri need not be the same place: a bucket's name depends on the endpoint, and a folder on the volume that is
mounted there. Called by `records`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final

from perdure.wire import Env
from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.cluster.protocol import Json

Root = tuple[str, ...]
"""Equal for two jobs exactly if they write to the same place."""

_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_PRIVATE: Final = frozenset({"emptyDir", "ephemeral"})


def of(namespace: str, spec: TrainingJobSpec) -> Root | None:
    """The job's root; None if no other job can reach it."""
    uri = spec.checkpoint.uri.rstrip("/")
    if not uri.startswith("file://"):
        return "s3", _endpoint(spec), uri
    return _folder(namespace, spec.template, PurePosixPath(uri.removeprefix("file://")))


def of_pod(trainer: Json) -> str:
    """The root of a member with this container; "" if the pod alone does not determine it.

    That is so for a folder, which depends on its volume, and for variables whose values are elsewhere.
    """
    given = {one.get("name"): one for one in _items(trainer, "env")}
    uri = str(given.get(Env.ROOT, {}).get("value") or "")
    endpoint = next((given[name] for name in (Env.S3_ENDPOINT, *_ENDPOINT_VARIABLES) if name in given), None)
    elsewhere = "value" not in endpoint if endpoint else bool(trainer.get("envFrom"))
    if not uri.startswith("s3://") or elsewhere:
        return ""
    return f"{uri} {str(endpoint['value']).rstrip('/') if endpoint else ''}"


def _endpoint(spec: TrainingJobSpec) -> str:
    if spec.checkpoint.s3 and spec.checkpoint.s3.endpoint:
        return spec.checkpoint.s3.endpoint.rstrip("/")
    given = {one.get("name"): one.get("value") for one in _items(_trainer(spec.template), "env")}
    return next((str(given[name]).rstrip("/") for name in _ENDPOINT_VARIABLES if given.get(name)), "")


def _folder(namespace: str, template: Json, folder: PurePosixPath) -> Root | None:
    """The root of a folder, by the volume that is mounted closest above it; None for the container's own file
    system."""
    mounts = {PurePosixPath(str(one.get("mountPath", ""))): one for one in _items(_trainer(template), "volumeMounts")}
    above = [path for path in mounts if folder.is_relative_to(path)]
    if not above:
        return None
    nearest = max(above, key=lambda path: len(path.parts))
    mount = mounts[nearest]
    inside = PurePosixPath(str(mount.get("subPath") or mount.get("subPathExpr") or "")) / folder.relative_to(nearest)
    named = (one for one in _items(_spec(template), "volumes") if one.get("name") == mount.get("name"))
    return _volume(namespace, next(named, {}), inside)


def _volume(namespace: str, volume: Json, inside: PurePosixPath) -> Root | None:
    kind, source = next(((kind, source) for kind, source in volume.items() if isinstance(source, dict)), ("", {}))
    match kind:
        case "persistentVolumeClaim":
            return kind, namespace, str(source.get("claimName")), str(inside)
        case "hostPath":  # the node is unknown before the members are placed: equal paths count as the same place
            return kind, str(PurePosixPath(str(source.get("path"))) / inside)
        case "nfs":
            return kind, str(source.get("server")), str(PurePosixPath(str(source.get("path"))) / inside)
        case _ if not kind or kind in _PRIVATE:
            return None
        case _:
            return kind, namespace, json.dumps(source, sort_keys=True), str(inside)


def _spec(template: Json) -> Json:
    spec = template.get("spec")
    return spec if isinstance(spec, dict) else {}


def _trainer(template: Json) -> Json:
    return next(_items(_spec(template), "containers"), {})


def _items(parent: Json, name: str) -> Iterator[Json]:
    """The objects in a list; an older CRD allowed anything here."""
    found: Any = parent.get(name)
    return (one for one in found if isinstance(one, dict)) if isinstance(found, list) else iter(())
