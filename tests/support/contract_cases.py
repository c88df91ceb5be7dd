"""What the operator relies on in a cluster: the same cases for the one in memory and for a real kube-apiserver.

Each case gets the cluster and a namespace of its own that has a ServiceAccount `default`.
"""

from __future__ import annotations

import asyncio

import pytest

from perdure_operator.cluster.protocol import (
    BUDGETS,
    LEASES,
    PODS,
    REVISIONS,
    AlreadyExists,
    ClusterApi,
    Conflict,
    Invalid,
    Json,
    NotFound,
    Resource,
)


def pod(name: str, **labels: str) -> Json:
    container = {"name": "c", "image": "none"}
    metadata = {"name": name, "labels": labels, "annotations": {"a/b": "old"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def lease(name: str, holder: str) -> Json:
    return {
        "apiVersion": LEASES.api_version,
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15},
    }


async def a_name_can_be_taken_only_once(api: ClusterApi, namespace: str) -> None:
    await api.create(PODS, namespace, pod("one"))
    with pytest.raises(AlreadyExists):
        await api.create(PODS, namespace, pod("one"))


async def a_dry_run_stores_nothing(api: ClusterApi, namespace: str) -> None:
    await api.create(PODS, namespace, pod("one"), dry_run=True)
    with pytest.raises(NotFound):
        await api.get(PODS, namespace, "one")


async def a_list_selects_by_label(api: ClusterApi, namespace: str) -> None:
    for name, labels in {"a": {"k": "x"}, "b": {"k": "y"}, "c": {}}.items():
        await api.create(PODS, namespace, pod(name, **labels))
    assert [one["metadata"]["name"] for one in await api.list(PODS, namespace)] == ["a", "b", "c"]
    assert [one["metadata"]["name"] for one in await api.list(PODS, namespace, selector="k")] == ["a", "b"]
    assert [one["metadata"]["name"] for one in await api.list(PODS, namespace, selector="k=y")] == ["b"]


async def a_patch_applies_while_its_tests_hold(api: ClusterApi, namespace: str) -> None:
    uid = (await api.create(PODS, namespace, pod("one", role="standby")))["metadata"]["uid"]
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": "/metadata/annotations/a~1b", "value": "old"},
        {"op": "replace", "path": "/metadata/annotations/a~1b", "value": "new"},
        {"op": "add", "path": "/metadata/labels/role", "value": "member"},
    ]
    patched = await api.patch(PODS, namespace, "one", patch)
    assert patched["metadata"]["annotations"]["a/b"] == "new"
    assert patched["metadata"]["labels"]["role"] == "member"
    with pytest.raises(Conflict):
        await api.patch(PODS, namespace, "one", patch)
    assert (await api.get(PODS, namespace, "one"))["metadata"] == patched["metadata"]


async def a_patch_takes_an_annotation_away_and_only_once(api: ClusterApi, namespace: str) -> None:
    await api.create(PODS, namespace, pod("one"))
    patch = [
        {"op": "test", "path": "/metadata/annotations/a~1b", "value": "old"},
        {"op": "remove", "path": "/metadata/annotations/a~1b"},
    ]
    assert not (await api.patch(PODS, namespace, "one", patch))["metadata"].get("annotations")
    with pytest.raises(Conflict):
        await api.patch(PODS, namespace, "one", patch)


async def a_patch_of_another_uid_is_a_conflict(api: ClusterApi, namespace: str) -> None:
    await api.create(PODS, namespace, pod("one"))
    with pytest.raises(Conflict):
        await api.patch(PODS, namespace, "one", [{"op": "test", "path": "/metadata/uid", "value": "another"}])


async def a_patch_of_what_is_gone_is_not_found(api: ClusterApi, namespace: str) -> None:
    with pytest.raises(NotFound):
        await api.patch(PODS, namespace, "one", [{"op": "test", "path": "/metadata/uid", "value": "x"}])


