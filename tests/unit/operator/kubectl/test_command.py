"""`kubectl perdure` takes kubectl's flags, and tells a user's mistake in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure_operator.kubectl import command


def test_a_kubeconfig_that_does_not_exist_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["status", "--kubeconfig", str(tmp_path / "none")]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: no cluster to talk to: ")
    assert said.err.count("\n") == 1


def test_the_kubeconfig_of_the_environment_is_used_unless_another_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/mine")
    assert command.main(["status"]) == 1
    assert "/nowhere/mine" in capsys.readouterr().err
    assert command.main(["status", "--kubeconfig", "/nowhere/other"]) == 1
    assert "/nowhere/other" in capsys.readouterr().err


def test_a_terminal_without_unicode_gets_the_rest_of_a_line() -> None:
    code = "from perdure_operator.kubectl import command; command.main(['status', '--kubeconfig', 'none']); print('…')"
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ascii_only)
    assert done.stdout == "?\n"


def test_flags_may_stand_before_the_command_and_after_it() -> None:
    parser = command._parser()
    for words in (["-n", "team", "--json", "status", "digits"], ["status", "digits", "-n", "team", "-o", "json"]):
        found = parser.parse_args(words)
        assert (found.namespace, found.output, found.job, found.all_namespaces) == ("team", "json", "digits", False)
    assert parser.parse_args(["-A", "status"]).all_namespaces
    assert parser.parse_args(["status", "-A"]).all_namespaces


@pytest.mark.parametrize("lacks", ["rich", "kubernetes"])
def test_what_is_not_installed_is_named_with_what_brings_it(lacks: str) -> None:
    without = f"import sys; sys.modules[{lacks!r}] = None; sys.argv = ['kubectl-perdure', 'status']"
    code = f"{without}; from perdure_operator.kubectl.start import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"error: {lacks} is not installed: pip install 'perdure[kubectl]'\n"


def test_it_runs_without_torch_and_without_the_operators_loop() -> None:
    heavy = {"torch", "kopf", "prometheus_client", "cryptography", "numpy", "boto3"}
    code = f"import sys, perdure_operator.kubectl.command; print(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []
