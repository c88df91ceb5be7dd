"""`kubectl perdure` for a user who may only read, against a real API server and the jobs of a real operator."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.apiserver import ApiServer
from e2e.cluster.commands import clean_environment
from perdure.wire import Train
from perdure_operator.cli.kubectl import command
from tests.api.conftest import REPOSITORY
from tests.api.kubelet import Kubelet
from tests.api.rbac import audit_rbac
from tests.api.scene import SECONDS, Scene, completed, starts, until

pytestmark = pytest.mark.api
NAMESPACE, ACCOUNT = "perdure-readers", "reader"
USER = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
FOR_PEOPLE = "--show-only=templates/userroles.yaml"


@dataclass(frozen=True)
class Done:
    """How a command has ended, and what it has printed."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Reader:
    """An account with the chart's ClusterRole for `kubectl perdure`, and no other right."""

    kubeconfig: Path
    rendered: str
    """The role, and its binding."""
    kubectl: Path

    def run(self, *words: str, kubeconfig: Path | None = None) -> Done:
        """In this process: a new one would import for a second each time."""
        return self.run_with(str(kubeconfig or self.kubeconfig), *words)

    def run_with(self, kubeconfig: str, *words: str) -> Done:
        """The same, with that $KUBECONFIG."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setenv("KUBECONFIG", kubeconfig)
            patch.setenv("PATH", f"{self.kubectl.parent}:{os.environ['PATH']}")
            status = command.main(words)
        return Done(status, out.getvalue(), err.getvalue())

    def kubectl_says(self, kubeconfig: str, *words: str) -> Done:
        """What kubectl itself does with that $KUBECONFIG."""
        environment = clean_environment(os.environ) | {"KUBECONFIG": kubeconfig}
        done = subprocess.run([self.kubectl, *words], check=False, capture_output=True, text=True, env=environment)
        return Done(done.returncode, done.stdout, done.stderr)

    def text(self, *words: str) -> str:
        done = self.run(*words)
        assert (done.status, done.stderr) == (0, "")
        return done.stdout

    def json(self, *words: str) -> Any:
        done = self.run(*words, "-o", "json")
        assert (done.status, done.stderr) == (0, "")
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def reader(api_server: ApiServer, tools: dict[str, Path]) -> Reader:
    argv = [str(tools["helm"] / "helm"), "template", "perdure", str(REPOSITORY / "helm" / "perdure"), FOR_PEOPLE]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "perdure-readers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "perdure-kubectl"},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
    }
    rendered = f"{done.stdout}\n---\n{yaml.safe_dump(binding)}"
    api_server.kubectl("create", "namespace", NAMESPACE)
    api_server.kubectl("create", "serviceaccount", ACCOUNT, f"--namespace={NAMESPACE}")
    api_server.kubectl("apply", "-f", "-", input=rendered)
    kubeconfig = api_server.kubeconfig_for_service_account(NAMESPACE, ACCOUNT)
    return Reader(kubeconfig, rendered, tools["kubernetes"] / "kubectl")


@pytest.fixture
def training(scene: Scene) -> Scene:
    """A job whose members are on n1 and n2."""
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply(disruption={"replacementTimeoutSeconds": 600})
    starts(scene, *nodes)
    return scene


@pytest.fixture
def moving(training: Scene) -> Iterator[Scene]:
    """That job while it trains on and a new member starts, because n2 is cordoned."""
    node = f"{training.namespace}-n2"
    training.cordon(node)
    until("a standby", lambda: len(training.names()) == 3)
    yield training
    training.server.kubectl("uncordon", node)


def test_who_may_only_read_sees_what_a_job_waits_for_and_until_when(moving: Scene, reader: Reader) -> None:
    where = ("-n", moving.namespace)
    table = reader.text("status", *where)
    assert table.split()[:3] == ["NAME", "STAGE", "SIZE"]
    assert "preparing" in table
    page = reader.text("status", moving.name, *where)
    assert f"node {moving.namespace}-n2 is cordoned" in " ".join(page.split())
    assert all(name in page for name in moving.names())

    def alike() -> Any:
        """The page, once it, the list and status were read without a write in between."""
        told, (job,) = reader.json("status", moving.name, *where), reader.json("status", *where)["items"]
        until_when = moving.status().model_dump(mode="json")["current"]["intent"]["ready_by"]
        return told if job == told["job"] and job["waitsFor"]["until"] == until_when else None

    told = until("the list and the page say the same", alike)
    assert [one["role"] for one in told["members"]] == ["member", "has to leave", "next"]


def test_kubectl_finds_it_as_a_plugin(reader: Reader, namespace: str) -> None:
    environment = clean_environment(os.environ) | {"KUBECONFIG": str(reader.kubeconfig)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{reader.kubectl.parent}:{environment['PATH']}"
    argv = [str(reader.kubectl), "perdure", "status", "-n", namespace]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=120, env=environment)
    shown = f"No training jobs found in {namespace} namespace.\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", shown)
    assert reader.run("status", "-n", namespace) == Done(0, "", shown)


def test_who_may_only_read_is_told_what_the_operator_then_does_at_a_drain(training: Scene, reader: Reader) -> None:
    node, third = f"{training.namespace}-n2", training.node("n3")
    told = reader.json("what-if", "drain", node)
    (job,) = [one for one in told["jobs"] if one["namespace"] == training.namespace]
    assert (job["members"], job["evictions"]["refused"]) == (training.names()[1:], True)
    assert (job["withRoom"]["how"], job["withoutRoom"]["how"]) == ("live", "recreate")
    page = reader.text("what-if", "drain", node)
    assert f"{training.namespace}/{training.name}, running" in page
    assert "429" in page

    training.cordon(node)
    until("a standby", lambda: len(training.names()) == 3)
    training.run_pods(third)
    until("an offer to take over live", lambda: _offered_live(training))


def _offered_live(scene: Scene) -> bool:
    upcoming = scene.status().next
    return upcoming is not None and upcoming.plan is not None and upcoming.plan.handover is not None


def test_the_story_of_a_job_has_its_runs_and_its_own_events(moving: Scene, reader: Reader) -> None:
    told = reader.json("timeline", moving.name, "-n", moving.namespace)
    reasons = [one["what"] for one in told["entries"]]
    assert {"start", "run 1", "NodeLeaving"} <= set(reasons)
    assert f"node {moving.namespace}-n2 is cordoned" in reader.text("timeline", moving.name, "-n", moving.namespace)
    meanings = reader.json("explain", moving.name, "-n", moving.namespace)["items"]
    assert "Disrupted" in [one["condition"] for one in meanings]


def test_the_story_is_also_one_page_for_a_browser_written_once(moving: Scene, reader: Reader, tmp_path: Path) -> None:
    file = tmp_path / "story.html"
    words = ("timeline", moving.name, "-n", moving.namespace)
    done = reader.run(*words, "--html", str(file))
    assert (done.status, done.stdout, done.stderr.startswith(f"{file}: one page")) == (0, "", True)
    page = file.read_text()
    assert f"<h1>{moving.namespace}/{moving.name}</h1>" in page
    assert f"node {moving.namespace}-n2 is cordoned" in page
    assert "Run 1 of 2 members, start; it is on." in page
    assert file.stat().st_mode & 0o077 == 0
    again = reader.run(*words, "--html", str(file))
    assert (again.status, again.stderr) == (1, f"error: {file} exists: remove it, or name another with --html\n")
    shown = reader.text(*words, "--html=-")
    assert "<h1>" in shown
    both = reader.run(*words, "--html=-", "-o", "json")
    assert (both.status, both.stdout, both.stderr) == (1, "", "error: --html and -o json exclude each other\n")


def test_a_support_file_is_written_once_for_its_owner_alone(moving: Scene, reader: Reader, tmp_path: Path) -> None:
    file, log = tmp_path / "bundle.json", tmp_path / "log"
    log.write_text(f"trainingjob {moving.namespace}/digits: ours\ntrainingjob {moving.namespace}/digits-2: theirs\n")
    words = ("bundle", moving.name, "-n", moving.namespace, "-f", str(file), f"--operator-log={log}")
    done = reader.run(*words)
    assert (done.status, done.stdout) == (0, "")
    told = json.loads(file.read_text())
    assert [one["metadata"]["name"] for one in told["pods"]] == moving.names()
    assert "NodeLeaving" in [one["reason"] for one in told["events"]]
    assert (len(told["operatorLog"]), told["missing"]) == (1, {})
    assert file.stat().st_mode & 0o077 == 0
    again = reader.run(*words)
    assert (again.status, again.stderr) == (1, f"error: {file} exists: remove it, or name another with --file\n")


def test_it_asks_for_no_more_than_its_role_grants_and_only_reads(
    moving: Scene, reader: Reader, api_server: ApiServer
) -> None:
    reader.text("status", "-A")
    reader.text("status", moving.name, "-n", moving.namespace)
    reader.text("what-if", "drain", f"{moving.namespace}-n1")
    difference = audit_rbac([api_server.audit_log], reader.rendered, USER)
    assert difference.ungranted == frozenset()
    assert {str(right) for right in difference.unused} <= RARE


RARE = {"get pods", "get controllerrevisions.apps", "list evictions.lifecycle.k8s.io"}
"""A pod that status names and a LIST lacks, a job whose template is refused, a Kubernetes that serves Evictions."""


def test_a_refusal_is_one_line_as_kubectl_writes_it(api_server: ApiServer, reader: Reader, namespace: str) -> None:
    none = reader.run("status", "none", "-n", namespace)
    kubectl = api_server.kubectl("get", "trainingjob", "none", f"--namespace={namespace}", check=False)
    assert (none.status, none.stdout, none.stderr) == (1, "", kubectl.stderr)
    stranger = api_server.kubeconfig_for_service_account(namespace, "default")
    refused = reader.run("status", "-n", namespace, kubeconfig=stranger)
    kubectl = api_server.kubectl(
        "get",
        "trainingjobs",
        f"--namespace={namespace}",
        f"--as=system:serviceaccount:{namespace}:default",
        check=False,
    )
    assert (refused.status, refused.stdout, refused.stderr) == (1, "", kubectl.stderr)


def test_a_node_that_does_not_exist_is_one_line(api_server: ApiServer, reader: Reader) -> None:
    done = reader.run("what-if", "drain", "nowhere")
    kubectl = api_server.kubectl("get", "node", "nowhere", check=False)
    assert (done.status, done.stdout, done.stderr) == (1, "", kubectl.stderr)


NOWHERE = "https://127.0.0.1:1"
"""A cluster that does not answer."""


def test_of_several_kubeconfigs_it_takes_the_context_that_kubectl_takes(
    reader: Reader, namespace: str, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_text(_kubeconfig({"token": "other"}, "other"))
    both = f"{reader.kubeconfig}:{other}"
    found = reader.run_with(both, "status", "-n", namespace)
    assert found == Done(0, "", f"No training jobs found in {namespace} namespace.\n")
    backwards = reader.run_with(f"{other}:{reader.kubeconfig}", "status", "-n", namespace)
    assert backwards == reader.kubectl_says(f"{other}:{reader.kubeconfig}", "get", "--raw", "/api")


def test_a_context_that_is_named_needs_no_current_one(reader: Reader, tmp_path: Path) -> None:
    kubeconfig = yaml.safe_load(reader.kubeconfig.read_text())
    (context,) = kubeconfig["contexts"]
    context["context"]["namespace"] = NAMESPACE
    without = tmp_path / "without"
    without.write_text(yaml.safe_dump(kubeconfig | {"current-context": ""}))
    found = reader.run_with(str(without), "status", f"--context={context['name']}")
    assert found == Done(0, "", f"No training jobs found in {NAMESPACE} namespace.\n")
    for words in (("--context=nowhere",), ()):
        told = reader.run_with(str(without), "status", "-A", *words)
        assert told == reader.kubectl_says(str(without), "get", "--raw", "/api", *words)


def test_a_credential_plugin_that_fails_is_told_in_kubectls_words(reader: Reader, tmp_path: Path) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "false", "interactiveMode": "Never"}
    kubeconfig = tmp_path / "exec"
    kubeconfig.write_text(_kubeconfig({"exec": plugin}, "exec"))
    told = reader.run_with(str(kubeconfig), "status", "-A")
    assert "getting credentials: exec: executable false failed" in told.stderr
    assert told == reader.kubectl_says(str(kubeconfig), "get", "--raw", "/api")


@pytest.mark.parametrize("content", ["", "a: [", "kind: Config\nclusters: 5\n"])
def test_a_kubeconfig_that_is_wrong_is_told_in_kubectls_words(content: str, reader: Reader, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "wrong"
    kubeconfig.write_text(content)
    told = reader.run_with(str(kubeconfig), "status")
    assert told == reader.kubectl_says(str(kubeconfig), "get", "--raw", "/api")
    assert told.status == 1


def _kubeconfig(user: dict[str, Any], name: str) -> str:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": NOWHERE}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    return yaml.safe_dump(content)


@pytest.fixture
def kubelet(training: Scene) -> Iterator[Kubelet]:
    """Serves the logs of that job's members."""
    with Kubelet(training.server) as kubelet:
        for name in ("n1", "n2"):
            kubelet.serves(f"{training.namespace}-{name}")
        yield kubelet


