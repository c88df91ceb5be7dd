"""What tests that start another pytest have in common."""

from __future__ import annotations

import pytest


@pytest.fixture
def with_xdist_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a pytest has no plugin of this environment but xdist: each of its processes would import hypothesis for half
    a second."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
