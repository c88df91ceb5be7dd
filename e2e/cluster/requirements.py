"""For tests: skip visibly where the cluster cannot run, fail where it must."""

from __future__ import annotations

import os

from e2e.prepare.requirements import cannot_run, missing, missing_for_autoscaling


def require_cluster() -> None:
    """Skip the calling test or fixture when something is missing; with CI=true that is a failure."""
    _require(missing())


def require_autoscaler() -> None:
    """The same if the cluster needs an autoscaler."""
    _require(missing_for_autoscaling())


def _require(lacks: list[str]) -> None:
    import pytest

    if not lacks:
        return
    message = cannot_run(lacks)
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
