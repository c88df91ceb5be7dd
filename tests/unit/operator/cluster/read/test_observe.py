"""Snapshots hold facts: absence counts only after a live LIST, and a node is gone only if the API server says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import wire
from perdure.errors import UserError
from perdure.wire import ANNOTATION_ASSIGNMENT, LABEL_JOB, LABEL_ROLE, Train, read_assignment
from perdure_operator.api.names import LABEL_UID
from perdure_operator.api.signal_rows import Reaction, SignalRow, SignalSource
from perdure_operator.api.status import Assigned, CurrentRun, RunPlan, TrainingJobStatus
from perdure_operator.cluster.protocol import BUDGETS, JOBS, NODES, PODS, Conflict, Json, Resource
from perdure_operator.cluster.read.observe import ELSEWHERE
from perdure_operator.cluster.write import manifests
from perdure_operator.state.snapshot import Refusal, RefusalKind, Snapshot
from tests.support.memory_cluster import MemoryCluster
from tests.support.raw import NOW, job, template
from tests.support.reporting import trains
from tests.support.stage import KEY, Stage

COMPLETED: Json = {
    "conditions": [
        {
            "type": "Completed",
            "status": "True",
            "reason": "Completed",
            "message": "",
            "lastTransitionTime": "2026-01-02T03:04:05Z",
        }
    ]
}


def naming(*members: str) -> Json:
    """A status that names these, of the two that were ever allocated."""
    return {"next": {"run": 1, "members": list(members)}, "nextMember": 2}


def stage() -> Stage:
    made = Stage()
    made.apply()
    asyncio.run(made.observer.sync())
    return made


def look(made: Stage) -> Snapshot:
    seen = asyncio.run(made.observer.observe(KEY))
    assert seen
    return seen


def create_pod(made: Stage, name: str, *, owner: str = "", node: str = "") -> None:
    owners = [{"uid": owner, "controller": True}] if owner else []
    metadata = {"name": name, "labels": {LABEL_JOB: "digits", "app": "x"}, "ownerReferences": owners}
    asyncio.run(made.cluster.create(PODS, "ns", {"metadata": metadata, "spec": {"nodeName": node}}))


def test_the_first_look_is_live_even_if_no_event_has_arrived() -> None:
    made = Stage()
    made.apply()
    made.cluster.watch = lambda *_: None  # the watch has not caught up
    create_pod(made, "digits-x-0")
    seen = look(made)
    assert [pod.name for pod in seen.pods] == ["digits-x-0"]
    assert seen.pods_complete


def test_between_writes_the_watch_is_enough() -> None:
    made = stage()
    look(made)
    create_pod(made, "digits-x-0")
    assert [pod.name for pod in look(made).pods] == ["digits-x-0"]
    made.cluster.watch = lambda *_: None
    create_pod(made, "digits-x-1")
    assert len(look(made).pods) == 1
    made.observer.distrust(KEY)
    assert len(look(made).pods) == 2


def test_a_deleted_pod_is_seen_as_gone_as_long_as_status_names_it() -> None:
    made = stage()
    uid = look(made).uid
    create_pod(made, "digits-x-0", owner=uid)
    create_pod(made, "digits-x-1", owner=uid)
    made.cluster.change(JOBS, *KEY, lambda raw: raw.update(status=naming("digits-x-0")))
    made.cluster.remove(PODS, "ns", "digits-x-0")
    made.cluster.remove(PODS, "ns", "digits-x-1")
    assert [(pod.name, pod.gone) for pod in look(made).pods] == [("digits-x-0", True)]
    made.cluster.change(JOBS, *KEY, lambda raw: raw.update(status=naming()))
    assert look(made).pods == ()


def test_pods_of_a_predecessor_and_without_an_owner_are_shown_too() -> None:
    made = stage()
    create_pod(made, "a", owner="predecessor")
    create_pod(made, "b")
    assert [pod.owner_uid for pod in look(made).pods] == ["predecessor", ""]


def test_a_node_that_no_event_has_shown_is_read() -> None:
    made = stage()
    made.cluster.watch = lambda _kind, resource, raw: made.cache.apply(resource, raw) if resource == PODS else None
    made.node("n1")
    create_pod(made, "a", node="n1")
    create_pod(made, "b", node="n2")
    assert [(node.name, node.exists) for node in look(made).nodes] == [("n1", True), ("n2", False)]


def test_nothing_is_known_of_nodes_before_they_have_been_listed() -> None:
    made = Stage()
    made.apply()
    assert not look(made).nodes_complete


def test_own_and_foreign_budgets_are_distinguished() -> None:
    made = stage()
    uid = look(made).uid
    create_pod(made, "a", owner=uid)
    own = manifests.budget(look(made), 1)
    for raw in (own, _budget("theirs", {"app": "x"}), _budget("others", {"app": "y"})):
        asyncio.run(made.cluster.create(BUDGETS, "ns", raw))
    seen = look(made)
    assert seen.budget
    assert seen.budget.min_available == 1
    assert seen.foreign_budgets == ("theirs",)


def test_anothers_budget_with_the_name_of_the_jobs_own_is_reported() -> None:
    made = stage()
    own = manifests.budget(look(made), 1)
    taken = _budget(own["metadata"]["name"], {"app": "y"})
    asyncio.run(made.cluster.create(BUDGETS, "ns", taken))
    assert (look(made).budget, look(made).foreign_budgets) == (None, (taken["metadata"]["name"],))


def sharing() -> Stage:
    """`another` and `digits` write to one root, and `another` has the better claim."""
    made = stage()
    asyncio.run(made.cluster.create(JOBS, "ns", job("another") | {"spec": job()["spec"]}))
    return made


def test_an_older_live_job_with_the_same_root_is_named() -> None:
    made = sharing()
    assert look(made).same_uri == ("ns/another",)  # created in the same second, and first by name
    assert _other(made, "another").same_uri == ()
    made.cluster.change(JOBS, "ns", "another", lambda raw: raw.update(status=COMPLETED))
    assert look(made).same_uri == ()


def test_a_phase_is_for_people_and_ends_nothing() -> None:
    made = sharing()
    made.cluster.change(JOBS, "ns", "another", lambda raw: raw.update(status={"phase": "Completed"}))
    assert look(made).same_uri == ("ns/another",)


def test_a_suspended_job_holds_its_root_as_long_as_it_has_members() -> None:
    made = sharing()
    made.cluster.change(JOBS, "ns", "another", lambda raw: raw.update(status=naming("m")))
    made.cluster.change(JOBS, "ns", "another", lambda raw: raw["spec"].update(suspend=True))
    assert look(made).same_uri == ("ns/another",)
    made.cluster.change(JOBS, "ns", "another", lambda raw: raw.update(status={}))
    assert look(made).same_uri == ()


def test_who_has_members_keeps_the_root_even_if_an_older_job_is_resumed() -> None:
    made = sharing()
    made.cluster.change(JOBS, *KEY, lambda raw: raw.update(status=naming("m")))
    assert look(made).same_uri == ()
    assert _other(made, "another").same_uri == ("ns/digits",)


def test_whose_run_is_on_keeps_the_root_before_an_older_job_that_has_members_for_its_next() -> None:
    made = sharing()
    plan = {"run": 1, "world": 1, "master": "10.0.0.1:29501", "seconds": 5, "wait": 0, "members": []}
    made.cluster.change(JOBS, *KEY, lambda raw: raw.update(status={"current": {"run": 1, "plan": plan}}))
    made.cluster.change(JOBS, "ns", "another", lambda raw: raw.update(status=naming("m")))
    assert look(made).same_uri == ()
    assert _other(made, "another").same_uri == ("ns/digits",)


def test_who_pauses_keeps_the_root_and_who_was_suspended_has_given_it_up() -> None:
    made, pausing = sharing(), {"run": 3, "startTime": "2026-01-02T03:04:05Z"}
    made.cluster.change(JOBS, *KEY, lambda raw: raw.update(status=pausing))
    made.cluster.change(JOBS, "ns", "another", lambda raw: raw.update(status={"run": 5}))
    assert look(made).same_uri == ()
    assert _other(made, "another").same_uri == ("ns/digits",)
    made.cluster.change(JOBS, *KEY, lambda raw: raw["spec"].update(suspend=True))
    assert _other(made, "another").same_uri == ()


def test_one_bucket_name_at_two_endpoints_is_not_one_root() -> None:
    made = sharing()
    endpoint = {"s3": {"endpoint": "http://elsewhere"}}
    made.cluster.change(JOBS, "ns", "another", lambda raw: raw["spec"]["checkpoint"].update(endpoint))
    assert look(made).same_uri == ()


def test_names_of_other_namespaces_are_not_shown() -> None:
    made = stage()
    for name in ("theirs", "theirs-too"):
        asyncio.run(made.cluster.create(JOBS, "a", job(name) | {"spec": job()["spec"]}))
    assert look(made).same_uri == (ELSEWHERE,)


def test_a_pod_that_the_budget_takes_for_a_member_and_that_is_not_ours_is_named() -> None:
    made = stage()
    uid = look(made).uid
    labels = {LABEL_JOB: "digits", LABEL_UID: uid, LABEL_ROLE: "member"}
    for name, given, owner in (
        ("own", labels, uid),
        ("foreign", labels, ""),
        ("standby", labels | {LABEL_ROLE: "standby"}, ""),
        ("predecessor", labels | {LABEL_UID: "older"}, "older"),
    ):
        owners = [{"uid": owner, "controller": True}] if owner else []
        body = {"metadata": {"name": name, "labels": given, "ownerReferences": owners}, "spec": {}}
        asyncio.run(made.cluster.create(PODS, "ns", body))
    assert look(made).foreign_pods == ("foreign",)


@pytest.mark.parametrize("taken_away", [True, False])
def test_a_member_whose_owner_was_removed_is_the_jobs_unless_its_job_is_deleted(taken_away: bool) -> None:
    made = stage()
    uid = look(made).uid
    labels = {LABEL_JOB: "digits", LABEL_UID: uid, LABEL_ROLE: "member"}
    for name in ("digits-x-0", "digits-x-1"):
        asyncio.run(made.cluster.create(PODS, "ns", {"metadata": {"name": name, "labels": labels}, "spec": {}}))
    uids = {pod.name: pod.uid for pod in look(made).pods}
    members = (Assigned(name="digits-x-0", uid=uids["digits-x-0"], rank=0),)
    plan = RunPlan(run=1, world=1, master="h:1", seconds=1, wait=0, members=members)
    status = TrainingJobStatus(current=CurrentRun(run=1, plan=plan)).model_dump(by_alias=True, mode="json")

    def change(raw: Json) -> None:
        raw.update(status=status)
        if not taken_away:
            raw["metadata"].update(deletionTimestamp="2026-01-02T03:04:05Z", finalizers=["orphan"])

    made.cluster.change(JOBS, *KEY, change)
    seen = look(made)
    assert [pod.owner_uid for pod in seen.pods] == [uid if taken_away else "", ""]
    assert seen.foreign_pods == (("digits-x-1",) if taken_away else ("digits-x-0", "digits-x-1"))


def test_a_job_that_was_created_again_is_read_live_at_first_sight() -> None:
    made = stage()
    look(made)
    made.cluster.remove(JOBS, *KEY)
    made.apply()  # the watch reports both before any look
    made.cluster.watch = lambda *_: None
    create_pod(made, "digits-x-0")
    seen = look(made)
    assert [pod.name for pod in seen.pods] == ["digits-x-0"]
    assert seen.pods_complete


def test_a_pod_that_names_a_newer_run_than_status_makes_the_job_be_read_live() -> None:
    made = stage()
    look(made)
    uid = look(made).uid
    made.cluster.watch = lambda _kind, resource, raw: made.cache.apply(resource, raw) if resource == PODS else None
    made.cluster.change(
        JOBS, *KEY, lambda raw: raw.update(status={"run": 2})
    )  # the next leader's; we do not hear of it
    text = wire.write_assignment(wire.Leave(2, "x", 5, ()))
    owner = {"uid": uid, "controller": True}
    metadata = {"name": "m", "labels": {LABEL_JOB: "digits"}, "ownerReferences": [owner]}
    metadata["annotations"] = {wire.ANNOTATION_ASSIGNMENT: text}
    asyncio.run(made.cluster.create(PODS, "ns", {"metadata": metadata, "spec": {}}))
    assert look(made).status.run == 2


def _asked_to_leave(made: Stage, name: str, run: int) -> None:
    """A pod assigned to this run, which is not current in status."""
    text = wire.write_assignment(wire.Leave(run, "x", 5, ()))
    owner = {"uid": look(made).uid, "controller": True}
    metadata = {"name": name, "labels": {LABEL_JOB: "digits"}, "ownerReferences": [owner]}
    metadata["annotations"] = {wire.ANNOTATION_ASSIGNMENT: text}
    asyncio.run(made.cluster.create(PODS, "ns", {"metadata": metadata, "spec": {}}))


def test_a_status_that_was_rolled_back_is_taken_as_it_is() -> None:
    made = stage()
    _asked_to_leave(made, "m", 2)
    assert look(made).status.run == 0


class ListingCluster(MemoryCluster):
    """Counts the LISTs of pods."""

    lists = 0

    async def list(self, resource: Resource, namespace: str | None = None, *, selector: str = "") -> list[Json]:
        self.lists += resource == PODS
        return await super().list(resource, namespace, selector=selector)


def test_a_pods_assignment_to_a_later_run_is_parsed_once_however_long_the_pod_stays() -> None:
    """A pod on an unreachable node may stay as long as the node is unreachable."""
    cluster = ListingCluster()
    made = Stage(cluster)
    made.apply()
    asyncio.run(made.observer.sync())
    _asked_to_leave(made, "m", 2)
    look(made)
    before = cluster.lists
    for _ in range(3):
        look(made)
    assert cluster.lists == before
    _asked_to_leave(made, "n", 3)
    look(made)
    assert cluster.lists == before + 1


class BehindCluster(MemoryCluster):
    """Another leader writes status and a pod between our GET of the job and our LIST of its pods."""

    meanwhile: Callable[[], object] | None = None

    async def list(self, resource: Resource, namespace: str | None = None, *, selector: str = "") -> list[Json]:
        if resource == PODS and self.meanwhile:
            self.meanwhile()
            self.meanwhile = None
        return await super().list(resource, namespace, selector=selector)


def test_pods_that_are_read_after_a_newer_status_was_written_are_not_decided_about() -> None:
    cluster = BehindCluster()
    made = Stage(cluster)
    made.apply()
    uid = look(made).uid
    create_pod(made, "m", owner=uid)
    text = wire.write_assignment(wire.Leave(2, "x", 5, ()))

    def promote() -> None:
        cluster.watch = lambda *_: None
        cluster.change(JOBS, *KEY, lambda raw: raw.update(status={"run": 2}))
        annotations = {wire.ANNOTATION_ASSIGNMENT: text}
        cluster.change(PODS, "ns", "m", lambda raw: raw["metadata"].update(annotations=annotations))

    made.observer.distrust(KEY)
    cluster.meanwhile = promote
    with pytest.raises(Conflict):
        look(made)
    assert look(made).status.run == 2


def test_an_edited_budget_is_seen_as_edited() -> None:
    made = stage()
    asyncio.run(made.cluster.create(BUDGETS, "ns", manifests.budget(look(made), 2)))
    name = f"digits-{look(made).uid[:4]}"

    def edit(**spec: Any) -> tuple[int, bool]:
        made.cluster.change(BUDGETS, "ns", name, lambda raw: raw["spec"].update(spec))
        budget = look(made).budget
        assert budget
        return budget.min_available, bool(budget.altered)

    assert edit() == (2, False)
    assert edit(minAvailable="50%") == (-1, True)
    assert edit(minAvailable=2) == (2, False)
    assert edit(maxUnavailable=1) == (2, True)


def test_nodes_are_counted_by_zone_whatever_runs_on_them() -> None:
    made = stage()
    for name, zone, ready in (("a1", "a", "True"), ("a2", "a", "True"), ("b1", "b", "False"), ("x", None, "Unknown")):
        labels = {"topology.kubernetes.io/zone": zone} if zone else {}
        status = {"conditions": [{"type": "Ready", "status": ready}]}
        asyncio.run(made.cluster.create(NODES, "", {"metadata": {"name": name, "labels": labels}, "status": status}))

    def zones() -> list[tuple[str, int, int]]:
        return [(zone.name, zone.ready, zone.not_ready) for zone in look(made).zones]

    assert zones() == [("", 0, 1), ("a", 2, 0), ("b", 0, 1)]
    made.cluster.change(NODES, "", "a1", lambda raw: raw["status"].update(conditions=[]))
    made.cluster.remove(NODES, "", "b1")
    assert zones() == [("", 0, 1), ("a", 1, 1)]


def test_a_refusal_is_forgotten_once_its_object_is_there_whatever_created_it() -> None:
    made = stage()
    seen = look(made)
    name = f"digits-{seen.uid[:4]}"
    made.cluster.change(JOBS, *KEY, lambda raw: raw.update(status=naming(f"{name}-0", f"{name}-1")))
    memory = made.observer.memory(seen.uid)
    for refused in (name, f"{name}-0", f"{name}-1", f"{name}-9"):
        memory.refusals[refused] = Refusal(pod=refused, message="quota")
    assert sorted(one.pod for one in look(made).refusals) == [name, f"{name}-0", f"{name}-1"]
    asyncio.run(made.cluster.create(BUDGETS, "ns", manifests.budget(seen, 2)))
    create_pod(made, f"{name}-0", owner=seen.uid)
    assert [one.pod for one in look(made).refusals] == [f"{name}-1"]


def test_a_refused_change_of_a_pod_is_forgotten_once_the_pod_is_gone() -> None:
    made, seen, name = _with_a_pod()
    refusal = Refusal(pod=name, kind=RefusalKind.PATCH_REFUSED, message="denied")
    made.observer.memory(seen.uid).refusals[name] = refusal
    assert look(made).refusals == (refusal,)
    made.cluster.remove(PODS, "ns", name)
    assert look(made).refusals == ()


def test_a_refused_change_is_forgotten_when_its_time_is_over_without_another_try() -> None:
    """Admission may allow it by now."""
    made, seen, name = _with_a_pod()
    memory = made.observer.memory(seen.uid)
    for seconds, left in ((1, [name]), (0, [])):
        until = seen.now + timedelta(seconds=seconds)
        memory.refusals[name] = Refusal(pod=name, kind=RefusalKind.PATCH_REFUSED, message="denied", until=until)
        assert [one.pod for one in look(made).refusals] == left


def test_a_refused_deletion_is_forgotten_once_the_pod_is_deleted_or_without_another_try() -> None:
    made, seen, name = _with_a_pod()
    uid = next(pod.uid for pod in look(made).pods if pod.name == name)
    memory = made.observer.memory(seen.uid)

    def refused(seconds: int) -> list[str]:
        until = seen.now + timedelta(seconds=seconds)
        refusal = Refusal(pod=name, kind=RefusalKind.DELETION_REFUSED, message="denied", until=until)
        memory.refused_deletions[uid] = refusal
        return [one.pod for one in look(made).refusals]

    assert (refused(1), refused(0)) == ([name], [])
    memory.refused_deletions["unknown"] = Refusal(pod="other", message="denied")
    assert refused(1) == [name]
    made.cluster.change(PODS, "ns", name, lambda raw: raw["metadata"].update(deletionTimestamp="2026-08-01T12:00:00Z"))
    assert refused(1) == []


def _with_a_pod() -> tuple[Stage, Snapshot, str]:
    """A job that has made one pod: the job as it was seen before, and the pod's name."""
    made = stage()
    seen = look(made)
    name = f"digits-{seen.uid[:4]}-0"
    made.cluster.change(JOBS, *KEY, lambda raw: raw.update(status=naming(name)))
    create_pod(made, name, owner=seen.uid)
    return made, seen, name


