"""The document of the Secret: it comes back as it was written, and no error has a part of it."""

from __future__ import annotations

import json
import traceback
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure_operator.serving.certificate import Pair
from perdure_operator.serving.reports.keys_document import UnreadableKeys, read_keys, write_keys
from perdure_operator.serving.reports.rotation import Authority, Keys, Serving

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
KEYS = Keys(
    (
        Authority("old", Pair("c1", "HIDDEN-1"), NOW, NOW - timedelta(days=1), NOW),
        Authority("new", Pair("c2", "HIDDEN-2"), NOW),
    ),
    Serving("old", "host", Pair("c3", "HIDDEN-3"), NOW),
)


@pytest.mark.parametrize("keys", [KEYS, replace(KEYS, serving=None), Keys()], ids=["all", "no certificate", "none"])
def test_what_was_written_is_read(keys: Keys) -> None:
    assert read_keys(write_keys(keys)) == keys


def without(*path: str | int) -> str:
    document: Any = json.loads(write_keys(KEYS))
    *way, last = path
    inner = document
    for part in way:
        inner = inner[part]
    del inner[last]
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "HIDDEN",
        '"HIDDEN"',
        '["HIDDEN"]',
        "{}",
        '{"v": 2, "authorities": [], "key": "HIDDEN"}',
        '{"v": 1, "authorities": ["HIDDEN"]}',
        '{"v": 1, "authorities": {"HIDDEN": 1}}',
        write_keys(KEYS).replace('"HIDDEN-1"', "7"),
        write_keys(KEYS).replace("2026-01-02", "HIDDEN"),
        write_keys(KEYS).replace("2026-01-02T03:04:05.000678+00:00", "0001-01-01T00:00:00+10:00"),
        without("authorities"),
        without("authorities", 1, "name"),
        without("authorities", 1, "trustedSince"),
        without("serving", "key"),
        "[" * 100_000,
    ],
)
def test_anything_else_is_unreadable_and_the_error_has_nothing_of_it(text: str) -> None:
    with pytest.raises(UnreadableKeys) as caught:
        read_keys(text)
    assert "HIDDEN" not in "".join(traceback.format_exception(caught.value))


def test_keys_show_no_key() -> None:
    assert "HIDDEN" not in repr(KEYS)
