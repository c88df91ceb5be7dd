"""For all tests but the scenarios: with CI=true, what needs a cluster or an API server must not be skipped."""

from e2e.harness.skips import pytest_runtest_makereport

__all__ = ["pytest_runtest_makereport"]
