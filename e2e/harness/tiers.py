"""A pytest plugin: the tests that only `make chaos` runs, and the seed of all random draws.

A test marked `chaos` is a long form of one that every run has; `--chaos` runs these too, each with a new seed unless
`--seed` repeats one. Without it all runs are alike: the seed is 0. Loaded by the repository's conftest.py.
"""

from __future__ import annotations

import os
import secrets

import pytest

VARIABLE = "TEST_SEED_OF_PERDURE"
"""The processes of one run share the seed through it. Scripts that tests start warn of unknown PERDURE_* variables."""
EVERY_RUNS_SEED = 0


def pytest_addoption(parser: pytest.Parser) -> None:
    """For the Makefile."""
    parser.addoption("--chaos", action="store_true", help="run what is marked `chaos` too: hours, not minutes")
    parser.addoption("--seed", type=int, default=None, help="repeat a run of --chaos")


def seed_of(config: pytest.Config) -> int:
    """The run's seed."""
    given: int | None = config.getoption("--seed")
    if given is not None:
        return given
    if not config.getoption("--chaos"):
        return EVERY_RUNS_SEED
    return int(os.environ.setdefault(VARIABLE, str(secrets.randbelow(10**9))))


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """The run's seed."""
    return seed_of(request.config)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Said before, in case the run never ends."""
    return f"chaos: seed {seed_of(config)}" if config.getoption("--chaos") else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Said again, where people look."""
    if config.getoption("--chaos"):
        seed = seed_of(config)
        terminalreporter.write_line(f"chaos: this was seed {seed}; `make chaos SEED={seed}` repeats it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the long ones out of an ordinary run."""
    if config.getoption("--chaos"):
        return
    long = [item for item in items if item.get_closest_marker("chaos")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]
