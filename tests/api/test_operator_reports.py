"""Operators as processes, with the chart's rights and Secret, and members of a real API server that report to them."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import ssl
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from e2e.cluster import ClusterError
from e2e.cluster.apiserver import ApiServer
from e2e.harness.local_run import free_port
from perdure.wire import ANNOTATION_REPORT
from perdure.wire.report import (
    REPORT_PATH,
    Channel,
    Report,
    Standing,
    TrainerPhase,
    read_channel,
    write_channel,
    write_report,
)
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.status import Condition
from perdure_operator.loop.keys import ENTRY
from perdure_operator.serving.certificate import make
from perdure_operator.serving.reports.keys_document import read_keys
from tests.api.conftest import REPOSITORY, Installed, install_rights
from tests.api.process import OperatorProcess
from tests.api.rbac import Right, api_audit_logs, audit_rbac
from tests.api.scene import Scene, starts, until
from tests.support.hints import HINTS
from tests.support.raw import template

pytestmark = pytest.mark.api

SYSTEM = "reporting-system"
SECRET = "reporting-operator-keys"
USER = f"system:serviceaccount:{SYSTEM}:reporting-operator"
EXAMPLE = (REPOSITORY / "docs" / "what-you-see.md").read_text().partition("$ kubectl get ptj\n")[2].partition("```")[0]
"""What the page says that kubectl get shows of this job."""
AGE = re.compile(r"\d+m?\d*s$", re.MULTILINE)
"""The last column of kubectl get."""


@dataclass(frozen=True)
class Listening:
    """An operator that leads and takes reports."""

    port: int
    server: ApiServer
    rights: Installed
    log: Path

    @property
    def bundle(self) -> str:
        """By which members check it."""
        found = self.server.kubectl("get", "secret", SECRET, f"--namespace={SYSTEM}", "--output=json")
        return read_keys(b64decode(json.loads(found.stdout)["data"][ENTRY]).decode()).bundle

    def post(self, token: str, report: Report, ca: str = "") -> int:
        """The status of the answer; the certificate is checked as a member checks it."""
        trusting = ssl.create_default_context(cadata=ca or self.bundle)
        connection = http.client.HTTPSConnection("localhost", self.port, context=trusting, timeout=60)
        try:
            connection.request("POST", REPORT_PATH, write_report(report), {"Authorization": f"Bearer {token}"})
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture(scope="module")
def listening(
    api_server: ApiServer, tools: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Listening]:
    rights = install_rights(api_server, tools, namespace=SYSTEM, release="reporting")
    port = free_port()
    with process(rights, tmp_path_factory.mktemp("reports"), "reporting-0", port) as operator:
        until("leading", lambda: operator.leading)
        until("the certificate is made", lambda: "signs the operator's certificate" in operator.log.read_text())
        yield Listening(port, api_server, rights, operator.log)


def process(rights: Installed, folder: Path, name: str, port: int, *more: str) -> OperatorProcess:
    """A replica, as the chart would start it, but for its address."""
    certificates = more or (f"--reports-secret={SECRET}",)
    words = (f"--reports-port={port}", f"--reports-url=https://localhost:{port}", "--lease-name=reporting-operator")
    return OperatorProcess(
        rights.kubeconfig, folder / "log", name, more=(*words, *certificates), lease_namespace=SYSTEM
    )


@dataclass(frozen=True)
class Told(Scene):
    """A scene whose members report."""

    def token(self, pod: str, audience: str = "") -> str:
        """What the kubelet would put into the pod's projected volume: a token that ends with the pod."""
        raw = json.loads(self.kubectl("get", "pod", pod, "--output=json"))
        (source,) = (
            one["serviceAccountToken"]
            for volume in raw["spec"]["volumes"]
            for one in volume.get("projected", {}).get("sources", [])
        )
        bound = (
            "--bound-object-kind=Pod",
            f"--bound-object-name={pod}",
            f"--bound-object-uid={raw['metadata']['uid']}",
        )
        words = ("create", "token", raw["spec"]["serviceAccountName"], f"--audience={audience or source['audience']}")
        return self.kubectl(*words, *bound).strip()

    def column(self, name: str) -> str:
        """What kubectl get shows of the job in the column of this name."""
        head, line = self.kubectl("get", "ptj", self.name, "--output=wide").splitlines()
        place = head.index(name)
        return line[place:].split("  ")[0].strip()


