"""`perdure convert`: the manifest on stdout, remarks on stderr, mistakes in one line."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import yaml

from perdure.cli.main import main
from perdure_operator.cli.convert.command import as_yaml
from perdure_operator.cli.convert.fields import Conversion
from tests.support import foreign_jobs

FILE = str(foreign_jobs.FOLDER / "job-indexed.yaml")


def test_the_manifest_is_on_stdout_and_the_remarks_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", FILE]) == 0
    out, err = capsys.readouterr()
    assert out == "".join(
        line for line in foreign_jobs.converted("job-indexed").splitlines(keepends=True) if not line.startswith("#")
    )
    assert all(line.startswith("remark: ") for line in err.splitlines())


def test_remarks_can_be_comments_of_the_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "--comments", FILE]) == 0
    assert capsys.readouterr().out == foreign_jobs.converted("job-indexed")


def test_a_name_with_line_breaks_cannot_leave_its_comment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "job.yaml"
    source.write_text(foreign_jobs.source("job-indexed") + '"x\\nspec: {}\\e[31m": 1\n')
    assert main(["convert", "--comments", str(source)]) == 0
    out, err = capsys.readouterr()
    assert yaml.safe_load(out)["spec"]["replicas"] == 3
    assert "x spec: {}?[31m: not carried over" in err


def test_a_file_may_come_from_stdin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(foreign_jobs.source("job-indexed")))
    assert main(["convert", "--checkpoint", "s3://bucket/digits", "-"]) == 0
    assert "uri: s3://bucket/digits" in capsys.readouterr().out


def test_a_torchrun_command_line_comes_after_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["torchrun", "--nnodes", "2", "train.py", "--comments"]
    assert main(["convert", "--image", "digits:1", "--", *words]) == 0
    container = yaml.safe_load(capsys.readouterr().out)["spec"]["template"]["spec"]["containers"][0]
    assert container == {"name": "trainer", "image": "digits:1", "command": ["python", "-u", "train.py", "--comments"]}


def test_a_script_of_several_lines_is_written_as_a_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "job.yaml"
    pod = {"containers": [{"name": "a", "image": "a", "command": ["sh", "-c", "cd /data\npython train.py\n"]}]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": pod}}}
    source.write_text(yaml.safe_dump(job))
    assert main(["convert", str(source)]) == 0
    assert "- |\n          cd /data\n          python train.py\n" in capsys.readouterr().out


class _Go(yaml.SafeLoader):
    """Reads what Go's YAML takes for numbers and booleans, beside what PyYAML does."""


_Go.add_implicit_resolver(
    "tag:yaml.org,2002:null",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?0(o[0-7]+|b[01_]+|x[0-9a-fA-F_]+)|[yYnN]"),
    list("-+.0123456789yYnN"),
)


@pytest.mark.parametrize(
    "word", ["1e-4", "12e3", "-1E+5", ".5e3", "1.e2", "0o17", "0x1F", "0b1", "1_000", "y", "Y", "n", "N", "yes", "08"]
)
def test_a_word_stays_one_for_kubectl_which_reads_more_as_numbers_and_booleans(word: str) -> None:
    written = as_yaml(Conversion({"command": [word], "labels": {word: word}}))
    assert yaml.load(written, _Go) == {"command": [word], "labels": {word: word}}  # noqa: S506 - a safe loader


def test_a_plain_word_has_no_quotes() -> None:
    words = ["python", "-u", "train.py", "--lr=1e-4", "250m", "4Gi", "registry.example/digits:1", "yet", "s3://a/1"]
    assert as_yaml(Conversion({"command": words})) == "command:\n" + "".join(f"- {word}\n" for word in words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.yaml"], "nowhere.yaml: No such file"),
        (["--image", "a", FILE], "--image is for a command line"),
        ([FILE, FILE], "convert one at a time"),
        (["--", "python", "train.py"], "does not begin with torchrun"),
        ([str(foreign_jobs.FOLDER)], "Is a directory"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_file_that_is_no_text_is_a_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "job.yaml"
    source.write_bytes(b"\xff\xfe\x00")
    assert main(["convert", str(source)]) == 2
    assert capsys.readouterr().err == f"perdure: error: {source}: no text\n"