def account(scene: Scene, name: str, *roles: str) -> Path:
    """The kubeconfig of an account with these ClusterRoles in the job's namespace, and no other right."""
    scene.kubectl("create", "serviceaccount", name)
    for number, role in enumerate(roles):
        whose = f"--serviceaccount={scene.namespace}:{name}"
        scene.kubectl("create", "rolebinding", f"{name}-{number}", f"--clusterrole={role}", whose)
    return scene.server.kubeconfig_for_service_account(scene.namespace, name)


VIEW = ("system:aggregate-to-view", "perdure-view")
"""Of which a controller, which does not run here, makes Kubernetes' role `view`."""


@pytest.fixture
def viewer(training: Scene, reader: Reader) -> Path:
    """The kubeconfig of an account with Kubernetes' role `view` for the job's namespace."""
    return account(training, "viewer", *VIEW)


def test_logs_are_in_the_order_of_time_with_the_run_and_the_rank_of_each_line(
    training: Scene, kubelet: Kubelet, reader: Reader, viewer: Path
) -> None:
    first, second = training.names()
    for rank, name in enumerate((first, second)):
        kubelet.writes(name, "importing", f"perdure: run 1 starts: rank {rank} of 2: python train.py")
    kubelet.writes(second, "step 1")
    kubelet.writes(first, "step 1")
    words = ("logs", training.name, "-n", training.namespace)
    told = reader.run(*words, kubeconfig=viewer)
    assert (told.status, told.stderr) == (0, "")
    assert told.stdout.splitlines() == [
        f"[{first}] importing",
        f"[run 1 rank 0 {first}] perdure: run 1 starts: rank 0 of 2: python train.py",
        f"[{second}] importing",
        f"[run 1 rank 1 {second}] perdure: run 1 starts: rank 1 of 2: python train.py",
        f"[run 1 rank 1 {second}] step 1",
        f"[run 1 rank 0 {first}] step 1",
    ]
    last = [
        json.loads(line) for line in reader.run(*words, "--tail=1", "--json", kubeconfig=viewer).stdout.splitlines()
    ]
    assert [(one["pod"], one["text"]) for one in last] == [(second, "step 1"), (first, "step 1")]
    refused = reader.run(*words, "--max-log-requests=1", kubeconfig=viewer)
    assert (refused.status, refused.stdout) == (1, "")
    assert "the job has 2 logs, and 1 are read at a time" in refused.stderr