def _losing_its_label(made: Stage, name: str) -> None:
    """The watch is of pods with the label: it tells that this one was deleted."""
    raw = asyncio.run(made.cluster.get(PODS, "ns", name))
    watch, made.cluster.watch = made.cluster.watch, lambda *_: None
    made.cluster.change(PODS, "ns", name, lambda raw: raw["metadata"]["labels"].pop(LABEL_JOB))
    made.cluster.watch = watch
    raw["metadata"]["resourceVersion"] = str(int(raw["metadata"]["resourceVersion"]) + 1)
    watch("DELETED", PODS, raw)


def _member(made: Stage) -> str:
    """The pod of a run of one."""
    seen = look(made)
    name = f"digits-{seen.uid[:4]}-0"
    create_pod(made, name, owner=seen.uid)
    uid = asyncio.run(made.cluster.get(PODS, "ns", name))["metadata"]["uid"]
    plan = RunPlan(run=1, world=1, master="h:1", seconds=1, wait=0, members=(Assigned(name=name, uid=uid, rank=0),))
    status = TrainingJobStatus(current=CurrentRun(run=1, plan=plan)).model_dump(mode="json", by_alias=True)
    made.cluster.change(JOBS, *KEY, lambda raw: raw.update(status=status))
    look(made)
    return name


