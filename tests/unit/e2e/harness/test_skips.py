"""A machine that cannot run the cluster tests does not look green in CI."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

SKIPPED = """
import pytest

@pytest.mark.cluster
def test_marked():
    pytest.skip("no root here")

def test_unmarked():
    pytest.skip("not today")
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\nmarkers =\n    cluster\n    api\n")
    pytester.makeconftest("from e2e.harness.skips import pytest_runtest_makereport")
    pytester.makepyfile(SKIPPED)
    return pytester


def test_in_ci_a_skipped_cluster_test_fails_and_says_why(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*CI=true asks for every cluster test to run*no root here*"])


def test_elsewhere_it_is_skipped_visibly(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    project.runpytest_inprocess().assert_outcomes(skipped=2)