def test_who_may_not_read_logs_is_told_so_in_kubectls_words(training: Scene, kubelet: Kubelet, reader: Reader) -> None:
    drainer = account(training, "drainer", "perdure-kubectl")
    told = reader.run("logs", training.name, "-n", training.namespace, kubeconfig=drainer)
    where = f"--namespace={training.namespace}"
    kubectl = reader.kubectl_says(str(drainer), "logs", training.names()[0], where)
    assert (told.status, told.stdout) == (1, "")
    assert told.stderr == kubectl.stderr
    assert "Forbidden" in told.stderr


def test_logs_are_followed_over_cut_connections_and_new_members_until_the_job_is_over(
    training: Scene, kubelet: Kubelet, reader: Reader, viewer: Path, tmp_path: Path
) -> None:
    first, second = training.names()
    kubelet.writes(first, "perdure: run 1 starts: rank 0 of 2: python train.py", "step 1")
    argv = [str(Path(sys.executable).parent / "kubectl-perdure"), "logs", "-f", training.name, "-n", training.namespace]
    environment = clean_environment(os.environ) | {"KUBECONFIG": str(viewer)}
    environment["PATH"] = f"{reader.kubectl.parent}:{environment['PATH']}"
    shown, expected = tmp_path / "out", list[str]()

    def shows(*lines: str) -> None:
        expected.extend(lines)
        until("the lines", lambda: len(shown.read_text().splitlines()) >= len(expected))
        assert sorted(shown.read_text().splitlines()) == sorted(expected)

    with (
        shown.open("wb") as out,
        subprocess.Popen(argv, stdout=out, stderr=subprocess.PIPE, text=True, env=environment) as process,
    ):
        try:
            member = f"[run 1 rank 0 {first}]"
            shows(f"{member} perdure: run 1 starts: rank 0 of 2: python train.py", f"{member} step 1")
            until("both logs are followed", lambda: sum("follow" in one for one in kubelet.asked) == 2)
            kubelet.cut()
            kubelet.writes(first, "step 2")
            kubelet.writes(second, "importing")
            shows(f"{member} step 2", f"[{second}] importing")

            training.cordon(f"{training.namespace}-n2")
            (new,) = until("a standby", lambda: sorted(set(training.names()) - {first, second}))
            kubelet.writes(new, "warm")
            kubelet.serves(training.node("n3"))
            training.run_pods(f"{training.namespace}-n3")
            shows(f"[{new}] warm")

            for rank, name in enumerate((first, second)):
                kubelet.writes(name, "bye")
                training.end_pod(name, completed(1, rank, 3))
            for name in (first, second, new):
                kubelet.ends(name)
            shows(f"{member} bye", f"[{second}] bye")
            assert process.wait(SECONDS) == 0
            assert process.stderr is not None
            assert process.stderr.read().startswith(f"{training.namespace}/{training.name} is Completed")
        finally:
            process.kill()
            training.server.kubectl("uncordon", f"{training.namespace}-n2")


