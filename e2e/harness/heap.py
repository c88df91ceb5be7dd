"""A pytest plugin: excludes objects made by imports from the collector, and from searches among all objects.

400,000 objects exist before the first test, and a session searches all of them several times: that took five sixths of
a test's time. An agent's zygote does the same before it forks trainers. What the tests of a file have left, most of it
by further imports, is excluded behind them. Loaded by the repository's conftest.py.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from collections.abc import Generator

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Registered before torch is imported, this is a worker's last exit handler."""
    if hasattr(config, "workerinput"):
        atexit.register(_end, os.getpid())


def _end(worker: int) -> None:
    """A worker's modules are not taken down: that takes seconds, for which the whole run would wait."""
    if os.getpid() == worker:  # not a process that a test has forked
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports make little garbage, and the collector would look for it in all that they have made, again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Every test module has been imported."""
    if hasattr(session.config, "workerinput") and "torch" in sys.modules:
        importlib.import_module(
            "torch._dynamo"
        )  # a third of them: otherwise the first optimizer imports it, after this
    _exclude()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Of the last test of a file, whose fixtures are gone then."""
    result = yield
    if nextitem is not None and nextitem.path != item.path:
        _exclude()
    return result


def _exclude() -> None:
    """All objects that exist and are no garbage."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Libraries report objects that are not collected at the interpreter's end as leaks; a worker's has none."""
    if not hasattr(config, "workerinput"):
        gc.unfreeze()
