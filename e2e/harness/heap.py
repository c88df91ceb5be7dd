"""A pytest plugin: excludes objects made by imports from the collector, and from searches among all objects.

400,000 objects exist before the first test, and a session searches all of them several times: that took five sixths of
a test's time. An agent's zygote does the same before it forks trainers. Loaded by the repository's conftest.py.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Generator

import pytest


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
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Libraries report objects that are not collected at the end as leaks."""
    gc.unfreeze()
