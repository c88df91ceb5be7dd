"""Moves as messages, carried out on whole tensors: each element travels once, in messages of a bounded size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.layout.box import Box
from perdure.layout.messages import Message, messages
from perdure.layout.plan import Move

SMALL, MOST = 12, 40
Shape = tuple[int, ...]


@st.composite
def moves(draw: st.DrawFn) -> tuple[list[Move], dict[str, Shape]]:
    """Boxes of several tensors, which do not overlap: each tensor is cut in two along one dimension."""
    found: list[Move] = []
    shapes = {}
    for number in range(draw(st.integers(0, 5))):
        name, shape = f"t{number}", tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
        width, shapes[name] = draw(st.sampled_from([1, 2, 8])), shape
        found += [Move(0, 1, name, box, box.count * width) for box in halves(shape, draw(st.integers(0, 5)))]
    return found, shapes


def halves(shape: tuple[int, ...], at: int) -> list[Box]:
    if not shape:
        return [Box((), ())]
    at = min(at, shape[-1])
    before, zeros = shape[:-1], (0,) * (len(shape) - 1)
    return [Box((*zeros, 0), (*before, at)), Box((*zeros, at), (*before, shape[-1] - at))]


def size(message: Message) -> int:
    return sum(move.size for move in message)


@given(moves())
def test_each_element_travels_once_and_in_order(
    case: tuple[Sequence[Move], dict[str, Shape]],
) -> None:
    given, shapes = case
    arrived = {name: np.zeros(shape, dtype=int) for name, shape in shapes.items()}
    sent = list(messages(given, small=SMALL, most=MOST))
    for message in sent:
        assert 0 < size(message) <= MOST
        assert len(message) == 1 or all(size([move]) <= SMALL for move in message)
        for move in message:
            arrived[move.name][tuple(map(slice, move.box.offset, move.box.end))] += 1
    assert all((found == 1).all() for found in arrived.values())
    small = [message for message in sent if size(message[:1]) <= SMALL and message[0] in given]
    for one, other in itertools.pairwise(small):
        assert size(one) + size(other[:1]) > MOST, "there was room for it in the one before"


@pytest.mark.parametrize(("elements", "count"), [(MOST, 1), (MOST + 1, 2), (10 * MOST, 10)])
def test_a_large_box_travels_in_pieces_as_large_as_may_be(elements: int, count: int) -> None:
    move = Move(2, 3, "w", Box((5,), (elements,)), elements)
    found = list(messages([move], small=SMALL, most=MOST))
    assert len(found) == count
    assert math.fsum(size(message) for message in found) == elements
    assert {(one.source, one.destination, one.name) for message in found for one in message} == {(2, 3, "w")}


@pytest.mark.parametrize(("last", "packed"), [(10, [4]), (11, [3, 1])])
def test_a_message_is_filled_to_the_last_byte_and_no_further(last: int, packed: list[int]) -> None:
    sizes = {"a": 10, "b": 10, "c": 10, "d": last}
    moves = [Move(0, 1, name, Box((0,), (size,)), size) for name, size in sizes.items()]
    assert [len(message) for message in messages(moves, small=SMALL, most=MOST)] == packed


def test_nothing_is_sent_of_an_empty_box() -> None:
    assert list(messages([Move(0, 1, "w", Box((0, 2), (3, 0)), 0)], small=SMALL, most=MOST)) == []