async def a_patch_of_a_status_changes_that_alone_while_its_tests_hold(api: ClusterApi, namespace: str) -> None:
    created = await api.create(PODS, namespace, pod("one"))
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": created["metadata"]["uid"]},
        {"op": "test", "path": "/spec/containers/0/name", "value": "c"},
        {"op": "add", "path": "/status/message", "value": "so far"},
    ]
    patched = await api.patch_status(PODS, namespace, "one", patch)
    assert patched["status"]["message"] == "so far"
    assert patched["spec"] == created["spec"]
    patch[1]["value"] = "another"
    with pytest.raises(Conflict):
        await api.patch_status(PODS, namespace, "one", patch)
    with pytest.raises(NotFound):
        await api.patch_status(PODS, namespace, "two", patch)


async def a_kind_is_served_or_not(api: ClusterApi, namespace: str) -> None:
    assert await api.serves(PODS)
    assert not await api.serves(Resource("nobody.example.com", "v1", "things"))
    assert not await api.serves(Resource("", "v1", "things"))


async def a_replace_of_an_old_version_is_a_conflict(api: ClusterApi, namespace: str) -> None:
    first = await api.create(LEASES, namespace, lease("l", "a"))
    body = lease("l", "b") | {"metadata": first["metadata"]}
    second = await api.replace(LEASES, namespace, "l", body)
    assert second["spec"]["holderIdentity"] == "b"
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    with pytest.raises(Conflict):
        await api.replace(LEASES, namespace, "l", body)


async def a_delete_takes_only_that_uid(api: ClusterApi, namespace: str) -> None:
    uid = (await api.create(PODS, namespace, pod("one")))["metadata"]["uid"]
    with pytest.raises(Conflict):
        await api.delete(PODS, namespace, "one", uid="another")
    await api.delete(PODS, namespace, "one", uid=uid)  # not on a node: gone at once
    with pytest.raises(NotFound):
        await api.delete(PODS, namespace, "one", uid=uid)


async def a_delete_takes_only_that_version(api: ClusterApi, namespace: str) -> None:
    first = (await api.create(PODS, namespace, pod("one")))["metadata"]
    change = [{"op": "replace", "path": "/metadata/annotations/a~1b", "value": "new"}]
    second = (await api.patch(PODS, namespace, "one", change))["metadata"]
    with pytest.raises(Conflict):
        await api.delete(PODS, namespace, "one", uid=first["uid"], version=first["resourceVersion"])
    await api.delete(PODS, namespace, "one", uid=first["uid"], version=second["resourceVersion"])
    with pytest.raises(NotFound):
        await api.get(PODS, namespace, "one")


async def pages_together_are_the_list(api: ClusterApi, namespace: str) -> None:
    for number in range(5):
        await api.create(PODS, namespace, pod(f"p{number}", k="x"))
    await api.create(PODS, namespace, pod("other"))
    pages = [[raw["metadata"]["name"] for raw in page] async for page in api.pages(PODS, namespace, selector="k=x")]
    assert [name for page in pages for name in page] == [f"p{number}" for number in range(5)]


async def whoever_follows_an_object_is_told_each_of_its_states_and_its_end(api: ClusterApi, namespace: str) -> None:
    """Existing objects come first; other objects are not reported."""
    first = await api.create(LEASES, namespace, lease("l", "a"))
    second = await api.replace(LEASES, namespace, "l", lease("l", "b") | {"metadata": first["metadata"]})
    told: asyncio.Queue[Json | None] = asyncio.Queue()
    following = asyncio.create_task(
        api.follow(
            LEASES,
            namespace,
            "l",
            version=first["metadata"]["resourceVersion"],
            seconds=600,
            on_change=told.put_nowait,
        )
    )
    try:
        async with asyncio.timeout(30):
            assert await told.get() == second
            await api.create(LEASES, namespace, lease("other", "a"))
            third = await api.replace(LEASES, namespace, "l", lease("l", "c") | {"metadata": second["metadata"]})
            assert await told.get() == third
            await api.delete(LEASES, namespace, "l", uid=first["metadata"]["uid"])
            assert await told.get() is None
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def whoever_follows_an_object_that_does_not_change_is_told_nothing(api: ClusterApi, namespace: str) -> None:
    version = (await api.create(LEASES, namespace, lease("l", "a")))["metadata"]["resourceVersion"]
    told: list[Json | None] = []
    async with asyncio.timeout(30):
        await api.follow(LEASES, namespace, "l", version=version, seconds=1, on_change=told.append)
    assert told == []


