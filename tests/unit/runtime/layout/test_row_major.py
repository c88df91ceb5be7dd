"""Elements in row-major order, compared with whole tensors whose elements are their own numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.layout.box import Box
from perdure.layout.row_major import pieces, reach, stretch

Shape = tuple[int, ...]
SHAPES = st.lists(st.integers(0, 6), max_size=4).map(tuple)


def numbers(shape: Shape, box: Box) -> list[int]:
    """The oracle: the numbers of a box's elements in a whole tensor, row by row."""
    whole = np.arange(math.prod(shape)).reshape(shape)
    found: list[int] = whole[tuple(map(slice, box.offset, box.end))].reshape(-1).tolist()
    return found


@st.composite
def cells(draw: st.DrawFn) -> tuple[Shape, Box]:
    shape = draw(SHAPES)
    ends = [sorted(draw(st.tuples(st.integers(0, size), st.integers(0, size)))) for size in shape]
    return shape, Box(tuple(start for start, _ in ends), tuple(end - start for start, end in ends))


@st.composite
def ranges(draw: st.DrawFn) -> tuple[Shape, range]:
    shape = draw(SHAPES)
    count = math.prod(shape)
    return shape, range(draw(st.integers(0, count)), draw(st.integers(0, count)))


@given(cells())
def test_a_cell_reaches_from_its_first_element_to_its_last_one(case: tuple[Shape, Box]) -> None:
    shape, cell = case
    expected = numbers(shape, cell)
    found = reach(cell, shape)
    assert list(found) == (list(range(expected[0], expected[-1] + 1)) if expected else [])
    assert (len(found) == cell.count) is (list(found) == expected)


@given(ranges())
@settings(max_examples=300)
def test_any_stretch_of_elements_is_a_few_boxes_in_order(case: tuple[Shape, range]) -> None:
    shape, wanted = case
    boxes = list(stretch(shape, wanted))
    assert [number for box in boxes for number in numbers(shape, box)] == list(wanted)
    assert all(box.count for box in boxes)
    assert len(boxes) <= max(1, 2 * len(shape) - 1)


@given(SHAPES, st.integers(1, 40))
def test_pieces_are_all_elements_in_order_and_none_is_too_large(shape: Shape, most: int) -> None:
    boxes = list(pieces(shape, most))
    assert [number for box in boxes for number in numbers(shape, box)] == list(range(math.prod(shape)))
    assert all(0 < box.count <= most for box in boxes)


@pytest.mark.parametrize(
    ("shape", "most", "count"), [((100,), 10, 10), ((8, 10), 20, 4), ((2, 30), 20, 4), ((), 1, 1), ((6, 1, 4), 100, 1)]
)
def test_pieces_are_as_large_as_rows_allow(shape: Shape, most: int, count: int) -> None:
    assert len(list(pieces(shape, most))) == count


def test_a_box_within_another_one_is_the_same_part_of_it() -> None:
    whole = np.arange(60).reshape(5, 12)
    outer, inner = Box((1, 3), (4, 8)), Box((2, 5), (2, 3))
    part = whole[tuple(map(slice, outer.offset, outer.end))]
    at = inner.within(outer)
    assert (part[tuple(map(slice, at.offset, at.end))] == whole[2:4, 5:8]).all()
