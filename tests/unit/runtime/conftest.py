"""How a test joins a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Session
from tests.unit.runtime.session.training import Join


@pytest.fixture
def join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Join]:
    """Joins a new run under the test's own root."""
    for name in [name for name in os.environ if name.startswith("PERDURE_")]:
        monkeypatch.delenv(name)
    sessions: list[Session] = []

    def joined(options: dict[str, Any] | None = None, **environ: str) -> Session:
        for session in sessions:
            session.close()
        with monkeypatch.context() as context:
            for name, value in environ.items():
                context.setenv(f"PERDURE_{name}", value)
            sessions.append(Session.from_env(tmp_path, **options or {}))
        return sessions[-1]

    yield joined
    for session in sessions:
        session.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The agent's, reader and writer; nothing waits at either end."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    yield ends
    for end in ends:
        os.close(end)
