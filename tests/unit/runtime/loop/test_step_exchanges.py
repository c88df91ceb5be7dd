"""Which optimizer exchanges values while it steps, where steps lie within one another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from perdure.loop.step_exchanges import StepExchanges


@pytest.fixture(autouse=True)
def _world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def exchange() -> None:
    dist.all_reduce(torch.ones(1))


def test_a_step_without_an_exchange_is_none_whatever_was_exchanged_before_it() -> None:
    exchanges = StepExchanges()
    for _ in range(2):
        exchange()
        exchanges.begin("sgd")
        assert exchanges.end("sgd") is None


def test_an_exchange_before_a_step_within_it_counts_for_the_outer_one() -> None:
    exchanges = StepExchanges()
    exchanges.begin("around")
    exchange()
    exchanges.begin("sgd")
    assert exchanges.end("sgd") == "around"


def test_an_exchange_before_the_step_of_its_base_class_counts() -> None:
    exchanges = StepExchanges()
    exchanges.begin("own")
    exchange()
    exchanges.begin("own")
    assert exchanges.end("own") == "own"


def test_an_exchange_behind_the_step_of_its_base_class_counts() -> None:
    exchanges = StepExchanges()
    exchanges.begin("own")
    exchanges.begin("own")
    assert exchanges.end("own") is None
    exchange()
    assert exchanges.end("own") == "own"


def test_a_step_that_raised_an_exception_does_not_count_for_the_next_one() -> None:
    exchanges = StepExchanges()
    exchanges.begin("broken")
    exchange()
    exchanges.reset()
    exchanges.begin("sgd")
    assert exchanges.end("sgd") is None


def test_an_exchange_between_two_optimizers_of_a_step_is_seen_and_one_before_or_behind_both_is_not() -> None:
    exchanges, seen = StepExchanges(), list[bool]()
    for exchanged in (False, True, False):
        exchange()
        exchanges.reset()
        for optimizer in ("first", "second"):
            seen.append(exchanges.begin(optimizer))
            exchanges.end(optimizer)
            if exchanged:
                exchange()
    assert seen == [False, False, False, True, False, False]


def test_an_exchange_in_a_step_is_none_between_two() -> None:
    exchanges = StepExchanges()
    exchanges.begin("first")
    exchange()
    assert not exchanges.begin("within")
    exchanges.end("within")
    exchanges.end("first")
    assert not exchanges.begin("second")
