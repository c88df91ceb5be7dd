"""The order of dimensions in memory, compared with where NumPy has the elements."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.layout.memory_order import memory_order, order_text, overlaps_itself

Case = tuple[tuple[int, ...], tuple[int, ...]]


def places(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """The oracle: for each element of the tensor its place in memory."""
    found = np.zeros(shape, dtype=int)
    for number, stride in enumerate(strides):
        found += stride * np.indices(shape)[number]
    return found


@st.composite
def tensors(draw: st.DrawFn) -> Case:
    """Permuted and sliced ones, with dimensions of no element or of one."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    order = draw(st.permutations(range(len(shape))))
    steps = draw(st.lists(st.integers(1, 3), min_size=len(shape), max_size=len(shape)))
    strides, reach = [0] * len(shape), 1
    for number in reversed(order):
        strides[number] = reach * steps[number]
        reach *= max(shape[number], 1) * steps[number]
    return tuple(shape), tuple(strides)


@given(tensors())
@settings(max_examples=300)
def test_in_the_order_that_is_found_the_elements_lie_one_behind_the_other(case: Case) -> None:
    shape, strides = case
    assert not overlaps_itself(shape, strides)
    order = memory_order(shape, strides) or tuple(range(len(shape)))
    assert sorted(order) == list(range(len(shape)))
    found = places(shape, strides).transpose(order).reshape(-1)
    assert list(found) == sorted(found)


@given(tensors())
def test_row_major_order_has_no_name_whatever_the_strides_of_dimensions_of_one_element(case: Case) -> None:
    shape, strides = case
    found = places(shape, strides).reshape(-1)
    assert (memory_order(shape, strides) is None) == (list(found) == sorted(found))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=3))
@settings(max_examples=300)
def test_two_elements_at_one_place_are_found(dimensions: list[tuple[int, int]]) -> None:
    shape, strides = tuple(size for size, _ in dimensions), tuple(stride for _, stride in dimensions)
    found = places(shape, strides).reshape(-1)
    if len(set(found.tolist())) < len(found):
        assert overlaps_itself(shape, strides)
        assert memory_order(shape, strides) is None


def test_every_order_of_three_wide_dimensions_is_found() -> None:
    for order in itertools.permutations(range(3)):
        strides, reach = [0, 0, 0], 1
        for number in reversed(order):
            strides[number], reach = reach, reach * (2, 3, 5)[number]
        assert (memory_order((2, 3, 5), strides) or (0, 1, 2)) == order


def test_an_order_has_words_and_row_major_order_none() -> None:
    assert order_text((1, 0)) == " with its dimensions in memory as [1, 0]"
    assert order_text(None) == ""
