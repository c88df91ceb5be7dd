"""A pytest plugin for `make quick`: after so many seconds no further test begins, and each says so."""

from __future__ import annotations

import time

import pytest

BEGUN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    """For tests.support.checks."""
    parser.addoption("--no-test-after", type=float, help="skip what would begin after so many seconds")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before its fixtures are made."""
    seconds = item.config.getoption("--no-test-after")
    if time.monotonic() - BEGUN > seconds:
        pytest.skip(f"its {seconds:g} s are over: `make test` runs all")
