"""The S3 clients of one store, made by boto3, and replaced when their keys change or are refused.

Every call has its own connect and read timeouts and at most two tries, so that a frozen server soon is an error; only
callers know how long to retry. Large transfers have a longer read timeout, because a server may need time to assemble
a large object.

botocore renews roles itself (IRSA, pod identity, instance profiles). Used only by perdure.store.s3.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from perdure.errors import UserError
from perdure.store import refusals
from perdure.store.credentials import (
    SPEC,
    AccessKeys,
    keys_in_environment,
    keys_in_folder,
    read_time,
    said_at_first,
    said_before_the_end,
    seconds_to_warning,
    stamp,
)
from perdure.store.draws import keep_global_generator
from perdure.wire import Env

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CONNECT_SECONDS: Final = 3
READ_SECONDS: Final = 5
"""Read timeout of small requests, such as log entries and listings."""
LARGE_READ_SECONDS: Final = 60
"""Read timeout of large objects and their parts, and of completing an upload."""
TRIES: Final = 2
CHECKSUM_HEADER: Final = "x-amz-checksum-crc64nvme"

_KEYS: Final = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (in Kubernetes: the Secret that "
    "spec.checkpoint.s3.credentialsSecret names)"
)
_EXPIRATIONS: Final = ("aws_expiration", "x_security_token_expires")
"""Names of the expiry that login tools write to a credentials file; botocore knows none."""

T = TypeVar("T")
_logger = logging.getLogger("perdure.store")


@dataclass(frozen=True)
class ClientOptions:
    """How to reach the server; empty values mean boto3's defaults."""

    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False
    credentials: Path | None = None
    """A folder with keys, which override all others if there are any."""
    spec: str = SPEC
    """The block of the job's spec that says the same, for messages."""
    only_these_keys: bool = False
    """Whether nothing else counts if that folder has no keys."""


def options(environ: Mapping[str, str]) -> ClientOptions:
    """The options in the PERDURE_S3_* variables."""
    return _options(environ, (Env.S3_ENDPOINT, Env.S3_REGION, Env.S3_PATH_STYLE, Env.S3_CREDENTIALS))


def origin_options(environ: Mapping[str, str]) -> ClientOptions:
    """The options in the PERDURE_FROM_S3_* variables. If there are none, those of the training's own root."""
    variables = (Env.FROM_S3_ENDPOINT, Env.FROM_S3_REGION, Env.FROM_S3_PATH_STYLE, Env.FROM_S3_CREDENTIALS)
    if not any(environ.get(name) for name in variables):
        return options(environ)
    # This training's own keys are for another server: it would refuse them, in words that mislead.
    return replace(_options(environ, variables), spec=f"{SPEC}.from", only_these_keys=True)


def _options(environ: Mapping[str, str], variables: tuple[str, str, str, str]) -> ClientOptions:
    endpoint, region, path_style, credentials = (environ.get(name) or "" for name in variables)
    if path_style not in ("true", "false", ""):
        raise UserError(f"{variables[2]} is {path_style!r}: set it to true or false")
    folder = Path(credentials) if credentials else None
    return ClientOptions(endpoint or None, region or None, path_style == "true", folder)


@dataclass(frozen=True)
class _Found:
    """Keys, and the files that may bring others."""

    core: botocore.session.Session
    keys: AccessKeys
    watched: tuple[Path | None, ...]
    stamp: object
    """The stamp of the watched files when the keys were read."""


@dataclass(frozen=True)
class _Connection:
    """Two clients with the same keys."""

    found: _Found
    quick: S3Client
    patient: S3Client


