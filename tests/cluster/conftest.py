"""One small cluster for the tests of the cluster tool, beside any other running clusters."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from e2e.cluster import Cluster
from e2e.cluster.requirements import require_cluster

NAME = "own"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    require_cluster()
    with Cluster.up(NAME, nodes=2, owner=os.getpid()) as made:
        yield made