def test_who_may_edit_a_job_moves_its_members_off_a_node_and_deletes_none(
    training: Scene, reader: Reader, api_server: ApiServer
) -> None:
    node, members = f"{training.namespace}-n2", training.names()
    editor = account(training, "editor", *VIEW, "perdure-edit")
    words = ("move", training.name, "--off", node, "-n", training.namespace)
    foretold = reader.json(*words, "--dry-run")
    assert [(one["name"], one["withRoom"]["how"]) for one in foretold["moves"]] == [(training.name, "live")]
    assert vacate(training) == ""
    told = reader.run(*words, kubeconfig=editor)
    assert (told.status, told.stderr) == (0, "")
    assert members[1] in told.stdout
    assert vacate(training) == node
    until("a standby", lambda: len(training.names()) == 3)
    training.run_pods(training.node("n3"))
    until("an offer to take over live", lambda: _offered_live(training))
    again = json.loads(reader.run(*words, "--json", kubeconfig=editor).stdout)
    assert [(one["name"], one["askedBefore"]) for one in again["items"]] == [(training.name, True)]
    withdrawn = reader.run(*words, "--withdraw", kubeconfig=editor)
    assert (withdrawn.status, withdrawn.stderr) == (0, "")
    assert vacate(training) == ""
    user = f"system:serviceaccount:{training.namespace}:editor"
    written = {
        str(one) for one in audit_rbac([api_server.audit_log], "", user).ungranted if one.verb not in ("get", "list")
    }
    assert written == {"patch trainingjobs.perdure.dev"}