def report(sequence: int, step: int, *, run: int = 1) -> Report:
    said = Report("0123abcd", sequence, TrainerPhase.TRAINING, run, rank=0, step=step, epoch=2)
    said = replace(said, live=False, live_why="PERDURE_LIVE=no", required_grace_seconds=12.5, values={"loss": 0.25})
    said = replace(said, batch=512, scaling=HINTS)
    return replace(said, samples_per_second=96.0, commit_step=step - 1, commit_at=datetime.now(UTC).timestamp())


def test_a_members_report_is_what_kubectl_shows_and_every_other_token_is_refused(
    api_server: ApiServer, namespace: str, listening: Listening
) -> None:
    scene = Told(api_server, namespace)
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply()
    first, second = starts(scene, *nodes)
    annotations = scene.pods()[0]["metadata"]["annotations"]
    channel = read_channel(annotations[ANNOTATION_REPORT])
    assert (channel.url, channel.ca) == (f"https://localhost:{listening.port}", listening.bundle)
    assert scene.column("STEP") == ""

    token = scene.token(first)
    assert listening.post(token, report(1, 170)) == 200
    text = listening.log.read_text()
    assert "the keys of the API server are not known" not in text, text
    until("the step is shown", lambda: scene.column("STEP") == "170")
    assert (scene.column("EPOCH"), scene.column("SAMPLES/S")) == ("2", "96")
    assert scene.column("LAST SAVE") != ""
    progress = scene.status().progress
    assert progress is not None
    assert (progress.run, progress.step) == (1, 170)
    assert (progress.live, progress.live_why, progress.required_grace_seconds) == (False, "PERDURE_LIVE=no", 13)
    assert progress.values == {"loss": 0.25}
    assert (progress.batch, progress.efficiency_percent) == (512, 89)
    until("status says so", lambda: "see status.progress" in str(scene.status().find(ConditionType.RUNNING)))
    shown = scene.kubectl("get", "ptj").replace("Assigned", "Training")  # which it is from the second step on
    assert AGE.sub("age", shown) == AGE.sub("age", EXAMPLE)

    assert listening.post(token, report(1, 171)) == 403, "a replayed sequence"
    assert listening.post(token, report(2, 171, run=9)) == 403, "another run"
    assert listening.post(scene.token(first, audience="perdure.dev/reports/other/uid"), report(2, 171)) == 401
    assert listening.post(scene.token(first, audience=api_audience(api_server)), report(2, 171)) == 401
    assert listening.post("wrong", report(2, 171)) == 401
    assert listening.post(scene.token(second), report(1, 999)) == 200, "it does not speak for the job"

    gone = scene.token(second)
    scene.kubectl("delete", "pod", second, "--grace-period=0", "--force")
    numbers = itertools.count(2)
    until("the deletion is seen", lambda: listening.post(gone, report(next(numbers), 173)) == 403)


def test_a_member_of_an_older_operator_learns_the_present_certificates(
    api_server: ApiServer, namespace: str, listening: Listening
) -> None:
    """As after an upgrade from a chart that made the certificate, or with another port."""
    scene = Told(api_server, namespace)
    nodes = [scene.node(name) for name in ("n3", "n4")]
    scene.apply()
    first, second = starts(scene, *nodes)
    older = write_channel(Channel("https://elsewhere:8444", make(["elsewhere"], datetime.now(UTC))[0].decode()))
    for name in (first, second):
        scene.kubectl("annotate", "pod", name, "--overwrite", f"{ANNOTATION_REPORT}={older}")

    def channels() -> set[str]:
        return {pod["metadata"]["annotations"][ANNOTATION_REPORT] for pod in scene.pods()}

    present = write_channel(Channel(f"https://localhost:{listening.port}", listening.bundle))
    until("both are told", lambda: channels() == {present})
    assert listening.post(scene.token(first), report(1, 7), read_channel(present).ca) == 200


