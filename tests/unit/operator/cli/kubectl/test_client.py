"""The cluster is read through the kubectl on the PATH, which is a script here."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import aclosing, redirect_stderr
from pathlib import Path

import pytest

from perdure_operator.api.default_signals import VACATE_ANNOTATION
from perdure_operator.cli.kubectl import client, command, reading
from perdure_operator.cli.kubectl.client import Kubectl, KubectlFailed, RefusalFilter
from perdure_operator.cluster.protocol import EVENTS, JOBS, NODES, ApiError, Forbidden

Fake = Callable[[str], Path]
FORBIDDEN = 'Error from server (Forbidden): nodes is forbidden: User "x" cannot list resource "nodes"'


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Makes a kubectl of that shell script; returns the file with its calls, an argument a line."""

    def make(script: str) -> Path:
        calls, program = tmp_path / "calls", tmp_path / "bin" / "kubectl"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\nfor one; do echo \"$one\"; done >>'{calls}'\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.defpath}")
        monkeypatch.setattr(client, "POD_NAMESPACE", tmp_path / "namespace")
        return calls

    return make


def test_kubectl_gets_the_users_flags_as_they_are(fake: Fake) -> None:
    calls = fake('echo \'{"metadata": {"name": "a", "uid": "u"}}\'')
    found = asyncio.run(Kubectl(["--context=$(date) 'x'", "--as=who"]).get(JOBS, "team", "a"))
    assert found["metadata"]["name"] == "a"
    path = "/apis/perdure.dev/v1alpha1/namespaces/team/trainingjobs/a"
    assert calls.read_text().splitlines() == ["get", "--raw", path, "--context=$(date) 'x'", "--as=who"]


def test_a_list_is_read_page_by_page(fake: Fake) -> None:
    first = '{"metadata": {"continue": "a&b"}, "items": [{"metadata": {"name": "a", "uid": "u"}}]}'
    last = '{"metadata": {}, "items": [{"metadata": {"name": "b", "uid": "v"}}]}'
    calls = fake(f"case $3 in *continue*) echo '{last}';; *) echo '{first}';; esac")
    found = asyncio.run(Kubectl().list(EVENTS, "team", selector="x=y", fields="regarding.uid=u"))
    assert [one["metadata"]["name"] for one in found] == ["a", "b"]
    query = "limit=500&labelSelector=x%3Dy&fieldSelector=regarding.uid%3Du"
    root = f"/apis/events.k8s.io/v1/namespaces/team/events?{query}"
    assert calls.read_text().split() == ["get", "--raw", root, "get", "--raw", f"{root}&continue=a%26b"]


def test_a_refusal_is_an_error_that_nobody_has_seen_yet(fake: Fake) -> None:
    fake(f"echo a note >&2; echo '{FORBIDDEN}' >&2; exit 1")
    with redirect_stderr(io.StringIO()) as said, pytest.raises(Forbidden) as caught:
        asyncio.run(Kubectl().list(NODES))
    assert (str(caught.value), caught.value.status, said.getvalue()) == (FORBIDDEN, 403, "a note\n")


def test_a_kind_that_is_not_served_is_no_error(fake: Fake) -> None:
    fake("echo 'Error from server (NotFound): the server could not find the requested resource' >&2; exit 1")
    assert asyncio.run(Kubectl().serves(JOBS)) is False


