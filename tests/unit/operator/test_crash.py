"""A crash between any two writes changes nothing in the end (the same on a real API server: tests/api)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from perdure_operator.cluster.protocol import PODS
from tests.support.memory_cluster import MemoryCluster
from tests.unit.operator.crash import the_end_does_not_depend_on_a_crash


@dataclass
class MemoryWorld:
    api: MemoryCluster = field(default_factory=MemoryCluster)

    @property
    def operator(self) -> MemoryCluster:
        return self.api

    async def bind(self, namespace: str, pod: str, node: str) -> None:
        self.api.change(PODS, namespace, pod, lambda raw: raw["spec"].update(nodeName=node))


@pytest.mark.parametrize("standbys", [False, True], ids=["everybody leaves", "a standby takes over"])
def test_a_crash_after_any_write_leads_to_the_same_end(standbys: bool) -> None:
    namespaces = [f"ns-{number}" for number in range(100)]
    asyncio.run(the_end_does_not_depend_on_a_crash(MemoryWorld(), namespaces, standbys=standbys))
