"""Which share of a batch a rank gets by a device mesh: the mesh is torch's, or what torch says of one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perdure.errors import UserError
from perdure.loop.data.batch_share import BatchShare
from perdure.session.mesh_places import place_in

FOUR = [[0, 1], [2, 3]]
"""Ranks by two dimensions."""


def run(rank: int, world: int) -> Any:
    return SimpleNamespace(rank=rank, world=world)


def mesh(ranks: list[Any], coordinate: list[int] | None) -> Any:
    found = torch.tensor(ranks)
    return SimpleNamespace(mesh=found, shape=tuple(found.shape), get_coordinate=lambda: coordinate)


def test_without_a_mesh_each_rank_has_a_share_of_its_own() -> None:
    assert [place_in(run(rank, 4), "train", None) for rank in range(4)] == [BatchShare(rank, 4) for rank in range(4)]


def test_ranks_that_differ_in_another_dimension_have_the_same_share_and_one_of_them_is_the_first() -> None:
    columns = [[0, 2], [1, 3], [0, 2], [1, 3]]
    places = [place_in(run(rank, 4), "train", mesh(columns[rank], [rank // 2])) for rank in range(4)]
    assert places == [BatchShare(0, 2), BatchShare(0, 2, first=False), BatchShare(1, 2), BatchShare(1, 2, first=False)]


def test_a_mesh_of_all_ranks_gives_each_its_own_in_its_order() -> None:
    places = [place_in(run(rank, 4), "train", mesh(FOUR, [rank // 2, rank % 2])) for rank in range(4)]
    assert places == [BatchShare(rank, 4) for rank in range(4)]


@pytest.mark.parametrize(
    ("ranks", "coordinate", "world"), [([0, 1], None, 4), ([0, 1], [1], 3), ([0, 4], [0], 4)], ids=["out", "odd", "far"]
)
def test_a_mesh_that_cannot_be_of_all_ranks_is_refused(
    ranks: list[int], coordinate: list[int] | None, world: int
) -> None:
    with pytest.raises(UserError, match=rf"loader 'train': mesh has the ranks .*, and this is rank 1 of {world}"):
        place_in(run(1, world), "train", mesh(ranks, coordinate))
