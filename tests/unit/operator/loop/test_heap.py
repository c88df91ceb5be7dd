"""Full collections look at new objects: long-lived ones are set aside, but not forever."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from perdure_operator.loop.heap import Heap

MANY = 50_000


class Link:
    """Part of a cycle: only the collector frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def heap() -> Iterator[Heap]:
    gc.unfreeze()
    yield Heap()
    gc.freeze()  # as it was (e2e/harness/heap)


def test_what_lives_long_is_not_looked_at_again(heap: Heap) -> None:
    cluster = [[number] for number in range(MANY)]
    heap.settle()
    assert gc.get_freeze_count() > len(cluster)
    assert len(gc.get_objects()) < MANY


def test_what_comes_and_goes_is_collected_and_what_stays_is_set_aside_too(heap: Heap) -> None:
    heap.settle()
    before = gc.get_freeze_count()
    gone, stays = weakref.ref(Link()), [[number] for number in range(100)]
    heap.settle()
    assert gone() is None
    assert gc.get_freeze_count() >= before + len(stays)


def test_a_cycle_that_was_set_aside_is_collected_once_twice_as_much_is(heap: Heap) -> None:
    link = Link()
    gone = weakref.ref(link)
    heap.settle()
    del link
    heap.settle()
    assert gone() is not None
    more = [[number] for number in range(2 * gc.get_freeze_count())]
    heap.settle()
    heap.settle()
    assert gone() is None
    assert more
