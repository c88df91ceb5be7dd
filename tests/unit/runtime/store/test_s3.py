"""S3 against a real server: large objects, pages, and servers that freeze, die or refuse."""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import os
import select
import ssl
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from awscrt.checksums import crc64nvme
from botocore import retryhandler, utils

from e2e.cluster.pki import Pki
from e2e.harness.local_s3 import S3Server
from perdure.checkpoint.download import read_blocks
from perdure.checkpoint.manifest import ShardObject
from perdure.errors import StorageError, StorageRefused, UserError
from perdure.log.entry import checksum
from perdure.log.objects import fetch
from perdure.store import KeyExists, Store, clients, open_store, retries, s3
from perdure.wire import Env
from tests.support.undrawn import undrawn
from tests.unit.runtime.store.conftest import BUCKET

SECONDS = 60.0
"""More than two clocks of one machine differ."""
CUT_BYTES = 1000

pytestmark = pytest.mark.usefixtures("s3_credentials")


@pytest.fixture
def remote(s3_server: S3Server, request: pytest.FixtureRequest) -> Store:
    return open_store(f"s3://{BUCKET}/{request.node.name}", s3_server.environ)


def test_the_server_keeps_the_checksum_of_the_whole_object(remote: Store) -> None:
    remote.put("a", b"0123456789")
    info = remote.head("a")
    assert info
    assert info.crc == checksum(b"0123456789")


def test_a_large_object_goes_up_in_parts_with_the_checksum_of_the_whole(
    remote: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 5 * 1024 * 1024)
    data = os.urandom(11 * 1024 * 1024)
    remote.put("large", data)
    info = remote.head("large")
    assert info
    assert (info.size, info.crc) == (len(data), checksum(data))
    assert remote.get("large", start=5 * 1024 * 1024 - 3, length=6) == data[5 * 1024 * 1024 - 3 :][:6]


def test_a_large_stream_goes_up_in_parts_and_takes_a_few_buffers_of_memory(
    remote: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 5 * 1024 * 1024)
    monkeypatch.setattr(s3, "PARTS_AT_ONCE", 2)
    block = os.urandom(1024 * 1024)
    size = 48 * len(block) + 1
    remote.put("warm", b"")
    tracemalloc.start()
    try:
        remote.put_stream("large", itertools.chain([memoryview(block)] * 48, [memoryview(b"!")]), size)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    info = remote.head("large")
    assert info
    assert (info.size, info.crc) == (size, checksum(block * 48 + b"!"))
    assert most < 25 * 1024 * 1024


def test_a_large_stream_that_breaks_off_leaves_neither_object_nor_parts(
    remote: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 5 * 1024 * 1024)

    def blocks() -> Iterator[memoryview]:
        for _ in range(12):
            yield memoryview(bytes(1024 * 1024))
        raise ValueError("the source broke")

    with pytest.raises(ValueError, match="the source broke"):
        remote.put_stream("large", blocks(), 20 * 1024 * 1024)
    assert remote.head("large") is None
    assert remote.sweep(-SECONDS) == 0


def test_parts_of_a_killed_writer_are_swept_and_younger_ones_are_not(remote: Store, s3_server: S3Server) -> None:
    prefix = remote.uri.partition(f"{BUCKET}/")[2]
    for name in ("data/1/a", "data/1/b"):
        s3_server.client().create_multipart_upload(Bucket=BUCKET, Key=f"{prefix}/{name}")
    assert remote.sweep(3600) == 0
    assert remote.sweep(-math.inf, lambda key: key == "data/1/a") == 1
    assert remote.sweep(-SECONDS) == 1
    assert remote.sweep(-SECONDS) == 0