@pytest.mark.parametrize("deleting", [False, True], ids=["lives", "is being deleted"])
@pytest.mark.parametrize("process", ["saw it", "is new"])
def test_a_member_whose_label_was_removed_is_not_taken_for_gone(process: str, deleting: bool) -> None:
    made = stage()
    name = _member(made)
    if deleting:
        at = {"deletionTimestamp": "2026-01-02T03:04:35Z", "deletionGracePeriodSeconds": 30}
        made.cluster.change(PODS, "ns", name, lambda raw: raw["metadata"].update(at))
        assert look(made).pods[0].deleting
    _losing_its_label(made, name)
    if process == "is new":
        made = made.restarted()
        asyncio.run(made.observer.sync())
    (pod,) = look(made).pods
    assert (pod.name, pod.gone, pod.labelled) == (name, False, False)
    made.cluster.remove(PODS, "ns", name)
    assert [one.gone for one in look(made).pods] in ([True], [])


def test_names_that_this_process_has_allotted_are_reported_as_long_as_status_has_them() -> None:
    made = stage()
    memory = made.observer.memory(look(made).uid)
    memory.allotted |= {"digits-0", "digits-1"}
    made.cluster.change(JOBS, *KEY, lambda raw: raw.update(status=naming("digits-0")))
    assert look(made).allotted == ("digits-0",)


