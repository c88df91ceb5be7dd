"""Status first, then the writes in order, each with its precondition, then events; the first refusal ends it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from perdure.wire import ANNOTATION_ASSIGNMENT, LABEL_JOB, LABEL_ROLE
from perdure_operator.api import names
from perdure_operator.api.status import NextRun, Phase, Spares, TrainingJobStatus
from perdure_operator.cluster.batching import AT_ONCE
from perdure_operator.cluster.memory import Memory
from perdure_operator.cluster.protocol import (
    BUDGETS,
    EVENTS,
    JOBS,
    PODS,
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    Json,
    Operation,
    Resource,
    Unavailable,
)
from perdure_operator.cluster.read import parse
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.observe import Observer
from perdure_operator.cluster.write import manifests
from perdure_operator.cluster.write.act import Actor
from perdure_operator.cluster.write.writes import NO_CHANNEL_SECONDS
from perdure_operator.loop.schedule import LONGEST_SECONDS
from perdure_operator.state.decision import (
    Assign,
    CheckTemplate,
    CreatePod,
    Decision,
    DeleteBudget,
    DeleteJob,
    DeletePod,
    JobEvent,
    Mark,
    SetBudget,
)
from perdure_operator.state.snapshot import RefusalKind, Snapshot, TemplateVerdict
from tests.support.memory_cluster import MemoryCluster
from tests.support.raw import NOW, job

STANDBY = '{"v":1,"standby":true}'


class RefusingCluster(MemoryCluster):
    """Refuses to create or change what `refuses` says, also in a dry run; and to delete what `keeps` says."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: dict[Resource, ApiError] = {}
        self.keeps: dict[Resource, ApiError] = {}

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        if resource in self.refuses:
            raise self.refuses[resource]
        return await super().create(resource, namespace, body, dry_run=dry_run)

    async def patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> Json:
        if resource in self.refuses:
            raise self.refuses[resource]
        return await super().patch(resource, namespace, name, operations)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, version: str = "", grace: int | None = None
    ) -> None:
        if resource in self.keeps:
            raise self.keeps[resource]
        await super().delete(resource, namespace, name, uid=uid, version=version, grace=grace)


class Desk:
    """One job, and an actor to give plans to."""

    def __init__(self, cluster: RefusingCluster | None = None) -> None:
        self.cluster = cluster or RefusingCluster()
        self.cache = Cache()
        self.memory = Memory()
        self.actor = Actor(self.cluster, self.cache, instance="me", clock=lambda: NOW)
        asyncio.run(self.cluster.create(JOBS, "ns", job()))
        self.cluster.writes.clear()

    def snapshot(self) -> Snapshot:
        observer = Observer(self.cluster, self.cache, clock=lambda: NOW)
        seen = asyncio.run(observer.observe(("ns", "digits")))
        assert seen
        return seen

    def act(self, *actions: Any, seen: Snapshot | None = None, **plan: Any) -> None:
        asyncio.run(self.actor.act(seen or self.snapshot(), Decision(actions=actions, **plan), self.memory))

    def get(self, resource: Resource, name: str) -> Json:
        return asyncio.run(self.cluster.get(resource, "ns", name))

    def pods(self) -> list[Json]:
        return asyncio.run(self.cluster.list(PODS, "ns"))

    def name(self, number: int | None = None) -> str:
        base = f"digits-{self.snapshot().uid[:4]}"
        return base if number is None else f"{base}-{number}"


def test_status_comes_first_and_events_last() -> None:
    desk = Desk()
    sent: list[str] = []
    desk.cluster.watch = lambda kind, resource, _raw: sent.append(f"{kind} {resource.plural}")
    status = TrainingJobStatus(phase=Phase.STARTING, next=NextRun(run=1, members=(desk.name(0),)))
    event = JobEvent(reason="R", message="m")
    desk.act(SetBudget(min_available=1), CreatePod(name=desk.name(0)), status=status, events=(event,))
    assert sent == ["MODIFIED trainingjobs", "ADDED poddisruptionbudgets", "ADDED pods", "ADDED events"]


def test_nothing_is_written_after_a_status_that_another_writer_has_changed() -> None:
    desk = Desk()
    seen = desk.snapshot()
    desk.cluster.change(JOBS, "ns", "digits", lambda raw: raw["spec"].update(replicas=3))
    with pytest.raises(Conflict):
        desk.act(CreatePod(name=desk.name(0)), status=TrainingJobStatus(run=1), seen=seen)
    assert desk.cluster.writes == []


def test_no_status_is_written_to_another_job_of_that_name_and_version() -> None:
    """As a restored etcd may have one: its versions start again."""
    desk = Desk()
    earlier = desk.snapshot().model_copy(update={"uid": "of-an-earlier-job"})
    with pytest.raises(Conflict):
        desk.act(status=TrainingJobStatus(run=1), seen=earlier)
    assert desk.cluster.writes == []


