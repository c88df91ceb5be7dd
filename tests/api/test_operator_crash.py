"""A crash between any two writes on a real API server: no orphan, no duplicate, the same end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from e2e.cluster.apiserver import ApiServer
from perdure_operator.cluster import kube
from perdure_operator.cluster.kube import KubeApi
from perdure_operator.cluster.protocol import JOBS, Resource
from tests.api.conftest import Installed
from tests.unit.operator.crash import NAME, the_end_does_not_depend_on_a_crash

pytestmark = pytest.mark.api

NAMESPACES = Resource("", "v1", "namespaces", namespaced=False)
ACCOUNTS = Resource("", "v1", "serviceaccounts")


@dataclass
class RealWorld:
    api: KubeApi
    operator: KubeApi

    async def bind(self, namespace: str, pod: str, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        await self.api.create(Resource("", "v1", f"pods/{pod}/binding"), namespace, binding)

    async def namespaces(self, prefix: str, count: int) -> list[str]:
        names = [f"{prefix}-{number}" for number in range(count)]
        for name in names:
            await self.api.create(NAMESPACES, "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
            await self.api.create(ACCOUNTS, name, account)
        return names


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.chaos)])
def test_a_crash_after_any_write_leads_to_the_same_end(api_server: ApiServer, installed: Installed, every: int) -> None:
    """After each of them in memory (tests/unit/operator/test_crash.py), and in `make chaos` here, too."""

    async def play() -> None:
        async with (
            await kube.login(str(api_server.kubeconfig)) as api,
            await kube.login(str(installed.kubeconfig)) as operator,
        ):
            world = RealWorld(api, operator)
            namespaces = await world.namespaces(f"crash-{every}", 40)
            await the_end_does_not_depend_on_a_crash(world, namespaces, every=every)
            for job in await api.list(JOBS):  # no work for the operators of other tests
                if job["metadata"]["namespace"] in namespaces:
                    await api.delete(JOBS, job["metadata"]["namespace"], NAME, uid=job["metadata"]["uid"])

    asyncio.run(play())
