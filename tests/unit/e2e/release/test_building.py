"""What `make release` builds: whole, without anything that does not belong there, and the same each time."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from e2e.prepare import PrepareError, Progress
from e2e.prepare.basics import REPOSITORY
from e2e.release import __main__ as made
from e2e.release.building import Builders, Built, build, differences, export, lint, pack_chart, write_checksums

VERSION: str = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
TIME = 1_700_000_000
SOURCES = ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "operator", "runtime", "crds", "helm", "tests/unit")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that git knows, or would, with a few of the tests."""
    words = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *SOURCES)
    listed = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()
    folder = tmp_path_factory.mktemp("source")
    for name in listed:
        if (REPOSITORY / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(source: Path, builders: Builders, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(source, TIME, tmp_path_factory.mktemp("built"), builders, Progress())


def test_what_is_built_breaks_no_rule(built: Built, builders: Builders) -> None:
    made.check(built, VERSION, builders, Progress())


def test_it_has_the_same_bytes_from_another_folder_and_the_sdist_builds_the_same_wheel(
    source: Path, built: Built, builders: Builders, tmp_path: Path
) -> None:
    elsewhere = shutil.copytree(source, tmp_path / "elsewhere", copy_function=shutil.copyfile)
    for file in filter(Path.is_file, elsewhere.rglob("*")):
        file.chmod(0o600)
    made.check_again(elsewhere, TIME, built, builders, Progress())


def test_other_bytes_are_named(built: Built, tmp_path: Path) -> None:
    other = tmp_path / built.chart.name
    other.write_bytes(built.chart.read_bytes() + b"\0")
    assert differences(built, built) == []
    assert differences(built, replace(built, chart=other)) == [built.chart.name]


def git(folder: Path, *words: str) -> None:
    person = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *person, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "kept").write_text("committed")
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "one", "--date", f"{TIME} +0000")
    return folder


def test_a_release_is_made_of_what_is_committed(repository: Path, tmp_path: Path) -> None:
    words = ("git", "log", "-1", "--format=%ct")
    time = int(subprocess.run(words, cwd=repository, capture_output=True, text=True, check=True).stdout)
    assert export(repository, tmp_path / "source") == time
    assert [path.name for path in (tmp_path / "source").iterdir()] == ["kept"]


@pytest.mark.parametrize("name", ["kept", "new"])
def test_a_file_that_is_not_committed_is_named(repository: Path, tmp_path: Path, name: str) -> None:
    (repository / name).write_text("more")
    with pytest.raises(PrepareError, match=name):
        export(repository, tmp_path / "source")
    assert not (tmp_path / "source").exists()


def test_the_checksums_are_those_that_sha256sum_reads(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).write_text(name)
    sums = [hashlib.sha256(name.encode()).hexdigest() for name in ("a", "b")]
    for _ in range(2):
        assert write_checksums(tmp_path).read_text() == f"{sums[0]}  a\n{sums[1]}  b\n"


def test_helm_refuses_a_value_of_the_chart_that_its_schema_does_not_know(
    source: Path, builders: Builders, tmp_path: Path
) -> None:
    broken = shutil.copytree(source / "helm", tmp_path / "helm")
    schema = broken / "perdure" / "values.schema.json"
    told = json.loads(schema.read_text())
    del told["properties"]["replicas"]
    schema.write_text(json.dumps(told))
    with pytest.raises(PrepareError, match="replicas"):
        lint(pack_chart(tmp_path, TIME, tmp_path, builders, Progress()), builders, Progress())


def test_a_problem_stops_the_release_with_all_its_lines() -> None:
    made.refuse([])
    with pytest.raises(PrepareError, match=r"(?s)one.*two"):
        made.refuse(["one", "two"])