def test_the_names_of_spares_are_reported_and_their_pods_missed_as_those_of_the_next_members_are() -> None:
    made = stage()
    memory, uid = made.observer.memory(look(made).uid), look(made).uid
    memory.allotted |= {"digits-x-0", "digits-x-1"}
    create_pod(made, "digits-x-0", owner=uid)
    made.cluster.change(JOBS, *KEY, lambda raw: raw.update(status={"spares": {"names": ["digits-x-0"]}}))
    made.cluster.remove(PODS, "ns", "digits-x-0")
    seen = look(made)
    assert seen.allotted == ("digits-x-0",)
    assert [(pod.name, pod.gone) for pod in seen.pods] == [("digits-x-0", True)]


def test_a_signal_that_the_table_does_not_have_or_that_no_job_may_change_is_reported() -> None:
    made = stage()
    chosen = {"karpentr": "Ignore", "karpenter": "Ignore", "node-silence": "Ignore"}
    made.cluster.change(JOBS, *KEY, lambda raw: raw["spec"].update(disruption={"signals": chosen}))
    assert look(made).unknown_fields == (
        "spec.disruption.signals.karpentr",
        "spec.disruption.signals.node-silence",
    )


def test_rows_of_the_configuration_are_in_the_snapshot_and_decide_what_is_read_of_a_node() -> None:
    ours = SignalRow(name="ours", source=SignalSource.LABEL, key="example.com/going", reaction=Reaction.VACATE)
    node = {"metadata": {"name": "n1", "uid": "n", "labels": {"example.com/going": "soon", "other": "x"}}}
    made = Stage(signals=(ours,))
    made.apply()
    assert look(made).signals == (ours,)
    change = made.cache.apply(NODES, {**node, "metadata": {**node["metadata"], "resourceVersion": "1"}})
    assert change is not None
    known = made.cache.node("n1")
    assert known is not None
    assert known.view.labels == {"example.com/going": "soon"}
    renamed = {**node["metadata"], "labels": {"example.com/going": "soon", "other": "y"}, "resourceVersion": "2"}
    change = made.cache.apply(NODES, {"metadata": renamed})
    assert change is not None
    assert not change.matters


