"""An S3 bucket's prefix as a store. The only module that knows boto3.

Every call has its own connect and read timeouts and is tried twice at most, so that a frozen server is an error soon:
the callers know how long they may go on trying, this module does not. What moves much data has a longer read timeout
than the rest, because a server may need a while to put a large object together. Checksums are CRC64NVME, computed
here and checked by the server on arrival.
"""

from __future__ import annotations

import base64
import io
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import boto3
from awscrt.checksums import combine_crc64nvme, crc64nvme
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from perdure.contract import Env
from perdure.errors import StorageError, UserError
from perdure.store import KeyExists, NoSuchKey, ObjectInfo

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CONNECT_SECONDS: Final = 3
READ_SECONDS: Final = 5
"""How long the server may be silent: for log entries, listings and whatever else is small."""
LARGE_READ_SECONDS: Final = 60
"""The same for large objects and their parts, and for putting parts together."""
LARGE_BYTES: Final = 1024 * 1024
"""From here on an object, or the piece of it that is asked for, is large."""
TRIES: Final = 2
CONFLICT_TRIES: Final = 8
PART_BYTES: Final = 64 * 1024 * 1024
"""Larger objects go up in parts of this size: a single PUT may have 5 GiB at most, and a failed part is small."""
DELETE_KEYS: Final = 1000
PAGE_KEYS: Final = 1000
FORBIDDEN: Final = 403

_KEYS: Final = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (in Kubernetes: the Secret that "
    "spec.checkpoint.s3.credentialsSecret names)"
)


@dataclass(frozen=True)
class Options:
    """How to reach the server; empty means what boto3 would do."""

    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False


def options(environ: Mapping[str, str]) -> Options:
    """The options in the PERDURE_S3_* variables."""
    path_style = environ.get(Env.S3_PATH_STYLE, "false")
    if path_style not in ("true", "false"):
        raise UserError(f"{Env.S3_PATH_STYLE} is {path_style!r}: set it to true or false")
    return Options(
        environ.get(Env.S3_ENDPOINT) or None,
        environ.get(Env.S3_REGION) or None,
        path_style == "true",
    )


class S3Store:
    """Objects under `prefix` of `bucket`; see perdure.store.Store."""

    def __init__(self, bucket: str, prefix: str, opts: Options) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        session = _session()
        self._client = _client(session, opts, READ_SECONDS)
        self._patient = _client(session, opts, LARGE_READ_SECONDS)

    @property
    def uri(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        view = memoryview(data)
        with self._failing_as("write", key):
            if len(view) > PART_BYTES and not if_absent:
                self._put_parts(key, (view[start : start + PART_BYTES] for start in range(0, len(view), PART_BYTES)))
            else:
                self._put_whole(key, view, if_absent=if_absent)

    def put_stream(self, key: str, blocks: Iterable[memoryview], size: int) -> None:
        with self._failing_as("write", key):
            parts = _parts(blocks, size, f"cannot write {key} of {self.uri}")
            if size <= PART_BYTES:
                self._put_whole(key, next(parts), if_absent=False)
                next(parts, None)
            else:
                self._put_parts(key, parts)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            return b""
        end = "" if length is None else start + length - 1
        span: dict[str, Any] = {"Range": f"bytes={start}-{end}"} if start or length else {}
        with self._failing_as("read", key):
            try:
                answer = self._client_for(length).get_object(**self._object(key), **span)
                return answer["Body"].read()
            except ClientError as error:
                if _code(error) in ("NoSuchKey", "404"):
                    raise NoSuchKey(f"{self.uri} has no {key}") from None
                if _status(error) == 416:  # the range starts at or after the end of the object
                    return b""
                raise

    def head(self, key: str) -> ObjectInfo | None:
        with self._failing_as("look at", key):
            try:
                answer = self._client.head_object(**self._object(key), ChecksumMode="ENABLED")
            except ClientError as error:
                if _status(error) == 404:
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
            with self._failing_as("list", prefix):
                page = self._client.list_objects_v2(**arguments, MaxKeys=wanted)
            keys += [item["Key"].removeprefix(self._prefix) for item in page.get("Contents", [])]
            if not page.get("IsTruncated") or (limit is not None and len(keys) >= limit):
                return keys[:limit]
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), DELETE_KEYS):
            some = keys[start : start + DELETE_KEYS]
            objects: Any = [{"Key": self._prefix + key} for key in some]
            with self._failing_as("delete", some[0]):
                answer = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True})
            for error in answer.get("Errors", []):
                raise StorageError(f"cannot delete {error.get('Key')} of {self.uri}: {error.get('Message')}")

    def sweep(self, older_than: float) -> int:
        swept, limit = 0, time.time() - older_than
        arguments: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._prefix}
        with self._failing_as("look through", "unfinished uploads"):
            page = self._client.list_multipart_uploads(**arguments)
            for upload in page.get("Uploads", []):
                if upload["Initiated"].timestamp() < limit:
                    self._client.abort_multipart_upload(
                        Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )
                    swept += 1
        return swept

    def _client_for(self, size: int | None) -> S3Client:
        """`size` None is a whole object, as only small ones are read."""
        return self._patient if size is not None and size >= LARGE_BYTES else self._client

    def _object(self, key: str) -> Any:
        return {"Bucket": self._bucket, "Key": self._prefix + key}

    def _put_whole(self, key: str, view: memoryview, *, if_absent: bool) -> None:
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if if_absent else {}
        for tried in range(CONFLICT_TRIES):
            try:
                self._client_for(len(view)).put_object(
                    **self._object(key), Body=io.BytesIO(view), ChecksumCRC64NVME=_checksum(view), **condition
                )
                return
            except ClientError as error:
                if _status(error) == 412:
                    raise KeyExists(f"{self.uri} has {key} already") from None
                if _status(error) != 409 or tried == CONFLICT_TRIES - 1:
                    raise
            # S3 answers 409 while another conditional write of the key is under way: who won is known a moment later
            time.sleep(random.uniform(0.02, 0.05) * (tried + 1))  # noqa: S311  (not a secret)

    def _put_parts(self, key: str, pieces: Iterable[memoryview]) -> None:
        where = self._object(key)
        upload = self._client.create_multipart_upload(
            **where, ChecksumAlgorithm="CRC64NVME", ChecksumType="FULL_OBJECT"
        )["UploadId"]
        try:
            parts: list[Any] = []
            whole = 0
            for number, part in enumerate(pieces, start=1):
                checksum = _checksum(part)
                whole = combine_crc64nvme(whole, crc64nvme(part), len(part))
                answer = self._patient.upload_part(
                    **where,
                    UploadId=upload,
                    PartNumber=number,
                    Body=io.BytesIO(part),
                    ChecksumCRC64NVME=checksum,
                )
                parts.append({"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC64NVME": checksum})
            self._patient.complete_multipart_upload(
                **where,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
                ChecksumType="FULL_OBJECT",
                ChecksumCRC64NVME=_text(whole),
            )
        except BaseException:
            with suppress(BotoCoreError, ClientError):  # the first error tells more
                self._client.abort_multipart_upload(**where, UploadId=upload)
            raise

    @contextmanager
    def _failing_as(self, verb: str, key: str) -> Iterator[None]:
        """Turns everything boto3 raises into StorageError."""
        what = f"cannot {verb} {key} of {self.uri}"
        try:
            yield
        except ClientError as error:
            raise StorageError(
                f"{what}: {error.response['Error'].get('Message') or _code(error)}{_remedy(error)}"
            ) from (error)
        except BotoCoreError as error:
            endpoint = self._client.meta.endpoint_url
            raise StorageError(f"{what}: {error}: check that {endpoint} can be reached from here") from error


