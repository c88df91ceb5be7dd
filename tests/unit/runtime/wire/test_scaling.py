"""Scaling hints: what a trainer writes the operator reads, in little room, whatever a container sends."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.wire.scaling import LARGEST_COUNT, ScalingHints, read_scaling, write_scaling

HINTS = ScalingHints(256, 4096, 32, 256, True, 1536.5, 0.0125, 0.00025, 0.0075, 0.00125, 0.0625, 0.005, 8)
LARGEST = float(2**53 - 1)

counts = st.integers(1, LARGEST_COUNT)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def test_hints_are_written_and_read_again() -> None:
    assert read_scaling(json.loads(json.dumps(write_scaling(HINTS)))) == HINTS


def test_measures_are_written_with_six_digits() -> None:
    written = write_scaling(replace(HINTS, beta=1 / 3, noise=12345678.9))
    assert written == {**asdict(HINTS), "beta": 0.333333, "noise": 12345700.0}


def test_what_a_newer_trainer_adds_is_ignored() -> None:
    assert read_scaling({**asdict(HINTS), "gamma": [1, {"two": None}]}) == HINTS


@pytest.mark.parametrize("name", asdict(HINTS))
def test_hints_without_one_of_their_fields_are_none(name: str) -> None:
    body = asdict(HINTS)
    del body[name]
    assert read_scaling(body) is None


@pytest.mark.parametrize("value", [None, "1", [], {}, -1, -0.5, 10**400, 1e300, inf, nan])
@pytest.mark.parametrize("name", asdict(HINTS))
def test_a_field_out_of_its_range_makes_the_hints_none_as_a_whole(name: str, value: Any) -> None:
    assert read_scaling({**asdict(HINTS), name: value}) is None


@pytest.mark.parametrize("name", ["initial_batch", "most_batch", "per_rank_low", "per_rank_high", "profiled"])
@pytest.mark.parametrize("value", [0, LARGEST_COUNT + 1, 1.0, True])
def test_counts_are_integers_from_1_to_their_largest(name: str, value: Any) -> None:
    assert read_scaling({**asdict(HINTS), name: value}) is None


@pytest.mark.parametrize(
    "other",
    [
        {"initial_batch": 4097},
        {"most_batch": 255},
        {"per_rank_low": 257},
        {"per_rank_high": 31},
        {"alpha": 0.0, "beta": 0.0},
        {"accumulates": 1},
    ],
)
def test_hints_that_contradict_themselves_are_none(other: dict[str, Any]) -> None:
    assert read_scaling({**asdict(HINTS), **other}) is None


@given(anything | st.fixed_dictionaries(dict.fromkeys(asdict(HINTS), anything)))
def test_any_value_is_read_without_an_error(body: Any) -> None:
    hints = read_scaling(body)
    assert hints is None or write_scaling(hints) is not None


@pytest.mark.parametrize("bad", [nan, inf, -1e-9, 1e300])
@pytest.mark.parametrize("name", ["noise", "alpha", "beta", "c_in", "d_in", "c_out", "d_out"])
def test_nothing_is_written_that_no_reader_takes(name: str, bad: float) -> None:
    hints = replace(HINTS, **{name: bad})  # type: ignore[arg-type] # the name of a float
    assert write_scaling(hints) is None


@given(st.builds(ScalingHints, counts, counts, counts, counts, st.booleans(), *[st.floats(0, LARGEST)] * 7, counts))
def test_no_hints_are_longer_than_a_kibibyte(hints: ScalingHints) -> None:
    assert len(json.dumps(write_scaling(hints))) <= 1024
