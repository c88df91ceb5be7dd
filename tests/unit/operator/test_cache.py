"""What arrives late never undoes what is newer, and a deleted pod's last state is remembered."""

from __future__ import annotations

from typing import Any

from perdure.contract import LABEL_JOB
from perdure_operator.cluster.protocol import JOBS, NODES, PODS
from perdure_operator.cluster.read.cache import GONE_KEPT, Cache

JOB = ("ns", "digits")


def pod(
    version: int, *, uid: str = "u", name: str = "p", node: str = "", owner: str = "", **status: Any
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version)}
    metadata["ownerReferences"] = [{"uid": owner, "controller": True}]
    spec = {"nodeName": node}
    return {"metadata": metadata | {"labels": {LABEL_JOB: "digits"}}, "spec": spec, "status": status}


def test_an_older_object_is_ignored() -> None:
    cache = Cache()
    assert cache.apply(PODS, pod(10, phase="Running"))
    assert not cache.apply(PODS, pod(9, phase="Pending"))
    assert not cache.apply(PODS, pod(10, phase="Running"))
    assert cache.pods(JOB)[0]["status"]["phase"] == "Running"


def test_versions_are_numbers_and_not_texts() -> None:
    cache = Cache()
    cache.apply(PODS, pod(9))
    assert cache.apply(PODS, pod(10))


def test_a_deleted_uid_never_comes_back() -> None:
    cache = Cache()
    cache.apply(PODS, pod(10))
    cache.delete(PODS, pod(11))
    assert not cache.apply(PODS, pod(12))  # a LIST that was answered earlier and arrives later
    assert cache.pods(JOB) == []


def test_the_last_state_of_a_deleted_pod_is_the_newest_that_was_seen() -> None:
    cache = Cache()
    cache.apply(PODS, pod(10, phase="Succeeded"))
    cache.delete(PODS, pod(9, phase="Running"))
    assert [raw["status"]["phase"] for raw in cache.gone(JOB)] == ["Succeeded"]
    cache.delete(PODS, pod(11, phase="Failed"))
    assert [raw["status"]["phase"] for raw in cache.gone(JOB)] == ["Failed"]


def test_what_a_live_list_does_not_show_is_gone() -> None:
    cache = Cache()
    cache.apply(PODS, pod(10))
    cache.replace(PODS, [], cache.known(PODS))
    assert cache.pods(JOB) == []
    assert len(cache.gone(JOB)) == 1


def test_what_was_created_while_the_list_was_on_its_way_stays() -> None:
    cache = Cache()
    known = cache.known(PODS)
    cache.apply(PODS, pod(10))
    cache.replace(PODS, [], known)
    assert len(cache.pods(JOB)) == 1


def test_a_successor_of_the_same_name_replaces_its_predecessor() -> None:
    cache = Cache()
    cache.apply(PODS, pod(10, uid="old"))
    known = cache.known(PODS)
    cache.apply(PODS, pod(12, uid="new"))
    cache.replace(PODS, [], known)  # asked before the new one was there
    assert [raw["metadata"]["uid"] for raw in cache.pods(JOB)] == ["new"]
    assert [raw["metadata"]["uid"] for raw in cache.gone(JOB)] == ["old"]


def test_a_gone_pod_is_forgotten_when_nobody_wants_its_name() -> None:
    cache = Cache()
    for number in range(2):
        cache.apply(PODS, pod(10, uid=str(number), name=f"p{number}"))
        cache.delete(PODS, pod(11, uid=str(number), name=f"p{number}"))
    cache.forget_gone(JOB, {"p1"})
    assert [raw["metadata"]["name"] for raw in cache.gone(JOB)] == ["p1"]
    cache.forget_gone(JOB, set())
    assert cache.gone(JOB) == []


def test_a_job_that_is_gone_takes_the_memory_of_its_pods_with_it_and_not_its_successors() -> None:
    cache = Cache()
    old = {"metadata": {"namespace": "ns", "name": "digits", "uid": "old", "resourceVersion": "9"}}
    cache.apply(JOBS, old)
    cache.delete(PODS, pod(10, uid="a", owner="old"))
    cache.delete(PODS, pod(11, uid="b", owner="new"))
    cache.delete(JOBS, old)
    assert [raw["metadata"]["uid"] for raw in cache.gone(JOB)] == ["b"]
    cache.delete(PODS, pod(12, uid="c", owner="old"))  # the garbage collector comes after the job
    assert [raw["metadata"]["uid"] for raw in cache.gone(JOB)] == ["b"]


def test_the_oldest_gone_pod_is_forgotten_when_there_are_too_many() -> None:
    cache = Cache()
    for number in range(GONE_KEPT + 1):
        cache.delete(PODS, pod(10, uid=str(number)))
    remembered = [raw["metadata"]["uid"] for raw in cache.gone(JOB)]
    assert remembered == [str(number) for number in range(1, GONE_KEPT + 1)]


def test_what_nobody_reads_is_not_kept() -> None:
    cache = Cache()
    raw = pod(10)
    raw["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    cache.apply(PODS, raw)
    assert "managedFields" not in cache.pods(JOB)[0]["metadata"]
    cache.delete(PODS, raw)
    assert "managedFields" not in cache.gone(JOB)[0]["metadata"]
    cache.apply(NODES, {"metadata": {"name": "n1", "uid": "n"}, "status": {"images": [{}], "conditions": []}})
    assert cache.get(NODES, ("", "n1")) == {"metadata": {"name": "n1", "uid": "n"}, "status": {"conditions": []}}
    assert "managedFields" in raw["metadata"]  # the caller's object stays as it was


def test_a_live_read_wins_even_with_an_older_version_as_after_a_restore_of_etcd() -> None:
    cache = Cache()
    cache.apply(PODS, pod(10, phase="Running"))
    cache.replace(PODS, [pod(5, phase="Pending")], cache.known(PODS))
    assert cache.pods(JOB)[0]["status"]["phase"] == "Pending"
    assert cache.apply(PODS, pod(6, phase="Running"))


def test_a_live_read_that_an_event_has_overtaken_does_not_win() -> None:
    cache = Cache()
    cache.apply(PODS, pod(10, phase="Pending"))
    known = cache.known(PODS)
    cache.apply(PODS, pod(11, phase="Running"))
    cache.replace(PODS, [pod(10, phase="Pending")], known)
    assert cache.pods(JOB)[0]["status"]["phase"] == "Running"


def test_a_node_leads_to_the_jobs_that_have_a_pod_on_it() -> None:
    cache = Cache()
    cache.apply(PODS, pod(10, node="n1"))
    assert cache.jobs_on("n1") == {JOB}
    assert cache.jobs_on("n2") == set()