def test_fields_of_a_newer_crd_are_left_out_and_reported_once_for_each_generation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = stage()
    before = look(made).spec

    def write(value: int) -> None:
        made.cluster.change(JOBS, *KEY, lambda raw: raw["spec"].update(fromTheFuture=value))
        made.cluster.change(JOBS, *KEY, lambda raw: raw["spec"]["checkpoint"].update(later={"a": value}))

    write(1)
    assert look(made).spec == look(made).spec == before
    (told,) = [record.getMessage() for record in caplog.records]
    assert "ns/digits" in told
    assert "checkpoint.later, fromTheFuture" in told
    assert look(made).unknown_fields == ("spec.checkpoint.later", "spec.fromTheFuture")
    assert "matching" in told
    caplog.clear()
    write(2)
    look(made)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("field", "value"), [("replicas", "many"), ("checkpoint", None), ("checkpoint", {"later": 1})])
def test_a_spec_that_cannot_be_read_is_reported_and_not_guessed(field: str, value: Any) -> None:
    made = stage()
    made.cluster.change(JOBS, *KEY, lambda raw: raw["spec"].update({field: value, "fromTheFuture": 1}))
    with pytest.raises(UserError, match=rf"ns/digits: field {field}.*matching CRD"):
        look(made)


def _changed(**spec: Any) -> str:
    made = stage()
    uid = "3f2a0000-0000-4000-8000-000000000000"
    made.cluster.change(JOBS, *KEY, lambda raw: raw["metadata"].update(uid=uid))
    made.cluster.change(JOBS, *KEY, lambda raw: raw["spec"].update(spec))
    return look(made).template_hash


