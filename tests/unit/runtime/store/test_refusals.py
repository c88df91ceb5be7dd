"""Which refusals of an S3 server pass and which stay, each with its remedy: as a table, and through boto3."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from e2e.harness.local_s3 import S3Server
from perdure.errors import StorageError, StorageRefused
from perdure.store import NoSuchKey, Store, clients, open_store
from perdure.store.refusals import Kind, may_be_keys, read
from perdure.store.s3 import no_server
from perdure.wire import Env
from tests.unit.runtime.store.conftest import BUCKET

pytestmark = pytest.mark.usefixtures("s3_credentials")

STAYING = [
    (404, "NoSuchBucket", "create the bucket, or correct spec.checkpoint.uri"),
    (400, "InvalidBucketName", "spec.checkpoint.uri"),
    (403, "AccessDenied", r"may get, put, list and delete in this bucket"),
    (403, "AllAccessDisabled", "credentialsSecret"),
    (403, "InvalidAccessKeyId", "these keys are wrong.*credentialsSecret"),
    (403, "SignatureDoesNotMatch", "these keys are wrong.*credentialsSecret"),
    (400, "InvalidToken", "these keys are wrong.*credentialsSecret"),
    (400, "ExpiredToken", "these keys have expired.*credentialsSecret"),
    (301, "PermanentRedirect", "spec.checkpoint.s3.region"),
    (400, "AuthorizationHeaderMalformed", "spec.checkpoint.s3.region"),
    (405, "MethodNotAllowed", "spec.checkpoint.s3.endpoint"),
    (501, "NotImplemented", "spec.checkpoint.s3.endpoint"),
    (400, "KMS.DisabledException", "encryption key"),
]
PASSING = [
    (503, "SlowDown", "the same call may succeed later"),
    (500, "InternalError", "the same call may succeed later"),
    (503, "XMinioServerNotInitialized", "may succeed later"),
    (403, "RequestTimeTooSkewed", "set the clock"),
    (403, "QuotaExceeded", "make room there or raise the quota"),
    (400, "XMinioAdminBucketQuotaExceeded", "make room"),
    (507, "XMinioStorageFull", "make room"),
    (400, "RequestTimeout", "as the server says"),
    (400, "BadDigest", "as the server says"),
    (400, "SomethingNew", "as the server says"),
    (409, "OperationAborted", "as the server says"),
]


class Refusing(BaseHTTPRequestHandler):
    """Answers everything with the server's one status and body, and hangs up."""

    def _answer(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        status, body = self.server.answer  # type: ignore[attr-defined]
        self.server.asked += 1  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "text/html" if b"<html" in body else "application/xml")
        if status == 301 and body:
            self.send_header("x-amz-bucket-region", "eu-west-1")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def answering(status: int, body: bytes) -> Iterator[tuple[Store, ThreadingHTTPServer]]:
    """A store on a server that has one answer; the server's `answer` may be changed."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        server.answer, server.asked = (status, body), 0  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        environ = {Env.S3_ENDPOINT: f"http://127.0.0.1:{server.server_port}", Env.S3_REGION: "us-east-1"}
        try:
            yield open_store("s3://bucket/root", environ | {Env.S3_PATH_STYLE: "true"}), server
        finally:
            server.shutdown()
            thread.join(timeout=60)


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What botocore's own second try would answer is known."""
    monkeypatch.setattr(clients, "TRIES", 1)


