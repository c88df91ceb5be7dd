"""What the random generators of ranks that share batches continue with: as many ranks, in a commit and after it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from perdure.checkpoint.codec import decode, encode
from perdure.state.rng import (
    SHARE,
    DrawingPlace,
    capture,
    go_on_from,
    in_mesh,
    of_lost_rank,
    of_other_world,
    untouched,
)

IN_PAIRS, IN_TURN, ONE = [0, 0, 1, 1], [0, 1, 0, 1], [0, 0]
"""The number of each rank's share of a batch."""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with untouched():
        yield


def saved(seeds: Sequence[int], shares: Sequence[int]) -> list[Any]:
    """Each rank's own state in a commit, encoded."""
    return [encode(own(seed, [share, len(set(shares))])) for seed, share in zip(seeds, shares, strict=True)]


def own(seed: int, share: Sequence[int]) -> Any:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return {"rng": capture(), "asked": [], SHARE: share}


def drawn(ranks: Sequence[Any], shares: Sequence[int]) -> list[list[float]]:
    """What each rank draws next, if it goes on from these states with this share."""
    return [draws(ranks, DrawingPlace(rank, share), len(set(shares))) for rank, share in enumerate(shares)]


def draws(ranks: Sequence[Any], place: DrawingPlace, shares: int) -> list[float]:
    go_on_from(in_mesh(decode(ranks[place.rank]), ranks, [place.share, shares]), seed=7, step=3, place=place)
    return [random.random(), float(np.random.random()), torch.rand(()).item()]  # noqa: S311


def lose(ranks: Sequence[Any], *lost: int, alike: Sequence[str] = ()) -> list[Any]:
    left = [found for rank, found in enumerate(ranks) if rank not in lost]
    return [of_lost_rank(left, alike) if rank in lost else found for rank, found in enumerate(ranks)]


@pytest.mark.parametrize("lost", [(0,), (1,), (3,), (1, 2)])
def test_a_lost_rank_draws_on_as_another_one_of_its_share(lost: tuple[int, ...]) -> None:
    ranks = saved(IN_PAIRS, IN_PAIRS)
    assert drawn(lose(ranks, *lost), IN_PAIRS) == drawn(ranks, IN_PAIRS)


def test_a_lost_rank_draws_apart_where_ranks_of_one_share_did() -> None:
    ranks = saved([0, 1, 2, 3], IN_PAIRS)
    after, before = drawn(lose(ranks, 1), IN_PAIRS), drawn(ranks, IN_PAIRS)
    assert [after[rank] for rank in (0, 2, 3)] == [before[rank] for rank in (0, 2, 3)]
    assert all(len(set(numbers)) == 4 for numbers in zip(*after, strict=True))


def test_a_lost_rank_draws_apart_where_all_have_one_share_and_did_not_draw_alike() -> None:
    apart, together = saved([0, 1], ONE), saved([5, 5], ONE)
    first, second = drawn(lose(apart, 1), ONE)
    assert all(one != other for one, other in zip(first, second, strict=True))
    assert drawn(lose(together, 1, alike=["numpy", "python", "torch"]), ONE) == drawn(together, ONE)


def test_ranks_whose_share_nobody_kept_draw_alike() -> None:
    ranks = saved(IN_PAIRS, IN_PAIRS)
    first, second, third, fourth = drawn(lose(ranks, 2, 3), IN_PAIRS)
    assert first == second == drawn(ranks, IN_PAIRS)[0]
    assert third == fourth != first


def test_the_draws_of_a_share_continue_on_the_ranks_that_have_it_now() -> None:
    ranks = saved(IN_PAIRS, IN_PAIRS)
    first, _, third, _ = drawn(ranks, IN_PAIRS)
    assert drawn(ranks, IN_TURN) == [first, third, first, third]
    assert drawn(lose(ranks, 1), IN_TURN) == [first, third, first, third]


def test_ranks_that_drew_apart_within_a_share_keep_their_own_draws_in_another_one() -> None:
    ranks = saved([0, 1, 2, 3], IN_PAIRS)
    assert drawn(ranks, IN_TURN) == drawn(ranks, IN_PAIRS)


def test_ranks_of_a_version_that_named_no_shares_draw_on() -> None:
    ranks = saved([0, 1, 2, 3], IN_PAIRS)
    older = [{name: one for name, one in found.items() if name != SHARE} for found in ranks]
    assert drawn(older, IN_PAIRS) == drawn(older, [0, 0, 0, 0]) == drawn(ranks, IN_PAIRS)


def test_another_world_hears_of_no_difference_within_a_share_from_a_lost_rank() -> None:
    assert of_other_world(lose(saved(IN_PAIRS, IN_PAIRS), 1)) is None


def test_of_one_rank_alone_another_world_hears_of_no_difference_within_a_share() -> None:
    assert of_other_world([of_lost_rank(saved([0], [0]), ())] * 2) is None
