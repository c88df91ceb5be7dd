"""The S3 server of the tests."""

from __future__ import annotations

import os

import pytest

from e2e.harness.local_s3 import versitygw


def require_versitygw() -> None:
    """Skips the test where the server is not built yet, fails under CI=true."""
    program = versitygw()
    if not program.exists():
        told = f"{program} is not built: run `python3 -m e2e.prepare cluster`"
        if os.environ.get("CI") == "true":
            pytest.fail(told)
        pytest.skip(told)
