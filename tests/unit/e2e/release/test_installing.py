"""Each extra installs outside the repository, runs, and brings nothing that belongs to another one.

Those without torch are installed here, the others only resolved: `make release` installs all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.prepare import PrepareError, Progress
from e2e.prepare.basics import REPOSITORY
from e2e.release.building import Builders, build_wheel
from e2e.release.installing import (
    OF_OPERATOR,
    OF_RUNTIME,
    OF_S3,
    SHARED,
    TRIALS,
    Trial,
    extras_of_project,
    foreign,
    install_and_run,
    named,
    names_of,
    requirement,
    resolved,
)

SMALL = [trial for trial in TRIALS if "runtime" not in trial.extras]
LARGE = [trial for trial in TRIALS if "runtime" in trial.extras]


@pytest.fixture(scope="module")
def wheel(builders: Builders, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(REPOSITORY, 1_700_000_000, tmp_path_factory.mktemp("wheel"), builders, Progress())


def test_each_extra_for_users_is_tried() -> None:
    assert {extra for trial in TRIALS for extra in trial.extras} == set(extras_of_project()) - {"dev"}


@pytest.mark.parametrize("trial", SMALL, ids=lambda trial: named(trial.extras))
def test_a_small_extra_is_installed_alone_and_its_commands_run(trial: Trial, wheel: Path, builders: Builders) -> None:
    brought = install_and_run(wheel, trial, builders.uv, Progress())
    assert "perdure" in brought
    assert foreign(trial, brought) == []


@pytest.mark.parametrize("trial", LARGE, ids=lambda trial: named(trial.extras))
def test_an_extra_with_torch_brings_nothing_that_belongs_to_another(
    trial: Trial, wheel: Path, builders: Builders
) -> None:
    brought = resolved(wheel, trial.extras, builders.uv)
    assert {"perdure", "torch"} <= set(brought)
    assert foreign(trial, brought) == []


def test_without_an_extra_nothing_else_comes(wheel: Path, builders: Builders) -> None:
    assert resolved(wheel, (), builders.uv) == ["perdure"]


def test_a_command_that_does_not_exist_fails_the_trial(wheel: Path, builders: Builders) -> None:
    with pytest.raises(PrepareError, match="no perdure-gone to run"):
        install_and_run(wheel, Trial((), (("perdure-gone",),)), builders.uv, Progress())


def test_a_module_that_needs_another_extra_fails_the_trial(wheel: Path, builders: Builders) -> None:
    with pytest.raises(PrepareError, match="kopf"):
        install_and_run(wheel, Trial((), (), ("perdure_operator.loop.operator",)), builders.uv, Progress())


def test_packages_of_another_extra_are_named() -> None:
    brought = names_of("botocore==1.44\nPrometheus_Client==1.0\npyyaml==6.0\nperdure @ file:///x/perdure.whl\n")
    assert brought == ["botocore", "perdure", "prometheus-client", "pyyaml"]
    trial = next(trial for trial in TRIALS if trial.extras == ("kubectl",))
    assert foreign(trial, brought) == ["perdure[kubectl] brings prometheus-client", "perdure[kubectl] brings botocore"]


def test_of_each_package_that_these_extras_ask_for_it_is_known_whose_it_is() -> None:
    extras = extras_of_project()
    asked = {extra: set(names_of("\n".join(extras[extra]))) for extra in ("operator", "kubectl", "runtime", "s3")}
    assert asked["operator"] - {*SHARED} == {*OF_OPERATOR}
    assert asked["runtime"] - {*SHARED} == {*OF_RUNTIME}
    assert asked["s3"] == {*OF_S3}
    assert asked["kubectl"] <= {*SHARED}


def test_a_requirement_names_the_wheel_and_the_extras() -> None:
    assert requirement(Path("/x/perdure.whl"), ()) == "perdure @ file:///x/perdure.whl"
    assert requirement(Path("/x/perdure.whl"), ("runtime", "s3")) == "perdure[runtime,s3] @ file:///x/perdure.whl"
