"""The real API server behaves as the operator's cluster in memory does, and refuses as the operator expects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from e2e.cluster.apiserver import ApiServer
from e2e.harness.lab import digits
from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.cluster import kube, member
from perdure_operator.cluster.kube import KubeApi
from perdure_operator.cluster.protocol import (
    NODES,
    PODS,
    AlreadyExists,
    ClusterApi,
    Conflict,
    Forbidden,
    Invalid,
    Unavailable,
)
from tests.support import contract_cases
from tests.support.raw import snapshot

pytestmark = pytest.mark.api

Case = Callable[[ClusterApi, str], Awaitable[None]]


def run(server: ApiServer, case: Callable[[KubeApi], Awaitable[None]], kubeconfig: Path | None = None) -> None:
    async def connected() -> None:
        async with await kube.login(str(kubeconfig or server.kubeconfig)) as api:
            await case(api)

    asyncio.run(connected())


@pytest.mark.parametrize("case", contract_cases.CASES, ids=lambda case: case.__name__)
def test_on_a_real_api_server(api_server: ApiServer, namespace: str, case: Case) -> None:
    run(api_server, lambda api: case(api, namespace))


def test_a_list_is_read_in_pages(api_server: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "PAGE", 2)

    async def case(api: KubeApi) -> None:
        for number in range(5):
            await api.create(PODS, namespace, contract_cases.pod(f"p{number}"))
        assert len(await api.list(PODS, namespace)) == 5

    run(api_server, case)


def test_a_bad_pod_is_invalid_in_a_dry_run(api_server: ApiServer, namespace: str) -> None:
    async def case(api: KubeApi) -> None:
        bad = contract_cases.pod("one")
        bad["spec"]["containers"][0]["image"] = ""
        with pytest.raises(Invalid, match="image"):
            await api.create(PODS, namespace, bad, dry_run=True)
        bad["spec"]["containers"] = "none"
        with pytest.raises(Invalid):
            await api.create(PODS, namespace, bad, dry_run=True)

    run(api_server, case)


def test_a_member_with_keys_in_a_folder_passes_restricted_pod_security(api_server: ApiServer, namespace: str) -> None:
    api_server.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    spec = TrainingJobSpec.model_validate(digits()["spec"])
    body = member.pod(snapshot(namespace=namespace, spec=spec), "digits-3f2a-0")
    assert [kind for volume in body["spec"]["volumes"] for kind in volume if kind != "name"] == [
        "downwardAPI",
        "secret",
    ]

    async def case(api: KubeApi) -> None:
        taken = await api.create(PODS, namespace, body, dry_run=True)
        assert taken["spec"]["volumes"] == body["spec"]["volumes"]

    run(api_server, case)


def test_pod_security_and_quotas_are_distinguished_by_their_words(api_server: ApiServer, namespace: str) -> None:
    api_server.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")

    async def case(api: KubeApi) -> None:
        with pytest.raises(Forbidden, match="violates PodSecurity"):
            await api.create(PODS, namespace, contract_cases.pod("one"), dry_run=True)

    run(api_server, case)
    api_server.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce-")
    api_server.kubectl("create", "quota", "none", "--hard=pods=0", f"--namespace={namespace}")
    counted = '{"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}}'  # the quota controller's work
    how = ("--subresource=status", "--type=merge", f"--patch={counted}")
    api_server.kubectl("patch", "quota", "none", f"--namespace={namespace}", *how)

    async def full(api: KubeApi) -> None:
        with pytest.raises(Forbidden, match="exceeded quota"):
            await api.create(PODS, namespace, contract_cases.pod("one"), dry_run=True)

    run(api_server, full)


def test_a_status_write_needs_the_newest_version_of_that_very_job(api_server: ApiServer, namespace: str) -> None:
    async def case(api: KubeApi) -> None:
        await api.create(NODES, "", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": namespace}})
        node = await api.get(NODES, None, namespace)
        status = {"status": {"capacity": {"cpu": "1"}}}
        await api.replace_status(NODES, "", namespace, {**node, **status})
        with pytest.raises(Conflict):
            await api.replace_status(NODES, "", namespace, {**node, **status})
        await api.delete(NODES, "", namespace, uid=node["metadata"]["uid"])

    run(api_server, case)


def test_a_taken_name_and_a_missing_right_have_errors_of_their_own(api_server: ApiServer, namespace: str) -> None:
    async def case(api: KubeApi) -> None:
        with pytest.raises(Forbidden):
            await api.list(PODS, namespace)

    async def twice(api: KubeApi) -> None:
        await api.create(PODS, namespace, contract_cases.pod("one"))
        with pytest.raises(AlreadyExists):
            await api.create(PODS, namespace, contract_cases.pod("one"))

    run(api_server, twice)
    run(api_server, case, api_server.kubeconfig_for_service_account(namespace, "default"))


def test_a_server_that_does_not_answer_is_unavailable(api_server: ApiServer, tmp_path: Path) -> None:
    nobody = tmp_path / "kubeconfig"
    nobody.write_text(api_server.kubeconfig.read_text().replace(api_server.url, "https://127.0.0.1:9"))

    async def case(api: KubeApi) -> None:
        with pytest.raises(Unavailable, match="GET /api/v1/nodes"):
            await api.list(NODES)

    run(api_server, case, nobody)