def test_a_refusal_is_remembered_until_it_is_overcome() -> None:
    desk = Desk()
    desk.cluster.refuses[PODS] = Forbidden("exceeded quota", reason="Forbidden")
    with pytest.raises(Forbidden):
        desk.act(CreatePod(name=desk.name(0)), CreatePod(name=desk.name(1)), SetBudget(min_available=1))
    assert list(desk.memory.refusals) == [desk.name(0), desk.name(1)]
    assert desk.cluster.writes == [f"create poddisruptionbudgets {desk.name()}"]
    del desk.cluster.refuses[PODS]
    desk.act(CreatePod(name=desk.name(0)), CreatePod(name=desk.name(1)))
    assert desk.memory.refusals == {}


def test_events_of_a_status_that_was_written_are_sent_even_if_an_action_fails() -> None:
    desk = Desk()
    desk.cluster.refuses[PODS] = Unavailable("gone")
    with pytest.raises(Unavailable):
        desk.act(
            CreatePod(name=desk.name(0)), status=TrainingJobStatus(run=1), events=(JobEvent(reason="R", message="m"),)
        )
    (event,) = asyncio.run(desk.cluster.list(EVENTS, "ns"))
    assert event["reason"] == "R"


def test_an_event_that_cannot_be_sent_stops_nothing() -> None:
    desk = Desk()
    desk.cluster.refuses[EVENTS] = Forbidden("no")
    desk.act(CreatePod(name=desk.name(0)), events=(JobEvent(reason="R", message="m"),))
    assert desk.get(PODS, desk.name(0))


def test_an_api_server_that_does_not_answer_is_not_asked_to_take_the_other_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk()
    desk.cluster.refuses[EVENTS] = Unavailable("no answer in 10 s")
    events = tuple(JobEvent(reason="R", message=str(number)) for number in range(5))
    desk.act(events=events)
    assert len(caplog.records) == 1
    del desk.cluster.refuses[EVENTS]
    desk.act(events=events)
    assert len(asyncio.run(desk.cluster.list(EVENTS, "ns"))) == 5


def test_the_same_event_is_sent_once() -> None:
    desk = Desk()
    for _ in range(3):
        desk.act(events=(JobEvent(reason="R", message="m"), JobEvent(reason="R", message="other")))
    assert len(asyncio.run(desk.cluster.list(EVENTS, "ns"))) == 2


def test_a_pod_that_is_there_already_counts_as_created_if_it_is_ours() -> None:
    desk = Desk()
    desk.act(CreatePod(name=desk.name(0)))
    uid = desk.get(PODS, desk.name(0))["metadata"]["uid"]
    desk.act(CreatePod(name=desk.name(0)))
    assert desk.get(PODS, desk.name(0))["metadata"]["uid"] == uid


def test_a_strangers_pod_is_left_alone_and_named() -> None:
    desk = Desk()
    stranger = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": desk.name(0)}, "spec": {}}
    asyncio.run(desk.cluster.create(PODS, "ns", stranger))
    with pytest.raises(AlreadyExists):
        desk.act(CreatePod(name=desk.name(0)))
    refusal = desk.memory.refusals[desk.name(0)]
    assert refusal.kind is RefusalKind.NAME_TAKEN
    assert "delete or rename it" in refusal.message


@pytest.mark.parametrize("old", [STANDBY, ""])
def test_role_and_assignment_change_together(old: str) -> None:
    desk = Desk()
    desk.act(CreatePod(name=desk.name(0)))
    uid = desk.get(PODS, desk.name(0))["metadata"]["uid"]
    desk.act(Assign(name=desk.name(0), uid=uid, role="member", old=old, new='{"v":1}'))
    metadata = desk.get(PODS, desk.name(0))["metadata"]
    assert metadata["annotations"][ANNOTATION_ASSIGNMENT] == '{"v":1}'
    assert metadata["labels"][LABEL_ROLE] == "member"


@pytest.mark.parametrize("change", [{"old": "what it was long ago"}, {"uid": "another"}, {"name": "nobody"}])
def test_an_assignment_that_rests_on_old_news_is_a_conflict(change: dict[str, str]) -> None:
    desk = Desk()
    desk.act(CreatePod(name=desk.name(0)))
    uid = desk.get(PODS, desk.name(0))["metadata"]["uid"]
    action = {"name": desk.name(0), "uid": uid, "role": "member", "old": STANDBY, "new": "x"} | change
    with pytest.raises(Conflict):
        desk.act(Assign(**action))
    assert desk.get(PODS, desk.name(0))["metadata"]["labels"][LABEL_ROLE] == "standby"


def member(desk: Desk, number: int = 0) -> dict[str, Any]:
    """A pod of the job's, as its name and uid."""
    desk.act(CreatePod(name=desk.name(number)))
    return {"name": desk.name(number), "uid": desk.get(PODS, desk.name(number))["metadata"]["uid"]}


@pytest.mark.parametrize("role", ["member", None])
def test_a_role_that_was_changed_meanwhile_is_a_conflict(role: str | None) -> None:
    desk = Desk()
    pod, seen = member(desk), desk.snapshot()
    other = {LABEL_ROLE: role} if role else {}
    desk.cluster.change(PODS, "ns", pod["name"], lambda raw: raw["metadata"].update(labels=other))
    with pytest.raises(Conflict):
        desk.act(Assign(**pod, role="former", old=STANDBY, new="x"), seen=seen)


