"""One small cluster for the tests of the cluster tool, beside any other running clusters."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from e2e.cluster import Cluster
from e2e.cluster.requirements import require_cluster

NAME = "own"


@pytest.fixture(scope="session")
def cluster(for_the_unit: ExitStack) -> Cluster:
    require_cluster()
    return for_the_unit.enter_context(Cluster.up(NAME, nodes=2, owner=os.getpid()))
