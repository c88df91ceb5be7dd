"""An S3 bucket's prefix as a store.

perdure.store.refusals says what a server's errors mean, and perdure.store.clients where keys come from. Callers decide
how long they try a failing call; only a part of an upload, its end, and the rest of a range are tried again here
(perdure.store.retries). Checksums are CRC64NVME, computed here and checked by the server on arrival.
"""

from __future__ import annotations

import base64
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from awscrt.checksums import combine_crc64nvme, crc64nvme
from botocore.exceptions import BotoCoreError, ClientError, CredentialRetrievalError, SSLError
from botocore.parsers import ResponseParserError
from botocore.response import StreamingBody

from perdure.errors import StorageError, StorageRefused
from perdure.store import draws, refusals
from perdure.store.clients import ClientOptions, Clients, code_and_status
from perdure.store.parts import Buffers, WrongSize, send, whole
from perdure.store.protocol import KeyExists, NoSuchKey, ObjectInfo, every_key
from perdure.store.retries import Retries, persist

R = TypeVar("R")

LARGE_BYTES: Final = 1024 * 1024
"""From this size on an object, or the requested piece of it, is large."""
CONFLICT_TRIES: Final = 8
PART_BYTES: Final = 8 * 1024 * 1024
"""Larger objects are uploaded in parts of this size: a single PUT is limited to 5 GiB, and a small part that fails
costs little."""
PARTS: Final = 9_000
"""Most parts of an object; beyond that they get larger. Servers allow 10,000."""
PARTS_AT_ONCE: Final = 4
"""Each takes twice its size in memory, because botocore copies what it signs."""
DELETE_KEYS: Final = 1000
PAGE_KEYS: Final = 1000


