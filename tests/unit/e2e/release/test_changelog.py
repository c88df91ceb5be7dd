"""A release is refused where one of the places that name the version names another."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from e2e.prepare.basics import REPOSITORY
from e2e.release.changelog import version_problems

CHANGELOG = "# Changelog\n\n## 1.2.3\n\n* Something.\n\n## 1.2.2\n\n* Less.\n"
PROJECT, CHART, CHANGES = "pyproject.toml", "helm/perdure/Chart.yaml", "CHANGELOG.md"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "helm" / "perdure").mkdir(parents=True)
    (tmp_path / PROJECT).write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / CHART).write_text("version: 1.2.3\nappVersion: 1.2.3\n")
    (tmp_path / CHANGES).write_text(CHANGELOG)
    return tmp_path


def test_the_repository_can_be_released_as_the_version_that_it_names() -> None:
    version = tomllib.loads((REPOSITORY / PROJECT).read_text())["project"]["version"]
    assert list(version_problems(REPOSITORY, version)) == []


def test_four_equal_versions_are_no_problem(source: Path) -> None:
    assert list(version_problems(source, "1.2.3")) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "found"),
    [
        (PROJECT, "1.2.3", "1.2.2", "pyproject.toml's version is 1.2.2, not 1.2.3"),
        (
            CHART,
            "\nappVersion: 1.2.3",
            "\nappVersion: 1.2.2",
            "helm/perdure/Chart.yaml's appVersion is 1.2.2, not 1.2.3",
        ),
        (CHART, "version: 1.2.3\n", "version: 1.2.2\n", "helm/perdure/Chart.yaml's version is 1.2.2, not 1.2.3"),
        (CHANGES, "## 1.2.3\n\n* Something.\n", "", "CHANGELOG.md's top entry is 1.2.2, not 1.2.3"),
        (CHANGES, CHANGELOG, "# Changelog\n", "CHANGELOG.md's top entry is missing, not 1.2.3"),
        (CHANGES, "* Something.\n", "", "CHANGELOG.md says nothing about 1.2.3"),
    ],
    ids=["project", "app", "chart", "older-entry", "no-entry", "empty-entry"],
)
def test_another_version_is_named_with_its_place(source: Path, file: str, old: str, new: str, found: str) -> None:
    text = (source / file).read_text()
    assert old in text
    (source / file).write_text(text.replace(old, new, 1))
    assert list(version_problems(source, "1.2.3")) == [found]


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3rc1", "01.2.3", "1.2.3\n"])
def test_a_version_is_three_numbers(source: Path, version: str) -> None:
    (found,) = version_problems(source, version)
    assert "give three numbers" in found
