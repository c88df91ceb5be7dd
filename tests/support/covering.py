"""Matrices of cases: each run has so few that every value of every axis is there, and `make chaos` has all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def covering(*axes: Sequence[Any], times: int = 1) -> list[Any]:
    """Every combination, for parametrize; those that only `make chaos` runs are marked.

    In each run every value of the longest axis is there so many times, each time with others of the other axes.
    """
    lengths = [len(axis) for axis in axes]
    longest = lengths.index(max(lengths))
    kept = {
        tuple((number + shift * (place != longest)) % length for place, length in enumerate(lengths))
        for shift in range(times)
        for number in range(lengths[longest])
    }
    return [
        pytest.param(
            *(axis[number] for axis, number in zip(axes, numbers, strict=True)),
            marks=() if numbers in kept else pytest.mark.chaos,
        )
        for numbers in product(*map(range, lengths))
    ]
