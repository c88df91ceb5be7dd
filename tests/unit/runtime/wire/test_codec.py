"""Dataclasses read from JSON objects: written values are read back, and errors name their field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.wire import LARGEST, ContractError
from perdure.wire.codec import Natural, Positive, from_json


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    count: int
    name: str = ""


@dataclass(frozen=True)
class Message:
    number: int
    ratio: float = 0.5
    flag: bool = False
    colour: Colour = Colour.RED
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    least: Natural = 0
    first: Positive = 1
    bounded: Natural | None = None


@dataclass(frozen=True)
class NoJson:
    found: set[int]


inners = st.builds(Inner, st.integers(), st.text())
messages = st.builds(
    Message,
    number=st.integers(),
    ratio=st.floats(allow_nan=False),
    flag=st.booleans(),
    colour=st.sampled_from(Colour),
    inner=st.none() | inners,
    many=st.lists(inners).map(tuple),
    seconds=st.dictionaries(st.text(), st.floats(allow_nan=False)),
    least=st.integers(0, LARGEST),
    first=st.integers(1, LARGEST),
    bounded=st.none() | st.integers(0, LARGEST),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=5), parts, max_size=3),
    max_leaves=8,
)
FIELDS = list(asdict(Message(1)))


@given(messages)
def test_what_is_written_is_read(message: Message) -> None:
    assert from_json(Message, json.loads(json.dumps(asdict(message)))) == message


@given(st.dictionaries(st.sampled_from(FIELDS), values))
def test_anything_else_is_a_message_that_can_be_written_again_or_an_error_that_names_the_field(
    body: dict[str, Any],
) -> None:
    found = read(body)
    if isinstance(found, Message):
        assert from_json(Message, json.loads(json.dumps(asdict(found)))) == found
    else:
        assert re.match(r"field \w+ of (Message|Inner): ", found)


def read(body: dict[str, Any]) -> Message | str:
    """The message, or its error."""
    try:
        return from_json(Message, body)
    except ContractError as error:
        return str(error)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"number": 1, "later": [1]}, Message(1)),
        ({"number": 1, "inner": None}, Message(1)),
        ({"number": 1, "ratio": 2}, Message(1, ratio=2.0)),
    ],
    ids=["a field of a later version", "null where a value may be missing", "a whole number is a float"],
)
def test_objects_are_read_tolerantly(body: dict[str, Any], expected: Message) -> None:
    assert from_json(Message, body) == expected


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({}, "number"),
        ({"number": True}, "number"),
        ({"number": 1.0}, "number"),
        ({"number": "1"}, "number"),
        ({"number": 1, "flag": 1}, "flag"),
        ({"number": 1, "colour": "green"}, "colour"),
        ({"number": 1, "inner": 5}, "inner"),
        ({"number": 1, "inner": {"name": "x"}}, "count"),
        ({"number": 1, "many": {}}, "many"),
        ({"number": 1, "seconds": [1]}, "seconds"),
        ({"number": 1, "least": -1}, "least"),
        ({"number": 1, "first": 0}, "first"),
        ({"number": 1, "first": LARGEST + 1}, "first"),
        ({"number": 1, "bounded": -1}, "bounded"),
        ({"number": 1, "ratio": None}, "ratio"),
        ({"number": 1, "many": None}, "many"),
    ],
    ids=str,
)
def test_a_field_of_another_type_is_named(body: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ContractError, match=f"field {wrong} of "):
        from_json(Message, body)


def test_a_type_that_json_has_not_is_a_mistake_in_the_code() -> None:
    with pytest.raises(TypeError, match=r"no codec for set\[int\]"):
        from_json(NoJson, {})
