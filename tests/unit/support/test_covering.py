"""A covering set is small, has every value, and leaves nothing out of the whole matrix."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest

from tests.support.covering import covering


@pytest.mark.parametrize(
    ("axes", "times", "most"),
    [(("ab", "xyzw"), 1, 4), (("abc", "xyzw"), 2, 8), (("abcd", "xyzw"), 2, 8), (("ab",), 1, 2)],
)
def test_every_value_is_in_each_run_and_every_combination_in_chaos(axes: Sequence[str], times: int, most: int) -> None:
    cases = covering(*axes, times=times)
    assert [case.values for case in cases] == list(product(*axes))
    kept = [case.values for case in cases if not case.marks]
    assert len(kept) == most
    assert all({case[place] for case in kept} == set(axis) for place, axis in enumerate(axes))
    assert all(sum(value in case for case in kept) == times for value in max(axes, key=len))