class S3Store:
    """Objects under `prefix` of `bucket`; see perdure.store.Store."""

    def __init__(self, bucket: str, prefix: str, opts: ClientOptions) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._clients = Clients(opts)

    @property
    def uri(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        view = memoryview(data)
        with self._failing_as("write", key):
            if len(view) > PART_BYTES and not if_absent:
                self._put_parts(key, [view], len(view), if_absent=False)
            else:
                self._put_whole(key, data if isinstance(data, bytes) else bytes(view), if_absent=if_absent)

    def put_stream(self, key: str, blocks: Iterable[memoryview], size: int, *, if_absent: bool = False) -> None:
        with self._failing_as("write", key):
            if size > PART_BYTES:
                self._put_parts(key, blocks, size, if_absent=if_absent)
            else:
                self._put_whole(key, whole(blocks, size), if_absent=if_absent)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        with self._failing_as("read", key):
            return self._read(key, start, length, lambda body: bytes(body.read()), b"")

    def get_into(self, key: str, buffer: memoryview, *, start: int = 0) -> int:
        filled, retries = 0, Retries()

        def fill(body: StreamingBody) -> None:
            nonlocal filled
            while filled < len(buffer) and (read := body.readinto(buffer[filled:])):  # type: ignore[arg-type]
                filled += read

        with self._failing_as("read", key):
            while True:
                before = filled
                try:
                    self._read(key, start + filled, len(buffer) - filled, fill, None)
                except (ClientError, BotoCoreError) as error:
                    if not retries.waited(error, moved=filled - before >= LARGE_BYTES):
                        raise
                else:
                    return filled

    def _read(self, key: str, start: int, length: int | None, take: Callable[[StreamingBody], R], nothing: R) -> R:
        """What `take` makes of the bytes; `nothing` if there are none. The body checks their announced length."""
        if length == 0:
            return nothing
        end = "" if length is None else start + length - 1
        span: dict[str, Any] = {"Range": f"bytes={start}-{end}"} if start or length else {}
        large = length is not None and length >= LARGE_BYTES  # an object that is requested whole is small
        try:
            return self._clients.ask(lambda s3: take(s3.get_object(**self._object(key), **span)["Body"]), large=large)
        except ClientError as error:
            code, status = code_and_status(error)
            if code in ("NoSuchKey", "404"):
                raise NoSuchKey(f"{self.uri} has no {key}") from None
            if status == 416:  # the range starts at or after the end of the object
                return nothing
            raise

    def head(self, key: str) -> ObjectInfo | None:
        with self._failing_as("look at", key):
            try:
                answer = self._clients.ask(lambda s3: s3.head_object(**self._object(key), ChecksumMode="ENABLED"))
            except ClientError as error:
                if code_and_status(error)[1] == 404:
                    return None
                raise
        crc = answer.get("ChecksumCRC64NVME") if answer.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT" else None
        written = answer["LastModified"].timestamp()
        return ObjectInfo(answer["ContentLength"], base64.b64decode(crc).hex() if crc else None, written)

    def list(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[str]:
        keys: list[str] = []
        arguments: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._prefix + prefix}
        if after:
            arguments["StartAfter"] = self._prefix + after
        while True:
            wanted = PAGE_KEYS if limit is None else min(PAGE_KEYS, limit - len(keys))
            page = self._page(prefix, arguments, wanted)
            keys += [item["Key"].removeprefix(self._prefix) for item in page.get("Contents", [])]
            if not page.get("IsTruncated") or (limit is not None and len(keys) >= limit):
                return keys[:limit]
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), DELETE_KEYS):
            some = keys[start : start + DELETE_KEYS]
            for error in self._deleted(some).get("Errors", []):
                self._refuse_delete(error)

    def sweep(self, older_than: float, where: Callable[[str], bool] = every_key) -> int:
        limit = time.time() - older_than
        with self._failing_as("look through", "unfinished uploads"):
            chosen = (each for each in self._uploads() if where(each["Key"].removeprefix(self._prefix)))
            old = [each for each in chosen if each["Initiated"].timestamp() < limit]
            for each in old:
                self._abort({"Bucket": self._bucket, "Key": each["Key"], "UploadId": each["UploadId"]})
        return len(old)

    def _uploads(self) -> Iterator[Any]:
        page: Any = {"IsTruncated": True}
        while page.get("IsTruncated"):
            page = self._uploads_after(page)
            yield from page.get("Uploads", [])

    def _uploads_after(self, page: Any) -> Any:
        markers = {"KeyMarker": page.get("NextKeyMarker"), "UploadIdMarker": page.get("NextUploadIdMarker")}
        arguments: Any = {"Bucket": self._bucket, "Prefix": self._prefix}
        arguments |= {name: marker for name, marker in markers.items() if marker}
        return self._clients.ask(lambda s3: s3.list_multipart_uploads(**arguments))

    def _object(self, key: str) -> Any:
        return {"Bucket": self._bucket, "Key": self._prefix + key}

    def _deleted(self, keys: Sequence[str]) -> Any:
        given: Any = {"Objects": [{"Key": self._prefix + key} for key in keys], "Quiet": True}
        with self._failing_as("delete", keys[0]):
            return self._clients.ask(lambda s3: s3.delete_objects(Bucket=self._bucket, Delete=given))

    def _page(self, prefix: str, arguments: dict[str, Any], wanted: int) -> Any:
        with self._failing_as("list", prefix):
            page: Any = self._clients.ask(lambda s3: s3.list_objects_v2(**arguments, MaxKeys=wanted))
        if (
            "IsTruncated" not in page and "Name" not in page
        ):  # a web page that happens to be XML looks like an empty list, too
            raise StorageRefused(f"cannot list {prefix} of {self.uri}{self._remedy_for(refusals.NOT_S3)}")
        return page

    def _put_whole(self, key: str, data: bytes | bytearray, *, if_absent: bool) -> None:
        arguments = (
            self._object(key)
            | _condition(if_absent=if_absent)
            | {"Body": data, "ChecksumCRC64NVME": _text(crc64nvme(data))}
        )
        for tried in range(CONFLICT_TRIES):
            try:
                self._clients.ask(lambda s3: s3.put_object(**arguments), large=len(data) >= LARGE_BYTES)
                return
            except ClientError as error:
                _, status = code_and_status(error)
                if status == 412:
                    raise self._exists(key) from None
                if status != 409 or tried == CONFLICT_TRIES - 1:
                    raise
            # S3 answers 409 while another conditional write of the key is under way. A moment later it is known which
            # one won.
            time.sleep(draws.OWN.uniform(0.02, 0.05) * (tried + 1))

    def _put_parts(self, key: str, blocks: Iterable[memoryview], size: int, *, if_absent: bool) -> None:
        where = self._object(key)
        kinds: Any = {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "FULL_OBJECT"}
        upload = where | {
            "UploadId": self._clients.ask(lambda s3: s3.create_multipart_upload(**where, **kinds))["UploadId"]
        }

        def put(number: int, data: bytearray) -> tuple[dict[str, Any], int, int]:
            crc = crc64nvme(data)
            part: Any = {"PartNumber": number, "ChecksumCRC64NVME": _text(crc)}
            body: Any = {"Body": data}
            answer = persist(lambda: self._clients.ask(lambda s3: s3.upload_part(**upload, **part, **body), large=True))
            return part | {"ETag": answer["ETag"]}, crc, len(data)

        try:
            sent = send(blocks, size, put, Buffers(max(PART_BYTES, -(-size // PARTS)), PARTS_AT_ONCE))
            crc = 0
            for _, part_crc, length in sent:
                crc = combine_crc64nvme(crc, part_crc, length)
            end: Any = {"MultipartUpload": {"Parts": [part for part, _, _ in sent]}, "ChecksumType": "FULL_OBJECT"}
            end |= {"ChecksumCRC64NVME": _text(crc)} | _condition(if_absent=if_absent)
            persist(lambda: self._clients.ask(lambda s3: s3.complete_multipart_upload(**upload, **end), large=True))
        except BaseException as error:
            with suppress(BotoCoreError, ClientError):  # the first error says more
                self._abort(upload)
            if isinstance(error, ClientError) and code_and_status(error)[1] == 412:
                raise self._exists(key) from None
            raise

    def _exists(self, key: str) -> KeyExists:
        return KeyExists(f"{self.uri} has {key} already")

    def _abort(self, upload: Any) -> None:
        self._clients.ask(lambda s3: s3.abort_multipart_upload(**upload))

    def _refuse_delete(self, error: Any) -> None:
        """One of many objects was not deleted."""
        refusal = refusals.read(str(error.get("Code", "")), 403 if error.get("Code") == "AccessDenied" else 500)
        raise self._error_of(refusal)(
            f"cannot delete {error.get('Key')} of {self.uri}: {error.get('Message')}{self._remedy_for(refusal)}"
        )

    @contextmanager
    def _failing_as(self, verb: str, key: str) -> Iterator[None]:
        """Turns every error of boto3 into a StorageError, or a StorageRefused if another try is in vain."""
        what = f"cannot {verb} {key} of {self.uri}"
        try:
            yield
        except ClientError as error:
            refusal = self._refusal(error)
            message = error.response["Error"].get("Message") or code_and_status(error)[0]
            raise self._error_of(refusal)(f"{what}: {message}{self._remedy_for(refusal)}") from error
        except CredentialRetrievalError as error:
            raise StorageError(f"{what}: no keys from {self._clients.keys.source}: {error}") from error
        except RecursionError:
            raise self._redirected(what) from None
        except (BotoCoreError, ResponseParserError) as error:
            if any(isinstance(cause, RecursionError) for cause in _causes(error)):  # the stack ended below its client
                raise self._redirected(what) from None
            raise self._unreached(what, error) from error
        except WrongSize as error:
            raise StorageError(f"{what}: {error}") from error

    def _redirected(self, what: str) -> StorageRefused:
        """botocore asks the redirecting server where the bucket is, which redirects again, without an end."""
        return StorageRefused(f"{what}: 301{self._remedy_for(refusals.REDIRECTED)}")

    def _refusal(self, error: ClientError) -> refusals.RefusalRule:
        """botocore reports a web page with status 200 as a 500. It comes from a server that is no S3 server."""
        headers = error.response["ResponseMetadata"].get("HTTPHeaders", {})
        code, status = code_and_status(error)
        if code == "500" and not self._clients.answered and headers.get("content-type", "").startswith("text/html"):
            return refusals.NOT_S3
        return refusals.read(code, status)

    def _error_of(self, refusal: refusals.RefusalRule) -> type[StorageError]:
        """Waits for keys that may be replaced at their source, unless they have never worked."""
        match refusal.kind:
            case refusals.Kind.PASSES:
                return StorageError
            case refusals.Kind.EXPIRED if self._clients.keys.renewable:
                return StorageError
            case refusals.Kind.KEYS if self._clients.keys.renewable and self._clients.answered:
                return StorageError
        return StorageRefused

    def _remedy_for(self, refusal: refusals.RefusalRule) -> str:
        clients = self._clients
        return refusal.remedy_for(keys=clients.keys.source, endpoint=clients.endpoint, spec=clients.spec)

    def _unreached(self, what: str, error: Exception) -> StorageError:
        """A server that has answered before will come back. One that never did may be no S3 server."""
        endpoint = self._clients.endpoint
        if not self._clients.answered and (why := no_server(error)):
            field = f"{self._clients.spec}.s3.endpoint"
            return StorageRefused(f"{what}: {error}: {why}: correct {field} (now {endpoint})")
        return StorageError(f"{what}: {error}: check that {endpoint} can be reached from here")


def no_server(error: Exception) -> str:
    """Why there is no S3 server at the endpoint, if that is certain. A refused connection may mean that it is
    starting."""
    if isinstance(error, ResponseParserError):
        return "the server there is no S3 server (the API's port is needed, not the console's)"
    causes = list(_causes(error))
    if any(isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME for cause in causes):
        return "there is no such name"
    if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes):
        return "its certificate is not trusted here (AWS_CA_BUNDLE names a file of others)"
    if isinstance(error, SSLError) and "WRONG_VERSION_NUMBER" in str(error):
        return "it does not speak TLS (http:// instead of https://)"
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and its causes, wherever the libraries in between have put them."""
    waiting, seen = [error], set[int]()
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        inside = (found.__cause__, found.__context__, getattr(found, "reason", None), *found.args)
        inside += tuple(getattr(found, "kwargs", {}).values())
        waiting += [each for each in inside if isinstance(each, BaseException)]


def _condition(*, if_absent: bool) -> dict[str, Any]:
    return {"IfNoneMatch": "*"} if if_absent else {}


def _text(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(8, "big")).decode()
