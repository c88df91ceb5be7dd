"""`kubectl perdure` takes kubectl's flags, and tells a user's mistake in one line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from perdure_operator.cli.kubectl import command


def test_a_terminal_without_unicode_gets_the_rest_of_a_line() -> None:
    code = "from perdure_operator.cli.kubectl import command; command.main(['explain', 'a/b', '-n', 'x']); print('…')"
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ascii_only)
    assert done.stdout == "?\n"


def test_flags_may_stand_before_the_command_and_after_it() -> None:
    parser = command._parser()
    for words in (["-n", "team", "--json", "status", "digits"], ["status", "digits", "-n", "team", "-o", "json"]):
        found = parser.parse_args(words)
        assert (found.namespace, found.output, found.job, found.all_namespaces) == ("team", "json", "digits", False)
    assert parser.parse_args(["what-if", "-n", "team", "drain", "n1"]).namespace == "team"
    assert parser.parse_args(["-A", "status"]).all_namespaces
    assert parser.parse_args(["status", "-A"]).all_namespaces


@pytest.mark.parametrize("lacks", ["rich", "yaml"])
def test_what_is_not_installed_is_named_with_what_brings_it(lacks: str) -> None:
    without = f"import sys; sys.modules[{lacks!r}] = None; sys.argv = ['kubectl-perdure', 'status']"
    code = f"{without}; from perdure_operator.cli.kubectl.start import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {lacks} is not installed: install the plugin from Perdure's repository")
    assert done.stderr.count("\n") == 1


def test_it_runs_without_torch_and_without_a_client_or_the_operators_loop() -> None:
    heavy = {"torch", "kopf", "prometheus_client", "cryptography", "numpy", "boto3", "kubernetes", "aiohttp"}
    code = f"import sys, perdure_operator.cli.kubectl.command; print(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


@pytest.mark.parametrize("words", [[], ["status", "--stats"], ["status", "--namesp", "x"], ["what-if", "-o", "yaml"]])
def test_a_wrong_command_line_is_one_line_with_exit_status_1(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(words)
    said = capsys.readouterr()
    assert (caught.value.code, said.out, said.err.count("\n")) == (1, "", 1)
    assert said.err.startswith("error: ")
    assert said.err.endswith("--help'\n")