Refused = Callable[[int, bytes], Store]


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Store, ThreadingHTTPServer]]:
    """One store for all refusals: its server never accepts anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "TRIES", 1)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "any")
        with answering(500, b"") as both:
            yield both


@pytest.fixture
def refusing(shared: tuple[Store, ThreadingHTTPServer]) -> Refused:
    def with_answer(status: int, body: bytes) -> Store:
        store, server = shared
        server.answer = status, body  # type: ignore[attr-defined]
        return store

    return with_answer


def error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>as the server says</Message></Error>".encode()


LISTED = b"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated></ListBucketResult>"


@pytest.mark.parametrize(("status", "code", "remedy"), STAYING)
def test_a_refusal_that_stays_is_distinguished_and_names_the_remedy(
    refusing: Refused, status: int, code: str, remedy: str
) -> None:
    store = refusing(status, error(code))
    calls: list[Callable[[], Any]] = [lambda: store.list(""), lambda: store.get("a"), lambda: store.put("a", b"1")]
    for call in calls:
        with pytest.raises(StorageRefused, match=rf"cannot .* of s3://bucket/root: as the server says: .*{remedy}"):
            call()


@pytest.mark.parametrize(("status", "code", "remedy"), PASSING)
def test_a_refusal_that_passes_may_be_tried_again(refusing: Refused, status: int, code: str, remedy: str) -> None:
    with pytest.raises(StorageError, match=remedy) as failed:
        refusing(status, error(code)).get("a")
    assert not isinstance(failed.value, StorageRefused)


def test_a_head_that_is_forbidden_is_refused_although_it_says_nothing(refusing: Refused) -> None:
    with pytest.raises(StorageRefused, match="may get, put, list and delete"):
        refusing(403, b"").head("a")
    with pytest.raises(StorageError, match="this may be an expired token") as failed:
        refusing(400, b"").head("a")
    assert type(failed.value) is StorageError
    assert may_be_keys("403", 403)
    assert may_be_keys("400", 400)
    assert read("400", 400).kind is Kind.PASSES


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<!doctype html><html><head><link rel=icon></head>"),
        (200, b"<html><body>console</body></html>"),
        (404, b"<html>not found</html>"),
        (404, b""),
        (308, b""),
        (301, b""),
    ],
    ids=["a page", "a page that is XML", "no such page", "nothing", "to https", "to https for ever"],
)
def test_a_server_that_is_no_s3_server_is_never_taken_for_an_empty_bucket(status: int, body: bytes) -> None:
    with answering(status, body) as (store, _), pytest.raises(StorageRefused, match=r"spec\.checkpoint\.s3\.endpoint"):
        store.list("log/")


def test_a_proxy_in_trouble_is_no_wrong_endpoint_once_the_server_has_answered() -> None:
    with answering(200, LISTED) as (store, server):
        assert store.list("log/") == []
        server.answer = (200, b"<!doctype html><html><head><link>")  # type: ignore[attr-defined]
        with pytest.raises(StorageError) as failed:
            store.list("log/")
        assert not isinstance(failed.value, StorageRefused)


def failing_resolver(number: int) -> Callable[..., Any]:
    def getaddrinfo(*_: object, **__: object) -> Any:
        raise socket.gaierror(number, "the resolver says so")

    return getaddrinfo


@pytest.mark.parametrize(
    ("number", "kind"), [(socket.EAI_NONAME, StorageRefused), (socket.EAI_AGAIN, StorageError)], ids=["none", "later"]
)
def test_a_name_that_does_not_exist_is_a_wrong_endpoint_and_a_resolver_in_trouble_is_not(
    monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StorageError]
) -> None:
    environ = {Env.S3_ENDPOINT: "http://minio.nowhere.svc:9000", Env.S3_REGION: "us-east-1"}
    store = open_store("s3://bucket/root", environ | {Env.S3_PATH_STYLE: "true"})
    monkeypatch.setattr(socket, "getaddrinfo", failing_resolver(number))
    with pytest.raises(StorageError, match=r"http://minio\.nowhere\.svc:9000") as failed:
        store.list("")
    assert type(failed.value) is kind


def test_a_name_that_was_there_before_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(200, LISTED) as (store, _):
        assert store.list("log/") == []
    monkeypatch.setattr(socket, "getaddrinfo", failing_resolver(socket.EAI_NONAME))
    with pytest.raises(StorageError) as failed:
        store.list("")
    assert type(failed.value) is StorageError


def test_a_server_without_tls_under_https_is_a_wrong_endpoint() -> None:
    with answering(200, LISTED) as (_, server):
        environ = {Env.S3_ENDPOINT: f"https://127.0.0.1:{server.server_port}", Env.S3_REGION: "us-east-1"}
        store = open_store("s3://bucket/root", environ | {Env.S3_PATH_STYLE: "true"})
        with pytest.raises(
            StorageRefused, match=r"http:// instead of https://.*correct spec\.checkpoint\.s3\.endpoint"
        ):
            store.list("")


def test_a_closed_port_may_be_a_server_that_starts() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        environ = {Env.S3_ENDPOINT: f"http://127.0.0.1:{held.getsockname()[1]}", Env.S3_REGION: "us-east-1"}
        with pytest.raises(StorageError, match="can be reached from here") as failed:
            open_store("s3://bucket/root", environ | {Env.S3_PATH_STYLE: "true"}).list("")
    assert type(failed.value) is StorageError


def test_a_real_server_without_the_bucket_or_with_other_keys_refuses_for_good(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageRefused, match="create the bucket"):
        open_store("s3://no-such-bucket/root", s3_server.environ).put("a", b"")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        with monkeypatch.context() as changed:
            changed.setenv(name, "wrong")
            store = open_store(f"s3://{BUCKET}/root", s3_server.environ)
            with pytest.raises(StorageRefused, match="these keys are wrong or no longer valid"):
                store.list("")
    with pytest.raises(NoSuchKey):
        open_store(f"s3://{BUCKET}/root", s3_server.environ).get("a")


def test_an_untrusted_certificate_is_reported_as_one() -> None:
    with pytest.raises(ValueError, match="around") as around:
        raise ValueError("around") from ssl.SSLCertVerificationError("self-signed certificate")
    assert "AWS_CA_BUNDLE" in no_server(around.value)
