"""Old ranks that hold the same have the same sum, and a vote in which they have not is none."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from perdure.checkpoint.tensors import PIECE_BYTES
from perdure.errors import PeerLost, UserError
from perdure.group.world import connect_group
from perdure.live.bridge import Bridge
from perdure.live.protocol.parties import Attempt
from perdure.live.summing import SUM_BITS, Summing

HELD = {"a": torch.arange(PIECE_BYTES // 4 + 5, dtype=torch.float32), "b": torch.ones(3)}


def sum_of(named: dict[str, Tensor]) -> int:
    with Summing(named) as summing:
        pass
    return summing.sum


def last_bit(named: dict[str, Tensor]) -> dict[str, Tensor]:
    changed = named["a"].clone()
    changed.view(torch.int32)[-1] += 1
    return {**named, "a": changed}


def named_otherwise(named: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"a": named["a"], "c": named["b"]}


def exchanged(named: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"a": named["b"], "b": named["a"]}


def test_a_sum_is_of_the_values_wherever_they_lie_and_whichever_rank_lists_them() -> None:
    turned = torch.randn(40, 30)
    assert sum_of({"a": turned.t(), "b": HELD["b"]}) == sum_of({"b": HELD["b"].clone(), "a": turned.t().contiguous()})
    assert sum_of({}) == 0
    assert 0 < sum_of(HELD) < 2**SUM_BITS


@pytest.mark.parametrize("change", [last_bit, named_otherwise, exchanged])
def test_whatever_differs_is_in_the_sum(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    assert sum_of(change(HELD)) != sum_of(HELD)


def test_what_cannot_be_read_is_reported_behind_the_block() -> None:
    with pytest.raises(RuntimeError, match="meta"), Summing({"a": torch.ones(3, device="meta")}):
        pass


def test_an_error_in_the_block_is_the_one_that_is_reported() -> None:
    with pytest.raises(PeerLost), Summing({"a": torch.ones(3, device="meta")}):
        raise PeerLost("the newcomer is gone")


OLD = 3
MOST = 2**SUM_BITS - 1


def voted(held: tuple[int, ...]) -> list[str]:
    """What the vote of three old ranks and two newcomers says to each."""
    attempt, store = Attempt(1, 2, OLD, (3, 4), ()), HashStore()

    def party(number: int) -> str:
        group = connect_group(store, "bridge", rank=number, size=5, timeout=timedelta(seconds=60))
        bridge = Bridge(attempt, attempt.parties[number], group, group)
        try:
            bridge.vote(held[number] if number < OLD else None)
        except UserError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(5) as pool:
        return list(pool.map(party, range(5)))


@pytest.mark.parametrize("held", [0, 1, MOST])
def test_ranks_that_hold_the_same_have_voted(held: int) -> None:
    assert voted((held,) * OLD) == [""] * 5


@pytest.mark.parametrize("held", [(1, 2, 2), (2, 1, 2), (0, 0, MOST), (MOST, MOST, MOST - 1)])
def test_a_vote_of_old_ranks_that_hold_different_state_is_none(held: tuple[int, ...]) -> None:
    old, newcomers = voted(held)[:OLD], voted(held)[OLD:]
    assert all(why.startswith("the ranks of run 1 hold different parameters or optimizer state") for why in old)
    assert newcomers == ["", ""]
