"""An object that is too deep or of no shape is read without what cannot be, and nothing is raised."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from perdure_operator.cluster import decode, kube
from perdure_operator.cluster.protocol import Json, Unavailable
from tests.support.raw import job

DEEPEST = 9_999
"""Kubernetes refuses more."""


def nested(levels: int, bracket: str = "[") -> str:
    """JSON text of that many nested lists or maps."""
    return '{"a":' * levels + "{}" + "}" * levels if bracket == "{" else "[" * levels + "]" * levels


def text_of(raw: Json, *path: str, value: str) -> str:
    """The object as text, with JSON that no serializer here could write in the place of `path`."""
    changed = copy.deepcopy(raw)
    parent = changed
    for name in path[:-1]:
        parent = parent.setdefault(name, {})
    parent[path[-1]] = "<here>"
    return json.dumps(changed).replace('"<here>"', value)


def stored(name: str = "digits") -> Json:
    raw = job(name)
    raw["metadata"] |= {"namespace": "ns", "uid": f"uid-{name}", "resourceVersion": "7"}
    return raw


PLACES = [
    ("spec", "template", "spec", "affinity"),
    ("status", "conditions"),
    ("metadata", "managedFields"),
    ("metadata", "annotations"),
    ("metadata", "labels", "a"),
    ("anything",),
]


@pytest.mark.parametrize("bracket", ["[", "{"])
@pytest.mark.parametrize("levels", [101, 350, 1_200, DEEPEST])
@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_what_is_nested_too_deep_is_left_out_and_the_rest_is_read(
    place: tuple[str, ...], levels: int, bracket: str
) -> None:
    raw = decode.known_part(decode.document(text_of(stored(), *place, value=nested(levels, bracket))))
    assert raw is not None
    assert raw["metadata"]["name"] == "digits"
    assert raw["spec"]["checkpoint"] == {"uri": "s3://bucket/digits"}
    copy.deepcopy(raw)
    json.dumps(raw)
    if place != ("metadata", "managedFields"):  # they are not read
        (told,) = decode.left_out(raw)
        assert told.startswith(".".join(place[:2]))


def test_an_ordinary_object_is_read_as_it_is() -> None:
    raw = stored()
    assert decode.known_part(decode.document(json.dumps(raw))) == raw
    assert decode.left_out(raw) == ()


@pytest.mark.parametrize(("levels", "told"), [(decode.LEVELS, 0), (decode.LEVELS + 1, 1)])
def test_a_hundred_levels_of_a_field_are_read_and_one_more_is_not(levels: int, told: int) -> None:
    raw = decode.known_part(decode.document(text_of(stored(), "status", value=nested(levels - 1, "{"))))
    assert raw is not None
    assert len(decode.left_out(raw)) == told


def test_brackets_and_quotes_in_strings_are_no_nesting() -> None:
    strange = '[{"\\' * 2_000
    text = text_of(stored(), "metadata", "annotations", value=json.dumps({"a": strange, "b": "\\"}))
    deep = text_of(json.loads(text), "status", value=nested(DEEPEST))
    raw = decode.known_part(decode.document(deep))
    assert raw is not None
    assert raw["metadata"]["annotations"] == {"a": strange, "b": "\\"}


@pytest.mark.parametrize("text", ["", "{", '{"a": 1}{', "[" * DEEPEST, nested(DEEPEST) + "]", "1" * 5_000, '"\\'])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        decode.document(text)


@pytest.mark.parametrize(
    "change",
    [
        {"spec": []},
        {"spec": "a"},
        {"status": [1]},
        {"status": 7},
        {"metadata": {"labels": ["a"]}},
        {"metadata": {"labels": {"a": 1}}},
        {"metadata": {"annotations": "a"}},
        {"metadata": {"annotations": {"a": {}}}},
        {"metadata": {"ownerReferences": {}}},
        {"metadata": {"ownerReferences": [None]}},
        {"metadata": {"finalizers": [{}]}},
        {"metadata": {"resourceVersion": 7}},
        {"metadata": {"namespace": {}}},
        {"metadata": {"deletionTimestamp": 1}},
    ],
    ids=str,
)
def test_what_is_not_of_its_type_is_left_out_and_reported(change: Json) -> None:
    raw = stored()
    raw |= {name: value for name, value in change.items() if name != "metadata"}
    raw["metadata"] |= change.get("metadata", {})
    known = decode.known_part(raw)
    assert known is not None
    (told,) = decode.left_out(known)
    assert "not of its type" in told


@pytest.mark.parametrize("name", ["labels", "annotations", "ownerReferences", "finalizers", "deletionTimestamp"])
def test_null_is_the_same_as_absent(name: str) -> None:
    raw = stored()
    raw["metadata"][name] = None
    assert decode.known_part(raw) is not None
    assert not raw["metadata"].get(name)
    assert decode.left_out(raw) == ()


@pytest.mark.parametrize(
    "nameless", [None, 1, [], {}, {"metadata": None}, {"metadata": []}, {"metadata": {"name": "a"}}], ids=str
)
def test_an_object_without_name_or_uid_is_left_out_of_a_list_and_the_others_are_not(nameless: Any) -> None:
    known = decode.known_items({"items": [nameless, stored("a"), nameless, stored("b")]})
    assert [one["metadata"]["name"] for one in known] == ["a", "b"]


@pytest.mark.parametrize("page", [None, [], {"items": None}, {"items": {}}], ids=str)
def test_a_page_without_items_is_empty(page: Any) -> None:
    assert decode.known_items(page) == []


@pytest.mark.parametrize("answer", [b"", b"<html>gateway</html>", b'{"items": [', b"[]", b"null", b"{}"])
def test_an_answer_that_is_no_object_is_not_taken_for_an_empty_list(answer: bytes) -> None:
    with pytest.raises(Unavailable, match="GET /x"):
        kube._document("GET /x", 200, answer)


def test_an_answer_of_the_deepest_object_is_read() -> None:
    text = text_of(stored(), "spec", "template", "spec", "x", value=nested(DEEPEST))
    assert kube._document("GET /x", 200, text.encode())["metadata"]["name"] == "digits"