@pytest.mark.parametrize(
    "spec",
    [
        {"template": template(image="another")},
        {"processesPerReplica": 2},
        {"checkpoint": {"uri": "s3://bucket/digits", "keep": 9}},
        {"checkpoint": {"uri": "s3://bucket/digits", "everySteps": 5}},
        {"checkpoint": {"uri": "s3://bucket/digits", "s3": {"credentialsSecret": "keys"}}},
    ],
)
def test_whatever_makes_another_pod_changes_the_hash(spec: dict[str, Any]) -> None:
    assert _changed(**spec) != _changed()


@pytest.mark.parametrize("spec", [{"replicas": 7}, {"suspend": True}, {"failure": {"maxCodeFailures": 1}}])
def test_what_makes_the_same_pod_leaves_the_hash(spec: dict[str, Any]) -> None:
    assert _changed(**spec) == _changed()


def test_the_hash_does_not_depend_on_the_order_of_fields() -> None:
    container = template()["spec"]["containers"][0]
    turned = {"spec": {"containers": [dict(reversed(container.items()))]}}
    assert _changed(template=turned) == _changed(template=template())


def test_a_job_that_is_gone_is_none_and_its_pods_are_forgotten() -> None:
    made = stage()
    create_pod(made, "a")
    look(made)
    made.cluster.remove(PODS, "ns", "a")
    made.cluster.remove(JOBS, *KEY)
    made.observer.distrust(KEY)
    assert asyncio.run(made.observer.observe(KEY)) is None
    assert made.cache.gone(KEY) == []


