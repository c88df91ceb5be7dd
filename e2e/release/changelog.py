"""The version that is released stands in four places, and each names the same one."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

FORM: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
"""Major, minor, patch."""


def version_problems(source: Path, version: str) -> Iterator[str]:
    """What keeps the tree in `source` from being released as this version: a line each."""
    if not FORM.fullmatch(version):
        yield f"VERSION is {version!r}: give three numbers, as in VERSION=1.2.3"
        return
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((source / "helm" / "perdure" / "Chart.yaml").read_text())
    for place, named in (
        ("pyproject.toml's version", project["version"]),
        ("helm/perdure/Chart.yaml's version", chart["version"]),
        ("helm/perdure/Chart.yaml's appVersion", chart["appVersion"]),
    ):
        if named != version:
            yield f"{place} is {named}, not {version}"
    yield from _changelog_problems((source / "CHANGELOG.md").read_text(), version)


def _changelog_problems(text: str, version: str) -> Iterator[str]:
    _, *entries = re.split(r"^## ", text, flags=re.MULTILINE)
    heading, _, body = entries[0].partition("\n") if entries else ("", "", "")
    if heading.strip() != version:
        yield f"CHANGELOG.md's top entry is {heading.strip() or 'missing'}, not {version}"
    elif not body.strip():
        yield f"CHANGELOG.md says nothing about {version}"
