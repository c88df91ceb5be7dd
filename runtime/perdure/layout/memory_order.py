"""The order of a tensor's dimensions in memory, outermost first, from its shape and its strides in elements."""

from __future__ import annotations

from collections.abc import Sequence


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements may share memory, as in an expanded tensor, so that it cannot be written to."""
    if 0 in shape:
        return False
    reach = 0
    dimensions = [(stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1]
    for stride, size in sorted(dimensions):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The numbers of the dimensions in the order in which they lie in memory; None for row-major order.

    Dimensions of size 1 have no place, and come last. A tensor without elements, or one that overlaps itself, has no
    order that another one could take.
    """
    if 0 in shape or overlaps_itself(shape, strides):
        return None
    wide = [number for number, size in enumerate(shape) if size > 1]
    order = sorted(wide, key=lambda number: -strides[number])
    if order == wide:
        return None
    return (*order, *(number for number, size in enumerate(shape) if size == 1))


def order_text(order: Sequence[int] | None) -> str:
    """The order as text; "" for row-major order."""
    return f" with its dimensions in memory as {list(order)}" if order else ""