def test_where_the_label_is_gone_the_pods_version_has_to_be_the_one_that_was_seen() -> None:
    desk = Desk()
    pod = member(desk)
    kept = {LABEL_JOB: "digits"}
    desk.cluster.change(PODS, "ns", pod["name"], lambda raw: raw["metadata"].update(labels=kept))
    seen = desk.snapshot()
    desk.act(Assign(**pod, role="member", old=STANDBY, new="x"), seen=seen)
    assert desk.get(PODS, pod["name"])["metadata"]["labels"][LABEL_ROLE] == "member"
    with pytest.raises(Conflict):
        desk.act(Assign(**pod, role="former", old="x", new="y"), seen=seen)


def test_a_pod_that_has_changed_since_it_was_seen_is_not_deleted() -> None:
    desk = Desk()
    pod, seen = member(desk), desk.snapshot()
    desk.cluster.change(PODS, "ns", pod["name"], lambda raw: raw["metadata"]["labels"].update({LABEL_ROLE: "member"}))
    with pytest.raises(Conflict):
        desk.act(DeletePod(**pod), seen=seen)
    assert desk.get(PODS, pod["name"])


@pytest.mark.parametrize("gone", [False, True])
def test_a_round_that_leaves_status_as_it_is_rests_on_the_very_job_it_was_decided_about(gone: bool) -> None:
    desk = Desk()
    pod, seen = member(desk), desk.snapshot()
    if gone:
        desk.cluster.remove(JOBS, "ns", "digits")
    else:
        desk.cluster.change(JOBS, "ns", "digits", lambda raw: raw.update(status={"run": 2}))
    desk.cluster.writes.clear()
    for action in (
        Assign(**pod, role="former", old=STANDBY, new="x"),
        DeletePod(**pod),
        SetBudget(min_available=1),
        CreatePod(name=desk.name(1) if not gone else "x"),
        DeleteJob(uid=seen.uid),
    ):
        with pytest.raises(Conflict):
            desk.act(action, seen=seen)
    assert desk.cluster.writes == []


def test_a_leader_that_may_have_been_deposed_writes_nothing() -> None:
    desk = Desk()
    leading = iter([True, True, False, False])
    desk.actor = Actor(desk.cluster, desk.cache, instance="me", still_leading=lambda: next(leading))
    with pytest.raises(Conflict, match="Lease"):
        desk.act(SetBudget(min_available=1), CreatePod(name=desk.name(0)), status=TrainingJobStatus(run=1))
    assert desk.cluster.writes == ["status trainingjobs digits", f"create poddisruptionbudgets {desk.name()}"]
    with pytest.raises(Conflict, match="Lease"):
        desk.act(status=TrainingJobStatus(run=2))
    assert len(desk.cluster.writes) == 2


def test_a_name_that_may_have_been_used_is_distinguished_from_one_that_was_refused() -> None:
    desk = Desk()
    names = [desk.name(number) for number in range(3)]
    desk.act(CreatePod(name=names[0]), status=TrainingJobStatus(next=NextRun(run=1, members=tuple(names))))
    desk.cluster.refuses[PODS] = Forbidden("exceeded quota", reason="Forbidden")
    with pytest.raises(Forbidden):
        desk.act(CreatePod(name=names[1]))
    desk.cluster.refuses[PODS] = Unavailable("no answer")
    with pytest.raises(Unavailable):
        desk.act(CreatePod(name=names[2]))
    assert desk.memory.created == {names[0], names[2]}
    assert desk.memory.allotted == set(names)


def test_names_that_another_process_has_allotted_are_not_this_ones() -> None:
    desk = Desk()
    desk.cluster.watch = lambda _kind, resource, raw: desk.cache.apply(resource, raw)
    before = TrainingJobStatus(next=NextRun(run=1, members=(desk.name(0),)))
    desk.cluster.change(
        JOBS, "ns", "digits", lambda raw: raw.update(status=before.model_dump(mode="json", by_alias=True))
    )
    desk.act(status=TrainingJobStatus(next=NextRun(run=1, members=(desk.name(0), desk.name(1)))))
    assert desk.memory.allotted == {desk.name(1)}


def test_the_name_of_a_spare_is_this_processes_own_also_once_a_run_has_taken_it() -> None:
    desk = Desk()
    desk.act(status=TrainingJobStatus(spares=Spares(names=(desk.name(0),))))
    desk.act(status=TrainingJobStatus(next=NextRun(run=1, members=(desk.name(0), desk.name(1)))))
    assert desk.memory.allotted == {desk.name(0), desk.name(1)}


