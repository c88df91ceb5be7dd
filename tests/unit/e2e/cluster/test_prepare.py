"""Caches must be rebuilt exactly when their inputs change, and missing tools must be reported."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from e2e.prepare import PrepareError, Progress, envs, missing, requirements, tools
from e2e.prepare.basics import REPOSITORY, content_key, locked

HELM = next(module for module in tools.MODULES if module.name == "helm")


@pytest.fixture
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the pins to change."""
    copy = tmp_path / "tools"
    shutil.copytree(tools.PINS, copy)
    monkeypatch.setattr(tools, "PINS", copy)
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "cache"))
    return copy


def test_the_binaries_of_a_module_move_when_its_sums_change_and_only_its(pins: Path) -> None:
    before = tools.tool_folders()
    with (pins / "helm" / "go.sum").open("a") as file:
        file.write("more\n")
    after = tools.tool_folders()

    assert [name for name in before if before[name] != after[name]] == ["helm"]


@pytest.mark.parametrize("change", [{"ldflags": ""}, {"tags": "other"}, {"cgo": True}])
def test_the_binaries_of_a_module_move_when_its_build_flags_change(pins: Path, change: dict[str, Any]) -> None:
    assert dataclasses.replace(HELM, **change).folder() != HELM.folder()


def test_the_same_pins_mean_the_same_folder_in_any_checkout(pins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = HELM.folder()
    monkeypatch.setattr(tools, "PINS", pins.rename(pins.with_name("elsewhere")))

    assert HELM.folder() == here


def test_what_is_not_built_is_named(pins: Path) -> None:
    assert {"kube-apiserver", "etcd", "runc", "helm"} <= set(tools.unbuilt())


def test_gos_caches_are_out_of_the_way_at_once_and_the_next_run_removes_what_is_left(pins: Path) -> None:
    cache = pins.parent / "cache"
    for name in ("go", "go.dropped-1"):
        (cache / name / "mod").mkdir(parents=True)
    removing = tools._drop()
    assert not (cache / "go").exists()
    assert removing is not None
    assert removing.wait() == 0
    assert list(cache.glob("go*")) == []
    assert tools.remove_dropped() is None


def pinned(module: str) -> dict[str, str]:
    """The version of each module that this one is made of."""
    text = (tools.PINS / module / "go.mod").read_text()
    return dict(re.findall(r"^\t(\S+) (v\S+) // indirect$", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("name", "may_differ"),
    [
        ("helm", {"k8s.io/kubectl", "k8s.io/apiextensions-apiserver"}),  # v0.0.0 there, and replaced
        ("containerd", {"github.com/containerd/containerd/api"}),
        ("karpenter", {"k8s.io/csi-translation-lib", "k8s.io/apiextensions-apiserver", "go.uber.org/zap"}),
    ],
)
def test_what_a_module_shares_with_kubernetes_it_pins_alike_so_that_it_is_compiled_once(
    name: str, may_differ: set[str]
) -> None:
    kubernetes, own = pinned("kubernetes"), pinned(name)
    assert {path for path in kubernetes.keys() & own.keys() if kubernetes[path] != own[path]} == may_differ
    assert len(kubernetes.keys() & own.keys()) > 50


@pytest.mark.parametrize("target", ["test", "chaos", "for-tests", "autoscaler"])
def test_one_run_prepares_all_so_that_nothing_compiled_is_dropped_before_the_last_needs_it(target: str) -> None:
    argv = ["make", "--dry-run", "--always-make", target]
    commands = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout

    assert commands.count("e2e.prepare") == 1


GO = """#!/bin/sh
# Makes a file for each package, as Go does, and fails at a package called broken.
echo "$*" >> "$GO_CALLS"
while [ "$1" != -o ]; do shift; done
folder=$2
shift 2
for package; do
    case ${package##*/} in broken) exit 1;; v[0-9]*) package=${package%/*};; esac
    : > "$folder/${package##*/}"
done
mkdir -p "$GOCACHE"
"""


@pytest.fixture
def go_calls(pins: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a stand-in for Go, which takes no minutes, was called with."""
    programs, calls = pins.parent / "programs", pins.parent / "calls"
    programs.mkdir()
    (programs / "go").write_text(GO)
    (programs / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("GO_CALLS", str(calls))
    return calls


def build_all() -> None:
    """In a process of its own: its last act, the removal of Go's caches, outlives it."""
    build = "from e2e.prepare import Progress, tools; tools.build(Progress())"
    subprocess.run([sys.executable, "-c", build], cwd=REPOSITORY, check=True)


def test_each_module_is_built_in_one_call_and_once(go_calls: Path) -> None:
    build_all()
    build_all()

    assert tools.unbuilt() == []
    assert len(go_calls.read_text().splitlines()) == len(tools.MODULES)


def test_what_was_built_before_a_module_failed_stays_and_so_do_gos_caches(go_calls: Path, pins: Path) -> None:
    broken = tools.Module("cni", (("bridge", "x/bridge"), ("broken", "x/broken")))
    with pytest.raises(PrepareError, match="building bridge, broken"):
        tools.build(Progress(), (HELM, broken))

    assert tools.unbuilt((HELM, broken)) == ["bridge", "broken"]
    assert (pins.parent / "cache" / "go").is_dir()


def test_without_the_autoscaler_a_cluster_lacks_nothing_and_its_step_is_named(
    pins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requirements, "missing", list)

    assert "karpenter" not in tools.unbuilt()
    assert requirements.missing_for_autoscaling() == ["the programs karpenter: run `python3 -m e2e.prepare autoscaler`"]


def test_a_key_keeps_its_parts_apart() -> None:
    assert content_key([b"ab", b"c"]) != content_key([b"a", b"bc"])


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one file per package."""
    for folder in envs.SOURCES:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").write_text("")
    for path in (envs.PYPROJECT, envs.CONSTRAINTS):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(envs, "REPOSITORY", tmp_path)
    monkeypatch.setattr(envs, "PYPROJECT", tmp_path / "pyproject.toml")
    monkeypatch.setattr(envs, "CONSTRAINTS", tmp_path / "constraints.txt")
    return tmp_path


@pytest.mark.parametrize(
    "changed", ["constraints.txt", "pyproject.toml", "runtime/perdure/__init__.py", "operator/perdure_operator/new.py"]
)
def test_the_environments_are_rebuilt_when_an_input_changes(checkout: Path, changed: str) -> None:
    before = envs.environments()
    with (checkout / changed).open("a") as file:
        file.write("\n# another line\n")

    assert envs.environments() != before


def test_compiled_python_does_not_rebuild_the_environments(checkout: Path) -> None:
    before = envs.environments()
    cache = checkout / "runtime/perdure/__pycache__"
    cache.mkdir()
    (cache / "x.pyc").write_bytes(b"x")

    assert envs.environments() == before


def test_the_operators_environment_takes_no_torch_and_the_trainers_no_kopf() -> None:
    assert "torch" not in envs.EXTRAS["operator"]
    assert "operator" not in envs.EXTRAS["trainer"]


def test_no_process_of_the_tests_compiles_torch() -> None:
    """One of its modules that no test imports, which could be compiled by the way."""
    spec = importlib.util.find_spec("torch.utils.mobile_optimizer")
    assert spec is not None
    assert spec.cached is not None
    assert Path(spec.cached).is_file()


def test_an_environment_that_a_process_names_is_in_use(tmp_path: Path) -> None:
    used, unused = tmp_path / "used", tmp_path / "unused"
    pipe, environ = subprocess.PIPE, {"PATH": f"{used}/bin:/usr/bin"}
    with subprocess.Popen(["/bin/cat"], stdin=pipe, stdout=pipe, bufsize=0, env=environ) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"?")
        process.stdout.read(1)  # Popen returns while its environment may not be there yet
        found = envs._in_use(used), envs._in_use(unused)
        process.kill()

    assert found == (True, False)


def test_a_failing_program_is_shown_with_its_last_lines(capsys: pytest.CaptureFixture[str]) -> None:
    script = "import sys; print('what went wrong'); sys.exit(3)"
    with pytest.raises(PrepareError, match=r"(?s)building it: .* ended with status 3:\nwhat went wrong"):
        Progress().run("building it", [sys.executable, "-c", script])

    assert "building it" in capsys.readouterr().err


def test_a_second_run_waits_for_the_first_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path))
    order: list[str] = []
    told = threading.Event()

    class Telling(Progress):
        def say(self, text: str) -> None:
            super().say(text)
            told.set()

    def second() -> None:
        with locked("tools", Telling()):
            order.append("second")

    thread = threading.Thread(target=second)
    with locked("tools", Progress()):
        thread.start()
        assert told.wait(60), "the second run never said that it waits"
        order.append("first")
    thread.join(60)

    assert order == ["first", "second"]
    assert "another run is preparing `tools`: waiting for it" in capsys.readouterr().err


def test_without_root_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    (lack, *_) = missing()
    assert lack.startswith("root: ")


def test_without_linux_the_message_says_so_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")

    assert missing() == ["Linux: this is Darwin, and the cluster is made of Linux namespaces"]
    assert "KUBECONFIG" in requirements.cannot_run(missing())


def test_without_go_the_message_says_which_is_needed(pins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "machine", list)
    monkeypatch.setenv("PATH", "/nowhere")

    lacks = missing(before_prepare=True)
    assert any("Go >= 1.26.5" in lack for lack in lacks)
