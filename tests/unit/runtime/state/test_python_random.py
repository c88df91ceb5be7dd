"""Python's generator is read as Python itself reports it, whatever was drawn from it in between."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perdure.state import python_random
from perdure.state.python_random import PythonGenerator


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    state = random.getstate()
    yield
    random.setstate(state)


DRAWS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "one number": lambda: random.getrandbits(53),
    "one normal number": lambda: random.gauss(0, 1),
    "two normal numbers": lambda: (random.gauss(0, 1), random.gauss(0, 1)),
    "a block": lambda: [random.getrandbits(32) for _ in range(624)],
    "bits": lambda: random.getrandbits(3),
    "a seed": lambda: random.seed(7),
    "the number in store is thrown away": lambda: random.setstate((*random.getstate()[:2], None)),
}


@pytest.mark.parametrize("first", DRAWS.values(), ids=DRAWS.keys())
@pytest.mark.parametrize("second", DRAWS.values(), ids=DRAWS.keys())
def test_it_is_what_python_tells(first: Callable[[], Any], second: Callable[[], Any]) -> None:
    random.seed(1)
    generator = PythonGenerator()
    for draw in (first, second, first, second, second):
        draw()
        assert generator.state() == random.getstate()


def test_where_nothing_was_drawn_it_is_not_read_again() -> None:
    generator = PythonGenerator()
    assert generator.state() is generator.state()


def test_one_that_does_not_lie_where_it_is_looked_for_is_always_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_random, "_LAYOUT", struct.Struct("@4x624I"))
    generator = PythonGenerator()
    for _ in range(2):
        assert generator.state() == random.getstate()
        random.getrandbits(53)


def test_one_of_the_scripts_own_is_always_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(random.Random):
        asked = 0

        def getstate(self) -> Any:
            self.asked += 1
            return super().getstate()

    own = Counted(3)
    monkeypatch.setattr(random, "getstate", own.getstate)
    generator = PythonGenerator()
    for _ in range(2):
        assert generator.state() == random.Random.getstate(own)
    assert own.asked == 2
