"""What forward may change is copied at once; the rest is read later, where it was, in the same order as by a blocking
save."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import Tensor

from perdure.checkpoint import tensors
from perdure.checkpoint.deferred import Deferred, defer
from perdure.checkpoint.stage import LiveBytes, stage
from perdure.checkpoint.state import RankState
from perdure.log.entry import checksum

MOST = 64


def live(named: dict[str, Tensor]) -> LiveBytes:
    return cast(LiveBytes, stage(RankState(named, {}, {}, {}), 0, 1).pieces)


def read(found: Deferred) -> bytes:
    return b"".join(map(bytes, found.views))


@pytest.fixture
def named() -> dict[str, Tensor]:
    return {"average": torch.arange(16.0), "weight": torch.arange(1000.0), "turned": torch.ones(2, 3).t()}


def addresses(*some: Tensor) -> set[int]:
    return set(map(tensors.address, some))


def test_everything_is_summed_up_as_it_is(named: dict[str, Tensor]) -> None:
    staged = live(named)
    whole = b"".join(map(bytes, staged()))
    found = defer(staged, addresses(named["weight"]), set(), MOST + 24)
    assert found
    assert read(found) == whole
    assert found.checksum == checksum(whole)


def test_only_what_optimizers_step_is_read_later(named: dict[str, Tensor]) -> None:
    staged = live(named)
    found = defer(staged, addresses(named["weight"], named["turned"]), set(), MOST + 24)
    assert found
    before = read(found)
    for name in ("average", "turned"):
        named[name].add_(1.0)
        assert read(found) == before
    named["weight"].add_(1.0)
    assert read(found) != before


@pytest.mark.parametrize(
    ("stepped", "most"), [(["weight"], MOST + 23), ([], 2**20), (["turned"], 2**20), (["average"], 2**20)]
)
def test_nothing_is_read_later_if_there_is_little_of_it_or_too_much_beside_it(
    named: dict[str, Tensor], stepped: list[str], most: int
) -> None:
    assert defer(live(named), addresses(*(named[name] for name in stepped)), set(), most) is None


def test_what_nobody_trains_is_read_later_only_if_it_is_too_much_to_be_copied_at_once(named: dict[str, Tensor]) -> None:
    frozen = addresses(named["average"])
    for most, later in ((MOST + 24, False), (MOST + 23, True)):
        found = defer(live(named), addresses(named["weight"]), frozen, most)
        assert found
        before = read(found)
        named["average"].add_(1.0)
        assert (read(found) != before) == later
    assert defer(live(named), set(), frozen, MOST + 23) is None
    assert defer(live({"average": named["average"]}), set(), frozen, 0)