def test_a_listing_of_many_pages_is_whole(remote: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PAGE_KEYS", 2)
    keys = [f"log/{n}" for n in range(5)]
    for key in keys:
        remote.put(key, b"")
    assert remote.list("log/") == keys
    assert remote.list("log/", limit=3) == keys[:3]


def test_a_frozen_server_is_an_error_and_a_thawed_one_answers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONNECT_SECONDS", "READ_SECONDS", "LARGE_READ_SECONDS", "TRIES"):
        monkeypatch.setattr(clients, name, 1 if name == "TRIES" else 2)
    with S3Server(tmp_path) as server:
        server.create_bucket(BUCKET)
        store = open_store(f"s3://{BUCKET}/root", server.environ)
        store.put("a", b"1")
        server.freeze()
        for call in (
            lambda: store.put("b", b"2", if_absent=True),
            lambda: store.put("large", bytes(20 * 1024 * 1024)),
            lambda: store.get("a"),
            lambda: store.list(""),
        ):
            with pytest.raises(StorageError, match=r"cannot .* of s3://"):
                call()
        server.thaw()
        store.put("c", b"3")
        assert store.get("c") == b"3"


def test_a_killed_server_is_an_error_and_its_successor_has_everything(tmp_path: Path) -> None:
    with S3Server(tmp_path) as server:
        server.create_bucket(BUCKET)
        store = open_store(f"s3://{BUCKET}/root", server.environ)
        store.put("a", b"1")
        server.kill()
        with pytest.raises(StorageError, match=r"can be reached"):
            store.get("a")
        with pytest.raises(StorageError, match="cannot write b of s3://checkpoints/root"):
            store.put("b", b"2")
        server.start()
        assert store.get("a") == b"1"


def test_a_missing_bucket_is_named_with_the_remedy(s3_server: S3Server) -> None:
    store = open_store("s3://no-such-bucket/root", s3_server.environ)
    with pytest.raises(StorageError, match=r"no-such-bucket.*create the bucket"):
        store.list("")
    with pytest.raises(StorageError, match=r"no-such-bucket.*create the bucket"):
        store.get("a")


@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_named_with_the_secret_to_look_at(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "wrong")
    store = open_store(f"s3://{BUCKET}/root", s3_server.environ)
    calls: list[Callable[[], object]] = [lambda: store.put("a", b""), lambda: store.get("a"), lambda: store.list("")]
    if variable == "AWS_SECRET_ACCESS_KEY":  # an unknown user is 404 to this server, and a HEAD tells no more
        calls.append(lambda: store.head("a"))
    for call in calls:
        with pytest.raises(StorageError, match=r"check the credentials in AWS_ACCESS_KEY_ID.*credentialsSecret"):
            call()


def test_no_credentials_at_all_are_the_users_to_give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(UserError, match="credentialsSecret"):
        open_store("s3://bucket/root", {Env.S3_REGION: "us-east-1"})


def test_path_style_is_true_or_false_and_nothing_else() -> None:
    with pytest.raises(UserError, match="PERDURE_S3_PATH_STYLE is 'yes'"):
        open_store("s3://bucket/root", {Env.S3_PATH_STYLE: "yes"})


@pytest.mark.parametrize("uri", ["", "/folder", "file://host/x", "file:relative", "ftp://host/x", "s3://", "s3:///x"])
def test_a_root_that_is_neither_s3_nor_a_folder_is_refused(uri: str) -> None:
    with pytest.raises(UserError, match="s3://bucket/prefix nor file:///folder"):
        open_store(uri, {})


@pytest.mark.parametrize("uri", ["gs://bucket/x", "az://container/x", "abfss://one@two.dfs.core.windows.net/x"])
def test_a_root_in_another_cloud_is_refused_with_what_serves_instead(uri: str) -> None:
    with pytest.raises(UserError, match=r"is not supported: put a gateway .* in front, .* try it with `perdure"):
        open_store(uri, {})


class Scripted(BaseHTTPRequestHandler):
    """Answers each PUT with the next status of the server's script: what no server here says when asked to."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        script: list[int] = self.server.script  # type: ignore[attr-defined]
        status = script.pop(0)
        body = b"" if status == 200 else b"<Error><Code>Scripted</Code><Message>as the script says</Message></Error>"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def served_by(handler: type[BaseHTTPRequestHandler]) -> Iterator[tuple[Store, ThreadingHTTPServer]]:
    """A store and its server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        environ = {Env.S3_ENDPOINT: f"http://127.0.0.1:{server.server_port}", Env.S3_REGION: "us-east-1"}
        try:
            yield open_store("s3://bucket/root", environ | {Env.S3_PATH_STYLE: "true"}), server
        finally:
            server.shutdown()
            thread.join(timeout=60)


@contextmanager
def answering(*script: int) -> Iterator[tuple[Store, list[int]]]:
    """A store whose server gives these statuses, and those it has not given yet."""
    with served_by(Scripted) as (store, server):
        left = server.script = list(script)  # type: ignore[attr-defined]
        yield store, left


def test_a_409_is_tried_again_until_it_is_known_who_won() -> None:
    with answering(409, 409, 200) as (store, left):
        store.put("log/1", b"mine", if_absent=True)
        assert left == []
    with answering(409, 412) as (store, left), pytest.raises(KeyExists):
        store.put("log/1", b"mine", if_absent=True)


def test_a_409_that_does_not_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "CONFLICT_TRIES", 3)
    with answering(409, 409, 409, 200) as (store, left):
        with pytest.raises(StorageError, match="as the script says"):
            store.put("log/1", b"mine", if_absent=True)
        assert left == [200]


