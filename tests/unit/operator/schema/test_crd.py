"""The generator: what pydantic says becomes a structural schema, and nothing it says is lost on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import pytest
import yaml
from pydantic import Field

from perdure_operator.api.cel import Json, Rule, at_least, between, checked, forbidden
from perdure_operator.api.model import Model, TolerantModel
from perdure_operator.schema import crd, reference_page


class Colour(StrEnum):
    RED = "Red"
    BLUE = "Blue"


class Inner(Model):
    """What the inner one is."""

    size: int = 3


class Outer(Model):
    """What the outer one is.

    Two lines that belong
    together.
    """

    required: str
    """Named by its user."""
    described: Inner = Inner()
    """Described by its field."""
    optional: Inner | None = None
    count: int | None = Field(default=None, json_schema_extra=at_least("count", 1, "else nothing happens"))
    names: tuple[str, ...] = Field(default=(), max_length=4)
    colour: Colour = Colour.RED
    """What it looks like."""


class Tolerant(TolerantModel):
    """A value of another version."""

    known: int = 0


def schema(model: type[Model]) -> Json:
    return crd.structural(model.model_json_schema())


def nodes(value: Any) -> Iterator[Json]:
    """Every schema inside a schema."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nodes(inner)


def test_references_are_resolved_and_the_fields_description_wins() -> None:
    fields = schema(Outer)["properties"]
    assert fields["described"]["properties"] == fields["optional"]["properties"]
    assert fields["described"]["description"] == "Described by its field."
    assert fields["optional"]["description"] == "What the inner one is."


def test_a_docstring_keeps_its_paragraphs_and_loses_its_line_breaks() -> None:
    assert schema(Outer)["description"] == "What the outer one is.\nTwo lines that belong together."


def test_an_optional_field_is_one_that_may_be_absent() -> None:
    outer = schema(Outer)
    assert outer["required"] == ["required"]
    assert outer["properties"]["count"]["type"] == "integer"
    assert not any("anyOf" in node or "nullable" in node for node in nodes(outer))
    assert "default" not in outer["properties"]["optional"]
    assert "default" not in outer["properties"]["count"]


def test_an_objects_default_is_empty_because_its_fields_have_theirs() -> None:
    described = schema(Outer)["properties"]["described"]
    assert described["default"] == {}
    assert described["properties"]["size"]["default"] == 3


def test_status_has_no_defaults() -> None:
    assert not any("default" in node for node in nodes(crd.structural(Outer.model_json_schema(), defaults=False)))


def test_lengths_and_rules_are_carried_over() -> None:
    fields = schema(Outer)["properties"]
    assert fields["names"]["maxItems"] == 4
    assert fields["count"]["x-kubernetes-validations"] == [
        {"rule": "self >= 1", "message": "count must be 1 or more: else nothing happens"}
    ]


def test_the_words_of_an_enumeration_are_described_and_not_enforced() -> None:
    colour = schema(Outer)["properties"]["colour"]
    assert colour["description"] == "What it looks like.\nOne of Red, Blue."
    assert "enum" not in colour


def test_unknown_fields_are_kept_where_the_model_tolerates_them_and_nowhere_else() -> None:
    assert schema(Tolerant)["x-kubernetes-preserve-unknown-fields"] is True
    assert not any("x-kubernetes-preserve-unknown-fields" in node for node in nodes(schema(Outer)))


def test_a_map_keeps_the_type_of_its_values() -> None:
    given = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert crd.structural(given)["additionalProperties"] == {"type": "integer", "format": "int64"}


def test_a_union_has_no_structural_form() -> None:
    class Either(Model):
        """Neither."""

        value: int | str

    with pytest.raises(TypeError, match="Value: a union of 2 types has no structural form"):
        schema(Either)


def test_a_keyword_that_the_generator_does_not_know_is_not_dropped_in_silence() -> None:
    class Picky(Model):
        """With a limit that would need a rule with a message."""

        value: int = Field(default=1, ge=1)

    with pytest.raises(TypeError, match="Value: no structural form for minimum"):
        schema(Picky)


def test_a_range_names_both_ends() -> None:
    assert between("replicas", 1, 9) == checked_rule("self >= 1 && self <= 9", "replicas must be 1 to 9")


def test_a_forbidden_field_is_shown_as_the_place_of_the_mistake() -> None:
    rule = forbidden("nodeName", "nodeName: remove it").schema()
    assert rule["rule"] == "!has(self.nodeName)"
    assert (rule["fieldPath"], rule["reason"]) == (".nodeName", "FieldValueForbidden")


def test_rules_stand_beside_other_keywords() -> None:
    both = checked(Rule("self == 'a'", "name must be a"), type="string", maxLength=3)
    assert both == {"type": "string", "maxLength": 3, **checked_rule("self == 'a'", "name must be a")}


def test_every_field_has_a_type_and_every_field_of_ours_a_description() -> None:
    for schema_of in (crd.spec_schema(), crd.status_schema()):
        for path, field, _ in reference_page.fields(schema_of):
            assert "type" in field or field.get("x-kubernetes-int-or-string"), path
            ours = not path.startswith("template.") and not path.endswith("[]")
            assert not ours or field.get("description"), path


def test_conditions_are_merged_by_their_type() -> None:
    conditions = crd.status_schema()["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]
    assert "type" in conditions["items"]["required"]


def test_the_yaml_text_says_the_same_without_anchors() -> None:
    text = crd.text()
    assert yaml.safe_load(text) == json.loads(json.dumps(crd.crd()))
    assert "&id0" not in text


def checked_rule(rule: str, message: str) -> Json:
    return {"x-kubernetes-validations": [{"rule": rule, "message": message}]}