def test_a_resync_notices_what_the_watch_has_missed() -> None:
    made = stage()
    made.node("n1")
    made.cluster.watch = lambda *_: None
    made.cluster.remove(NODES, "", "n1")
    made.cluster.remove(JOBS, *KEY)
    changed = asyncio.run(made.observer.sync())
    assert [(change.resource, change.after) for change in changed] == [(NODES, None), (JOBS, None)]
    assert made.cache.node("n1") is None
    assert made.cache.jobs() == []


def test_a_job_restored_to_an_older_version_is_seen_as_it_is() -> None:
    made = stage()
    older = asyncio.run(made.cluster.get(JOBS, *KEY))
    made.cluster.change(JOBS, *KEY, lambda raw: raw["spec"].update(replicas=3))
    assert look(made).spec.replicas == 3
    made.cluster.restore(JOBS, older)
    made.observer.distrust(KEY)
    assert look(made).spec.replicas == 2


def test_a_snapshot_survives_json() -> None:
    seen = look(stage())
    assert Snapshot.model_validate_json(seen.model_dump_json(by_alias=True, exclude_none=True)) == seen


def _other(made: Stage, name: str) -> Snapshot:
    seen = asyncio.run(made.observer.observe(("ns", name)))
    assert seen
    return seen


def _budget(name: str, labels: dict[str, str]) -> Json:
    spec: dict[str, Any] = {"minAvailable": 1, "selector": {"matchLabels": labels}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}


def _gang(made: Stage, name: str, **status: Any) -> None:
    made.cluster.change(JOBS, "ns", name, lambda raw: raw.update(status=status))


