"""NumPy's generator is read as NumPy itself reports it, whatever was drawn from it in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from perdure.state import numpy_random
from perdure.state.numpy_random import NumpyGenerator

NUMPY: Any = np.random
"""Its types do not know all of it."""


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    generator, state = NUMPY.get_bit_generator(), np.random.get_state()
    yield
    NUMPY.set_bit_generator(generator)
    np.random.set_state(state)


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(part, its) for part, its in zip(one, other, strict=True))


DRAWS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "one number": np.random.rand,
    "one normal number": np.random.randn,
    "two normal numbers": lambda: np.random.randn(2),
    "a block": lambda: np.random.rand(624),
    "integers": lambda: np.random.randint(9, size=3),
    "a seed": lambda: np.random.seed(7),
    "another generator": lambda: NUMPY.set_bit_generator(np.random.MT19937(3)),
}


@pytest.mark.parametrize("first", DRAWS.values(), ids=DRAWS.keys())
@pytest.mark.parametrize("second", DRAWS.values(), ids=DRAWS.keys())
def test_it_is_what_numpy_tells(first: Callable[[], Any], second: Callable[[], Any]) -> None:
    np.random.seed(1)
    generator = NumpyGenerator()
    for draw in (first, second, first, second, second):
        draw()
        assert same(generator.state(), np.random.get_state())


def test_where_nothing_was_drawn_it_is_not_read_again() -> None:
    np.random.seed(1)
    generator = NumpyGenerator()
    assert generator.state() is generator.state()


@pytest.mark.filterwarnings("ignore:get_state and legacy")
def test_a_generator_of_another_kind_is_always_read() -> None:
    NUMPY.set_bit_generator(np.random.SFC64(1))
    generator = NumpyGenerator()
    generator.state()
    np.random.rand()
    assert repr(generator.state()) == repr(np.random.get_state())


def test_one_whose_memory_does_not_show_a_draw_is_always_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_random, "STATE_BYTES", 4 * 624)  # without the place
    np.random.seed(1)
    generator = NumpyGenerator()
    np.random.rand()
    generator.state()
    np.random.rand()
    assert same(generator.state(), np.random.get_state())
