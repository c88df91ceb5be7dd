"""How a test joins a run, and how it is one of several ranks without others."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.device_mesh import DeviceMesh

from perdure import Session
from perdure.group.world import install_placeholder, uninstall
from perdure.state import keepers
from perdure.state.fully_sharded import forget_layouts
from tests.unit.runtime.session.training import Join


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """A session takes SIGTERM and Ctrl-C, and gives them back when it is closed. A test may forget to close one."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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
def meshes_end() -> Iterator[None]:
    """Later tests do not find the meshes of this one. FSDP's modules are cycles, so meshes live on for a while, and
    would be found as a script's own; and torch takes an equal mesh for the same one."""
    forget_layouts()
    yield
    uninstall()
    for thing, _ in keepers.made():
        if isinstance(thing, DeviceMesh):
            keepers.disregard(thing)
    forget_layouts()


@pytest.fixture
def placeholder(meshes_end: None) -> None:
    """This process is rank 1 of 4 in torch, and has no connection."""
    install_placeholder(rank=1, world=4)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The agent's, reader and writer; nothing waits at either end."""
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    yield ends
    for end in ends:
        os.close(end)