def _crowd(made: Stage) -> tuple[int, int]:
    """How many younger gangs the older job sees, and how many the younger one."""
    return _other(made, "another").younger_gangs, look(made).younger_gangs


def test_younger_jobs_that_hold_nodes_in_vain_or_have_let_go_of_them_are_counted() -> None:
    made = sharing()
    holds = {"run": 1, "members": ["m"], "inVainSince": NOW.isoformat()}
    assert _crowd(made) == (0, 0)
    for name in ("digits", "another"):
        _gang(made, name, next=holds)
    assert _crowd(made) == (1, 0)  # created in the same second, and the first by name is the older one
    _gang(made, "digits", next=holds | {"members": []})  # it is suspended
    assert _crowd(made) == (0, 0)
    _gang(made, "digits", gang={"attempts": 1, "until": (NOW + timedelta(seconds=60)).isoformat()})
    assert _crowd(made) == (1, 0)
    made.now = NOW + timedelta(seconds=60)
    assert _crowd(made) == (0, 0)
    _gang(made, "digits", next=holds)
    made.cluster.remove(JOBS, *KEY)
    assert _other(made, "another").younger_gangs == 0


def annotate(made: Stage, text: str) -> None:
    made.cluster.change(JOBS, *KEY, lambda raw: raw["metadata"].update(annotations={"perdure.dev/vacate": text}))


def test_a_word_of_a_person_on_the_job_is_a_reason_to_look_at_it() -> None:
    made = Stage()
    for name in ("n1", "n2", "n3"):
        made.node(name)
    made.apply()
    made.start()
    made.run_pods(["n1", "n2"])
    made.settle()
    annotate(made, "n1")
    made.settle()
    current = made.status().current
    assert current is not None
    assert current.intent is not None
    assert current.intent.cause == "the job's annotation perdure.dev/vacate names node n1"


def test_a_save_that_a_person_asks_for_reaches_the_members() -> None:
    made = Stage()
    for name in ("n1", "n2"):
        made.node(name)
    made.apply()
    made.start()
    made.run_pods(["n1", "n2"])
    made.settle()
    made.cluster.change(JOBS, *KEY, lambda raw: raw["metadata"].update(annotations={"perdure.dev/save": "now"}))
    made.settle()
    told = [read_assignment(pod["metadata"]["annotations"][ANNOTATION_ASSIGNMENT]) for pod in made.pods()]
    assert [one.save for one in told if isinstance(one, Train)] == [1, 1]


def test_a_name_to_vacate_that_is_neither_a_node_nor_a_member_is_reported() -> None:
    made = Stage()
    made.node("n1")
    made.apply()
    made.start()
    member = made.names()[0]
    past = f"{member.rpartition('-')[0]}-99"
    annotate(made, f"n1,{member},{past},n9,digits-0")
    assert [word.partition(" ")[0] for word in look(made).unknown_fields] == [
        f"perdure.dev/vacate={name}" for name in (past, "n9", "digits-0")
    ]


def _holds_up(made: Stage, namespace: str, name: str, node: str, *, named: bool = True) -> None:
    """A job there, of which a member on the node holds up the others."""
    known = {"name": f"{name}-1", "rank": 1, "ownPercent": 90, "othersPercent": 30, "since": NOW.isoformat()}
    stragglers = [known | {"node": node, "named": named}]
    progress = {"run": 1, "step": 5, "observedAt": NOW.isoformat(), "stragglers": stragglers}
    if (namespace, name) != KEY:
        asyncio.run(made.cluster.create(JOBS, namespace, job(name)))
    made.cluster.change(JOBS, namespace, name, lambda raw: raw.setdefault("status", {}).update(progress=progress))


def test_a_node_slows_jobs_if_it_holds_up_those_of_three_namespaces() -> None:
    made = trains()

    def slow() -> list[str]:
        return [node.name for node in look(made).nodes if node.slows_jobs]

    _holds_up(made, "a", "one", "n1")
    _holds_up(made, "a", "two", "n1")
    _holds_up(made, "b", "one", "n1")
    assert slow() == []
    _holds_up(made, "c", "one", "n1", named=False)
    _holds_up(made, "d", "one", "n2")
    assert slow() == []
    _holds_up(made, *KEY, "n1")
    assert slow() == ["n1"]
    made.cluster.remove(JOBS, "b", "one")
    assert slow() == []