def vacate(scene: Scene) -> str:
    return scene.kubectl(
        "get", "trainingjob", scene.name, r"--output=jsonpath={.metadata.annotations.perdure\.dev/vacate}"
    )


def test_who_may_only_read_moves_nothing_and_is_told_so(training: Scene, viewer: Path, reader: Reader) -> None:
    node = f"{training.namespace}-n2"
    told = reader.run("move", "--off", node, "-n", training.namespace, kubeconfig=viewer)
    assert (told.status, told.stdout) == (1, "")
    assert told.stderr.startswith('Error from server (Forbidden): trainingjobs.perdure.dev "digits" is forbidden')
    assert 'cannot patch resource "trainingjobs"' in told.stderr
    assert vacate(training) == ""
    nobody = reader.run("move", "--off", "nowhere", "-n", training.namespace, kubeconfig=viewer)
    said = f"No training job in {training.namespace} namespace has a pod on nowhere.\n"
    assert nobody == Done(0, "", said)


def test_who_may_edit_a_job_asks_its_members_to_save_and_who_may_only_read_does_not(
    training: Scene, viewer: Path, reader: Reader
) -> None:
    words = ("checkpoint", training.name, "-n", training.namespace)
    told = json.loads(reader.run(*words, "--dry-run", "--json", kubeconfig=viewer).stdout)
    assert (told["name"], told["asked"]) == (training.name, None)
    refused = reader.run(*words, kubeconfig=viewer)
    assert (refused.status, refused.stdout) == (1, "")
    assert refused.stderr.startswith('Error from server (Forbidden): trainingjobs.perdure.dev "digits" is forbidden')
    assert [one.save for one in training.assignments() if isinstance(one, Train)] == [0, 0]
    editor = account(training, "editor", *VIEW, "perdure-edit")
    asked = reader.run(*words, kubeconfig=editor)
    assert (asked.status, asked.stderr) == (0, "")
    assert f"kubectl perdure logs {training.name}" in asked.stdout
    until(
        "all members are asked to save",
        lambda: [one.save for one in training.assignments() if isinstance(one, Train)] == [1, 1],
    )


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_top_is_refreshed_on_a_terminal_until_it_is_interrupted(
    ending: signal.Signals, training: Scene, reader: Reader
) -> None:
    words = ("top", "-n", training.namespace)
    (row,) = reader.json(*words)["items"]
    assert (row["name"], row["stage"], row["members"], row["wanted"]) == (training.name, "running", 2, 2)
    assert "running" in reader.text(*words)
    environment = clean_environment(os.environ) | {"KUBECONFIG": str(reader.kubeconfig), "TERM": "xterm"}
    environment["PATH"] = f"{reader.kubectl.parent}:{environment['PATH']}"
    argv = [str(Path(sys.executable).parent / "kubectl-perdure"), *words, "--every=1"]
    ours, its = os.openpty()
    shown = bytearray()

    def shows(text: str) -> None:
        while text.encode() not in shown:
            assert select.select([ours], [], [], SECONDS)[0], f"it does not show {text!r}"
            shown.extend(os.read(ours, 1 << 16))

    with subprocess.Popen(argv, stdin=its, stdout=its, stderr=its, env=environment) as process:
        os.close(its)
        try:
            shows("running")
            training.cordon(f"{training.namespace}-n2")
            shows("preparing")
            process.send_signal(ending)
            shows("\x1b[?1049l")
            assert process.wait(SECONDS) == 0
            assert b"Traceback" not in shown
        finally:
            process.kill()
            os.close(ours)
            training.server.kubectl("uncordon", f"{training.namespace}-n2")


def test_describe_has_nothing_that_is_empty_and_explain_says_what_the_rest_means(moving: Scene, reader: Reader) -> None:
    moving.run_pods(moving.node("n3"))
    until("an offer to take over live", lambda: _offered_live(moving))
    described = moving.kubectl("describe", "trainingjob", moving.name)
    status = described.partition("\nStatus:\n")[2].partition("\nEvents:")[0].splitlines()
    names = {line.partition(":")[0].strip() for line in status}
    assert (
        not {"Log Looks", "Outcomes", "Fallback Reason", "Earlier Takeovers", "Hung Nodes", "Unready", "Unconfirmed"}
        & names
    )
    assert {"Steps Lost", "Replicas", "Conditions", "Current"} <= names
    assert "token" not in described.lower()
    told = reader.json("explain", moving.name, "-n", moving.namespace, "--internals")["items"]
    assert "next.plan.handover.master" in [one["field"] for one in told]
    assert all(one["meaning"] for one in told)
