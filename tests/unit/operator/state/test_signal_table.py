"""Keys of rows with `*`: they match as a shell's would, and no label that a user may set delays the operator."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure_operator.api.signal_rows import Reaction, SignalRow, SignalSource
from perdure_operator.state.signal_table import SignalTable, matches

LONGEST = 317
"""Of a label's key, and of the key of a row."""


@given(st.text("ab*", max_size=9).filter(lambda one: "*" in one), st.text("ab", max_size=12))
def test_a_star_stands_for_any_characters_and_for_none(pattern: str, key: str) -> None:
    assert matches(pattern, key) is fnmatchcase(key, pattern)


@pytest.mark.parametrize("pattern", ["[ab]*", "?*", "a.b*", "*\\", "(*"])
def test_nothing_but_the_star_has_a_meaning(pattern: str) -> None:
    literal = pattern.replace("*", "x")
    assert matches(pattern, literal)
    assert not matches(pattern, "a" * len(literal))


@pytest.mark.parametrize("pattern", ["*a" * 158, "a*" * 157 + "b", "*a" * 157 + "*b", "*aa" * 100 + "*ab*"])
def test_many_stars_on_a_long_key_are_decided_at_once(pattern: str) -> None:
    """Where each star tries all places this takes longer than the universe is old."""
    row = SignalRow(name="stars", source=SignalSource.LABEL, key=pattern, reaction=Reaction.VACATE)
    table = SignalTable((row,))
    assert table.find(SignalSource.LABEL, "a" * (LONGEST - 1) + "c", "") is None
    assert table.find(SignalSource.LABEL, pattern.replace("*", "a"), "") is row
