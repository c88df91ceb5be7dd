"""Whom a run that hangs waits for: all that up to four members can say, on all their nodes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from perdure.wire.report import Standing
from perdure_operator.api.status import Assigned, RunPlan, Suspect, SuspectDoes
from perdure_operator.decide.suspects import PATIENCE, Said, suspects, suspects_in_words
from tests.support.raw import NOW

LONG_AGO, JUST_NOW = NOW - PATIENCE, NOW - PATIENCE + timedelta(seconds=1)
WAITS, RUNS, STANDS = Said(LONG_AGO, Standing.WAITS_FOR_RANKS), Said(NOW, Standing.RUNS), Said(NOW, Standing.STANDS)
ELSEWHERE, NO_HANG, UNHEARD = Said(NOW), Said(), None
WORDS: list[Said | None] = [WAITS, RUNS, STANDS, ELSEWHERE, NO_HANG, UNHEARD]
DOES = {
    RUNS: SuspectDoes.COMPUTES,
    STANDS: SuspectDoes.STANDS,
    ELSEWHERE: SuspectDoes.SAYS_NOTHING,
    NO_HANG: SuspectDoes.SAYS_NOTHING,
    UNHEARD: SuspectDoes.NOT_HEARD,
}


def plan(*nodes: str) -> RunPlan:
    members = tuple(
        Assigned(name=f"digits-{rank}", uid=f"uid-{rank}", rank=rank, node=node) for rank, node in enumerate(nodes)
    )
    known: dict[str, Any] = {"run": 1, "world": len(nodes), "master": "10.0.0.1:29501", "seconds": 60, "wait": 75}
    return RunPlan(members=members, **known)


def said(*words: Said | None) -> Mapping[str, Said]:
    return {f"uid-{rank}": one for rank, one in enumerate(words) if one is not None}


def named(*words: Said | None, nodes: str = "abcd") -> list[int]:
    return [one.rank for one in suspects(plan(*nodes[: len(words)]), said(*words), NOW)]


@pytest.mark.parametrize("nodes", ["abcd", "aabb", "aaaa", "abab"])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_named_are_those_that_do_not_wait_if_others_do_and_they_are_one_or_share_a_node(world: int, nodes: str) -> None:
    for words in product(WORDS, repeat=world):
        others = [rank for rank, one in enumerate(words) if one is not WAITS]
        one_place = len(others) == 1 or len({nodes[rank] for rank in others}) == 1
        expected = others if len(others) < world and one_place else []
        assert named(*words, nodes=nodes) == expected, words
        for one in suspects(plan(*nodes[:world]), said(*words), NOW):
            word = words[one.rank]
            assert one == Suspect(name=f"digits-{one.rank}", node=nodes[one.rank], rank=one.rank, does=DOES[word])


@pytest.mark.parametrize("silent", [NO_HANG, UNHEARD, ELSEWHERE])
def test_a_member_without_a_word_gets_time_to_say_that_it_waits_too(silent: Said | None) -> None:
    waits = Said(JUST_NOW, Standing.WAITS_FOR_RANKS)
    assert named(waits, silent) == []
    assert named(WAITS, silent) == [1]
    assert named(waits, STANDS) == [1]


def test_words_of_pods_that_are_not_in_the_plan_do_not_count() -> None:
    words = {**said(STANDS, STANDS), "uid-9": WAITS}
    assert suspects(plan("a", "b"), words, NOW) == ()


def test_members_of_unknown_nodes_share_none() -> None:
    assert suspects(plan("a", "", ""), said(WAITS, STANDS, STANDS), NOW) == ()


def test_each_suspect_is_named_with_what_is_known_of_it() -> None:
    one = suspects(plan("n1", "n2"), said(WAITS, RUNS), NOW)
    all_wait = "all other members say that they wait for other ranks, and"
    assert suspects_in_words(one) == f"{all_wait} rank 1 (digits-1 on n2) computes"
    two = suspects(plan("n1", "n2", "n2"), said(WAITS, STANDS, UNHEARD), NOW)
    assert suspects_in_words(two) == (
        f"{all_wait} rank 1 (digits-1 on n2) stands still elsewhere and rank 2 (digits-2 on n2) is not heard: "
        "it, or its reports alone, may have stopped"
    )
    (nowhere,) = suspects(plan("n1", ""), said(WAITS, NO_HANG), NOW)
    assert suspects_in_words((nowhere,)) == f"{all_wait} rank 1 (digits-1) does not"
