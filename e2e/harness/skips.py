"""With CI=true a skipped cluster or API test is a failure: a machine that cannot run them must not look green.

Loaded by the repository's conftest.py.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

MUST_RUN = ("cluster", "api")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns the report of a skip into that of a failure."""
    report = yield
    marked = any(item.get_closest_marker(name) for name in MUST_RUN)
    if report.skipped and marked and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and CI=true asks for every cluster test to run: {reason}"
    return report
