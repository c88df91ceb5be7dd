"""Late news never undo newer ones, a deleted pod's last state is remembered, and every index follows."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.wire import LABEL_JOB, LABEL_ROLE
from perdure_operator.api.names import LABEL_UID
from perdure_operator.cluster.protocol import BUDGETS, JOBS, NODES, PODS, Json
from perdure_operator.cluster.read.cache import Cache
from perdure_operator.cluster.read.deleted_objects import SPARE
from tests.support import raw as builders

JOB = ("ns", "digits")
P = ("ns", "p")


def pod(
    version: int,
    *,
    uid: str = "u",
    name: str = "p",
    node: str = "",
    owner: str = "",
    job: str = "digits",
    **status: Any,
) -> Json:
    metadata: Json = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version)}
    metadata["ownerReferences"] = [{"uid": owner, "controller": True}] if owner else []
    spec = {"nodeName": node}
    return {"metadata": metadata | {"labels": {LABEL_JOB: job}}, "spec": spec, "status": status}


def job(version: int, uid: str = "job", *, name: str = "digits", status: Json | None = None, **spec: Any) -> Json:
    raw = builders.job(name, **spec)
    raw["metadata"] |= {"namespace": "ns", "uid": uid, "resourceVersion": str(version), "generation": 1}
    return raw | {"status": status or {}}


def naming(members: list[str], following: int = 0) -> Json:
    return {"next": {"run": 1, "members": members}, "nextMember": following}


def phases(cache: Cache) -> list[str]:
    return [record.view.phase for record in cache.pods(JOB)]


def gone(cache: Cache) -> list[str]:
    return [record.uid for record in cache.gone(JOB)]


def test_an_older_object_is_ignored() -> None:
    cache = Cache()
    assert cache.apply(PODS, pod(10, phase="Running"))
    assert not cache.apply(PODS, pod(9, phase="Pending"))
    assert not cache.apply(PODS, pod(10, phase="Running"))
    assert phases(cache) == ["Running"]


def test_versions_are_numbers_and_not_texts() -> None:
    cache = Cache()
    cache.apply(PODS, pod(9))
    assert cache.apply(PODS, pod(10))


def test_a_deleted_uid_does_not_come_back_by_older_news() -> None:
    cache = Cache()
    cache.apply(PODS, pod(10))
    cache.delete(PODS, pod(12))
    assert not cache.apply(PODS, pod(11))  # a LIST that was answered earlier and arrives later
    assert not cache.apply(PODS, pod(11), since=0)
    assert cache.pods(JOB) == []


def test_a_label_that_is_removed_and_restored_brings_the_pod_back() -> None:
    """A watch with a selector tells the first as a deletion, in the version of the change."""
    cache = Cache()
    cache.apply(JOBS, job(1, status=naming(["p"])))
    cache.apply(PODS, pod(10, owner="job"))
    cache.delete(PODS, pod(11, owner="job"))
    assert gone(cache) == ["u"]
    assert cache.apply(PODS, pod(12, owner="job", phase="Running"))
    assert phases(cache) == ["Running"]
    assert gone(cache) == []


def test_a_deletion_that_is_reported_after_the_label_was_restored_deletes_nothing() -> None:
    cache = Cache()
    cache.apply(PODS, pod(10))
    cache.apply(PODS, pod(12))
    assert cache.delete(PODS, pod(11)) is None
    assert len(cache.pods(JOB)) == 1


def test_what_a_live_read_shows_exists_even_if_it_was_deleted_before_a_restore() -> None:
    cache = Cache()
    cache.apply(PODS, pod(10))
    cache.delete(PODS, pod(11))
    assert cache.apply(PODS, pod(5), since=cache.mark())
    assert len(cache.pods(JOB)) == 1


def test_a_successor_of_the_same_name_replaces_its_predecessor() -> None:
    cache = Cache()
    cache.apply(PODS, pod(10, uid="old"))
    cache.apply(PODS, pod(11, uid="new"))
    assert [record.uid for record in cache.pods(JOB)] == ["new"]
    assert not cache.apply(PODS, pod(10, uid="old"))


def test_the_last_state_of_a_deleted_pod_is_the_newest_that_was_seen() -> None:
    cache = Cache()
    cache.apply(JOBS, job(1, status=naming(["p"])))
    cache.apply(PODS, pod(10, owner="job", phase="Succeeded"))
    cache.drop(PODS, P, since=cache.mark())
    assert [record.view.phase for record in cache.gone(JOB)] == ["Succeeded"]
    cache.delete(PODS, pod(11, owner="job", phase="Failed"))
    assert [record.view.phase for record in cache.gone(JOB)] == ["Failed"]
    cache.delete(PODS, pod(10, owner="job", phase="Running"))
    assert [record.view.phase for record in cache.gone(JOB)] == ["Failed"]


def test_what_a_live_read_does_not_show_is_gone() -> None:
    cache = Cache()
    cache.apply(PODS, pod(10))
    assert cache.drop(PODS, P, since=cache.mark())
    assert cache.pods(JOB) == []


def test_what_was_created_while_a_live_read_was_on_its_way_stays() -> None:
    cache = Cache()
    since = cache.mark()
    cache.apply(PODS, pod(10))
    assert cache.drop(PODS, P, since=since) is None
    assert len(cache.pods(JOB)) == 1


def test_a_live_read_wins_even_with_an_older_version_as_after_a_restore_of_etcd() -> None:
    cache = Cache()
    cache.apply(PODS, pod(10, phase="Running"))
    cache.apply(PODS, pod(5, phase="Pending"), since=cache.mark())
    assert phases(cache) == ["Pending"]
    assert cache.apply(PODS, pod(6, phase="Running"))


def test_a_live_read_that_an_event_has_overtaken_does_not_win() -> None:
    cache = Cache()
    cache.apply(PODS, pod(10, phase="Pending"))
    since = cache.mark()
    cache.apply(PODS, pod(11, phase="Running"))
    assert not cache.apply(PODS, pod(10, phase="Pending"), since=since)
    assert phases(cache) == ["Running"]


# memory of deleted pods


def test_pods_that_status_has_recorded_are_forgotten_and_those_it_does_not_know_yet_are_kept() -> None:
    cache = Cache()
    cache.apply(JOBS, job(1, status=naming(["digits-job-1"], 2)))
    for number in (0, 1, 2):  # 2: the pods' stream is ahead of the jobs'
        cache.delete(PODS, pod(10, uid=str(number), name=f"digits-job-{number}", owner="job"))
    assert gone(cache) == ["1", "2"]
    cache.apply(JOBS, job(2, status=naming(["digits-job-2"], 3)))
    assert gone(cache) == ["2"]
    cache.apply(JOBS, job(3, status=naming([], 3)))
    assert gone(cache) == []


def test_a_pod_of_a_job_that_is_not_known_yet_is_kept_for_it() -> None:
    cache = Cache()
    cache.delete(PODS, pod(10, owner="job"))
    cache.delete(PODS, pod(10, uid="v", owner="another"))
    assert gone(cache) == []
    cache.apply(JOBS, job(1, status=naming(["p"])))
    assert gone(cache) == ["u"]


def test_a_job_that_is_gone_takes_the_memory_of_its_pods_with_it_and_not_its_successors() -> None:
    cache = Cache()
    cache.apply(JOBS, job(1, "old", status=naming(["p"])))
    cache.delete(PODS, pod(10, uid="a", owner="old"))
    cache.delete(PODS, pod(11, uid="b", owner="new"))
    cache.delete(JOBS, job(2, "old"))
    cache.delete(PODS, pod(12, uid="c", owner="old"))  # the garbage collector comes after the job
    assert gone(cache) == []
    cache.apply(JOBS, job(3, "new", status=naming(["p"])))
    assert gone(cache) == ["b"]


@pytest.mark.parametrize("members", [10, 5_000])
def test_however_many_members_are_deleted_at_once_each_outcome_is_kept(members: int) -> None:
    cache = Cache()
    cache.apply(JOBS, job(1, status=naming([f"p{number}" for number in range(members)])))
    for number in range(members):
        cache.delete(PODS, pod(10, uid=str(number), name=f"p{number}", owner="job"))
    assert len(gone(cache)) == members


def test_pods_that_come_and_go_with_our_label_do_not_fill_the_memory() -> None:
    cache = Cache()
    cache.apply(JOBS, job(1, status=naming(["p"])))
    for number in range(3 * SPARE):
        for owner in ("job", "nobody", ""):
            cache.delete(PODS, pod(10, uid=f"{owner}{number}", name=f"digits-job-{number}", owner=owner))
    assert len(gone(cache)) <= SPARE + 1
    assert len(cache._gone._strangers) <= SPARE


def test_deletions_are_remembered_for_as_many_objects_as_have_lived_and_not_for_ever() -> None:
    cache, alive = Cache(), 3 * SPARE
    for number in range(alive):
        cache.apply(PODS, pod(10, uid=str(number), name=str(number)))
    for number in range(alive):
        cache.delete(PODS, pod(11, uid=str(number), name=str(number)))
    assert not any(cache.apply(PODS, pod(10, uid=str(number), name=str(number))) for number in range(alive))
    for number in range(10 * SPARE):
        cache.delete(PODS, pod(10, uid=f"x{number}", name="x"))
    assert len(cache._deleted[PODS]) <= 2 * (alive + SPARE)


# indexes


def test_a_node_leads_to_the_jobs_that_have_a_pod_on_it() -> None:
    cache = Cache()
    cache.apply(PODS, pod(10, node="n1"))
    assert cache.jobs_on("n1") == {JOB}
    assert cache.jobs_on("n2") == set()
    cache.apply(PODS, pod(11, node="n1", job="other"))
    assert cache.jobs_on("n1") == {("ns", "other")}
    assert cache.pods(JOB) == []
    cache.delete(PODS, pod(12, job="other"))
    assert cache.jobs_on("n1") == set()
    assert cache._pods_on == {}


def test_a_root_leads_to_the_jobs_that_write_there() -> None:
    cache = Cache()
    cache.apply(JOBS, job(1))
    root = cache.jobs()[0].root
    assert [one.key for one in cache.jobs_at(root)] == [JOB]
    cache.delete(JOBS, job(2))
    assert cache.jobs_at(root) == []
    assert cache.key_of_job("job") is None


def test_only_budgets_that_may_cover_a_job_are_looked_at() -> None:
    cache = Cache()
    for name, labels in {"mine": {LABEL_UID: "job"}, "another": {LABEL_UID: "x"}, "wide": {LABEL_ROLE: "m"}}.items():
        metadata = {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1"}
        spec = {"minAvailable": 1, "selector": {"matchLabels": labels}}
        cache.apply(BUDGETS, {"metadata": metadata, "spec": spec})
    assert sorted(one.key[1] for one in cache.budgets_over("ns", {"job"})) == ["mine", "wide"]
    assert list(cache.budgets_over("elsewhere", {"job"})) == []


def test_fields_that_are_not_read_are_not_kept() -> None:
    cache = Cache()
    raw = pod(10)
    raw["metadata"]["managedFields"] = [{"manager": "kubelet" * 1000}]
    cache.apply(PODS, raw)
    cache.apply(NODES, {"metadata": {"name": "n1", "uid": "n"}, "status": {"images": ["kubelet"], "conditions": []}})
    assert "kubelet" not in repr(cache.pods(JOB)) + repr(cache.node("n1"))
