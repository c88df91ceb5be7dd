"""Boxes, against the sets of indices that they are."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from perdure.layout.box import Box


def indices(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(start, end) for start, end in zip(box.offset, box.end, strict=True))))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Box, Box]:
    dims = draw(st.integers(0, 3))
    one, other = (
        Box(*(tuple(draw(st.integers(0, 4)) for _ in range(dims)) for _ in ("offset", "sizes"))) for _ in range(2)
    )
    return one, other


@given(pairs())
def test_two_boxes_are_as_their_indices(pair: tuple[Box, Box]) -> None:
    one, other = pair
    assert one.count == len(indices(one))
    assert indices(one & other) == indices(one) & indices(other)
    assert (other in one) == (indices(other) <= indices(one))
