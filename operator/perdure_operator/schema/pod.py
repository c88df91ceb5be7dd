"""The structural schema of a pod's spec, taken from the API server's own OpenAPI document.

`pod.json` beside this module holds the needed part of that document with shortened descriptions. So the CRD is made
without a network, and a newer Kubernetes is one command and a readable diff. The Python client's models would be the
wrong source: they declare a Quantity as a string, and would refuse `cpu: 1`.

    kubectl get --raw /openapi/v3/api/v1 | python -m perdure_operator.schema.pod > pod.json

Left out: enumerations, which a newer API server may extend; defaults, which the API server sets when the pod is
created; fields that no template may have. Used by `template`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any, Final

from perdure_operator.api.cel import Json

SOURCE: Final = "pod.json"
ROOT: Final = "PodSpec"

_INT_OR_STRING: Final = ("Quantity", "IntOrString")
_METADATA: Final = "ObjectMeta"
"""Occurs only in a volume claim's template, where it holds labels and annotations."""
_NEVER: Final = frozenset(((ROOT, "ephemeralContainers"),))
_SCALARS: Final = ("string", "integer", "number", "boolean")
_DESCRIPTION: Final = 150
"""The longest description. The whole CRD has to fit into the annotation of a client-side apply."""

_STRINGS: Final[Json] = {"type": "object", "additionalProperties": {"type": "string"}}


def extract(document: Json) -> Json:
    """The definitions below a pod's spec, by their short names, in the form of `pod.json`."""
    known = {_short(name): schema for name, schema in document["components"]["schemas"].items()}
    found: Json = {}
    waiting = [ROOT]
    while waiting:
        name = waiting.pop()
        if name not in found and name not in (*_INT_OR_STRING, _METADATA):
            found[name] = _definition(name, known[name])
            waiting += _references(found[name])
    return {"kubernetes": document["info"]["version"], "definitions": dict(sorted(found.items()))}


def text(source: Json) -> str:
    """The source as a file: one definition a line."""
    lines = (f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in source["definitions"].items())
    head = f'{{"kubernetes": {json.dumps(source["kubernetes"])}, "definitions": {{\n'
    return head + ",\n".join(lines) + "\n}}\n"


@cache
def source() -> Json:
    """The file beside this module."""
    read: Json = json.loads(resources.files(__package__).joinpath(SOURCE).read_text(encoding="utf-8"))
    return read


def schema(name: str = ROOT) -> Json:
    """The structural schema of one definition, with its references expanded; a fresh value each time."""
    expanded: Json = _expanded(source()["definitions"][name])
    return expanded


def _definition(name: str, given: Json) -> Json:
    fields = {field: _field(one) for field, one in given["properties"].items() if (name, field) not in _NEVER}
    required = {"required": given["required"]} if "required" in given else {}
    return {"type": "object", **required, "properties": fields}


def _field(given: Json) -> Json:
    """One field: its type or its reference, and its description."""
    given = {**given, **(given["allOf"][0] if "allOf" in given else {})}
    description = _shortened(given.get("description", ""))
    return {**({"description": description} if description else {}), **_type(given)}


def _type(given: Json) -> Json:
    if "allOf" in given:
        return _type(given["allOf"][0])
    if "$ref" in given:
        name = _short(given["$ref"])
        if name in _INT_OR_STRING:
            return {"x-kubernetes-int-or-string": True}
        if name == _METADATA:
            return {"type": "object", "properties": {"labels": _STRINGS, "annotations": _STRINGS}}
        return {"$ref": name}
    kind = given["type"]
    if kind == "array":
        return {"type": kind, "items": _type(given["items"])}
    if kind == "object":
        return {"type": kind, "additionalProperties": _type(given["additionalProperties"])}
    if kind not in _SCALARS:
        raise TypeError(f"no structural form for type {kind}: {given}")
    number = {"format": given["format"]} if kind == "integer" and "format" in given else {}
    return {"type": kind, **number}


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and "$ref" in value:
        yield value["$ref"]
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _references(inner)


def _expanded(given: Any) -> Any:
    if isinstance(given, list):
        return list(given)
    if not isinstance(given, dict):
        return given
    if "$ref" in given:
        own = {key: value for key, value in given.items() if key != "$ref"}
        return {**own, **_expanded(source()["definitions"][given["$ref"]])}
    return {key: _expanded(value) for key, value in given.items()}


def _short(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _shortened(description: str) -> str:
    """The first sentence, cut between words if it is too long."""
    sentence = re.split(r"(?<=[a-z)\"'`])\.(?:\s|$)|\n\n|More info:", " ".join(description.split()), maxsplit=1)[0]
    sentence = sentence.strip().rstrip(".")
    if len(sentence) <= _DESCRIPTION:
        return sentence
    return sentence[: _DESCRIPTION - 3].rsplit(" ", 1)[0].rstrip(",;:") + "..."


if __name__ == "__main__":
    sys.stdout.write(text(extract(json.load(sys.stdin))))
