"""Under an older CRD, which preserved unknown fields: jobs of 9,000 levels stop no other, a newer CRD replaces no
pod."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from e2e.cluster.apiserver import ApiServer
from perdure_operator.api.status import Phase
from perdure_operator.schema import crd
from tests.api.conftest import REPOSITORY, SYSTEM
from tests.api.manifests import Json, job, template
from tests.api.process import OperatorProcess
from tests.api.scene import Scene, until

pytestmark = pytest.mark.api

TEAM = "team"


def older_crd() -> Json:
    """An old version: it kept fields of a pod that Perdure did not know."""
    made = copy.deepcopy(crd.crd())
    spec = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del spec["completion"]
    pod = spec["template"]["properties"]["spec"]["properties"]
    pod["affinity"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return made


@pytest.fixture
def server(tools: dict[str, Path]) -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.kubectl("create", "-f", "-", input=json.dumps(older_crd()))
        for state in ("jsonpath={.status.acceptedNames.kind}=TrainingJob", "condition=Established"):
            server.kubectl("wait", f"--for={state}", "crd/trainingjobs.perdure.dev", "--timeout=120s")
        for name in (SYSTEM, TEAM):
            server.kubectl("create", "namespace", name)
        server.kubectl("create", "serviceaccount", "default", f"--namespace={TEAM}")
        yield server


def create_deep(server: ApiServer, name: str, levels: int) -> None:
    manifest = json.dumps(job(name, template=template(affinity="<here>")))
    deep = '{"a":' * levels + "{}" + "}" * levels
    path = f"/apis/perdure.dev/v1alpha1/namespaces/{TEAM}/trainingjobs"
    server.kubectl("create", f"--raw={path}", "-f", "-", input=manifest.replace('"<here>"', deep))


def test_deep_jobs_before_and_after_the_start_stop_no_other_job(server: ApiServer, tmp_path: Path) -> None:
    create_deep(server, "before", 9_000)
    with OperatorProcess(server.kubeconfig, tmp_path / "log") as operator:
        until("leading", lambda: operator.leading)
        create_deep(server, "shallower", 1_200)
        create_deep(server, "after", 3_000)
        for name in ("one", "two"):
            scene = Scene(server, TEAM, name)
            scene.apply()
            until(f"pods of {name}", partial(has_pods, server, name))
        for name in ("before", "shallower", "after"):
            words = f"trainingjob {TEAM}/{name}: ignoring spec.template.spec.affinity.a.a"
            until(words, partial(says, operator, words))
        until("it is said of the CRD", partial(says, operator, "is older than this operator and drops spec.completion"))
        # Fields that no pod has are dropped from it as usual. (At 9,000 levels the API server itself computes for 10 s
        # until it has written a status: one such job is enough.)
        until("a deep job's pod", lambda: len(uids_of(server, "shallower")) == 1)
        assert operator.process.poll() is None
        assert not says(operator, "Traceback")


def test_a_newer_crd_under_a_waiting_job_replaces_no_pod(server: ApiServer, tmp_path: Path) -> None:
    scene = Scene(server, TEAM, "one")
    scene.apply()
    with OperatorProcess(server.kubeconfig, tmp_path / "log", name="older"):
        until("two pods", lambda: has_pods(server, "one"))
        before = uids_of(server, "one")
    server.kubectl("apply", "--server-side", "--force-conflicts", "-f", REPOSITORY / "crds")
    with OperatorProcess(server.kubeconfig, tmp_path / "log", name="newer") as operator:
        until("leading", lambda: operator.leading)
        Scene(server, TEAM, "two").apply()
        until("pods of another job", lambda: has_pods(server, "two"))
        scene.kubectl("annotate", "ptj", "one", "look=again")
        node = scene.node("n1")
        scene.run_pods(node)
        until("phase Running", lambda: scene.status().phase is Phase.RUNNING)
    assert uids_of(server, "one") == before


def says(operator: OperatorProcess, words: str) -> bool:
    return words in operator.log.read_text()


def has_pods(server: ApiServer, name: str) -> bool:
    return len(uids_of(server, name)) == 2


def uids_of(server: ApiServer, name: str) -> set[str]:
    pods = server.ask(f"/api/v1/namespaces/{TEAM}/pods?labelSelector=perdure.dev/job={name}")["items"]
    return {pod["metadata"]["uid"] for pod in pods}