def _session() -> boto3.session.Session:
    session = boto3.session.Session()
    with _configured():
        if session.get_credentials() is None:
            raise UserError(f"no S3 credentials: set {_KEYS}")
    return session


def _client(session: boto3.session.Session, opts: Options, read_seconds: float) -> S3Client:
    with _configured():
        return session.client(
            "s3",
            endpoint_url=opts.endpoint,
            region_name=opts.region,
            config=Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=read_seconds,
                retries={"total_max_attempts": TRIES, "mode": "standard"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={"addressing_style": "path" if opts.path_style else "auto"},
            ),
        )


@contextmanager
def _configured() -> Iterator[None]:
    """Turns what boto3 says of a configuration into UserError."""
    try:
        yield
    except (BotoCoreError, ValueError) as error:
        raise UserError(f"S3 cannot be used as configured: {error}: check checkpoint.s3 and the credentials") from error


def _parts(blocks: Iterable[memoryview], size: int, what: str) -> Iterator[memoryview]:
    """The blocks as parts, gathered in one buffer; at least one, which is empty for an empty object."""
    buffer, filled, total = bytearray(min(size, PART_BYTES)), 0, 0
    for block in blocks:
        left = block
        total += len(block)
        if total > size:
            raise StorageError(f"{what}: {total} bytes came instead of {size}")
        while left:
            taken = min(len(left), len(buffer) - filled)
            buffer[filled : filled + taken] = left[:taken]
            left, filled = left[taken:], filled + taken
            if filled == len(buffer) and total - len(left) < size:
                yield memoryview(buffer)
                filled = 0
    if total != size:
        raise StorageError(f"{what}: {total} bytes came instead of {size}")
    yield memoryview(buffer)[:filled]


def _checksum(data: memoryview) -> str:
    return _text(crc64nvme(data))


def _text(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(8, "big")).decode()


def _status(error: ClientError) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])


def _code(error: ClientError) -> str:
    return str(error.response["Error"].get("Code", ""))


def _remedy(error: ClientError) -> str:
    match _code(error):
        case "NoSuchBucket":
            return ": create the bucket, or correct spec.checkpoint.uri or spec.checkpoint.s3.endpoint"
        case "InvalidAccessKeyId" | "XAdminUserNotFound" | "SignatureDoesNotMatch" | "ExpiredToken" | "InvalidToken":
            return f": these keys are wrong or no longer valid: check the credentials in {_KEYS}"
        case "PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException":
            return ": the bucket is in another region: correct spec.checkpoint.s3.region"
    if _status(error) == FORBIDDEN:  # the answer to a HEAD says no more than this
        return f": check the credentials in {_KEYS}, and that they may get, put, list and delete in this bucket"
    return "" if _status(error) < 500 else ": the server is in trouble, the same call may succeed later"