def test_a_server_in_trouble_is_asked_once_more_and_then_named() -> None:
    with answering(503, 503, 200) as (store, left):
        with pytest.raises(StorageError, match="the same call may succeed later"):
            store.put("a", b"1")
        assert left == [200]
        store.put("a", b"1")


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_wait_between_two_tries_draws_nothing_that_the_script_would_have_drawn(status: int) -> None:
    with undrawn(), answering(status, 200, status, status, 409, 200) as (store, left):
        store.put("a", b"1")
        with pytest.raises(StorageError):
            store.put("a", b"2")
        store.put("a", b"3", if_absent=True)
        assert left == []


def test_what_asks_for_keys_draws_nothing_either() -> None:
    """botocore's clients for roles wait in its older way, and its fetcher of an instance's role spreads renewals."""
    with undrawn(), answering(200):
        assert retryhandler.delay_exponential("rand", 2, 1) >= 0  # type: ignore[arg-type]
        assert utils.random.randint(120, 600) >= 120  # type: ignore[attr-defined]


class Cutting(BaseHTTPRequestHandler):
    """Announces an object whole, sends a part of it, and hangs up."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(CUT_BYTES))
        self.end_headers()
        self.wfile.write(bytes(400))
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_an_answer_that_breaks_off_is_the_stores_trouble_and_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore that took it for damage would skip the newest commit."""
    monkeypatch.setattr(retries, "WAITS", (0.0,))
    block = checksum(bytes(CUT_BYTES))
    shard = ShardObject("shard", CUT_BYTES, block, CUT_BYTES, (block,), ())
    with served_by(Cutting) as (store, _):
        reads: list[Callable[[], object]] = [
            lambda: store.get("a"),
            lambda: store.get("a", start=0, length=CUT_BYTES),
            lambda: store.get_into("a", memoryview(bytearray(CUT_BYTES))),
            lambda: fetch(store, "a", CUT_BYTES),
            lambda: list(read_blocks(store, shard)),
        ]
        for read in reads:
            with pytest.raises(StorageError, match="cannot read"):
                read()


class Busy(BaseHTTPRequestHandler):
    """Gives the statuses of its script to parts and to the end of an upload, then takes everything. Of an object it
    sends so many bytes of what is asked for as the script says, and hangs up if that is not all."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        words = ("InitiateMultipartUploadResult", "<UploadId>1</UploadId>") if "uploads" in self.path else ("Done", "")
        status = 200 if "uploads" in self.path else self._next(200)
        self._answer(status, f"<{words[0]}>{words[1]}</{words[0]}>".encode() if status == 200 else b"")

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(self._next(200), b"")

    def do_DELETE(self) -> None:
        self._answer(204, b"")

    def do_GET(self) -> None:
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        data = OBJECT[first : last + 1]
        sent = self._next(len(data))
        if sent >= 500 and sent < 600:
            self._answer(sent, b"")
            return
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:sent])
        self.close_connection = sent < len(data)

    def _next(self, usual: int) -> int:
        script: list[int] = self.server.script  # type: ignore[attr-defined]
        return script.pop(0) if script else usual

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("ETag", '"1"')
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


OBJECT = bytes(range(256)) * (4 * s3.LARGE_BYTES // 256)
PIECES = (s3.LARGE_BYTES, 700, s3.LARGE_BYTES + 1, 0)
"""Bytes after which a connection breaks, one after another."""


@contextmanager
def busy(*script: int) -> Iterator[tuple[Store, list[int]]]:
    with served_by(Busy) as (store, server):
        left = server.script = list(script)  # type: ignore[attr-defined]
        yield store, left


def test_a_part_that_a_busy_server_refuses_twice_is_sent_again_and_not_the_whole_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checkpoint of an hour's upload began anew for one of them."""
    monkeypatch.setattr(retries, "WAITS", (0.0, 0.0))
    monkeypatch.setattr(s3, "PARTS_AT_ONCE", 1)
    data = bytes(2 * s3.PART_BYTES + 1)
    with undrawn(), busy(200, 503, 503, 500, 503) as (store, left):
        store.put("big", data)
        assert left == []
    with busy(200, 200, 200, 503, 503, 503) as (store, left):
        store.put("big", data)
        assert left == []
    with busy(*[503] * 6) as (store, left):
        with pytest.raises(StorageError, match="the same call may succeed later"):
            store.put("big", data)
        assert left == []


@pytest.mark.parametrize("script", [PIECES, (503, 503, s3.LARGE_BYTES, 503, 503), ()], ids=["cut", "busy", "well"])
def test_a_range_whose_connection_breaks_goes_on_where_it_broke(
    monkeypatch: pytest.MonkeyPatch, script: tuple[int, ...]
) -> None:
    monkeypatch.setattr(retries, "WAITS", (0.0, 0.0))
    buffer = bytearray(len(OBJECT) - 7)
    with busy(*script) as (store, left):
        assert store.get_into("big", memoryview(buffer), start=7) == len(buffer)
        assert left == []
    assert bytes(buffer) == OBJECT[7:]