def test_a_refused_assignment_is_remembered_until_it_is_accepted() -> None:
    desk = Desk()
    pod = member(desk)
    told = Assign(**pod, role="member", old=STANDBY, new="x")
    desk.cluster.refuses[PODS] = Forbidden('webhook "w" denied', reason="Forbidden")
    with pytest.raises(Forbidden):
        desk.act(told)
    (refusal,) = desk.memory.refusals.values()
    assert (refusal.pod, refusal.kind) == (pod["name"], "PatchRefused")
    assert 'webhook "w" denied' in refusal.message
    assert refusal.until is not None
    assert (refusal.until - NOW).total_seconds() > LONGEST_SECONDS  # one that is tried again is refused all the time
    del desk.cluster.refuses[PODS]
    desk.act(told)
    assert desk.memory.refusals == {}


@pytest.mark.parametrize("error", [Forbidden, Invalid])
def test_a_refused_deletion_is_remembered_until_it_is_allowed(error: type[ApiError]) -> None:
    desk = Desk()
    pod = member(desk)
    desk.act(SetBudget(min_available=1))
    budget = desk.snapshot().budget
    assert budget
    gone = (DeletePod(**pod), DeleteBudget(uid=budget.uid), DeleteJob(uid=desk.snapshot().uid))
    for resource in (PODS, BUDGETS, JOBS):
        desk.cluster.keeps[resource] = error('webhook "w" denied')
    seen = desk.snapshot()
    with pytest.raises(error):
        desk.act(*gone, seen=seen)
    refusals = desk.memory.refused_deletions
    assert {uid: one.pod for uid, one in refusals.items()} == {
        pod["uid"]: pod["name"],
        budget.uid: desk.name(),
        seen.uid: "digits",
    }
    assert {one.kind for one in refusals.values()} == {"DeletionRefused"}
    assert all(one.until and (one.until - NOW).total_seconds() > LONGEST_SECONDS for one in refusals.values())
    desk.cluster.keeps.clear()
    desk.act(*gone, seen=seen)
    assert refusals == {}


def test_a_deletion_that_came_too_late_is_no_refusal() -> None:
    desk = Desk()
    pod, seen = member(desk), desk.snapshot()
    desk.cluster.change(PODS, "ns", pod["name"], lambda raw: raw["metadata"].update(labels={"touched": "yes"}))
    with pytest.raises(Conflict):
        desk.act(DeletePod(**pod), seen=desk.snapshot().model_copy(update={"pods": seen.pods}))
    assert desk.memory.refused_deletions == {}


def test_a_refusal_that_differs_by_its_requests_id_and_time_keeps_its_words() -> None:
    """Each try would write status otherwise."""
    desk = Desk()
    pod = member(desk)
    told = Assign(**pod, role="member", old=STANDBY, new="x")
    first = 'webhook "w" denied request 7f3a-91 at 12:00:01Z: 2 owners'
    words = (first, 'webhook "w" denied request 0b77-44 at 12:00:09Z: 2 owners', 'webhook "v" denied')
    for said, shown in zip(words, (first, first, words[2]), strict=True):
        desk.cluster.refuses[PODS] = desk.cluster.keeps[PODS] = Forbidden(said)
        for action in (told, DeletePod(**pod)):
            with pytest.raises(Forbidden):
                desk.act(action)
        assert [one.message for one in desk.memory.refusals.values()] == [shown]
        assert [one.message for one in desk.memory.refused_deletions.values()] == [shown]


def test_removed_labels_come_back_with_the_next_patch() -> None:
    desk = Desk()
    pod, labels = member(desk), names.labels("digits", desk.snapshot().uid)
    seen = desk.snapshot()
    stripped = seen.pods[0].model_copy(update={"labelled": False})
    desk.cluster.change(PODS, "ns", pod["name"], lambda raw: [raw["metadata"]["labels"].pop(name) for name in labels])
    told = Assign(**pod, role="member", old=STANDBY, new=STANDBY)
    desk.act(told, seen=seen.model_copy(update={"pods": (stripped,)}))
    assert desk.get(PODS, pod["name"])["metadata"]["labels"].items() >= labels.items()


def test_a_pod_that_has_lost_every_label_and_annotation_gets_its_own_back() -> None:
    desk = Desk()
    pod = member(desk)
    desk.cluster.change(
        PODS, "ns", pod["name"], lambda raw: [raw["metadata"].pop(name) for name in ("labels", "annotations")]
    )
    seen = desk.snapshot()
    stripped = parse.pod(desk.get(PODS, pod["name"]))
    desk.act(Assign(**pod, role="member", old="", new="x"), seen=seen.model_copy(update={"pods": (stripped,)}))
    metadata = desk.get(PODS, pod["name"])["metadata"]
    assert metadata["labels"] == names.labels("digits", seen.uid) | {LABEL_ROLE: "member"}
    assert metadata["annotations"] == {ANNOTATION_ASSIGNMENT: "x"}


def _marks(desk: Desk) -> dict[str, str]:
    (pod,) = desk.pods()
    return {key: value for key, value in pod["metadata"]["annotations"].items() if "/a" in key}


def test_marks_are_given_and_taken_away_and_nothing_else_is() -> None:
    desk = Desk()
    desk.act(CreatePod(name=desk.name(0)))
    uid, given = desk.pods()[0]["metadata"]["uid"], {"x.io/a": "1", "y.io/a~b": "2"}
    before = _marks(desk)
    desk.act(Mark(name=desk.name(0), uid=uid, old={}, new=given))
    assert _marks(desk) == before | given
    desk.act(Mark(name=desk.name(0), uid=uid, old=given, new={"x.io/a": "3"}))
    assert _marks(desk) == before | {"x.io/a": "3"}


