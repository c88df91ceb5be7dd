"""The forge's CI does what anybody can do: it calls make, holds no secret, and trusts nothing it cannot name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
PYTHON = "3.11"
MAKE = re.compile(r'make ([a-z-]+)( VERSION="\$\{GITHUB_REF_NAME#v\}")?')
ACTION = re.compile(r"actions/[a-z-]+@v\d+")
TARGETS = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
CHECK = """
on: {push: {branches: [main]}}
permissions: {contents: read}
jobs:
  check:
    steps:
      - uses: actions/checkout@v4
      - run: make check
"""


def problems(text: str) -> Iterator[str]:
    """What a workflow does beyond calling make: a line each."""
    workflow: dict[str, Any] = yaml.safe_load(text)
    if re.search(r"\bsecrets\b|\btoken\b", text):
        yield "it has a secret"
    if "pull_request_target" in text:
        yield "it runs strangers' code with the repository's rights"
    if workflow.get("permissions") != {"contents": "read"}:
        yield "it may do more than read"
    for name, job in workflow["jobs"].items():
        if "permissions" in job:
            yield f"{name} asks for rights of its own"
        for step in job["steps"]:
            called = MAKE.fullmatch(step.get("run", "make check"))
            if called is None or called[1] not in TARGETS:
                yield f"{name} runs {step['run']!r}, which is no call of one of make's targets"
            if "uses" in step and not ACTION.fullmatch(step["uses"]):
                yield f"{name} uses {step['uses']}, which is none of the forge's own"
            if step.get("with", {}).get("python-version", PYTHON) != PYTHON:
                yield f"{name} runs with another Python than {PYTHON}"


def test_there_is_one_for_checks_one_for_tests_and_one_for_a_release() -> None:
    assert [path.stem for path in WORKFLOWS] == ["check", "release", "test"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_only_calls_make(path: Path) -> None:
    assert list(problems(path.read_text())) == []


def test_a_release_is_built_of_a_tag_with_the_version_that_the_tag_names() -> None:
    text = (REPOSITORY / ".github" / "workflows" / "release.yml").read_text()
    workflow = yaml.safe_load(text)
    assert workflow[True] == {"push": {"tags": ["v*"]}}, "`on` is true in YAML 1.1"
    assert 'make release VERSION="${GITHUB_REF_NAME#v}"' in text


def test_calling_make_is_no_problem() -> None:
    assert list(problems(CHECK)) == []


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("make check", "pytest", "check runs 'pytest', which is no call of one of make's targets"),
        ("make check", "make gone", "check runs 'make gone', which is no call of one of make's targets"),
        ("make check", "make check; id", "check runs 'make check; id', which is no call of one of make's targets"),
        ("actions/checkout@v4", "someone/action@v1", "check uses someone/action@v1, which is none of the forge's own"),
        ("@v4", "@v4\n        with: {python-version: '3.10'}", "check runs with another Python than 3.11"),
        ("make check", "make check\n        env: {KEY: '${{ secrets.KEY }}'}", "it has a secret"),
        ("push: {branches: [main]}", "pull_request_target: {}", "it runs strangers' code with the repository's rights"),
        ("contents: read", "contents: write", "it may do more than read"),
        ("    steps:", "    permissions: {contents: write}\n    steps:", "check asks for rights of its own"),
    ],
    ids=["other", "no-target", "more", "foreign", "python", "secret", "target", "rights", "own-rights"],
)
def test_what_a_workflow_must_not_do_is_named(old: str, new: str, found: str) -> None:
    assert old in CHECK
    assert list(problems(CHECK.replace(old, new))) == [found]