@pytest.mark.parametrize("given", [False, True], ids=["the operator's own", "a user's"])
def test_a_replica_that_does_not_lead_serves_with_the_same_certificate(
    listening: Listening, tmp_path: Path, *, given: bool
) -> None:
    certificate, key = make(["localhost"], datetime.now(UTC))
    for name, content in (("tls.crt", certificate), ("tls.key", key), ("ca.crt", certificate)):
        (tmp_path / name).write_bytes(content)
    port, more = free_port(), (f"--reports-certificate={tmp_path}",) if given else ()
    with process(listening.rights, tmp_path, "reporting-1", port, *more):
        follower = replace(listening, port=port)

        def answer() -> int:
            with suppress(OSError):  # it does not listen yet
                return follower.post("a-token", report(1, 7), certificate.decode() if given else "")
            return 0

        until("it says that it does not lead", lambda: answer() == 503)


def test_the_operator_reads_its_own_secret_and_no_other(listening: Listening) -> None:
    def able(verb: str, what: str) -> str:
        words = ("auth", "can-i", verb, what, f"--as={USER}", f"--namespace={SYSTEM}")
        return listening.server.kubectl(*words, check=False).stdout.strip()

    for verb in ("get", "update"):
        assert able(verb, f"secret/{SECRET}") == "yes"
        assert able(verb, "secret/other") == "no"
    for verb in ("list", "watch", "create", "delete"):
        assert able(verb, "secrets") == "no"
    rights = audit_rbac(api_audit_logs(), listening.rights.rendered, USER)
    assert rights.ungranted == frozenset()
    assert not rights.unused & {Right("", "secrets", "get"), Right("", "secrets", "update")}


def api_audience(server: ApiServer) -> str:
    """The audience of tokens that the API server itself takes."""
    raw = json.loads(server.kubectl("get", "--raw", "/.well-known/openid-configuration").stdout)
    return str(raw["issuer"])


def test_the_member_that_all_others_wait_for_is_named_with_its_node(
    api_server: ApiServer, namespace: str, listening: Listening
) -> None:
    scene = Told(api_server, namespace)
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply()
    first, second = starts(scene, *nodes)
    hung = datetime.now(UTC).timestamp() - 400
    stands = replace(report(1, 170), rank=1, hangs_since=hung, hangs_in=Standing.STANDS)
    assert listening.post(scene.token(second), stands) == 200
    waits = replace(report(1, 170), hangs_since=hung, hangs_in=Standing.WAITS_FOR_RANKS)
    assert listening.post(scene.token(first), waits) == 200

    told = until("it is named", lambda: scene.condition(ConditionType.PROGRESSING, "MemberWaitedFor"))
    assert told.status == "False"
    assert f"rank 1 ({second} on {nodes[1]}) stands still elsewhere" in told.message
    until("an event says so", lambda: "MemberWaitedFor" in scene.kubectl("get", "events"))
    running = scene.status().find(ConditionType.RUNNING)
    assert running is not None
    assert running.reason == "Assigned", "it is not said to train"


def test_jobs_of_a_pool_get_sizes_by_what_their_members_report_and_no_autoscaler_of_pods_sets_them(
    api_server: ApiServer, namespace: str, listening: Listening
) -> None:
    scene, other = Told(api_server, namespace), Told(api_server, namespace, "other")
    nodes = [scene.node(f"n{number}") for number in range(1, 5)]
    api_server.kubectl("label", "nodes", *nodes, f"night={namespace}")
    elastic = {"minReplicas": 1, "maxReplicas": 4, "growAfterSeconds": 0, "policy": "Goodput", "pool": "night"}
    there = template()
    there["spec"]["nodeSelector"] = {"night": namespace}
    for one in (scene, other):
        one.apply(replicas=4, elastic=elastic, template=there)
    until("a pod of each", lambda: len(scene.names()) == 2)
    scene.run_pods(*nodes)
    until("both run", lambda: all(one.status().run == 1 and one.status().scaling for one in (scene, other)))
    first, second = scene.names()
    scales = replace(HINTS, noise=1e7, most_batch=65536, alpha=0.0, c_in=0.0, c_out=0.0, d_out=0.0)
    gains_nothing = replace(HINTS, noise=0.0, c_out=1.0)
    assert listening.post(scene.token(first), replace(report(1, 170), scaling=scales)) == 200
    assert listening.post(scene.token(second), replace(report(1, 170), scaling=gains_nothing)) == 200

    def given() -> list[int | None]:
        return [one.status().scaling.size if one.status().scaling else None for one in (scene, other)]  # type: ignore[union-attr]

    until("the job that scales has two", lambda: given() == [2, 1], seconds=90)
    until("its new member", lambda: len(scene.names()) == 3)
    sized = scene.status().find(ConditionType.SIZED)
    assert sized is not None
    assert "2 are wanted: the pool gives this size by what its jobs gain" in sized.message
    with pytest.raises(ClusterError, match="replicas cannot be changed with elastic"):
        scene.kubectl("scale", "trainingjob", scene.name, "--replicas=3")


