"""The programs that a release is built with."""

from __future__ import annotations

import os

import pytest

from e2e.prepare import Progress, tool_folders
from e2e.prepare.envs import prepared_uv
from e2e.release.building import Builders


@pytest.fixture(scope="session")
def builders() -> Builders:
    """Skips the test where helm is not built yet, fails under CI=true."""
    helm = tool_folders()["helm"] / "helm"
    if not helm.exists():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("helm is not built: run `make prepare`")
    return Builders(prepared_uv(Progress()), helm)
