"""The cluster in memory behaves as the real one does, as far as the operator relies on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support import contract_cases
from tests.support.memory_cluster import MemoryCluster


@pytest.mark.parametrize("case", contract_cases.CASES, ids=lambda case: case.__name__)
def test_in_memory(case: Callable[[Any, str], Awaitable[None]]) -> None:
    asyncio.run(_with(case))


async def _with(case: Callable[[Any, str], Awaitable[None]]) -> None:
    await case(MemoryCluster(), "ns")