def test_what_kubectl_says_is_shown_at_once_so_that_a_credential_plugin_may_ask(fake: Fake, tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    os.mkfifo(answer)
    fake(f'printf \'code: \' >&2; read code <\'{answer}\'; echo "{{\\"gitVersion\\": \\"$code\\"}}"')

    class Terminal(io.StringIO):
        def write(self, text: str) -> int:
            answer.write_text("42\n")
            return super().write(text)

    async def read() -> object:
        async with asyncio.timeout(60):
            return await Kubectl()._read("/version")

    with redirect_stderr(Terminal()) as said:
        assert asyncio.run(read()) == {"gitVersion": "42"}
    assert said.getvalue() == "code: "


def test_other_failures_keep_kubectls_words_and_exit_status(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake("echo 'error: context \"x\" does not exist' >&2; exit 7")
    assert command.main(["status", "-A", "--context=x"]) == 7
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", 'error: context "x" does not exist\n')


def test_a_kubectl_that_was_killed_has_the_status_that_a_shell_gives(fake: Fake) -> None:
    fake("kill -TERM $$")
    with pytest.raises(KubectlFailed) as caught:
        asyncio.run(Kubectl().list(NODES))
    assert caught.value.status == 143


def test_without_kubectl_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.main(["status", "-A"]) == 1
    said = "error: kubectl is not on the PATH: kubectl perdure reads the cluster through it\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("body", ["<html>hello</html>", "[]"])
def test_an_answer_of_something_else_is_an_error(body: str, fake: Fake) -> None:
    fake(f"echo '{body}'")
    with pytest.raises(ApiError, match=r"/api/v1/nodes\?limit=500: the answer is not JSON: is this an API server"):
        asyncio.run(Kubectl().list(NODES))


@pytest.mark.parametrize(
    ("script", "in_a_pod", "expected"),
    [
        ("printf team", "pod", "team"),
        ("", "pod", "pod"),
        ("", "", "default"),
        ("echo 'error: current-context must exist in order to minify' >&2; exit 1", "", "default"),
    ],
)
def test_the_namespace_is_kubectls(
    script: str, in_a_pod: str, expected: str, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = fake(script)
    if in_a_pod:
        calls.with_name("namespace").write_text(in_a_pod)
    assert asyncio.run(Kubectl(["--context=x"]).namespace()) == expected
    assert calls.read_text().split()[:3] == ["config", "view", "--minify"]
    assert "--context=x" in calls.read_text().split()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("words", [["status", ""], ["status", "?watch=1"], ["explain", "a/b"], ["status", "-n", "a/b"]])
def test_what_can_be_no_name_never_becomes_part_of_a_url(
    words: list[str], fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = fake("printf team")
    assert command.main(words) == 1
    assert "is no name of a" in capsys.readouterr().err
    assert not calls.exists() or "--raw" not in calls.read_text()


def test_a_job_is_not_looked_for_in_all_namespaces(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake("exit 9")
    assert command.main(["status", "digits", "-A"]) == 1
    assert capsys.readouterr().err == "error: a resource cannot be retrieved by name across all namespaces\n"


def test_a_cluster_without_the_crd_is_told_from_a_job_that_is_not_there(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    fake("echo 'Error from server (NotFound): the server could not find the requested resource' >&2; exit 1")
    for words in (["status", "-A"], ["status", "digits"]):
        assert command.main(words) == 1
        said = "error: the cluster serves no TrainingJobs perdure.dev/v1alpha1: is Perdure's CRD installed there?\n"
        assert capsys.readouterr().err == said


def test_a_job_that_is_not_there_is_told_in_kubectls_words(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    words = 'Error from server (NotFound): trainingjobs.perdure.dev "digits" not found'
    serves = '{"resources": [{"name": "trainingjobs"}]}'
    fake(f"case $3 in */digits) echo '{words}' >&2; exit 1;; *) echo '{serves}';; esac")
    assert command.main(["status", "digits", "-n", "team"]) == 1
    assert capsys.readouterr() == ("", f"{words}\n")


@pytest.mark.parametrize(
    ("parts", "shown", "refusal"),
    [
        (["a\nb"], "a\nb", ""),
        (["Err", "or: no\nError from server: x\nmore"], "Error: no\n", "Error from server: x\nmore"),
        (["a Error from", " server\n"], "a Error from server\n", ""),
        (["Error from", " ser", "ver (Forbidden): no\n"], "", "Error from server (Forbidden): no\n"),
        (["Error from"], "Error from", ""),
    ],
)
def test_only_a_line_that_begins_as_a_refusal_is_held_back(parts: list[str], shown: str, refusal: str) -> None:
    held = RefusalFilter()
    assert ("".join([*map(held.rest, parts), held.end()]), held.refusal) == (shown, refusal)


def test_a_part_is_shown_as_soon_as_it_cannot_become_a_refusal() -> None:
    held = RefusalFilter()
    assert [held.rest("E"), held.rest("nter: "), held.rest("Error from server")] == ["", "Enter: ", "Error from server"]


LABELS = '"labels": {"app.kubernetes.io/version": "1.2"}'
ROWS = f'{{"metadata": {{"name": "x", "uid": "u", {LABELS}}}, '
ROWS += '"data": {"signals.yaml": "- {name: cordon, reaction: Ignore}"}}'


def test_the_operators_own_rows_are_read_from_its_config_map(fake: Fake) -> None:
    calls = fake(f"echo '{ROWS}'")
    found = asyncio.run(reading.operator(Kubectl(), "system", "train"))
    assert [(row.name, row.reaction.value) for row in found.rows] == [("cordon", "Ignore")]
    assert (found.row_source, found.version) == ("those of ConfigMap system/train-operator-signals", "1.2")
    assert "/api/v1/namespaces/system/configmaps/train-operator-signals" in calls.read_text()


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            "NotFound",
            "there is no ConfigMap system/train-operator-signals; if the operator is elsewhere, give --operator",
        ),
        (
            "Forbidden",
            "ConfigMap system/train-operator-signals may not be read, which may change them: Error from server",
        ),
    ],
)
def test_without_the_operators_rows_the_shipped_ones_are_taken_and_it_is_said(
    reason: str, words: str, fake: Fake
) -> None:
    fake(f"echo 'Error from server ({reason}): no' >&2; exit 1")
    found = asyncio.run(reading.operator(Kubectl(), "system", "train"))
    assert (found.rows, found.version) == ((), "")
    assert found.row_source.startswith(f"the shipped ones alone, as {words}")


def test_rows_that_this_version_cannot_read_end_the_command(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake(f"echo '{ROWS.replace('Ignore', 'Dance')}'")
    assert command.main(["what-if", "drain", "n1"]) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: ConfigMap perdure-system/perdure-operator-signals: signals[0] (cordon)")
    assert said.err.count("\n") == 1


def test_an_object_that_cannot_be_read_is_named_and_the_exit_status_is_1(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = '{"metadata": {"name": "b", "namespace": "team", "uid": "u", "labels": {"perdure.dev/job": "a"}}, '
    broken += '"status": {"containerStatuses": 5}}'
    node = '{"metadata": {"name": "n1", "uid": "u", "resourceVersion": "1"}}'
    fake(
        f"case $3 in *configmaps*) echo '{ROWS}';; */nodes*) echo '{{\"items\": [{node}]}}';; "
        f"*/pods*) echo '{{\"items\": [{broken}]}}';; *) echo '{{}}';; esac"
    )
    assert command.main(["what-if", "drain", "node/n1"]) == 1
    said = capsys.readouterr()
    assert said.err == "Warning: pods team/b: it cannot be read and is ignored\n"
    assert said.out == "No training job has a pod on n1.\n"


@pytest.mark.parametrize(
    ("pods", "status", "warning"),
    [
        ('echo "Error from server (Forbidden): no" >&2; exit 1', 0, "members are not shown, as their pods may not be"),
        ("echo '{\"items\": [BROKEN]}'", 1, "pods /c: it"),
    ],
)
def test_a_job_is_shown_without_the_pods_that_cannot_be_read(
    pods: str, status: int, warning: str, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = '{"metadata": {"name": "c", "uid": "u"}, "status": {"containerStatuses": 5}}'
    job = '{"metadata": {"name": "a", "namespace": "team", "uid": "u"}}'
    fake(f"case $3 in */pods*) {pods.replace('BROKEN', broken)};; *) echo '{job}';; esac")
    assert command.main(["status", "a", "-n", "team"]) == status
    said = capsys.readouterr()
    assert said.err.startswith(f"Warning: {warning}")
    assert said.err.count("\n") == 1
    assert "team/a" in said.out


def test_lines_come_while_kubectl_still_writes_however_they_are_cut(fake: Fake, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    os.mkfifo(go_on)
    fake(f"printf 'a\\n\\nb'; read word <'{go_on}'; printf 'c\\nd'")

    async def read() -> list[str]:
        found = list[str]()
        async with asyncio.timeout(60), aclosing(Kubectl().lines("/log")) as lines:
            async for line in lines:
                found.append(line)
                if len(found) == 2:
                    go_on.write_text("on\n")
        return found

    assert asyncio.run(read()) == ["a", "", "bc", "d"]


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        ("echo 'Error from server (Forbidden): no' >&2; exit 1", Forbidden),
        ("echo 'error: cut' >&2; exit 1", KubectlFailed),
    ],
)
def test_an_answer_of_lines_that_ends_badly_is_an_error_behind_its_lines(
    ends: str, error: type[Exception], fake: Fake
) -> None:
    fake(f"echo a; {ends}")
    found = list[str]()

    async def read() -> None:
        async for line in Kubectl().lines("/log"):
            found.append(line)

    with pytest.raises(error):
        asyncio.run(read())
    assert found == ["a"]


def test_an_annotation_is_written_only_to_the_version_that_was_read(fake: Fake) -> None:
    calls = fake("")
    asyncio.run(Kubectl(["--as=who"]).annotate(JOBS, "team", "a", {"k": "v w"}, version="7"))
    assert calls.read_text().splitlines() == [
        *("patch", "trainingjobs.perdure.dev", "a", "--namespace=team", "--type=merge"),
        '--patch={"metadata": {"resourceVersion": "7", "annotations": {"k": "v w"}}}',
        *("--field-manager=kubectl-perdure", "--as=who"),
    ]


MINE = '{"metadata": {"name": "a", "namespace": "team", "uid": "u", "resourceVersion": "$(wc -l <CALLS)"}}'
OWNER = '"ownerReferences": [{"uid": "u", "controller": true}]'
ITS_POD = f'{{"metadata": {{"name": "p", "namespace": "team", "uid": "v", {OWNER}}}, "spec": {{"nodeName": "n1"}}}}'


def _cluster(fake: Fake, tmp_path: Path, patch: str) -> Path:
    mine = MINE.replace("CALLS", f"'{tmp_path / 'calls'}'").replace('"', '\\"').replace('\\"$', '\\"$')
    pods = f"echo '{{\"items\": [{ITS_POD}]}}'"
    return fake(f'case "$1 $3" in patch*) {patch};; *pods*) {pods};; *) echo "{mine}";; esac')


def test_a_job_that_others_write_meanwhile_is_read_again(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused, once = "echo 'Error from server (Conflict): the object has been modified' >&2", tmp_path / "once"
    calls = _cluster(fake, tmp_path, f"[ -e '{once}' ] || {{ : >'{once}'; {refused}; exit 1; }}")
    assert command.main(["move", "a", "--off", "n1", "-n", "team"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "team" in said.out
    patches = [line for line in calls.read_text().splitlines() if line.startswith("--patch=")]
    assert len(set(patches)) == 2  # the second names the version that was read again


def test_a_refused_move_is_told_in_kubectls_words(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = 'Error from server (Forbidden): trainingjobs.perdure.dev "a" is forbidden: User "x" cannot patch'
    _cluster(fake, tmp_path, f"echo '{words}' >&2; exit 1")
    assert command.main(["move", "a", "--off", "node/n1", "-n", "team"]) == 1
    assert capsys.readouterr() == ("", f"{words}\n")


def test_a_job_that_is_not_there_is_not_asked_to_leave(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = _cluster(fake, tmp_path, "exit 9")
    assert command.main(["move", "a", "--off", "n2", "-n", "team"]) == 1
    assert capsys.readouterr().err == "error: team/a has no pod on n2\n"
    assert "patch" not in calls.read_text()


def _jobs(fake: Fake, vacate: dict[str, str], patch: str = "") -> Path:
    """Of each name a job in the namespace team with that annotation and a pod on n1; `patch` has its name as $2."""
    jobs, pods = list[str](), list[str]()
    for name, value in vacate.items():
        meta = f'"name": "{name}", "namespace": "team", "uid": "{name}", "resourceVersion": "7"'
        jobs.append(f'{{"metadata": {{{meta}, "annotations": {{"{VACATE_ANNOTATION}": "{value}"}}}}}}')
        pods.append(ITS_POD.replace('"p"', f'"{name}-0"').replace('"u"', f'"{name}"').replace('"v"', f'"{name}-v"'))
    each = " ".join(f"*trainingjobs/{name}) echo '{job}';;" for name, job in zip(vacate, jobs, strict=True))
    listed = (f"""echo '{{"items": [{", ".join(many)}]}}'""" for many in (pods, jobs))
    return fake('case "$1 $3" in patch*) shift; {};; {} *pods*) {};; *) {};; esac'.format(patch or ":", each, *listed))


def _patches(calls: Path) -> list[str]:
    return [line.partition("=")[2] for line in calls.read_text().splitlines() if line.startswith("--patch=")]


def test_of_several_jobs_one_that_cannot_be_asked_does_not_stop_the_others(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second is refused as it is to move all of it; the first fails in kubectl, the third in the API server."""
    fails = "echo no route >&2; exit 9"
    forbids = "echo 'Error from server (Forbidden): no' >&2; exit 1"
    jobs = {"a": "", "b": "true", "c": "", "d": ""}
    calls = _jobs(fake, jobs, f"case $2 in a) {fails};; c) {forbids};; esac")
    assert command.main(["move", "--off", "n1", "-n", "team"]) == 1
    said = capsys.readouterr()
    assert "Warning: team/a was not asked to leave: kubectl has ended with exit status 9\n" in said.err
    assert "Warning: team/b has the annotation perdure.dev/vacate=true" in said.err
    assert "Warning: team/c was not asked to leave: Error from server (Forbidden): no\n" in said.err
    assert len(_patches(calls)) == 3
    assert [line.split()[1] for line in said.out.splitlines() if line.startswith("team")] == ["d"]


def test_what_was_asked_is_shown_also_if_the_rest_is_cut_short(fake: Fake) -> None:
    _jobs(fake, {"a": "", "b": ""}, "[ $2 = a ] || { kill -INT $PPID; exec sleep 60; }")
    code = "import sys; from perdure_operator.cli.kubectl import command; sys.exit(command.main(sys.argv[1:]))"
    words = ("move", "--off", "n1", "-n", "team")
    done = subprocess.run([sys.executable, "-c", code, *words], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (command.KILLED_BY_SIGINT, "")
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("team")] == ["a"]


def test_a_withdrawal_takes_these_nodes_from_what_each_job_is_asked(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = _jobs(fake, {"a": "n1", "b": "n3", "c": "n3,n1,n2"})
    assert command.main(["move", "--withdraw", "--off", "n1", "--off=node/n2", "-A", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)["items"]
    assert [(one["name"], one["nodes"], one["vacate"]) for one in written] == [
        ("a", ["n1"], ""),
        ("c", ["n1", "n2"], "n3"),
    ]
    left = [json.loads(one)["metadata"] for one in _patches(calls)]
    assert [one["annotations"] for one in left] == [{VACATE_ANNOTATION: None}, {VACATE_ANNOTATION: "n3"}]
    assert {one["resourceVersion"] for one in left} == {"7"}


def test_one_job_is_asked_no_more_to_leave(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    calls = _jobs(fake, {"a": "n1,n3", "b": "n1"})
    assert command.main(["move", "a", "--withdraw", "--off", "n1", "-n", "team"]) == 0
    assert "STILL LEAVES" in capsys.readouterr().out
    assert len(_patches(calls)) == 1
    assert command.main(["move", "a", "--withdraw", "--off", "n2", "-n", "team"]) == 1
    assert capsys.readouterr().err.startswith("error: team/a is not asked to leave n2")
    assert len(_patches(calls)) == 1


def test_where_no_job_is_there_json_is_still_json(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    _jobs(fake, {"a": ""})
    assert command.main(["move", "--off", "n2", "-n", "team", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"items": []}
    assert command.main(["move", "--off", "n2", "-n", "team", "--json", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out) == {"requests": [], "moves": []}
    assert command.main(["move", "--withdraw", "--off", "n2", "-n", "team"]) == 0
    assert capsys.readouterr().err == "No training job in team namespace is asked to leave n2.\n"


def test_a_command_that_is_printed_is_for_the_same_cluster_and_user_without_a_secret(
    fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    _jobs(fake, {"a": ""})
    flags = ["--context=prod", "--as-group=x", "--as-group=y", "--token=secret"]
    assert command.main(["move", "--off", "n1", "-n", "team", *flags]) == 0
    printed = capsys.readouterr().out
    assert "move a --withdraw --off n1 -n team --context=prod --as-group=x --as-group=y\n" in printed
    assert "secret" not in printed
