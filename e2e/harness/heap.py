"""A pytest plugin: the collector, and what looks among all objects, leave out what imports have made.

400,000 objects are there before the first test, and a session looks through all of them several times: that took
five sixths of a test's time. An agent's zygote does the same before it forks trainers. Loaded by the repository's
conftest.py.
"""

from __future__ import annotations

import gc
import importlib
import sys

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Every test module has been imported."""
    if hasattr(session.config, "workerinput") and "torch" in sys.modules:
        importlib.import_module("torch._dynamo")  # a third of them: else the first optimizer brings it, after this
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """What nobody collects at the end, libraries tell as leaks."""
    gc.unfreeze()
