"""docs/versions.md names the versions that the tests run with, and for each a test that exists."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
import yaml

from e2e.prepare import torches
from tests.support.readme_box import REPOSITORY, why_not
from tests.support.torch_versions import TESTS

PAGE: Final = (REPOSITORY / "docs" / "versions.md").read_text()
ROW: Final = re.compile(r"^\| ([^|]+) \| ([^|]+) \| `([^`|]+)` \|$", re.MULTILINE)
PROJECT: Final = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def pinned(package: str) -> str:
    (found,) = re.findall(rf"^{package}==(.+)$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    return str(found)


def built(folder: str, module: str) -> str:
    text = (REPOSITORY / "e2e" / "cluster" / "tools" / folder / "go.mod").read_text()
    (found,) = re.findall(rf"^\s*(?:require )?{re.escape(module)} v([\d.]+)", text, re.MULTILINE)
    return str(found)


def run_with() -> dict[str, list[str]]:
    """The versions that the tests run with, as the repository pins them."""
    return {
        "Kubernetes": [built("kubernetes", "k8s.io/kubernetes")],
        "Python": [PROJECT["requires-python"].removeprefix(">=")],
        "torch": [pinned("torch"), *reversed(torches.VERSIONS)],
        "S3, by versitygw": [built("versitygw", "github.com/versity/versitygw")],
        "transformers": [pinned("transformers")],
        "Lightning": [pinned("lightning")],
        "Helm": [built("helm", "helm.sh/helm/v4")],
    }


def problems(page: str, versions: Mapping[str, Sequence[str]], folder: Path = REPOSITORY) -> Iterator[str]:
    """What in this page's table is not true: a line each."""
    rows = ROW.findall(page)
    if len(rows) != len(re.findall(r"^\|", page, re.MULTILINE)) - 2:
        yield "a row is not of three columns, or names no test"
    named = [(what, version) for what, version, _ in rows]
    run = [(what, version) for what, several in versions.items() for version in several]
    yield from (f"no test runs with {what} {version}" for what, version in named if (what, version) not in run)
    yield from (f"{what} {version} has no row" for what, version in run if (what, version) not in named)
    for what, version, test in rows:
        if why := why_not(folder, test):
            yield f"{test}, which shows {what} {version}, {why}"
        older = what == "torch" and version in torches.VERSIONS
        if older and not any(test == one.partition("[")[0] or test.startswith(f"{one}::") for one in TESTS):
            yield f"{test}, which shows {what} {version}, does not run with it"


def test_each_row_is_a_version_that_a_test_runs_with() -> None:
    assert list(problems(PAGE, run_with())) == []


def test_the_tests_run_with_a_python_of_the_page() -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if here not in {version for what, version, _ in ROW.findall(PAGE) if what == "Python"}:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"docs/versions.md has no row for {here}")


def test_the_page_says_what_pip_and_helm_accept() -> None:
    (torch,) = (
        one.partition(">=")[2] for one in PROJECT["optional-dependencies"]["runtime"] if one.startswith("torch")
    )
    chart = yaml.safe_load((REPOSITORY / "helm" / "perdure" / "Chart.yaml").read_text())
    kubernetes = re.sub(r">=(\d+\.\d+)\.0-0", r"\1", chart["kubeVersion"])
    python = PROJECT["requires-python"].removeprefix(">=")
    accepted = f"Python {python} and newer, torch {torch} and newer, Kubernetes {kubernetes} and newer"
    assert accepted in " ".join(PAGE.split())


TABLE: Final = """
| With | Version | Shown by |
|---|---|---|
| Helm | 1.0.0 | `test_it.py::test_it` |
| torch | 2.13.0 | `test_it.py::test_it` |
"""
HERE: Final[Mapping[str, Sequence[str]]] = {"Helm": ["1.0.0"]}


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("1.0.0", "1.1.0", ["no test runs with Helm 1.1.0", "Helm 1.0.0 has no row"]),
        ("test_it`", "test_gone`", ["test_it.py::test_gone, which shows Helm 1.0.0, does not exist"]),
        ("test_it.py", "gone.py", ["gone.py::test_it, which shows Helm 1.0.0, does not exist"]),
        ("`test_it.py::test_it`", "", ["a row is not of three columns, or names no test", "Helm 1.0.0 has no row"]),
        ("test_it`", "test_rare`", ["test_it.py::test_rare, which shows Helm 1.0.0, runs only in `make chaos`"]),
    ],
    ids=["version", "test", "file", "no-test", "chaos"],
)
def test_what_is_not_true_is_named(tmp_path: Path, old: str, new: str, found: list[str]) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_it(): pass\n@pytest.mark.chaos\ndef test_rare(): pass\n"
    )
    page = TABLE.replace("| torch | 2.13.0 | `test_it.py::test_it` |\n", "")
    assert list(problems(page, HERE, tmp_path)) == []
    assert list(problems(page.replace(old, new), HERE, tmp_path)) == found


def test_an_older_torch_is_shown_by_a_test_that_runs_with_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    assert list(problems(TABLE, {**HERE, "torch": ["2.13.0"]}, tmp_path)) == [
        "test_it.py::test_it, which shows torch 2.13.0, does not run with it"
    ]
