"""The simulated API server keeps the rules that a real one keeps: the same cases run against both."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.simulation.apiserver import ApiServer
from tests.simulation.clock import VirtualLoop
from tests.simulation.link import Knobs, Link
from tests.simulation.objects import EPOCH
from tests.simulation.operator_process import client
from tests.support import contract_cases


@pytest.mark.parametrize("case", contract_cases.CASES, ids=lambda case: case.__name__)
def test_in_simulation(case: Callable[[Any, str], Awaitable[None]]) -> None:
    loop, rng = VirtualLoop(), random.Random(1)  # noqa: S311 - repeatable
    link = Link(loop, ApiServer(loop.time, rng), Knobs(), rng, name="test", fired=Counter())

    async def play() -> None:
        await case(client(link, loop, loop.time, lambda: EPOCH), "ns")

    loop.run(play())
