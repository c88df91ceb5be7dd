"""Keys that change while a process runs, keys that are refused, and keys that are about to run out."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import perdure
from e2e.harness.local_s3 import ACCESS, SECRET, S3Server
from perdure.errors import StorageError, StorageRefused, UserError
from perdure.store import Store, clients, open_store
from perdure.store.credentials import (
    WARN_SECONDS,
    AccessKeys,
    keys_in_environment,
    keys_in_folder,
    read_time,
    said_at_first,
    said_before_the_end,
)
from perdure.wire import Env
from tests.unit.runtime.checkpoint.world import opened, save_solo
from tests.unit.runtime.store.conftest import BUCKET

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


class Secret:
    """A Secret as a kubelet mounts it: its content lies behind one link, which is swapped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def write(self, **values: str) -> None:
        content = self.folder / f"..{secrets.token_hex(4)}"
        content.mkdir()
        for name, value in values.items():
            (content / name).write_text(value)
            link = self.folder / name
            if not link.is_symlink():
                link.symlink_to(f"..data/{name}")
        swap = self.folder / "..data_tmp"
        swap.symlink_to(content.name)
        swap.rename(self.folder / "..data")

    def keys(self, access: str, secret: str = SECRET, **more: str) -> None:
        self.write(AWS_ACCESS_KEY_ID=access, AWS_SECRET_ACCESS_KEY=secret, **more)


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    return Secret(tmp_path / "keys")


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No keys of this machine, and one try a call."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setattr(clients, "TRIES", 1)


def real(server: S3Server, secret: Secret) -> Store:
    environ = server.environ | {Env.S3_CREDENTIALS: str(secret.folder)}
    return open_store(f"s3://{BUCKET}/{secrets.token_hex(4)}", environ)


def test_a_mounted_secret_counts_before_the_environment(
    s3_server: S3Server, secret: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "stale")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "stale")
    secret.keys(ACCESS, f"{SECRET}\n")
    store = real(s3_server, secret)
    store.put("a", b"1")
    assert store.get("a") == b"1"


def test_a_secret_that_is_replaced_counts_at_the_next_call_and_wrong_keys_in_it_may_be_mended(
    s3_server: S3Server, secret: Secret
) -> None:
    secret.keys(ACCESS)
    store = real(s3_server, secret)
    store.put("a", b"1")
    secret.keys("rotated-to-nobody")
    with pytest.raises(StorageError, match="these keys are wrong") as failed:
        store.get("a")
    assert not isinstance(failed.value, StorageRefused)
    assert str(secret.folder) in str(failed.value)
    secret.keys(ACCESS)
    assert store.get("a") == b"1"


def test_keys_that_were_never_good_are_refused_for_good_also_from_a_secret(s3_server: S3Server, secret: Secret) -> None:
    secret.keys("nobody")
    with pytest.raises(StorageRefused, match="these keys are wrong"):
        real(s3_server, secret).get("a")


