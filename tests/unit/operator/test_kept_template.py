"""The last good template is kept beside the job: an edit that the API server refuses does not take a training down."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.wire import CommitRef, ExitKind, Outcome, write_outcome
from perdure_operator.api.reasons import ConditionType
from perdure_operator.cluster.protocol import JOBS, PODS, REVISIONS, ApiError, Forbidden, Invalid, Json, Resource
from tests.support.memory_cluster import MemoryCluster
from tests.support.raw import job
from tests.support.stage import KEY, Stage

GOOD, BAD = "perdure-digits:dev", ""


class StrictCluster(MemoryCluster):
    """Refuses pods without an image, and what `refuses` says."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: dict[Resource, ApiError] = {}
        self.reads: list[str] = []

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        if resource in self.refuses:
            raise self.refuses[resource]
        if resource == PODS and not body["spec"]["containers"][0].get("image"):
            raise Invalid("Pod is invalid: spec.containers[0].image: Required value")
        return await super().create(resource, namespace, body, dry_run=dry_run)

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Json:
        if resource == REVISIONS:
            self.reads.append(name)
        return await super().get(resource, namespace, name)


def training(stage: Stage | None = None) -> Stage:
    stage = stage or Stage(StrictCluster())
    for node in ("n1", "n2", "n3"):
        stage.node(node)
    stage.apply()
    stage.start()
    stage.run_pods(["n1", "n2"])
    stage.settle()
    return stage


def edit(stage: Stage, image: str, **spec: Any) -> None:
    def change(raw: Json) -> None:
        raw["spec"]["template"]["spec"]["containers"][0]["image"] = image
        raw["spec"].update(spec)

    stage.cluster.change(JOBS, *KEY, change)
    stage.settle()


def drain(stage: Stage, step: int = 7) -> None:
    """A node is cordoned; the members save, leave, and their successors get warm elsewhere."""
    before, run = stage.names(), stage.status().run
    stage.cordon("n1")
    stage.settle()
    stage.wait(1.0)
    for rank, name in enumerate(before):
        told = Outcome(ExitKind.CHECKPOINTED, run=run, rank=rank, step=step, commit=CommitRef(3, step), opened=run)
        stage.end_pod(name, write_outcome(told))
    stage.settle()
    stage.run_pods(["n2", "n3"])
    stage.settle()


def images(stage: Stage) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in stage.pods()}


def revisions(stage: Stage) -> list[Json]:
    return asyncio.run(stage.cluster.list(REVISIONS, "ns"))


def test_a_training_goes_on_after_a_drain_although_its_template_was_made_invalid() -> None:
    stage = training()
    edit(stage, BAD)
    drain(stage)
    status = stage.status()
    assert status.current is not None
    assert (status.current.run, status.step, status.steps_lost) == (2, 7, 0)
    assert images(stage) == {GOOD}
    accepted = status.find(ConditionType.TEMPLATE_ACCEPTED)
    assert accepted is not None
    assert (accepted.status, accepted.reason) == ("False", "TemplateInvalid")


def test_so_it_does_with_an_operator_that_has_not_seen_the_good_one() -> None:
    stage = training()
    edit(stage, BAD)
    successor = stage.restarted()
    successor.start()
    drain(successor)
    assert successor.status().run == 2
    assert images(successor) == {GOOD}


def test_what_is_not_in_the_template_counts_as_it_is_now() -> None:
    """Members of one run must agree on it; only the template is kept."""
    stage = training()
    edit(stage, BAD, processesPerReplica=2)
    before = stage.names()
    stage.wait(1.0)
    stage.run_pods(["n2", "n3"])
    stage.settle()
    for rank, name in enumerate(before):
        told = Outcome(ExitKind.CHECKPOINTED, run=1, rank=rank, step=3, commit=CommitRef(3, 3), opened=1)
        stage.end_pod(name, write_outcome(told))
    stage.settle()
    current = stage.status().current
    assert current is not None
    assert (current.run, current.plan.world) == (2, 4)
    for pod in stage.pods():
        assert {"name": "PERDURE_PROCESSES", "value": "2"} in pod["spec"]["containers"][0]["env"]


def test_a_correction_is_what_the_next_members_are_made_from_and_what_is_kept() -> None:
    stage = training()
    edit(stage, BAD)
    edit(stage, "perdure-digits:next")
    drain(stage)
    assert images(stage) == {"perdure-digits:next"}
    (kept,) = revisions(stage)
    assert kept["data"]["template"]["spec"]["containers"][0]["image"] == "perdure-digits:next"


def test_it_is_the_jobs_own_and_goes_with_it() -> None:
    (kept,) = revisions(training())
    (owner,) = kept["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"], owner["blockOwnerDeletion"]) == ("TrainingJob", True, False)
    assert kept["metadata"]["labels"]["perdure.dev/job"] == "digits"


def test_a_kept_template_is_read_only_while_its_edit_is_refused_and_then_once() -> None:
    stage = training()
    assert isinstance(stage.cluster, StrictCluster)
    assert stage.cluster.reads == []
    edit(stage, BAD)
    drain(stage)
    assert len(stage.cluster.reads) == 1


def test_a_job_whose_first_template_is_invalid_waits_for_a_correction() -> None:
    stage = Stage(StrictCluster())
    stage.apply(job(template={"spec": {"containers": [{"name": "trainer", "image": BAD, "command": ["python"]}]}}))
    stage.start()
    running = stage.status().find(ConditionType.RUNNING)
    assert running is not None
    assert running.reason == "TemplateInvalid"
    assert (stage.pods(), revisions(stage)) == ([], [])


@pytest.mark.parametrize("refusal", [Forbidden("exceeded quota"), Invalid("no")], ids=["quota", "webhook"])
def test_a_template_that_cannot_be_kept_stops_nothing(refusal: ApiError, caplog: pytest.LogCaptureFixture) -> None:
    cluster = StrictCluster()
    cluster.refuses[REVISIONS] = refusal
    stage = training(Stage(cluster))
    assert stage.status().run == 1
    assert caplog.text.count("its template is not kept") == 1


def test_roles_of_an_older_chart_stop_nothing() -> None:
    class OlderRoles(StrictCluster):
        async def list(self, resource: Resource, namespace: str | None = None, *, selector: str = "") -> list[Json]:
            if resource == REVISIONS:
                raise Forbidden("controllerrevisions.apps is forbidden")
            return await super().list(resource, namespace, selector=selector)

    assert training(Stage(OlderRoles())).status().run == 1


def test_where_the_kept_one_has_been_deleted_the_job_waits_for_a_correction() -> None:
    stage = training()
    stage.cluster.remove(REVISIONS, "ns", revisions(stage)[0]["metadata"]["name"])
    edit(stage, BAD)
    drain(stage)
    running = stage.status().find(ConditionType.RUNNING)
    assert running is not None
    assert running.reason == "TemplateInvalid"


@pytest.mark.parametrize("data", [None, [], {"template": None}, {"spec": {}}])
def test_a_revision_of_another_make_is_no_template(data: object) -> None:
    stage = training()
    name = revisions(stage)[0]["metadata"]["name"]
    stage.cluster.change(REVISIONS, "ns", name, lambda raw: raw.update(data=data))
    edit(stage, BAD)
    assert stage.status().run == 1
    drain(stage)
    running = stage.status().find(ConditionType.RUNNING)
    assert running is not None
    assert running.reason == "TemplateInvalid"
