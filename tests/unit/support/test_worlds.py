"""What explorers of small worlds share changes how fast they are, and nothing else."""

from __future__ import annotations

import dataclasses
import gc
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import pytest

from tests.support.worlds import replaced_quickly, replacing_quickly, uncollected


class Place(NamedTuple):
    name: str
    height: int = 0


replaced_quickly(Place)


@dataclass(frozen=True)
class Seat:
    name: str
    height: int = 0


def test_a_value_that_is_replaced_quickly_is_what_it_would_be() -> None:
    place = Place("here")._replace(height=3)
    assert place == Place("here", 3)
    assert type(place) is Place
    assert Place("here", 1)._replace(name="there", height=2) == Place("there", 2)
    with pytest.raises(KeyError, match="depth"):
        place._replace(depth=1)  # type: ignore[call-arg] # that is the test


def test_what_a_module_replaces_quickly_is_what_it_would_be_and_only_for_the_moment() -> None:
    module = ModuleType("one of ours")
    vars(module)["replace"] = dataclasses.replace
    seat = Seat("here")
    with replacing_quickly(module):
        raised = module.replace(seat, height=3)
        with pytest.raises(AssertionError, match="depth"):
            module.replace(seat, depth=1)
    assert (raised, seat) == (Seat("here", 3), Seat("here"))
    assert (type(raised), hash(raised)) == (Seat, hash(Seat("here", 3)))
    assert module.replace is dataclasses.replace


def test_the_collector_rests_meanwhile_however_that_ends() -> None:
    @uncollected()
    def ends() -> None:
        assert not gc.isenabled()
        raise ValueError("an end")

    with pytest.raises(ValueError, match="an end"):
        ends()
    assert gc.isenabled()
