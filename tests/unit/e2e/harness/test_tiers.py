"""What only a run with --chaos does, and that its seed can be repeated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.harness import shared_run, tiers
from perdure.wire.settings import unknown

pytest_plugins = ["pytester"]

REPOSITORY = Path(__file__).parents[4]
TESTS = """
import pytest

def test_short(seed):
    print(f"drawn from {seed}")

@pytest.mark.chaos
def test_long(seed):
    print(f"drawn from {seed}")
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, with_xdist_alone: None) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.delenv(tiers.VARIABLE, raising=False)
    pytester.makeini("[pytest]\nmarkers =\n    chaos\n")
    pytester.makeconftest('pytest_plugins = ["e2e.harness.tiers"]')
    pytester.makepyfile(TESTS)
    return pytester


def seeds(result: pytest.RunResult) -> list[str]:
    return re.findall(r"drawn from (\d+)", result.stdout.str())


def test_an_ordinary_run_leaves_the_long_ones_out_and_is_like_any_other(project: pytest.Pytester) -> None:
    result = project.runpytest_subprocess("-s")
    result.assert_outcomes(passed=1, deselected=1)
    assert seeds(result) == ["0"]


def test_a_chaos_run_says_its_seed_and_all_processes_have_the_same(project: pytest.Pytester) -> None:
    result = project.runpytest_subprocess("--chaos", "-rP", "-n2")
    result.assert_outcomes(passed=2)
    first, second = seeds(result)
    assert first == second
    result.stdout.fnmatch_lines([f"chaos: seed {first}", f"*`make chaos SEED={first}` repeats it"])


def test_a_seed_can_be_repeated(project: pytest.Pytester) -> None:
    assert seeds(project.runpytest_subprocess("--chaos", "--seed=17", "-s")) == ["17", "17"]


def test_a_script_that_a_test_starts_says_nothing_of_the_variables_of_tests() -> None:
    assert unknown({tiers.VARIABLE: "7", shared_run.VARIABLE: "folder"}) == []
