"""What the previous version has written today's goes on from, and the other way round: the wheel itself runs.

Evidence is outside the code: weights are compared with those of a training that one version did alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.wire import SkippedCommit, read_assignment, read_outcome, write_assignment, write_outcome
from tests.unit.compat.test_agents import FORMATS, TODAYS_ASSIGNMENTS

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
PREVIOUS = HERE / "previous"
LEFT = 75
"""EX_TEMPFAIL: the training has saved and left."""
INTERRUPTED_AT = 8


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder to import the previous version from."""
    folder = tmp_path_factory.mktemp("previous")
    with zipfile.ZipFile(PREVIOUS / "perdure-0.1.0-py3-none-any.whl") as wheel:
        wheel.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of a training that today's version did alone."""
    return weights(trained(tmp_path_factory.mktemp("undisturbed")), REPOSITORY / "runtime")


def trained(
    root: Path, version: Path | None = None, *, leave_at: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Trains at that root with that version, today's by default."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    asked = {} if leave_at is None else {"PERDURE_EXIT_AT_STEP": str(leave_at)}
    path = {"PYTHONPATH": str(version or REPOSITORY / "runtime")}
    command = [sys.executable, str(HERE / "train.py")]
    environ |= {**asked, **path, "PERDURE_ROOT": root.as_uri()}
    return subprocess.run(command, env=environ, cwd=root, capture_output=True, text=True, check=False)


def weights(training: subprocess.CompletedProcess[str], version: Path) -> str:
    """What it printed; it must have run on that version."""
    assert training.returncode == 0, training.stderr
    package, found = training.stdout.split()
    assert package == str(version / "perdure")
    return found


def test_a_training_of_the_previous_version_goes_on_after_an_upgrade(
    tmp_path: Path, previous: Path, undisturbed: str
) -> None:
    assert trained(tmp_path, previous, leave_at=INTERRUPTED_AT).returncode == LEFT
    upgraded = trained(tmp_path)
    assert "resumed from commit" in upgraded.stderr
    assert weights(upgraded, REPOSITORY / "runtime") == undisturbed


def test_a_training_of_todays_version_goes_on_after_a_rollback(
    tmp_path: Path, previous: Path, undisturbed: str
) -> None:
    assert trained(tmp_path, leave_at=INTERRUPTED_AT).returncode == LEFT
    rolled_back = trained(tmp_path, previous)
    assert "resumed from commit" in rolled_back.stderr
    assert weights(rolled_back, previous) == undisturbed


def by_the_previous(version: Path, kind: str, texts: list[str]) -> list[dict[str, Any]]:
    """The documents as that version has read and written them."""
    command = [sys.executable, str(HERE / "previous_wire.py"), kind]
    environ = {**os.environ, "PYTHONPATH": str(version)}
    again = subprocess.run(
        command, env=environ, input=json.dumps(texts), capture_output=True, text=True, check=True
    ).stdout
    return [json.loads(text) for text in json.loads(again)]


def outcomes() -> list[str]:
    """Of every kind that was ever recorded."""
    found = [json.loads((folder / "outcomes.json").read_text("utf-8")) for folder in FORMATS.values()]
    return [json.dumps(told) for documents in found for told in documents.values()]


def test_an_agent_of_the_previous_version_understands_todays_operator(previous: Path) -> None:
    written = [write_assignment(assignment) for assignment in TODAYS_ASSIGNMENTS.values()]
    understood = by_the_previous(previous, "assignment", written)
    assert [read_assignment(json.dumps(told)) for told in understood] == list(TODAYS_ASSIGNMENTS.values())


def test_an_operator_of_the_previous_version_understands_todays_agent(previous: Path) -> None:
    todays = [write_outcome(read_outcome(text)) for text in outcomes()]
    understood = by_the_previous(previous, "outcome", todays)
    assert [read_outcome(json.dumps(told)) for told in understood] == [read_outcome(text) for text in todays]


def test_an_operator_of_today_reads_which_commit_an_agent_of_the_previous_version_skipped(previous: Path) -> None:
    skipped = SkippedCommit(3, 5, "commit 12 of step 95: it is damaged")
    text = json.dumps({"v": 1, "outcome": "checkpointed", "run": 3, "rank": 0, "fellBack": asdict(skipped)})
    (written,) = by_the_previous(previous, "outcome", [text])
    assert written["fellBack"] == asdict(skipped)
    assert read_outcome(json.dumps(written)).skipped_commit == skipped


def missing(before: dict[str, Any], now: dict[str, Any], path: str = "") -> list[str]:
    """What the newer schema refuses, or has lost, of objects that were valid under the older one."""
    found = []
    if before.get("type") != now.get("type"):
        found.append(f"{path}: {before.get('type')} is {now.get('type')} now")
    found += [
        f"{path}.{name} is required now" for name in set(now.get("required", ())) - set(before.get("required", ()))
    ]
    found += [
        f"{path}: {value!r} is no value any more" for value in set(before.get("enum", ())) - set(now.get("enum", ()))
    ]
    for name, schema in before.get("properties", {}).items():
        if name in now.get("properties", {}):
            found += missing(schema, now["properties"][name], f"{path}.{name}")
        else:
            found.append(f"{path}.{name} is gone")
    if isinstance(before.get("items"), dict):
        found += missing(before["items"], now.get("items", {}), f"{path}[]")
    return found


RENAMED = frozenset(
    {
        *(
            f".status.{run}.outcomes[].{name} is gone"
            for run in ("current", "previous")
            for name in ("went", "aborted")
        ),
        *(f".status.{run}.fell is gone" for run in ("current.intent", "previous.intent", "next")),
        ".status.next.undecided is gone",
        ".status.history[].fellBack is gone",
        ".status.history[].untold is gone",
        ".status.next.untold is gone",
        ".status.runsUntold is gone",
    }
)
"""Notes that were renamed before the first release. After an upgrade the operator does not find those that the previous
version wrote: of a move that is under way, and of what people read of a run's cost."""


def test_objects_of_the_previous_crd_are_valid_under_todays() -> None:
    name = "perdure.dev_trainingjobs.yaml"
    before, now = (yaml.safe_load((folder / name).read_text()) for folder in (PREVIOUS, REPOSITORY / "crds"))
    versions = {version["name"]: version["schema"]["openAPIV3Schema"] for version in now["spec"]["versions"]}
    for version in before["spec"]["versions"]:
        assert set(missing(version["schema"]["openAPIV3Schema"], versions[version["name"]])) == RENAMED


def test_a_chart_of_today_knows_each_value_of_the_previous_one() -> None:
    before, now = (
        yaml.safe_load((folder / "values.yaml").read_text())
        for folder in (PREVIOUS / "chart", REPOSITORY / "helm" / "perdure")
    )
    assert set(keys(before)) <= set(keys(now))


def keys(values: dict[str, Any], path: str = "") -> list[str]:
    """The paths of all values."""
    return [
        found
        for name, value in values.items()
        for found in (f"{path}.{name}", *(keys(value, f"{path}.{name}") if isinstance(value, dict) else ()))
    ]
