"""The schema of a pod: what the API server's document says, without what a CRD cannot or should not say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from perdure_operator.api.cel import Json
from perdure_operator.cluster import decode
from perdure_operator.schema import crd, pod
from perdure_operator.schema.template import template_schema
from tests.unit.operator.schema.test_crd import nodes

LIMIT = 220_000
"""Client-side apply puts the whole CRD into an annotation of at most 262,144 bytes."""


def document(**definitions: Json) -> Json:
    """An OpenAPI document as the API server has it."""
    schemas = {f"io.k8s.api.core.v1.{name}": {"type": "object", "properties": one} for name, one in definitions.items()}
    return {"info": {"version": "v9"}, "components": {"schemas": schemas}}


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/io.k8s.api.core.v1.{name}"}


def extracted(**fields: Json) -> Json:
    found = pod.extract(document(PodSpec=fields, Quantity={}, IntOrString={}, ObjectMeta={}, Inner={}))
    properties: Json = found["definitions"]["PodSpec"]["properties"]
    return properties


@pytest.mark.parametrize("name", ["Quantity", "IntOrString"])
def test_quantities_and_ports_may_be_numbers_or_strings(name: str) -> None:
    given = {"type": "object", "additionalProperties": ref(name)}
    assert extracted(limits=given)["limits"]["additionalProperties"] == {"x-kubernetes-int-or-string": True}


def test_a_reference_keeps_its_own_description_and_loses_default_and_enumeration() -> None:
    given = {"description": "What it is. More.", "default": {}, "allOf": [ref("Inner")]}
    words = {"type": "string", "enum": ["a"], "default": "a", "format": "date-time"}
    assert extracted(a=given, b=words) == {"a": {"description": "What it is", "$ref": "Inner"}, "b": {"type": "string"}}


def test_only_definitions_below_the_pods_spec_are_taken() -> None:
    found = pod.extract(document(PodSpec={"a": ref("Inner")}, Inner={}, Other={}))
    assert list(found["definitions"]) == ["Inner", "PodSpec"]
    assert found["kubernetes"] == "v9"


def test_a_type_without_structural_form_is_not_dropped_in_silence() -> None:
    with pytest.raises(TypeError, match="no structural form for type null"):
        extracted(a={"type": "null"})


def test_the_source_file_is_read_as_it_was_written() -> None:
    source = pod.source()
    assert json.loads(pod.text(source)) == source


def test_a_pods_usual_fields_are_there() -> None:
    fields = pod.schema()["properties"]
    container = fields["containers"]["items"]["properties"]
    assert container["resources"]["properties"]["limits"]["additionalProperties"] == {
        "x-kubernetes-int-or-string": True
    }
    assert container["livenessProbe"]["properties"]["httpGet"]["properties"]["port"]["x-kubernetes-int-or-string"]
    assert fields["terminationGracePeriodSeconds"]["type"] == "integer"
    claim = fields["volumes"]["items"]["properties"]["ephemeral"]["properties"]["volumeClaimTemplate"]["properties"]
    assert set(claim["metadata"]["properties"]) == {"labels", "annotations"}
    assert "ephemeralContainers" not in fields


def test_the_template_has_no_defaults_and_keeps_nothing_unknown() -> None:
    for node in nodes(template_schema()):
        assert not {"x-kubernetes-preserve-unknown-fields", "enum", "oneOf", "$ref"} & set(node)
        assert "default" not in node or isinstance(node["default"], dict)  # a field of that name


def test_only_containers_and_volumes_are_merged_by_name() -> None:
    lists = {path for path, node in _paths(template_schema()) if node.get("x-kubernetes-list-type") == "map"}
    spec = "properties.spec.properties"
    assert lists == {f"{spec}.{name}" for name in ("containers", "initContainers", "volumes")}


def test_the_whole_crd_fits_into_an_annotation() -> None:
    assert len(json.dumps(crd.crd())) < LIMIT


def test_a_template_and_the_crd_itself_are_less_deep_than_what_is_read() -> None:
    depth = max(path.count(".") for path, _ in _paths(crd.crd()))
    assert depth < decode.LEVELS - 10


def _paths(value: Any, path: str = "") -> Iterator[tuple[str, Json]]:
    if isinstance(value, dict):
        yield path.lstrip("."), value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from _paths(one, f"{path}.{key}")
