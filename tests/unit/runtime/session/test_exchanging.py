"""Small values of all ranks: their forms, how sums are made, and which errors are raised on all ranks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import perdure
from perdure.errors import UserError
from perdure.group.peers import Peers, Solo
from perdure.session.exchanging import EXCHANGED_BYTES, all_reduce, gather
from tests.unit.runtime.checkpoint.world import on_ranks
from tests.unit.runtime.session.training import Join

PLACE = "gather() after step 3"


def reduced(values: list[Any], how: str = "sum") -> list[Any]:
    """What each of as many ranks gets."""
    return on_ranks(len(values), lambda peers: all_reduce(values[peers.rank], how, PLACE, peers))


def test_alone_one_gets_what_one_tells_as_it_would_come_from_others() -> None:
    assert gather({"a": (1, 2)}, PLACE, Solo()) == [{"a": [1, 2]}]
    assert all_reduce(3, "mean", PLACE, Solo()) == 3


@pytest.mark.parametrize(
    ("values", "how", "expected"),
    [
        ([1, 2, 3], "sum", 6),
        ([2**60, 1, 1], "sum", 2**60 + 2),
        ([1, 2], "mean", 1.5),
        ([1.5, -2.0, 7], "min", -2.0),
        ([1.5, -2.0, 7], "max", 7),
        ([{"a": 1, "b": [1, 2]}, {"b": [3, 4], "a": 5}], "sum", {"a": 6, "b": [4, 6]}),
        ([[], []], "sum", []),
    ],
)
def test_values_of_one_form_become_one_value_of_that_form(values: list[Any], how: str, expected: Any) -> None:
    assert reduced(values, how) == [expected] * len(values)


def test_a_sum_is_rounded_once_so_that_the_order_of_ranks_does_not_matter() -> None:
    values = [1e16, 1.0, -1e16, 0.1]
    assert sum(values) != math.fsum(values)
    assert reduced(values)[0] == reduced(values[::-1])[0] == math.fsum(values)


def test_what_no_number_is_the_sum_of_is_no_error() -> None:
    assert math.isnan(reduced([math.inf, -math.inf])[0])
    assert math.isnan(reduced([math.nan, 1.0])[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_a_tensor_keeps_its_shape_and_dtype(dtype: torch.dtype) -> None:
    for found in reduced([torch.tensor([[1, 2]], dtype=dtype), torch.tensor([[3, 5]], dtype=dtype)]):
        assert (found.dtype, found.shape, found.tolist()) == (dtype, (1, 2), [[4, 7]])


def test_the_mean_of_a_tensor_of_whole_numbers_is_none_of_them() -> None:
    (found, _) = reduced([torch.tensor(1), torch.tensor(2)], "mean")
    assert (found.dtype, found.item()) == (torch.get_default_dtype(), 1.5)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1, "a"], "a int on rank 0, a str of 1 on rank 1"),
        ([[1, 2], [1]], "a list of 2 on rank 0, a list of 1 on rank 1"),
        ([{"a": 1}, {"b": 1}], "a dict of 1 on rank 0"),
        ([{"a": None}, {"a": 1}], r"\['a'\]: the ranks give a NoneType on rank 0, a int on rank 1"),
    ],
)
def test_values_of_other_forms_are_an_error_on_all_ranks(values: list[Any], words: str) -> None:
    for found in reduced(values):
        with pytest.raises(UserError, match=words):
            raise found


def test_another_way_to_make_one_of_them_is_refused_with_the_list() -> None:
    with pytest.raises(UserError, match="take one of sum, mean, min, max"):
        all_reduce(1, "median", PLACE, Solo())


def test_ranks_that_call_at_different_places_raise_and_none_waits() -> None:
    def calls(peers: Peers) -> list[Any]:
        return gather(1, f"gather() after step {peers.rank}", peers)

    for found in on_ranks(2, calls):
        assert isinstance(found, UserError)
        assert "rank 0 calls gather() after step 0, rank 1 calls gather() after step 1" in str(found)


@pytest.mark.parametrize("value", [torch.ones(2), {1, 2}, object()])
def test_a_value_that_cannot_be_sent_is_an_error_on_all_ranks_and_names_the_one(value: object) -> None:
    def calls(peers: Peers) -> list[Any]:
        return gather(value if peers.rank == 1 else 1, PLACE, peers)

    for found in on_ranks(2, calls):
        assert isinstance(found, UserError)
        assert f"rank 1: {PLACE}: Object of type {type(value).__name__} is not JSON serializable" in str(found)


def test_what_is_large_is_refused_with_the_remedy() -> None:
    with pytest.raises(UserError, match=r"more than 1048576: use torch\.distributed"):
        gather("x" * EXCHANGED_BYTES, PLACE, Solo())


def test_a_process_that_joins_a_living_run_has_no_peer_yet(join: Join) -> None:
    session = join()
    assert perdure.gather(session, 1) == [1]
    session._core.run.joining = True
    with pytest.raises(UserError, match="no rank of it before its first batch"):
        perdure.gather(session, 1)
    with pytest.raises(UserError, match="no rank of it before its first batch"):
        perdure.all_reduce(session, 1)
    session._core.run.joining = False
