"""Every kind of store, empty."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.harness.local_s3 import ACCESS, SECRET, S3Server
from perdure.store import Store, open_store
from perdure.store.metered import Metered
from perdure.store.overlay import Overlay
from tests.support.store import MemoryStore
from tests.support.undrawn import undrawn
from tests.unit.runtime.store.s3 import require_versitygw

BUCKET = "checkpoints"


@pytest.fixture(autouse=True)
def _generators() -> Iterator[None]:
    """No call of a store, however it ends, draws what the training script would have drawn."""
    with undrawn():
        yield


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    require_versitygw()
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        server.create_bucket(BUCKET)
        yield server


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@pytest.fixture(params=["memory", "overlay", "metered", "file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "memory":
            return MemoryStore()
        case "overlay":
            return Overlay(MemoryStore())
        case "metered":
            return Metered(MemoryStore(), lambda _: None)
        case "file":
            return open_store(f"file://{tmp_path}/root", {})
    request.getfixturevalue("s3_credentials")
    server: S3Server = request.getfixturevalue("s3_server")
    return open_store(f"s3://{BUCKET}/{secrets.token_hex(4)}/root", server.environ)
