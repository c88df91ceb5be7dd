"""Plans, carried out on whole tensors: each element that is needed arrives once, and is the right one."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.layout.box import Box
from perdure.layout.plan import Missing, Move, Redistribution, TensorDemand, plan
from perdure.layout.sharding import Layout, Placement, Replicate, Shard, StridedShard


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(at, end) for at, end in zip(box.offset, box.end, strict=True))


def holders(shape: tuple[int, ...], mesh: tuple[int, ...], placements: Sequence[Placement]) -> dict[Box, Sequence[int]]:
    """Who holds which boxes, by the number of the rank in the mesh."""
    return dict(Layout(shape, mesh, tuple(range(math.prod(mesh))), tuple(placements)).holders())


@st.composite
def layouts(draw: st.DrawFn, dims: int) -> tuple[tuple[int, ...], list[Placement]]:
    """A mesh of one or two dimensions, of up to 8 ranks, and how a tensor lies on it."""
    mesh = draw(st.sampled_from([(1,), (2,), (3,), (5,), (8,), (2, 2), (2, 3), (3, 2), (4, 2), (1, 4)]))
    every: list[Placement] = [Replicate(), *map(Shard, range(dims))]
    if len(mesh) == 2 and dims and draw(st.booleans()):
        dim = draw(st.integers(0, dims - 1))
        return mesh, [StridedShard(dim, mesh[1]), Shard(dim)]
    return mesh, [draw(st.sampled_from(every)) for _ in mesh]


@st.composite
def resharded(draw: st.DrawFn) -> tuple[tuple[int, ...], TensorDemand]:
    """A tensor that lies somehow on one mesh and is needed somehow on another one."""
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    sources, destinations = (holders(shape, *draw(layouts(len(shape)))) for _ in range(2))
    return shape, TensorDemand("w", draw(st.sampled_from([1, 2, 8])), Redistribution(sources, destinations))


@given(resharded())
@settings(max_examples=400, deadline=None)
def test_each_element_that_is_needed_arrives_once_from_one_who_holds_it(
    case: tuple[tuple[int, ...], TensorDemand],
) -> None:
    shape, wanted = case
    numbers = np.arange(math.prod(shape)).reshape(shape)
    held = {rank: np.full(shape, -1) for ranks in wanted.boxes.sources.values() for rank in ranks}
    for box, ranks in wanted.boxes.sources.items():
        for rank in ranks:
            held[rank][slices(box)] = numbers[slices(box)]
    arrived = {rank: np.full(shape, -1) for ranks in wanted.boxes.destinations.values() for rank in ranks}
    for move in plan([wanted]):
        target = arrived[move.destination]
        assert (target[slices(move.box)] == -1).all(), "it has come before"
        target[slices(move.box)] = held[move.source][slices(move.box)]
    for rank, found in arrived.items():
        expected = np.full(shape, -1)
        for box, ranks in wanted.boxes.destinations.items():
            if rank in ranks:
                expected[slices(box)] = numbers[slices(box)]
        assert (found == expected).all()


@given(resharded(), st.sets(st.integers(0, 7)))
@settings(max_examples=300, deadline=None)
def test_any_placements_can_be_changed_into_any_others_if_every_element_has_a_holder_left(
    case: tuple[tuple[int, ...], TensorDemand], lost: set[int]
) -> None:
    shape, wanted = case
    left = {box: [rank for rank in ranks if rank not in lost] for box, ranks in wanted.boxes.sources.items()}
    held = {box: ranks for box, ranks in left.items() if ranks}
    has, needs = (np.zeros(shape, dtype=bool) for _ in range(2))
    for found, boxes in ((has, held), (needs, wanted.boxes.destinations)):
        for box in boxes:
            found[slices(box)] = True
    asked = TensorDemand("w", wanted.element_bytes, Redistribution(held, wanted.boxes.destinations))
    if (needs & ~has).any():
        with pytest.raises(Missing, match="w: no source holds"):
            plan([asked])
    else:
        assert sum(move.size for move in plan([asked])) == sum(
            box.count * len(ranks) * wanted.element_bytes for box, ranks in wanted.boxes.destinations.items()
        )


@given(st.lists(resharded(), max_size=4))
@settings(max_examples=60, deadline=None)
def test_the_order_in_which_tensors_and_holders_are_named_makes_no_difference(
    cases: list[tuple[tuple[int, ...], TensorDemand]],
) -> None:
    def backwards(of: TensorDemand, name: str) -> TensorDemand:
        turned = [
            {box: ranks[::-1] for box, ranks in reversed(list(held.items()))}
            for held in (of.boxes.sources, of.boxes.destinations)
        ]
        return TensorDemand(name, of.element_bytes, Redistribution(*turned))

    named = [(f"w{number}", wanted) for number, (_, wanted) in enumerate(cases)]
    forwards = [TensorDemand(name, one.element_bytes, one.boxes) for name, one in named]
    assert plan(forwards) == plan([backwards(one, name) for name, one in reversed(named)])


@given(st.lists(resharded(), max_size=4))
@settings(max_examples=100, deadline=None)
def test_the_parties_plan_their_own_moves_as_one_plans_all(
    cases: list[tuple[tuple[int, ...], TensorDemand]],
) -> None:
    wanted = [replace(one, name=f"w{number}") for number, (_, one) in enumerate(cases)]
    every = plan(wanted)
    for party in range(8):
        assert plan(wanted, party) == tuple(move for move in every if party in (move.source, move.destination))


def test_tensors_that_lie_the_same_share_what_is_worked_out() -> None:
    boxes = Redistribution({Box((at,), (4,)): [at // 4] for at in (0, 4)}, {Box((2,), (4,)): [7]})
    moves = plan([TensorDemand("a", 4, boxes), TensorDemand("b", 2, boxes)])
    assert [(move.source, move.name, move.box.offset, move.size) for move in moves] == [
        (0, "a", (2,), 8),
        (0, "b", (2,), 4),
        (1, "a", (4,), 8),
        (1, "b", (4,), 4),
    ]


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 7), st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_those_who_hold_the_same_share_the_bytes_up_to_one_tensor(sizes: list[int], world: int, needing: int) -> None:
    named = {f"w{number}": size for number, size in enumerate(sizes)}
    receivers = range(100, 100 + needing)
    moves = plan([TensorDemand.whole(name, (size,), size, range(world), receivers) for name, size in named.items()])
    assert Counter((move.name, move.destination) for move in moves) == Counter(itertools.product(named, receivers))
    loads = Counter(dict.fromkeys(range(world), 0))
    for move in moves:
        loads[move.source] += named[move.name]
    assert max(loads.values()) - min(loads.values()) <= max(sizes, default=0)


def test_the_largest_are_shared_out_first() -> None:
    sizes = {"a": 1, "b": 1, "c": 2}
    moves = plan([TensorDemand.whole(name, (size,), size, [0, 1], [7]) for name, size in sizes.items()])
    assert [(move.source, move.name) for move in moves] == [(0, "c"), (1, "a"), (1, "b")]


def test_the_moves_are_sorted_by_source_destination_and_name() -> None:
    moves = plan([TensorDemand.whole(name, (2,), 8, [0, 1], [8, 7]) for name in "ba"])
    assert list(moves) == sorted(moves)


def test_what_does_not_meet_a_box_does_not_cut_it() -> None:
    held = {Box((0, 0), (4, 4)): [0], Box((4, 2), (4, 2)): [1]}
    needed = Box((0, 1), (4, 3))
    assert plan([TensorDemand("w", 4, Redistribution(held, {needed: [7]}))]) == (Move(0, 7, "w", needed, 48),)


def test_who_holds_more_of_a_box_than_is_needed_sends_only_that() -> None:
    wanted = TensorDemand("w", 4, Redistribution({Box((0, 0), (8, 3)): [0]}, {Box((2, 1), (3, 1)): [7]}))
    assert plan([wanted]) == (Move(0, 7, "w", Box((2, 1), (3, 1)), 12),)


def test_an_empty_tensor_is_moved_but_no_empty_shard() -> None:
    empty = Box((0, 0), (0, 3))
    assert plan([TensorDemand.whole("w", (0, 3), 0, [0, 1], [7])]) == (Move(0, 7, "w", empty, 0),)
    assert plan([TensorDemand("w", 4, Redistribution({Box((0, 0), (2, 3)): [0]}, {empty: [7]}))]) == ()


def test_a_box_that_no_rank_holds_is_named() -> None:
    with pytest.raises(Missing, match=r"w: no source holds .*\(4,\).* which \[7\] need"):
        plan([TensorDemand("w", 4, Redistribution({Box((0,), (4,)): [0]}, {Box((0,), (6,)): [7]}))])
