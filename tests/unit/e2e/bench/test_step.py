"""Which rounds of the step bench count is decided by what others have used of the cores, never by what came out."""

from __future__ import annotations

from typing import Any

from e2e.bench.step import LEAST_ROUNDS, MOST_OTHERS, undisturbed

MUCH = 2 * MOST_OTHERS


def rank(*others: float) -> dict[str, Any]:
    return {"rounds": [{"number": number, "others": part} for number, part in enumerate(others)]}


def numbers(*ranks: dict[str, Any]) -> list[int]:
    return [one["number"] for one in undisturbed(list(ranks))[0]]


def test_a_round_counts_where_others_left_the_cores_of_all_ranks_alone() -> None:
    quiet = [0.0] * LEAST_ROUNDS
    assert numbers(rank(MUCH, MOST_OTHERS, *quiet), rank(0.0, 0.0, MUCH, *quiet[1:])) == [1, *range(3, 14)]


def test_where_too_few_are_left_all_count_and_it_is_said() -> None:
    others = [MUCH, *[0.0] * (LEAST_ROUNDS - 1)]
    rounds, words = undisturbed([rank(*others)])
    assert [one["number"] for one in rounds] == list(range(LEAST_ROUNDS))
    assert words == "all 12 rounds count, and others took part of a core in 1"