@pytest.mark.parametrize(("uid", "old"), [("another", {"x.io/a": "1"}), (None, {"x.io/a": "0"})])
def test_marks_that_rest_on_old_news_are_a_conflict(uid: str | None, old: dict[str, str]) -> None:
    desk = Desk()
    desk.act(CreatePod(name=desk.name(0)))
    known = desk.pods()[0]["metadata"]["uid"]
    desk.act(Mark(name=desk.name(0), uid=known, old={}, new={"x.io/a": "1"}))
    with pytest.raises(Conflict):
        desk.act(Mark(name=desk.name(0), uid=uid or known, old=old, new={}))
    assert _marks(desk)["x.io/a"] == "1"


def test_who_refuses_marks_stops_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.act(CreatePod(name=desk.name(0)))
    uid = desk.pods()[0]["metadata"]["uid"]
    desk.cluster.refuses[PODS] = Forbidden("a webhook says no", reason="Forbidden")
    desk.act(Mark(name=desk.name(0), uid=uid, old={}, new={"x.io/a": "1"}), DeletePod(name=desk.name(0), uid=uid))
    assert "its annotations stay as they are: a webhook says no" in caplog.text
    assert desk.pods() == []


def test_a_pod_may_be_given_another_grace_than_its_own() -> None:
    desk = Desk()
    for pod, grace in zip(crowd(desk, 2), (5, None), strict=True):
        desk.cluster.change(PODS, "ns", pod["name"], lambda raw: raw["spec"].update(nodeName="n1"))
        desk.act(DeletePod(**pod, grace=grace))
    graces = [desk.get(PODS, desk.name(number))["metadata"]["deletionGracePeriodSeconds"] for number in (0, 1)]
    assert graces == [5, 120]


