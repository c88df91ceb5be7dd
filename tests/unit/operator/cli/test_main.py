"""`perdure-operator` explains itself, and tells a user's mistake in one line."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure_operator.cli.main import main
from perdure_operator.loop.logs import JsonFormatter
from perdure_operator.state.snapshot import TemplateCheck
from tests.support.raw import NOW, snapshot


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_explain_prints_reasons_actions_and_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = TemplateCheck(hash="abc", time=NOW)  # without an answer
    text = snapshot(template_hash="abc", template_check=check).model_dump_json(by_alias=True)
    assert main(["explain", write(tmp_path / "s.json", text)]) == 0
    said = capsys.readouterr().out
    assert "Waiting: CheckingTemplate: " in said
    assert "1. CheckTemplate" in said
    assert "condition Disrupted: False, Undisturbed" in said
    assert "Looks again: in 10 s, at " in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("{}", "not a snapshot of this version: field now"),
        ('{"fromTheFuture": 1}', "not a snapshot"),
    ],
)
def test_a_file_that_is_no_snapshot_is_reported_in_one_line(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", write(tmp_path / "s.json", text)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "s.json" in said
    assert said.count("\n") == 1


def test_a_missing_file_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.endswith("none: No such file or directory\n")


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize("command", [["run"], ["verify"], ["snapshot", "ns/digits"]])
def test_a_kubeconfig_that_does_not_exist_is_reported_in_one_line(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--kubeconfig", str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert "no cluster to talk to" in said
    assert "Traceback" not in said


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize(
    "words",
    [
        ["--reports-port=8444"],
        ["--reports-url=https://x:1"],
        ["--reports-secret=keys"],
        ["--reports-port=8444", "--reports-url=https://x:1"],
        ["--reports-port=8444", "--reports-url=https://x:1", "--reports-secret=keys", "--reports-certificate=/tls"],
    ],
)
def test_reports_need_a_port_a_url_and_one_source_of_certificates(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words]) == 2
    said = capsys.readouterr().err
    assert "--reports-port, --reports-url and either --reports-certificate or --reports-secret belong together" in said


@pytest.mark.parametrize("port", ["0", "65536"])
def test_metrics_need_a_port_that_can_be_opened(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--metrics-port", port])
    assert f"{port} is not a port" in capsys.readouterr().err


def test_a_job_must_be_named_with_its_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshot", "digits"]) == 2
    assert "NAMESPACE/NAME" in capsys.readouterr().err


def test_the_crd_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crd"]) == 0
    assert "kind: CustomResourceDefinition" in capsys.readouterr().out


def test_a_log_line_is_one_json_object() -> None:
    record = logging.LogRecord("name", logging.WARNING, "", 0, "two\nlines %s", ("ä",), None)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "two\nlines ä"
    assert json.loads(line)["level"] == "warning"


@pytest.mark.parametrize("lacks", ["pydantic", "kopf", "yaml"])
def test_what_is_not_installed_is_named_with_what_brings_it(lacks: str) -> None:
    without = f"import sys; sys.modules[{lacks!r}] = None; sys.argv = ['perdure-operator', 'run']"
    code = f"{without}; from perdure_operator.cli.start import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"perdure-operator: {lacks} is not installed: pip install 'perdure[operator]'\n"
