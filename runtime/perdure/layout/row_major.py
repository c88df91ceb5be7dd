"""The elements of a box one after another, row by row: the order of their bytes in a store and on the wire.

An element's number is how many elements of its box lie before it in this order. All boxes here are counted from the
beginning of that box.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from operator import mul

from perdure.layout.box import Box


def reach(cell: Box, sizes: tuple[int, ...]) -> range:
    """The numbers from a cell's first element to its last one, in a box of these sizes.

    There are as many as the cell has elements if no other ones lie between.
    """
    count = cell.count
    if not count or cell.sizes == sizes:
        return range(count)
    steps = [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    first = sum(map(mul, cell.offset, steps))
    return range(first, first + sum((size - 1) * step for size, step in zip(cell.sizes, steps, strict=True)) + 1)


def stretch(sizes: Sequence[int], numbers: range) -> Iterator[Box]:
    """The elements with these consecutive numbers, in order. For n dimensions these are at most 2 n - 1 boxes."""
    if not numbers:
        return
    if not sizes:
        yield Box((), ())
        return
    inner = sizes[1:]
    row = math.prod(inner)
    (first, head), (last, tail) = divmod(numbers.start, row), divmod(numbers.stop, row)
    if first == last:
        yield from _of_row(first, stretch(inner, range(head, tail)))
        return
    if head:
        yield from _of_row(first, stretch(inner, range(head, row)))
        first += 1
    if first < last:
        yield _rows(first, last, inner)
    yield from _of_row(last, stretch(inner, range(tail)))


def pieces(sizes: Sequence[int], most: int) -> Iterator[Box]:
    """All elements, in order, in boxes of at most `most` elements each: as many rows as fit, or a part of one."""
    if not math.prod(sizes):
        return
    inner = sizes[1:]
    row = math.prod(inner)
    if not sizes or row * sizes[0] <= most:
        yield Box.whole(sizes)
    elif step := most // row:
        for first, last in itertools.pairwise([*range(0, sizes[0], step), sizes[0]]):
            yield _rows(first, last, inner)
    else:
        for index in range(sizes[0]):
            yield from _of_row(index, pieces(inner, most))


def _rows(first: int, last: int, inner: Sequence[int]) -> Box:
    return Box((first, *(0 for _ in inner)), (last - first, *inner))


def _of_row(index: int, boxes: Iterator[Box]) -> Iterator[Box]:
    for box in boxes:
        yield Box((index, *box.offset), (1, *box.sizes))