@pytest.mark.chaos
def test_once_the_chart_is_applied_again_after_its_secret_was_deleted_members_learn_other_certificates(
    api_server: ApiServer, namespace: str, listening: Listening
) -> None:
    scene, before = Told(api_server, namespace), listening.bundle
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply()
    first, _ = starts(scene, *nodes)
    listening.server.kubectl("delete", "secret", SECRET, f"--namespace={SYSTEM}")
    said = f"secret {SYSTEM}/{SECRET}: the certificates for reports are not kept now"
    until("the log says so", lambda: said in listening.log.read_text(), seconds=90)
    assert listening.post(scene.token(first), report(1, 7), before) == 200, "it goes on with what it has"

    made = listening.log.read_text().count("a new authority is made")
    listening.server.kubectl("apply", "-f", "-", input=listening.rights.rendered)
    until("others are made", lambda: listening.log.read_text().count("a new authority is made") > made, seconds=90)
    present = write_channel(Channel(f"https://localhost:{listening.port}", listening.bundle))

    def channels() -> set[str]:
        return {pod["metadata"]["annotations"][ANNOTATION_REPORT] for pod in scene.pods()}

    until("both are told", lambda: channels() == {present})
    assert listening.post(scene.token(first), report(2, 8), read_channel(present).ca) == 200


@pytest.mark.chaos
def test_a_member_that_holds_up_the_others_for_a_minute_is_named_with_its_node(
    api_server: ApiServer, namespace: str, listening: Listening
) -> None:
    scene = Told(api_server, namespace)
    nodes = [scene.node(name) for name in ("n1", "n2", "n3")]
    scene.apply(replicas=3)
    until("three pods", lambda: len(scene.names()) == 3)
    names = scene.names()
    scene.run_pods(*nodes)
    until("all are assigned", lambda: scene.shows("Assigned"))
    tokens, numbers = [scene.token(name) for name in names], itertools.count(1)
    shares = (0.45, 0.83, 0.45)

    def named_by_now() -> Condition | None:
        number = next(numbers)
        for rank, share in reversed(list(enumerate(shares))):
            own = replace(report(number, 170 + number), rank=rank, own_share=share)
            assert listening.post(tokens[rank], own) == 200
        return scene.condition(ConditionType.PROGRESSING, "Straggler")

    told = until("it is named", named_by_now, seconds=240)
    assert told.status == "True"
    assert f"rank 1 ({names[1]} on {nodes[1]}) holds up the others since" in told.message
    assert "it works 83 % of each step itself, and they work 45 %" in told.message


@pytest.mark.chaos
def test_once_no_member_has_reported_for_minutes_status_says_since_when_and_no_more(
    api_server: ApiServer, namespace: str, listening: Listening
) -> None:
    scene = Told(api_server, namespace)
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply()
    first, _ = starts(scene, *nodes)
    token = scene.token(first)
    assert listening.post(token, report(1, 170)) == 200
    until("the step is shown", lambda: scene.column("STEP") == "170")

    told = until("nothing is heard", lambda: scene.says(ConditionType.RUNNING, "no report since"), seconds=400)
    assert told.status == "True", "missing reports prove nothing"
    assert scene.column("STEP") == "170"
    assert scene.column("SAMPLES/S") == ""
    assert len(scene.names()) == 2, "nobody was asked to leave"