async def a_budget_is_raised_by_a_patch_that_tests_its_version(api: ClusterApi, namespace: str) -> None:
    body = {
        "apiVersion": BUDGETS.api_version,
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"k": "x"}}},
    }
    version = (await api.create(BUDGETS, namespace, body))["metadata"]["resourceVersion"]
    patch = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "replace", "path": "/spec/minAvailable", "value": 2},
    ]
    assert (await api.patch(BUDGETS, namespace, "b", patch))["spec"]["minAvailable"] == 2
    with pytest.raises(Conflict):
        await api.patch(BUDGETS, namespace, "b", patch)


async def a_pod_on_a_node_can_be_given_less_time_than_it_asks_for(api: ClusterApi, namespace: str) -> None:
    body = pod("one")
    body["spec"] |= {"nodeName": "n", "terminationGracePeriodSeconds": 120}
    uid = (await api.create(PODS, namespace, body))["metadata"]["uid"]
    await api.delete(PODS, namespace, "one", uid=uid, grace=5)
    assert (await api.get(PODS, namespace, "one"))["metadata"]["deletionGracePeriodSeconds"] == 5


def revision(name: str, data: Json) -> Json:
    metadata = {"name": name, "labels": {"k": "x"}}
    kind = {"apiVersion": REVISIONS.api_version, "kind": "ControllerRevision"}
    return kind | {"metadata": metadata, "revision": 1, "data": data}


async def a_revision_holds_what_it_was_given(api: ClusterApi, namespace: str) -> None:
    """Also what no schema knows, and null: a template is stored as it was written."""
    data = {"template": {"spec": {"containers": [{"name": "c", "odd": None}], "later": [1, "2", {"a": {}}]}}}
    created = await api.create(REVISIONS, namespace, revision("one", data))
    assert created["data"] == data
    assert (await api.get(REVISIONS, namespace, "one"))["data"] == data
    assert [raw["metadata"]["name"] for raw in await api.list(REVISIONS, namespace, selector="k")] == ["one"]
    await api.delete(REVISIONS, namespace, "one", uid=created["metadata"]["uid"])
    with pytest.raises(NotFound):
        await api.get(REVISIONS, namespace, "one")


async def what_a_revision_holds_never_changes(api: ClusterApi, namespace: str) -> None:
    created = await api.create(REVISIONS, namespace, revision("one", {"template": {"a": 1}}))
    with pytest.raises(Invalid):
        await api.replace(REVISIONS, namespace, "one", created | {"data": {"template": {"a": 2}}})
    assert (await api.get(REVISIONS, namespace, "one"))["data"] == {"template": {"a": 1}}


CASES = [
    a_revision_holds_what_it_was_given,
    what_a_revision_holds_never_changes,
    a_name_can_be_taken_only_once,
    a_dry_run_stores_nothing,
    a_list_selects_by_label,
    a_patch_applies_while_its_tests_hold,
    a_patch_takes_an_annotation_away_and_only_once,
    a_patch_of_another_uid_is_a_conflict,
    a_patch_of_what_is_gone_is_not_found,
    a_patch_of_a_status_changes_that_alone_while_its_tests_hold,
    a_kind_is_served_or_not,
    a_replace_of_an_old_version_is_a_conflict,
    a_delete_takes_only_that_uid,
    a_delete_takes_only_that_version,
    a_pod_on_a_node_can_be_given_less_time_than_it_asks_for,
    pages_together_are_the_list,
    whoever_follows_an_object_is_told_each_of_its_states_and_its_end,
    whoever_follows_an_object_that_does_not_change_is_told_nothing,
    a_budget_is_raised_by_a_patch_that_tests_its_version,
]