class Clients:
    """Calls the server with the current keys. From any thread."""

    def __init__(self, opts: ClientOptions) -> None:
        """Raises UserError for unusable options or credentials."""
        self._opts = opts
        self._lock = threading.Lock()
        self._connection = _connect(opts, _find(opts))
        self._warned: set[tuple[AccessKeys, str]] = set()
        self.answered = False
        """Whether this server has ever accepted a call."""
        self._warn("at first", said_at_first(self.keys))
        self._set_alarm()

    @property
    def spec(self) -> str:
        """The block of the job's spec that says how to reach this server."""
        return self._opts.spec

    @property
    def endpoint(self) -> str:
        return str(self._connection.quick.meta.endpoint_url)

    @property
    def keys(self) -> AccessKeys:
        """The keys used last."""
        return self._connection.found.keys

    def ask(self, act: Callable[[S3Client], T], *, large: bool = False) -> T:
        """Call `act` with a client; if the keys are refused and there are new ones, once more with those."""
        connection = self._current()
        try:
            answer = act(connection.patient if large else connection.quick)
        except ClientError as error:
            renewed = self._renewed(connection) if refusals.may_be_keys(*code_and_status(error)) else None
            if renewed is None:
                raise
            answer = act(renewed.patient if large else renewed.quick)
        self.answered = True
        return answer

    def _current(self) -> _Connection:
        connection = self._connection
        if stamp(*connection.found.watched) != connection.found.stamp:
            with suppress(UserError):  # a file is just being replaced: the old keys still work
                self._renewed(connection)
        self._warn("before the end", said_before_the_end(self.keys, datetime.now(UTC)))
        return self._connection

    def _renewed(self, old: _Connection) -> _Connection | None:
        """A connection with newer keys than the old one's; None if there are none."""
        with self._lock:
            if self._connection is old:
                found = _find(self._opts)
                if found.keys.same(old.found.keys):
                    self._connection = replace(old, found=found)
                    return None
                self._connection = _connect(self._opts, found)
                self._set_alarm()
            return self._connection

    def _set_alarm(self) -> None:
        """Schedule the warning before the keys expire, because training may go on for hours without a call."""
        now = datetime.now(UTC)
        self._warn("before the end", said_before_the_end(self.keys, now))
        left = seconds_to_warning(self.keys, now)
        if left is not None:
            look = weakref.WeakMethod(self._current)
            alarm = threading.Timer(min(left + 1, threading.TIMEOUT_MAX), lambda: (act := look()) and act())
            alarm.daemon = True
            alarm.start()

    def _warn(self, when: str, message: str) -> None:
        """Log a warning once per keys; its text changes with the minutes."""
        if message and (self.keys, when) not in self._warned:
            self._warned.add((self.keys, when))
            _logger.warning(message)


def code_and_status(error: ClientError) -> tuple[str, int]:
    """The error code and the HTTP status of a refusal."""
    status = int(error.response["ResponseMetadata"]["HTTPStatusCode"])
    return str(error.response.get("Error", {}).get("Code") or status), status


def _find(opts: ClientOptions) -> _Found:
    keep_global_generator()
    core = botocore.session.get_session()
    with _configured():
        shared = Path(str(core.get_config_variable("credentials_file"))).expanduser()
        watched = (opts.credentials, shared)
        before = stamp(*watched)
        keys = _keys_in_folder(opts) or keys_in_environment(os.environ)
        if keys:
            core.set_credentials(keys.access, keys.secret, keys.token)
        return _Found(core, keys or _keys_found_by(core, shared), watched, before)


def _keys_in_folder(opts: ClientOptions) -> AccessKeys | None:
    keys = keys_in_folder(opts.credentials, opts.spec) if opts.credentials else None
    if keys is None and opts.credentials and opts.only_these_keys:
        raise UserError(
            f"no S3 keys for the other root under {opts.credentials}: put files AWS_ACCESS_KEY_ID and "
            f"AWS_SECRET_ACCESS_KEY there (in Kubernetes: the Secret that {opts.spec}.s3.credentialsSecret names)"
        )
    return keys


def _connect(opts: ClientOptions, found: _Found) -> _Connection:
    session = boto3.session.Session(botocore_session=found.core)
    return _Connection(found, *(_client(session, opts, seconds) for seconds in (READ_SECONDS, LARGE_READ_SECONDS)))


def _keys_found_by(core: botocore.session.Session, shared: Path) -> AccessKeys:
    """The keys that botocore finds in files or gets for a role."""
    found = core.get_credentials()
    if found is None:
        raise UserError(f"no S3 credentials: set {_KEYS}, mount them, or give the pod a role")
    if found.method != "shared-credentials-file":
        return AccessKeys("", "", None, None, f"what the pod is given ({found.method})", renewable=True)
    frozen = found.get_frozen_credentials()
    profile = core.full_config.get("profiles", {}).get(core.get_config_variable("profile") or "default", {})
    expires = next((time for name in _EXPIRATIONS if (time := read_time(profile.get(name)))), None)
    source = f"the credentials file {shared}"
    return AccessKeys(str(frozen.access_key), str(frozen.secret_key), frozen.token, expires, source, renewable=True)


def _client(session: boto3.session.Session, opts: ClientOptions, read_seconds: float) -> S3Client:
    with _configured():
        client = session.client(
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
    for operation in ("PutObject", "UploadPart"):
        client.meta.events.register(f"before-sign.s3.{operation}", _name_the_checksum)
    return client


def _name_the_checksum(request: Any, **_: object) -> None:
    """Tell botocore's signer which header has the caller's checksum, as it knows only those that it has made itself.

    Over TLS botocore then leaves out the SHA-256 of the body, a second per GiB, as it does beside its own checksums.
    """
    request.context["checksum"] = {"request_algorithm": {"in": "header", "name": CHECKSUM_HEADER}}


@contextmanager
def _configured() -> Iterator[None]:
    """Raise UserError for boto3's configuration errors."""
    try:
        yield
    except (BotoCoreError, ValueError) as error:
        raise UserError(f"S3 cannot be used as configured: {error}: check checkpoint.s3 and the credentials") from error
