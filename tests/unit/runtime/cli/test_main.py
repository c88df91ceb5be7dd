"""`perdure` on the command line: what is read from it and from the environment, and users' mistakes in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.agent.state import AgentSettings
from perdure.cli.main import main, settings_from
from perdure.errors import UserError
from perdure.wire import Completion


def test_the_operators_settings_are_taken_over() -> None:
    environ = {"PERDURE_PROCESSES": "4", "PERDURE_GRACE_SECONDS": "30"}
    assert settings_from(environ) == AgentSettings(processes=4, grace=30)
    assert settings_from({"PERDURE_PROGRESS_TIMEOUT_SECONDS": "90"}) == AgentSettings(ends_hangs=True)


def test_without_an_operator_the_defaults_hold() -> None:
    assert settings_from({}) == AgentSettings()


@pytest.mark.parametrize("completion", Completion)
def test_what_completes_the_job_is_taken_over(completion: Completion) -> None:
    assert settings_from({"PERDURE_COMPLETION": completion.value}) == AgentSettings(completion=completion)


def test_a_wrong_completion_is_named() -> None:
    with pytest.raises(UserError, match=r"PERDURE_COMPLETION is 'exit'.* Log or ExitCode"):
        settings_from({"PERDURE_COMPLETION": "exit"})


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "²"])
def test_a_wrong_number_is_named(text: str) -> None:
    with pytest.raises(UserError, match=r"PERDURE_PROCESSES is .* integer of at least 1"):
        settings_from({"PERDURE_PROCESSES": text})


def test_a_missing_command_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "perdure: error: no training command: write it after two dashes: perdure run -- python train.py"
    ]


def test_an_agent_outside_a_pod_is_told_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--assignment", str(tmp_path / "no" / "file"), "--", "true"]) == 2
    assert "name a file with --assignment" in capsys.readouterr().err


def test_a_state_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    options = ["--assignment", str(tmp_path / "assignment"), "--state", str(tmp_path / "file" / "state")]
    assert main(["run", *options, "--", "true"]) == 2
    assert "name a folder with --state" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["log", "verify"])
def test_a_folder_that_is_no_root_is_a_mistake(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, f"file://{tmp_path}"]) == 2
    told = capsys.readouterr()
    assert (told.out, "has no log: nothing was ever trained here" in told.err) == ("", True)


def test_a_root_may_be_written_as_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["log", "checkpoints"]) == 2
    assert f"file://{tmp_path}/checkpoints has no log" in capsys.readouterr().err


def test_it_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert re.fullmatch(r"perdure \d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("lacks", "arguments", "remedy"),
    [("awscrt", "log file:///here", "perdure[runtime]"), ("boto3", "log s3://bucket/job", "perdure[s3]")],
)
def test_what_is_not_installed_is_named_with_what_brings_it(lacks: str, arguments: str, remedy: str) -> None:
    without = f"import sys; sys.modules[{lacks!r}] = None; sys.argv = ['perdure', *{arguments.split()!r}]"
    code = f"{without}; from perdure.cli.start import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"{lacks} is not installed" in line or f"needs {lacks}, which is not installed" in line
    assert remedy in line


@pytest.mark.parametrize("command", ["log", "show", "verify"])
def test_an_address_that_is_none_is_one_line_and_status_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "ftp://somewhere"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_root_without_a_commit_has_nothing_to_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", f"file://{tmp_path}"]) == 2
    assert "has no commit" in capsys.readouterr().err
