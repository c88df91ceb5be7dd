"""A budget or template that outlived its job is deleted; one of another owner, or of a living job, stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure_operator.cluster.protocol import BUDGETS, JOBS, REVISIONS, Json, Resource, Unavailable
from perdure_operator.cluster.write import manifests
from tests.support.memory_cluster import MemoryCluster
from tests.support.stage import KEY, Stage


def orphaned() -> tuple[Stage, str]:
    """As `kubectl delete trainingjob --cascade=orphan` leaves it; the name of the budget."""
    stage = Stage()
    stage.apply()
    asyncio.run(stage.observer.sync())
    seen = asyncio.run(stage.observer.observe(KEY))
    assert seen
    name = str(asyncio.run(stage.cluster.create(BUDGETS, "ns", manifests.budget(seen, 2)))["metadata"]["name"])
    return stage, name


def disown(raw: Json) -> None:
    raw["metadata"]["ownerReferences"] = []


def budgets(stage: Stage) -> list[str]:
    return [raw["metadata"]["name"] for raw in asyncio.run(stage.cluster.list(BUDGETS))]


def test_the_budget_of_a_job_that_was_deleted_with_orphans_goes_at_once() -> None:
    stage, name = orphaned()
    stage.cluster.change(BUDGETS, "ns", name, disown)
    stage.cluster.remove(JOBS, *KEY)
    stage.settle()
    assert budgets(stage) == []


def test_a_resync_finds_missed_orphans_and_those_of_a_successors_name() -> None:
    stage, name = orphaned()
    stage.cluster.change(BUDGETS, "ns", name, disown)
    stage.cluster.watch = lambda *_: None
    stage.cluster.remove(JOBS, *KEY)
    stage.apply()
    asyncio.run(stage.observer.sync())
    asyncio.run(stage.orphans.sweep())
    assert budgets(stage) == []


@pytest.mark.parametrize(
    "change",
    [
        {"ownerReferences": [{"uid": "somebody", "controller": True}]},
        {"labels": {}},
        {"labels": {"perdure.dev/job": "another", "perdure.dev/job-uid": "x"}},
    ],
)
def test_what_is_not_as_the_operator_makes_it_stays(change: dict[str, Any]) -> None:
    stage, name = orphaned()
    stage.cluster.change(BUDGETS, "ns", name, disown)
    stage.cluster.change(BUDGETS, "ns", name, lambda raw: raw["metadata"].update(change))
    stage.cluster.remove(JOBS, *KEY)
    stage.settle()
    asyncio.run(stage.orphans.sweep())
    assert budgets(stage) == [name]


def test_the_budget_of_a_living_job_stays_even_if_the_cache_does_not_know_the_job() -> None:
    stage, name = orphaned()
    stage.cluster.change(BUDGETS, "ns", name, disown)
    stage.cache.drop(JOBS, KEY, since=stage.cache.mark())
    asyncio.run(stage.orphans.sweep())
    assert budgets(stage) == [name]


def test_a_budget_that_has_changed_meanwhile_is_left_to_the_next_resync(caplog: pytest.LogCaptureFixture) -> None:
    stage, name = orphaned()
    stage.cluster.change(BUDGETS, "ns", name, disown)
    stage.cluster.watch = lambda *_: None
    stage.cluster.change(BUDGETS, "ns", name, lambda raw: raw["metadata"].update(annotations={"a": "b"}))
    stage.cluster.remove(JOBS, *KEY)
    stage.cache.drop(JOBS, KEY, since=stage.cache.mark())
    asyncio.run(stage.orphans.sweep())
    assert "its job is gone, and it could not be deleted now" in caplog.text
    assert budgets(stage) == [name]


def test_a_leader_that_may_be_none_any_more_deletes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    stage, name = orphaned()
    stage.cluster.change(BUDGETS, "ns", name, disown)
    stage.cluster.remove(JOBS, *KEY)
    stage.leading = False
    asyncio.run(stage.orphans.sweep())
    assert "another operator may lead" in caplog.text
    assert budgets(stage) == [name]


def test_a_kept_template_goes_with_its_job_although_that_was_deleted_with_orphans() -> None:
    stage = Stage()
    stage.node("n1")
    stage.apply()
    stage.start()
    stage.run_pods(["n1"])
    stage.settle()
    (kept,) = asyncio.run(stage.cluster.list(REVISIONS))
    stage.cluster.change(REVISIONS, "ns", kept["metadata"]["name"], disown)
    asyncio.run(stage.observer.sync())
    stage.cluster.remove(JOBS, *KEY)
    stage.settle()
    assert asyncio.run(stage.cluster.list(REVISIONS)) == []


class Overloaded(MemoryCluster):
    """Refuses to read a job, once it is told to."""

    refuses = False
    refused = 0

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        if self.refuses:
            self.refused += 1
            raise Unavailable("too many requests", status=429, retry_after=1)
        return await super().get(resource, namespace, name)


def test_an_api_server_that_asks_to_be_left_alone_is_left_alone_until_the_next_resync() -> None:
    cluster = Overloaded()
    stage = Stage(cluster)
    stage.node("n1")
    stage.apply()
    stage.start()
    stage.run_pods(["n1"])
    stage.settle()
    for resource in (BUDGETS, REVISIONS):
        (raw,) = asyncio.run(cluster.list(resource))
        cluster.change(resource, "ns", raw["metadata"]["name"], disown)
    asyncio.run(stage.observer.sync())
    stage.cache.drop(JOBS, KEY, since=stage.cache.mark())
    cluster.refuses = True
    asyncio.run(stage.orphans.sweep())
    assert cluster.refused == 1


def test_a_foreign_revision_stays_whatever_its_labels_say() -> None:
    stage = Stage()
    labels = {"perdure.dev/job": "digits", "perdure.dev/job-uid": "0123"}
    asyncio.run(stage.cluster.create(REVISIONS, "ns", {"metadata": {"name": "theirs", "labels": labels}}))
    asyncio.run(stage.observer.sync())
    asyncio.run(stage.orphans.sweep())
    assert len(asyncio.run(stage.cluster.list(REVISIONS))) == 1
