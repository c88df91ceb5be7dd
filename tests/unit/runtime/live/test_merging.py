"""Ranks change while each of them has a state of its own: it goes over to its successor, or is merged."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.runtime.live.jobs import MOVES, WAIT_AT, Job
from tests.unit.runtime.live.merging import SIZE
from tests.unit.runtime.live.nursery import Nursery


def by_rank(results: dict[str, Any], run: int, what: str) -> list[list[int]]:
    found = [result["runs"][str(run)] for result in results.values() if str(run) in result["runs"]]
    return [one[what] for one in sorted(found, key=lambda one: int(one["rank"]))]


@pytest.mark.parametrize("move", MOVES)
def test_each_ranks_own_goes_to_its_successor_or_is_merged_by_all(nursery: Nursery, move: str) -> None:
    old, new, joins, leavers = MOVES[move]
    job = Job(nursery, move, old, script="merging.train")
    results = job.offered(new, joins, leavers, at=WAIT_AT).begin().end()
    (_, over) = (entry for entry in job.log if entry["kind"] == "Opened")
    assert (over["takesOver"], over["step"]) == (1, 6)
    left = by_rank(results, 1, "seen")
    whole = [sample for ids in left for sample in ids]
    assert by_rank(results, 2, "began") == (left if old == new else [whole[rank::new] for rank in range(new)])
    assert sorted(sample for ids in by_rank(results, 2, "seen") for sample in ids) == sorted([*range(SIZE)] * 2)


TROUBLES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = {
    "grows": ((2,), (), {"merge": "failing"}, "merge of 'seen' by failing, 2 ranks to 3: ValueError"),
    "shrinks": ((), (2,), {"merge": "failing"}, "merge of 'seen' by failing, 3 ranks to 2: ValueError"),
    "unsaved": ((), (2,), {"odd": 1}, "seen['odd'] is a builtins.object, which a checkpoint cannot hold"),
}
"""Newcomers, leavers, the failure on one rank, and its message."""


@pytest.mark.parametrize("trouble", TROUBLES)
def test_what_goes_wrong_on_one_rank_ends_the_attempt_and_not_the_training(nursery: Nursery, trouble: str) -> None:
    joins, leavers, wrong, words = TROUBLES[trouble]
    old = 3 if leavers else 2
    job = Job(nursery, trouble, old, script="merging.train", **wrong)
    ended = job.offered(old + len(joins) - len(leavers), joins, leavers, at=WAIT_AT).begin().ended()
    assert [entry["run"] for entry in job.log if entry["kind"] == "Opened"] == [1]
    assert all(status == 0 for who, status in ended.items() if who.startswith("old")), ended
    results = {who: nursery.result(f"{trouble}-{who}") for who in ended if who.startswith("old")}
    assert sorted(sample for ids in by_rank(results, 1, "seen") for sample in ids) == sorted([*range(SIZE)] * 2)
    told = {line["why"] for line in job.trace if line.get("event") == "handover-ended"}
    assert any(words in why for why in told), told