def test_a_range_that_does_not_move_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "WAITS", (0.0, 0.0))
    with busy(s3.LARGE_BYTES, 700, 700, 0) as (store, left):
        with pytest.raises(StorageError, match="cannot read big"):
            store.get_into("big", memoryview(bytearray(len(OBJECT))))
        assert left == [0]


def test_a_refusal_that_stays_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "WAITS", (3600.0,))
    monkeypatch.setattr(s3, "PARTS_AT_ONCE", 1)
    with busy(403, 200) as (store, left):
        with pytest.raises(StorageRefused):
            store.put("big", bytes(s3.PART_BYTES + 1))
        assert left == [200]


class Slow(BaseHTTPRequestHandler):
    """Answers what moves much data only after longer than READ_SECONDS, or never if the client has hung up by then."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        if "uploads" in self.path:
            self._answer(b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>")
        else:
            self._answer_late(b"<CompleteMultipartUploadResult/>")

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer_late(b"")

    def do_GET(self) -> None:
        self._answer_late(bytes(s3.LARGE_BYTES))

    def _answer_late(self, body: bytes) -> None:
        given_up, _, _ = select.select([self.connection], [], [], clients.READ_SECONDS * 1.5)
        if given_up:
            self.close_connection = True
        else:
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_a_server_that_needs_long_for_much_data_is_waited_for_and_for_little_data_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "READ_SECONDS", 1)
    monkeypatch.setattr(clients, "TRIES", 1)
    monkeypatch.setattr(s3, "PART_BYTES", 2 * s3.LARGE_BYTES)
    with served_by(Slow) as (store, _):
        store.put("one", bytes(s3.LARGE_BYTES))
        store.put("parts", bytes(3 * s3.LARGE_BYTES))
        assert len(fetch(store, "one", s3.LARGE_BYTES)) == s3.LARGE_BYTES
        with pytest.raises(StorageError, match="Read timeout"):
            store.put("log/1", b"entry", if_absent=True)
        with pytest.raises(StorageError, match="Read timeout"):
            store.get("log/1")


class KeepsHeaders(BaseHTTPRequestHandler):
    """Takes every object and every part."""

    protocol_version = "HTTP/1.1"

    def _take(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        begins = self.command == "POST" and "uploads" in self.path
        words = "InitiateMultipartUploadResult", "<UploadId>1</UploadId>" if begins else '<ETag>"1"</ETag>'
        answer = b"" if self.command == "PUT" else f"<{words[0]}>{words[1]}</{words[0]}>".encode()
        if self.command == "PUT":
            kept = ("x-amz-content-sha256", "x-amz-checksum-crc64nvme")
            self.server.kept.append(tuple(self.headers[name] for name in kept))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_PUT = do_POST = _take  # noqa: N815 - names of http.server

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.mark.parametrize("scheme", ["https", "http"])
def test_over_tls_a_body_is_summed_up_once(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its SHA-256 was a third of an upload's CPU. Without TLS it protects the body from those who can change it."""
    monkeypatch.setattr(s3, "PART_BYTES", 5 * 1024 * 1024)
    data = os.urandom(6 * 1024 * 1024)
    parts = [data[:1000], data[: s3.PART_BYTES], data[s3.PART_BYTES :]]
    with ThreadingHTTPServer(("127.0.0.1", 0), KeepsHeaders) as server:
        kept: list[tuple[str, str]] = []
        server.kept = kept  # type: ignore[attr-defined]
        if scheme == "https":
            authority = Pki(tmp_path)
            authority.create()
            authority.issue("server", "/CN=server", ["IP:127.0.0.1"])
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(authority.certificate("server"), authority.key("server"))
            server.socket = context.wrap_socket(server.socket, server_side=True)
            monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.authority))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = {Env.S3_ENDPOINT: f"{scheme}://127.0.0.1:{server.server_port}", Env.S3_REGION: "us-east-1"}
        store = open_store("s3://bucket/root", {**where, Env.S3_PATH_STYLE: "true"})
        store.put("small", parts[0])
        store.put("large", data)
        server.shutdown()
    assert sorted(kept) == sorted(
        (
            "UNSIGNED-PAYLOAD" if scheme == "https" else hashlib.sha256(part).hexdigest(),
            base64.b64encode(crc64nvme(part).to_bytes(8, "big")).decode(),
        )
        for part in parts
    )
