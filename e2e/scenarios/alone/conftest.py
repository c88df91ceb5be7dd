"""A scenario in this folder waits until no other is on the cluster, and keeps all others out."""

from __future__ import annotations

import pytest


@pytest.fixture
def alone() -> bool:
    return True