class SlowCluster(RefusingCluster):
    """Answers writes to pods only when nothing else is ready; counts those in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = self.most_at_once = 0

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        async with self._turn():
            return await super().create(resource, namespace, body, dry_run=dry_run)

    async def patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> Json:
        async with self._turn():
            return await super().patch(resource, namespace, name, operations)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, version: str = "", grace: int | None = None
    ) -> None:
        async with self._turn():
            await super().delete(resource, namespace, name, uid=uid, version=version, grace=grace)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        await asyncio.sleep(0)
        yield
        self.under_way -= 1


def crowd(desk: Desk, size: int) -> list[dict[str, Any]]:
    desk.act(*(CreatePod(name=desk.name(number)) for number in range(size)))
    names = [desk.name(number) for number in range(size)]
    return [{"name": name, "uid": desk.get(PODS, name)["metadata"]["uid"]} for name in names]


def test_writes_to_pods_go_out_together_but_not_all_at_once() -> None:
    desk = Desk(SlowCluster())
    pods = crowd(desk, 40)
    assert isinstance(desk.cluster, SlowCluster)
    assert desk.cluster.most_at_once == AT_ONCE
    desk.cluster.most_at_once = 0
    desk.act(*(Assign(**pod, role="member", old=STANDBY, new="x") for pod in pods))
    assert desk.cluster.most_at_once == AT_ONCE
    assert {desk.get(PODS, pod["name"])["metadata"]["labels"][LABEL_ROLE] for pod in pods} == {"member"}
    desk.cluster.most_at_once = 0
    desk.act(*(DeletePod(**pod) for pod in pods))
    assert desk.cluster.most_at_once == AT_ONCE
    assert asyncio.run(desk.cluster.list(PODS, "ns")) == []


def test_an_assignment_that_fails_holds_up_its_own_pod_alone() -> None:
    desk = Desk(SlowCluster())
    pods = crowd(desk, 40)
    actions = [Assign(**pod, role="former", old=STANDBY, new="x") for pod in pods]
    actions[3] = actions[3].model_copy(update={"old": "what it was long ago"})
    with pytest.raises(Conflict):
        desk.act(*actions, DeletePod(**pods[3]), DeletePod(**pods[-1]))
    left = {pod["metadata"]["name"]: pod["metadata"]["labels"][LABEL_ROLE] for pod in desk.pods()}
    assert left == {pod["name"]: "standby" if pod is pods[3] else "former" for pod in pods[:-1]}


def test_nothing_that_rests_on_the_budget_is_written_while_it_cannot_be() -> None:
    desk = Desk()
    pods = crowd(desk, 2)
    desk.cluster.refuses[BUDGETS] = Forbidden("no budgets here", reason="Forbidden")
    desk.cluster.writes.clear()
    with pytest.raises(Forbidden, match="no budgets"):
        desk.act(
            SetBudget(min_available=3),
            CreatePod(name=desk.name(2)),
            Assign(**pods[0], role="member", old=STANDBY, new="x"),
            Assign(**pods[1], role="standby", old=STANDBY, new="x"),
        )
    assert desk.cluster.writes == [f"patch pods {pods[1]['name']}"]


def test_what_is_created_apart_waits_for_the_former_it_keeps_away_from() -> None:
    desk = Desk()
    pods = crowd(desk, 1)
    former = Assign(**pods[0], role="former", old="what it was long ago", new="x")
    with pytest.raises(Conflict):
        desk.act(former, CreatePod(name=desk.name(1), apart=True))
    with pytest.raises(Conflict):
        desk.act(former, CreatePod(name=desk.name(2)))
    assert [pod["metadata"]["name"] for pod in desk.pods()] == [desk.name(0), desk.name(2)]


def test_a_server_that_gives_no_answer_is_not_asked_for_the_rest_of_the_round() -> None:
    desk = Desk()
    pods = crowd(desk, 2)
    desk.cluster.refuses[PODS] = Unavailable("no answer in 10 s")
    desk.cluster.writes.clear()
    with pytest.raises(Unavailable):
        desk.act(Assign(**pods[0], role="standby", old=STANDBY, new="x"), SetBudget(min_available=1))
    assert desk.cluster.writes == []


class ThrottledCluster(RefusingCluster):
    """Has a word of its own for each pod."""

    def __init__(self, words: dict[str, ApiError]) -> None:
        super().__init__()
        self.words = words

    async def patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> Json:
        if error := self.words.get(name[-1]):
            raise error
        return await super().patch(resource, namespace, name, operations)


def test_of_several_refusals_the_one_that_says_when_to_come_again_counts() -> None:
    desk = Desk(ThrottledCluster({"0": Forbidden("no"), "1": Unavailable("too many requests", retry_after=7.0)}))
    pods = crowd(desk, 2)
    with pytest.raises(Unavailable) as caught:
        desk.act(*(Assign(**pod, role="standby", old=STANDBY, new="x") for pod in pods))
    assert caught.value.retry_after == 7.0


def test_when_to_come_again_counts_also_where_the_lease_grew_too_old_in_the_round() -> None:
    desk = Desk(ThrottledCluster({"0": Unavailable("too many requests", retry_after=7.0)}))
    told = [Assign(**pod, role="standby", old=STANDBY, new="x") for pod in crowd(desk, 2)]
    leading = iter([True, True, False])
    desk.actor = Actor(desk.cluster, desk.cache, instance="me", still_leading=lambda: next(leading))
    with pytest.raises(Unavailable) as caught:
        desk.act(*told, SetBudget(min_available=1))
    assert caught.value.retry_after == 7.0


def test_a_pod_is_deleted_in_the_version_that_the_same_round_has_given_it() -> None:
    desk = Desk()
    (pod,) = crowd(desk, 1)
    desk.act(Assign(**pod, role="former", old=STANDBY, new="x"), DeletePod(**pod))
    assert desk.pods() == []


def test_a_dry_run_comes_last() -> None:
    desk = Desk()
    desk.cluster.refuses[PODS] = Unavailable("failed calling webhook", status=500)
    with pytest.raises(Unavailable):
        desk.act(CheckTemplate(), SetBudget(min_available=1))
    assert desk.cluster.writes == [f"create poddisruptionbudgets {desk.name()}"]


def test_a_pod_is_deleted_by_uid_and_only_once() -> None:
    desk = Desk()
    desk.act(CreatePod(name=desk.name(0)))
    uid = desk.get(PODS, desk.name(0))["metadata"]["uid"]
    with pytest.raises(Conflict):
        desk.act(DeletePod(name=desk.name(0), uid="another"))
    desk.act(DeletePod(name=desk.name(0), uid=uid), DeletePod(name=desk.name(0), uid=uid))
    assert asyncio.run(desk.cluster.list(PODS, "ns")) == []


def test_a_budget_is_created_raised_and_deleted() -> None:
    desk = Desk()
    desk.act(SetBudget(min_available=1))
    budget = desk.snapshot().budget
    assert budget
    desk.act(SetBudget(min_available=2, uid=budget.uid, resource_version=budget.resource_version))
    raised = desk.snapshot().budget
    assert raised
    assert raised.min_available == 2
    desk.act(DeleteBudget(uid=budget.uid), DeleteBudget(uid=budget.uid))
    assert desk.snapshot().budget is None


def test_an_edited_budget_is_restored_whole() -> None:
    desk = Desk()
    desk.act(SetBudget(min_available=1))
    other = {"maxUnavailable": "100%", "selector": {}}
    desk.cluster.change(BUDGETS, "ns", desk.name(), lambda raw: raw.update(spec=other))
    asyncio.run(Observer(desk.cluster, desk.cache).sync())
    edited = desk.snapshot().budget
    assert edited
    assert edited.altered
    desk.act(SetBudget(min_available=2, uid=edited.uid, resource_version=edited.resource_version))
    assert desk.get(BUDGETS, desk.name())["spec"] == manifests.budget(desk.snapshot(), 2)["spec"]


def test_a_budget_that_changed_meanwhile_is_read_again() -> None:
    desk = Desk()
    desk.act(SetBudget(min_available=1))
    old = desk.snapshot().budget
    assert old
    desk.cluster.change(BUDGETS, "ns", desk.name(), lambda raw: raw["metadata"].update(labels={"touched": "yes"}))
    with pytest.raises(Conflict):
        desk.act(SetBudget(min_available=2, uid=old.uid, resource_version=old.resource_version))
    new = desk.snapshot().budget
    assert new
    desk.act(SetBudget(min_available=2, uid=new.uid, resource_version=new.resource_version))


def test_who_refuses_to_let_the_budget_be_raised_is_remembered_until_it_could_be() -> None:
    desk = Desk()
    desk.act(SetBudget(min_available=1))
    budget = desk.snapshot().budget
    assert budget
    raised = SetBudget(min_available=2, uid=budget.uid, resource_version=budget.resource_version)
    desk.cluster.refuses[BUDGETS] = Forbidden("poddisruptionbudgets is forbidden", reason="Forbidden")
    with pytest.raises(Forbidden):
        desk.act(raised)
    (refusal,) = desk.memory.refusals.values()
    assert (refusal.pod, refusal.kind) == (desk.name(), "PatchRefused")
    del desk.cluster.refuses[BUDGETS]
    desk.act(raised)
    assert desk.memory.refusals == {}


def test_a_budget_of_ours_with_another_number_is_a_conflict_and_not_lost() -> None:
    desk = Desk()
    desk.act(SetBudget(min_available=1))
    with pytest.raises(Conflict):
        desk.act(SetBudget(min_available=2))


@pytest.mark.parametrize(
    ("refusal", "verdict"),
    [
        (None, TemplateVerdict.GOOD),
        (Invalid('Pod "x" is invalid: spec.containers[0].image: Required value'), TemplateVerdict.BAD),
        (Forbidden('violates PodSecurity "restricted:latest": ...'), TemplateVerdict.BAD),
        (Forbidden("exceeded quota: compute"), TemplateVerdict.WAIT),
        (Forbidden("admission plugin of the site says no"), TemplateVerdict.WAIT),
    ],
)
def test_only_the_templates_own_faults_are_blamed_on_it(refusal: ApiError | None, verdict: TemplateVerdict) -> None:
    desk = Desk()
    if refusal:
        desk.cluster.refuses[PODS] = refusal
    desk.act(CheckTemplate())
    check = desk.memory.template_check
    assert (check.verdict, check.hash, check.time) == (verdict, desk.snapshot().template_hash, NOW)
    assert check.message == (str(refusal) if refusal else "")
    assert asyncio.run(desk.cluster.list(PODS, "ns")) == []


class WithoutTokens(RefusingCluster):
    """Admits no projected token: refuses such a pod, or takes the volume away from its dry run."""

    strips = False
    admits = False

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        if resource != PODS or self.admits or not reports(body):
            return await super().create(resource, namespace, body, dry_run=dry_run)
        if not self.strips:
            raise Forbidden("no ServiceAccount tokens here")
        made = copy.deepcopy(await super().create(resource, namespace, body, dry_run=dry_run))
        made["spec"]["volumes"] = [one for one in made["spec"]["volumes"] if one["name"] != names.REPORT_VOLUME]
        return made


def reports(pod: Json) -> bool:
    return any(volume["name"] == names.REPORT_VOLUME for volume in pod["spec"]["volumes"])


class ReportingDesk(Desk):
    """A desk whose operator takes reports."""

    def __init__(self, cluster: RefusingCluster) -> None:
        super().__init__(cluster)
        self.now = NOW
        self.actor = Actor(cluster, self.cache, instance="me", clock=lambda: self.now, channel=lambda: "{}")

    def creates(self, number: int) -> bool:
        """Whether that pod, once created, has a way to report."""
        self.act(CreatePod(name=self.name(number)))
        return reports(self.get(PODS, self.name(number)))


@pytest.mark.parametrize("strips", [False, True], ids=["refused", "taken away"])
def test_a_template_whose_pods_may_have_no_token_is_good_and_its_members_do_not_report(strips: bool) -> None:
    cluster = WithoutTokens()
    cluster.strips = strips
    desk = ReportingDesk(cluster)
    desk.act(CheckTemplate())
    assert desk.memory.template_check.verdict == TemplateVerdict.GOOD
    refused = desk.memory.channel_refused
    assert refused is not None
    words = "leaves a member without the volume perdure-report" if strips else "no ServiceAccount tokens here"
    assert words in refused.message
    assert not desk.creates(0)


def test_a_member_that_may_have_no_token_is_created_without_and_tried_with_it_after_an_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = WithoutTokens()
    desk = ReportingDesk(cluster)
    assert not desk.creates(0)
    assert desk.memory.refusals == {}
    assert desk.memory.created == {desk.name(0)}
    assert "digits: its new members cannot report for an hour, and train without: no Serv" in caplog.text
    cluster.admits = True
    assert not desk.creates(1)
    desk.now += timedelta(seconds=NO_CHANNEL_SECONDS)
    assert desk.creates(2)
    assert desk.memory.channel_refused is None


def test_a_member_that_is_refused_for_another_reason_is_tried_with_its_token_the_next_time() -> None:
    desk = ReportingDesk(RefusingCluster())
    desk.cluster.refuses[PODS] = Forbidden("exceeded quota")
    with pytest.raises(Forbidden, match="exceeded quota"):
        desk.creates(0)
    assert desk.memory.channel_refused is None
    assert desk.memory.refusals[desk.name(0)].message == "exceeded quota"
    desk.cluster.refuses.clear()
    assert desk.creates(0)


class RefusingOnce(RefusingCluster):
    """Refuses the next pods for these reasons, one for each request."""

    def __init__(self, *reasons: str) -> None:
        super().__init__()
        self.reasons = list(reasons)

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        if resource == PODS and self.reasons and reports(body):
            raise Forbidden(self.reasons.pop(0))
        return await super().create(resource, namespace, body, dry_run=dry_run)


PASSING = ['failed calling webhook "x": failed to call webhook: connection refused', "exceeded quota: q, requested: a"]


@pytest.mark.parametrize("reason", PASSING)
def test_what_passes_is_no_reason_to_create_a_member_without_its_token(reason: str) -> None:
    desk = ReportingDesk(RefusingOnce(reason))
    with pytest.raises(Forbidden):
        desk.creates(0)
    assert desk.pods() == []
    assert desk.memory.channel_refused is None
    assert desk.creates(0)


@pytest.mark.parametrize("then", [[], *([reason] for reason in PASSING)], ids=["admitted", "webhook", "quota"])
def test_the_token_is_blamed_only_if_it_is_refused_once_more(then: list[str]) -> None:
    desk = ReportingDesk(RefusingOnce("not yet ready to handle request", *then))
    assert not desk.creates(0)
    assert desk.memory.channel_refused is None
    assert desk.creates(1)
    assert desk.memory.refusals == {}


def test_a_token_that_is_refused_once_more_is_blamed_in_the_words_of_that_refusal() -> None:
    desk = ReportingDesk(RefusingOnce("not yet ready to handle request", "no ServiceAccount tokens here"))
    assert not desk.creates(0)
    assert desk.memory.channel_refused is not None
    assert "no ServiceAccount tokens here" in desk.memory.channel_refused.message


class Admission(RefusingCluster):
    """Webhooks make of each new pod what `mutates` says."""

    def __init__(self, mutates: Callable[[Json], None]) -> None:
        super().__init__()
        self._mutates = mutates

    async def create(self, resource: Resource, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        admitted = copy.deepcopy(body)
        if resource == PODS:
            self._mutates(admitted["spec"])
        return await super().create(resource, namespace, admitted, dry_run=dry_run)


def _put_first(spec: Json) -> None:
    spec["containers"].insert(0, {"name": "istio-proxy", "image": "proxy", "volumeMounts": [{"name": "token"}]})


def _rename(spec: Json) -> None:
    spec["containers"][0]["name"] = "other"


def _wrap(spec: Json) -> None:
    own = spec["containers"][0]
    own["command"], own["args"] = ["/vault/vault-env"], own["command"]


def _replace_command(spec: Json) -> None:
    spec["containers"][0]["command"] = ["python", "train.py"]


def _drop_volumes(spec: Json) -> None:
    spec["volumes"] = []


def _tell_elsewhere(spec: Json) -> None:
    spec["containers"][0]["terminationMessagePath"] = "/dev/other"


@pytest.mark.parametrize(
    ("mutates", "lacks"),
    [
        (_put_first, ""),
        (_rename, ""),
        (_wrap, ""),
        (_replace_command, "its agent: the command does not have 'perdure run --' any more"),
        (_drop_volumes, "the volume perdure-assignment, which shows its assignment"),
        (_tell_elsewhere, "terminationMessagePath /dev/termination-log, where it tells how it has ended"),
    ],
)
def test_admission_may_add_move_and_rename_containers_and_takes_nothing_that_the_agent_lives_by(
    mutates: Callable[[Json], None], lacks: str
) -> None:
    desk = Desk(Admission(mutates))
    desk.act(CheckTemplate())
    check = desk.memory.template_check
    assert check.verdict is (TemplateVerdict.WAIT if lacks else TemplateVerdict.GOOD)
    assert check.message == (
        f"admission (a webhook or a policy) leaves a member without {lacks}: exclude the job's pods" if lacks else ""
    )


def test_a_dry_run_without_an_answer_says_nothing_about_the_template() -> None:
    desk = Desk()
    desk.cluster.refuses[PODS] = Unavailable("timeout")
    with pytest.raises(Unavailable):
        desk.act(CheckTemplate())
    check = desk.memory.template_check
    assert (check.verdict, check.time) == (TemplateVerdict.UNKNOWN, NOW)


def test_a_job_is_deleted_by_uid() -> None:
    desk = Desk()
    uid = desk.snapshot().uid
    with pytest.raises(Conflict):
        desk.act(DeleteJob(uid="another"))
    desk.act(DeleteJob(uid=uid))
    assert asyncio.run(desk.cluster.list(JOBS)) == []