def test_a_commit_that_is_loaded_without_a_session_is_read_with_the_keys_of_the_environment(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    root = f"s3://{BUCKET}/{secrets.token_hex(4)}"
    store = open_store(root, s3_server.environ)
    save_solo(store, opened(store), 10)
    assert [commit.step for commit in perdure.history(root)] == [10]
    assert perdure.load(root, ["step"]).commit.step == 10
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    for act in (perdure.history, perdure.load):
        with pytest.raises(StorageRefused, match="these keys are wrong"):
            act(root)


def test_an_empty_mount_leaves_the_environment_its_keys(
    s3_server: S3Server, secret: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert real(s3_server, secret).list("") == []


def test_a_credentials_file_is_read_again_when_it_has_changed(s3_server: S3Server, tmp_path: Path) -> None:
    def write(access: str) -> None:
        lines = ["[default]", f"aws_access_key_id = {access}", f"aws_secret_access_key = {SECRET}"]
        (tmp_path / "new").write_text("\n".join(lines))
        (tmp_path / "new").rename(tmp_path / "credentials")

    write("nobody")
    store = open_store(f"s3://{BUCKET}/{secrets.token_hex(4)}", s3_server.environ)
    with pytest.raises(StorageRefused):
        store.list("")
    write(ACCESS)
    assert store.list("") == []


class OnlyNew(BaseHTTPRequestHandler):
    """Says of all keys but `new` that they have expired, and calls `server.when_expired` before."""

    def do_GET(self) -> None:
        new = "Credential=new/" in self.headers["Authorization"]
        if not new:
            self.server.when_expired()  # type: ignore[attr-defined]
        self.server.asked.append(new)  # type: ignore[attr-defined]
        body = b"object" if new else b"<Error><Code>ExpiredToken</Code><Message>token expired</Message></Error>"
        self.send_response(200 if new else 400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def expiring() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), OnlyNew) as server:
        server.asked, server.when_expired = [], lambda: None  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join(timeout=60)


def at(server: ThreadingHTTPServer, folder: Path | None = None) -> Store:
    environ = {Env.S3_ENDPOINT: f"http://127.0.0.1:{server.server_port}", Env.S3_REGION: "us-east-1"}
    environ |= {Env.S3_PATH_STYLE: "true"} | ({Env.S3_CREDENTIALS: str(folder)} if folder else {})
    return open_store("s3://bucket/root", environ)


def test_keys_that_expire_during_a_call_are_read_again_and_the_call_is_repeated(
    expiring: ThreadingHTTPServer, secret: Secret
) -> None:
    secret.keys("old", AWS_SESSION_TOKEN="t1")
    store = at(expiring, secret.folder)
    expiring.when_expired = lambda: secret.keys("new", AWS_SESSION_TOKEN="t2")  # type: ignore[attr-defined]
    assert store.get("a") == b"object"
    assert expiring.asked == [False, True]  # type: ignore[attr-defined]


def test_expired_keys_of_a_mounted_secret_are_waited_for_and_asked_for_once_only(
    expiring: ThreadingHTTPServer, secret: Secret
) -> None:
    secret.keys("old")
    with pytest.raises(StorageError, match="token expired: these keys have expired") as failed:
        at(expiring, secret.folder).get("a")
    assert not isinstance(failed.value, StorageRefused)
    assert expiring.asked == [False]  # type: ignore[attr-defined]


def test_expired_keys_of_the_environment_never_come_back(
    expiring: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "old")
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", "2020-01-01T00:00:00Z")
    with pytest.raises(StorageRefused, match=r"these keys have expired.*credentialsSecret"):
        at(expiring).get("a")


def test_the_end_of_keys_is_said_once_before_it_comes(
    expiring: ThreadingHTTPServer, secret: Secret, caplog: pytest.LogCaptureFixture
) -> None:
    end = datetime.now(UTC) + timedelta(minutes=20)
    secret.keys("new", AWS_CREDENTIAL_EXPIRATION=end.isoformat())
    with caplog.at_level(logging.WARNING, "perdure"):
        store = at(expiring, secret.folder)
        store.get("a")
        store.get("a")
    assert len(caplog.messages) == 1
    assert "the S3 keys run out in" in caplog.text
    secret.keys("new", AWS_CREDENTIAL_EXPIRATION=(end + timedelta(hours=12)).isoformat())
    caplog.clear()
    with caplog.at_level(logging.WARNING, "perdure"):
        store.get("a")
    assert caplog.messages == []


def test_the_end_of_keys_is_said_also_if_nothing_is_asked_of_the_store(
    expiring: ThreadingHTTPServer, secret: Secret
) -> None:
    said = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "the S3 keys run out in 30 min" in record.getMessage():
                said.set()

    listener = Listener()
    logging.getLogger("perdure").addHandler(listener)
    try:
        end = datetime.now(UTC) + timedelta(seconds=WARN_SECONDS + 0.5)
        secret.keys("new", AWS_CREDENTIAL_EXPIRATION=end.isoformat())
        store = at(expiring, secret.folder)
        assert said.wait(120)
        assert store.uri
    finally:
        logging.getLogger("perdure").removeHandler(listener)


def keys(*, token: str | None = "t", expires: datetime | None = None, renewable: bool = False) -> AccessKeys:  # noqa: S107
    return AccessKeys("access", "secret", token, expires, "somewhere", renewable)


def test_a_token_of_the_environment_is_announced_as_what_it_is() -> None:
    assert "end at an unknown time" in said_at_first(keys())
    assert "end at 2026-05-01 13:00Z" in said_at_first(keys(expires=NOW + timedelta(hours=1)))
    assert said_at_first(keys(token=None)) == ""
    assert said_at_first(keys(renewable=True)) == ""


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        (31, ""),
        (29, "run out in 29 min, at 2026-05-01 12:29Z"),
        (-5, "have run out since 2026-05-01 11:55Z"),
    ],
)
def test_the_end_is_said_half_an_hour_before(minutes: int, said: str) -> None:
    told = said_before_the_end(keys(expires=NOW + timedelta(minutes=minutes)), NOW)
    assert said in told
    assert bool(said) is bool(told)


def test_half_of_the_keys_is_a_mistake(secret: Secret) -> None:
    secret.write(AWS_ACCESS_KEY_ID="a")
    with pytest.raises(UserError, match="incomplete"):
        keys_in_folder(secret.folder)
    with pytest.raises(UserError, match="incomplete"):
        keys_in_environment({"AWS_SECRET_ACCESS_KEY": "s"})
    assert keys_in_environment({}) is None


def test_an_end_that_cannot_be_read_is_none() -> None:
    assert read_time("tomorrow") is None
    assert read_time("2026-05-01T12:00:00") == NOW
    assert read_time("2026-05-01T12:00:00Z\n") == NOW
