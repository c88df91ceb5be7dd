"""The operator as a process against a real API server, with exactly the chart's rights; the tests play the kubelets."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from e2e.cluster.apiserver import ApiServer
from perdure.wire import LABEL_JOB, LABEL_ROLE, Leave, Train
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import Phase
from tests.api.conftest import Installed
from tests.api.process import OperatorProcess
from tests.api.scene import Scene, completed, refused, starts, until
from tests.support.raw import template

pytestmark = pytest.mark.api


def requests(server: ApiServer, user: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in server.audit_log.read_text().splitlines()]
    return [entry for entry in entries if entry["user"]["username"] == user and "objectRef" in entry]


def test_a_job_starts_moves_off_a_cordoned_node_and_goes_on(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2", "n3")]
    scene.apply()
    first = starts(scene, nodes[0], nodes[1])
    assert [one.rank for one in scene.assignments() if isinstance(one, Train)] == [0, 1]
    assert [pod["metadata"]["labels"][LABEL_ROLE] for pod in scene.pods()] == ["member", "member"]
    (budget,) = scene.budgets()
    assert budget["spec"]["minAvailable"] == 2

    scene.cordon(nodes[0])
    until("leave", lambda: all(isinstance(one, Leave) for one in scene.assignments()))
    scene.save_all(1, 7)
    until("other pods", lambda: len(scene.names()) == 2 and not set(scene.names()) & set(first))
    starts(scene, nodes[1], nodes[2])

    status = scene.status()
    assert (status.run, status.step, status.steps_lost, status.failures.infrastructure) == (2, 7, 0, 0)


def test_a_scaled_job_is_offered_its_new_size_under_a_raised_budget(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply()
    first = starts(scene, *nodes)
    scene.kubectl("scale", "trainingjob", scene.name, "--replicas=3")
    until("a third pod", lambda: set(first) < set(scene.names()))
    assert all(isinstance(one, Train) and one.run == 1 for one in scene.assignments())
    scene.run_pods(*nodes)
    until(
        "run 2",
        lambda: [one.rank for one in scene.assignments() if isinstance(one, Train) and one.run == 2] == [0, 2, 1],
    )
    assert set(first) < set(scene.names())
    until("a budget for three", lambda: [one["spec"]["minAvailable"] for one in scene.budgets()] == [3])


def test_a_job_whose_template_was_made_invalid_goes_on_with_the_last_good_one(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2", "n3")]
    scene.apply()
    first = starts(scene, nodes[0], nodes[1])
    until("the template is kept", lambda: len(scene.revisions()) == 1)
    scene.apply(template=template(volumeMounts=[{"name": "nowhere", "mountPath": "/data"}]))
    until("the author is told", lambda: scene.shows("TemplateInvalid"))

    scene.cordon(nodes[0])
    until("leave", lambda: all(isinstance(one, Leave) for one in scene.assignments()))
    scene.save_all(1, 7)
    until("other pods", lambda: len(scene.names()) == 2 and not set(scene.names()) & set(first))
    starts(scene, nodes[1], nodes[2])
    status = scene.status()
    assert (status.run, status.step, status.steps_lost, status.failures.infrastructure) == (2, 7, 0, 0)
    assert scene.shows("TemplateInvalid")

    good = template(image="perdure-digits:next")
    scene.apply(template=good)
    until("the correction is kept", lambda: [one["data"] for one in scene.revisions()] == [{"template": good}])
    until("the author is told nothing more", lambda: not scene.shows("TemplateInvalid"))


def test_a_job_whose_bucket_is_refused_waits_with_the_remedy_and_tries_again_by_itself(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply()
    first, remedy = starts(scene, *nodes), "cannot list log/ of s3://bucket/digits: create the bucket"
    for rank, name in enumerate(first):
        scene.end_pod(name, refused(1, rank, remedy), exit_code=1)

    told = until("it says so", lambda: scene.condition(ConditionType.RUNNING, "StorageRefused"))
    assert told.status == "False"
    assert remedy in told.message
    until("its pods are gone, which would be in vain", lambda: not scene.names())
    assert (scene.status().failures.code, scene.status().failures.infrastructure) == (0, 0)
    until("it tries again", lambda: len(scene.names()) == 2)


def test_members_leave_a_node_that_no_longer_exists(scene: Scene, api_server: ApiServer) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply()
    starts(scene, *nodes)
    api_server.kubectl("delete", "node", nodes[0])
    until("leave", lambda: all(isinstance(one, Leave) for one in scene.assignments()))


def test_the_budget_is_created_before_the_first_pod(scene: Scene, api_server: ApiServer, installed: Installed) -> None:
    scene.apply()
    until("two pods", lambda: len(scene.names()) == 2)

    def created() -> list[str]:
        return [
            entry["objectRef"]["resource"]
            for entry in requests(api_server, installed.user)
            if entry["verb"] == "create"
            and entry["objectRef"].get("namespace") == scene.namespace
            and "dryRun" not in entry["requestURI"]
            and entry["objectRef"]["resource"] != "events"
        ]

    until("the audit log has both", lambda: created().count("pods") == 2)  # it is written behind the answer
    assert created() == ["poddisruptionbudgets", "pods", "pods"]


def test_only_pods_of_jobs_are_watched(scene: Scene, api_server: ApiServer, installed: Installed) -> None:
    scene.apply()
    until("two pods", lambda: len(scene.names()) == 2)
    reads = [
        entry
        for entry in requests(api_server, installed.user)
        if entry["objectRef"]["resource"] == "pods" and entry["verb"] in ("list", "watch")
    ]
    selectors = {parse_qs(urlsplit(entry["requestURI"]).query).get("labelSelector", ["none"])[0] for entry in reads}
    assert LABEL_JOB in selectors
    assert all(selector.partition("=")[0] == LABEL_JOB for selector in selectors)


def test_the_users_job_is_left_without_annotations_and_finalizers(scene: Scene) -> None:
    scene.apply()
    until("two pods", lambda: len(scene.names()) == 2)
    raw = json.loads(scene.kubectl("get", "trainingjob", scene.name, "--output=json"))
    assert list(raw["metadata"]["annotations"]) == ["kubectl.kubernetes.io/last-applied-configuration"]
    assert "finalizers" not in raw["metadata"]


def test_a_completed_job_keeps_its_pods_and_goes_when_its_time_to_live_is_over(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply()
    names = starts(scene, *nodes)
    for rank, name in enumerate(names):
        scene.end_pod(name, completed(1, rank, 100))
    until("phase Completed", lambda: scene.status().phase is Phase.COMPLETED)
    until("no budget", lambda: not scene.budgets())
    assert scene.names() == names
    patch = ("patch", "trainingjob", scene.name, "--type=merge", '--patch={"spec": {"ttlSecondsAfterFinished": 0}}')
    scene.kubectl(*patch)
    until("no job", lambda: not scene.kubectl("get", "trainingjobs", "--output=name"))


def test_a_name_that_a_stranger_has_is_not_used(
    api_server: ApiServer, namespace: str, operator: OperatorProcess
) -> None:
    scene = Scene(api_server, namespace)
    scene.apply(suspend=True)
    uid = json.loads(scene.kubectl("get", "trainingjob", scene.name, "--output=json"))["metadata"]["uid"]
    stranger = f"digits-{uid[:4]}-0"
    scene.kubectl("run", stranger, "--image=none", "--restart=Never")
    scene.apply(suspend=False)
    until("two members", lambda: len(scene.names()) == 3)
    assert scene.names() == [stranger, f"digits-{uid[:4]}-1", f"digits-{uid[:4]}-2"]
    assert "ownerReferences" not in next(p for p in scene.pods() if p["metadata"]["name"] == stranger)["metadata"]


def test_a_budget_that_a_stranger_has_is_named_and_nothing_is_started_without_one(
    api_server: ApiServer, namespace: str, operator: OperatorProcess
) -> None:
    scene = Scene(api_server, namespace)
    scene.apply(suspend=True)
    uid = json.loads(scene.kubectl("get", "trainingjob", scene.name, "--output=json"))["metadata"]["uid"]
    scene.kubectl("create", "pdb", f"digits-{uid[:4]}", "--selector=app=x", "--min-available=1")
    scene.apply(suspend=False)
    until("a reason", lambda: any("is not this job's" in one.message for one in scene.status().conditions))
    assert scene.names() == []
    scene.kubectl("delete", "pdb", f"digits-{uid[:4]}")
    until("two pods", lambda: len(scene.names()) == 2)
