"""A training begins from a root in another store, which has an endpoint and keys of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import perdure
from e2e.harness.local_s3 import S3Server
from perdure import Session
from perdure.errors import StorageRefused, UserError
from perdure.wire import Env
from tests.unit.runtime.session.training import Training
from tests.unit.runtime.store.s3 import require_versitygw

BUCKET = "checkpoints"
OTHER, OWN = f"s3://{BUCKET}/other", f"s3://{BUCKET}/own"
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
Join = Callable[..., Session]


class Servers(NamedTuple):
    there: S3Server
    """With the other training's root."""
    here: S3Server
    """With this training's own root."""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    require_versitygw()
    there = S3Server(tmp_path / "there", "their-key", "their-secret-words")
    here = S3Server(tmp_path / "here", "own-key", "own-secret-words")
    with there, here:
        there.create_bucket(BUCKET)
        here.create_bucket(BUCKET)
        yield Servers(there, here)


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Join]:
    """Joins a new run in this environment and no other."""
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    sessions: list[Session] = []

    def joined(environ: dict[str, str], **options: object) -> Session:
        for name in [name for name in os.environ if name.startswith("PERDURE_") or name in KEYS]:
            monkeypatch.delenv(name)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        for session in sessions:
            session.close()
        sessions.append(Session.from_env(**options))  # type: ignore[arg-type]
        return sessions[-1]

    yield joined
    for session in sessions:
        session.close()


def their_keys(servers: Servers, folder: Path) -> dict[str, str]:
    """What an environment says of the other root: its keys lie in a folder, like a mounted Secret."""
    folder.mkdir()
    environ = servers.there.environ
    for name in KEYS:
        (folder / name).write_text(environ[name])
    return {
        Env.FROM_S3_ENDPOINT: environ[Env.S3_ENDPOINT],
        Env.FROM_S3_REGION: environ[Env.S3_REGION],
        Env.FROM_S3_PATH_STYLE: "true",
        Env.FROM_S3_CREDENTIALS: str(folder),
    }


def begun_there(servers: Servers, join: Join) -> Training:
    """The other training: it ends with epoch 2, and has a commit of epoch 1."""
    return Training(join(servers.there.environ | {Env.ROOT: OTHER, Env.EVERY_EPOCHS: "1"})).run()


FROM_OTHER = {"uri": OTHER, "epoch": 1}


def test_it_is_read_with_its_own_keys_and_all_is_written_here_with_ours(
    servers: Servers, join: Join, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    first = begun_there(servers, join)
    environ = servers.here.environ | their_keys(servers, tmp_path / "keys") | {Env.ROOT: OWN}
    begun = Training(join(environ, resume_from=FROM_OTHER)).left(stop=7)
    assert begun.draws == first.draws[5:7]

    said = capfd.readouterr()
    assert "resumed from commit 2, step 5, made" in said.err
    assert f"at {OTHER}" in said.err
    kept = [path.read_bytes() for path in (tmp_path / "here" / "objects" / BUCKET / "own").rglob("*") if path.is_file()]
    assert len(kept) > 4
    told = b"\0".join([said.out.encode(), said.err.encode(), caplog.text.encode(), *kept])
    for secret in (b"their-secret-words", b"own-secret-words", b"their-key", b"own-key"):
        assert secret not in told

    servers.there.kill()
    rest = Training(join(environ, resume_from=FROM_OTHER)).run()
    assert (rest.draws, rest.weights) == (first.draws[7:], first.weights)
    assert [commit.step for commit in perdure.history(OWN)] == [10, 7, 5]


def test_without_keys_of_its_own_it_is_read_with_ours(servers: Servers, join: Join) -> None:
    first = begun_there(servers, join)
    environ = servers.there.environ | {Env.ROOT: OWN}
    assert Training(join(environ, resume_from=FROM_OTHER)).run().draws == first.draws[5:]


def test_what_it_would_begin_from_is_described_with_them_too(servers: Servers, join: Join, tmp_path: Path) -> None:
    begun_there(servers, join)
    environ = servers.here.environ | their_keys(servers, tmp_path / "keys") | {Env.ROOT: OWN}
    start = perdure.describe(join(environ, resume_from=FROM_OTHER)).start
    assert start is not None
    assert (start.uri, start.step, start.epoch) == (OTHER, 5, 1)


def test_keys_that_it_refuses_are_named_by_where_they_come_from(servers: Servers, join: Join, tmp_path: Path) -> None:
    begun_there(servers, join)
    environ = servers.here.environ | their_keys(servers, tmp_path / "keys") | {Env.ROOT: OWN}
    (tmp_path / "keys" / "AWS_SECRET_ACCESS_KEY").write_text("changed")
    with pytest.raises(StorageRefused, match=r"keys are wrong.*/keys .*spec\.checkpoint\.from\.s3\.credentialsSecret"):
        Training(join(environ, resume_from=FROM_OTHER)).run()


def test_ours_are_never_sent_to_it_where_its_folder_has_none(servers: Servers, join: Join, tmp_path: Path) -> None:
    environ = servers.here.environ | their_keys(servers, tmp_path / "keys") | {Env.ROOT: OWN}
    for name in KEYS:
        (tmp_path / "keys" / name).unlink()
    with pytest.raises(UserError, match=r"no S3 keys for the other root under .*/keys: put files AWS_ACCESS_KEY_ID"):
        Training(join(environ, resume_from=FROM_OTHER)).run()
