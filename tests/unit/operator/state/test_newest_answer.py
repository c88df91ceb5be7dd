"""An answer is computed once for the same values, and anew for others that are equal."""

from __future__ import annotations

from perdure_operator.state.newest_answer import NewestAnswer


def test_the_same_values_are_asked_about_once_and_equal_ones_again() -> None:
    asked: list[tuple[list[int], list[int]]] = []

    def total(one: list[int], other: list[int]) -> int:
        asked.append((one, other))
        return sum(one) + sum(other)

    newest, one, other = NewestAnswer(total), [1], [2]
    assert [newest(one, other), newest(one, other)] == [3, 3]
    assert len(asked) == 1
    assert [newest(one, [2]), newest([5], other), newest(one, other)] == [3, 7, 3]
    assert len(asked) == 4
