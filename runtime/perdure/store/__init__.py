"""Where checkpoints live: objects under one root, in S3 or in a folder.

A `Store` has a few calls over keys relative to its root. It knows nothing of logs, shards or training. Everything else
is built on its one promise: `put(..., if_absent=True)` has exactly one winner.

Used by perdure.checkpoint and perdure.loop.telemetry. This module imports neither boto3 nor torch; `open_store` imports
what the root's scheme needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from perdure.errors import UserError
from perdure.store.metered import with_meter
from perdure.store.protocol import KeyExists, NoSuchKey, ObjectInfo, Store, every_key
from perdure.wire import Env

__all__ = ["KeyExists", "NoSuchKey", "ObjectInfo", "Store", "every_key", "open_origin", "open_store"]


def open_store(uri: str, environ: Mapping[str, str]) -> Store:
    """The store at `s3://bucket/prefix` or `file:///folder`; touches nothing yet. UserError for anything else.

    Options for S3 come from `environ` (perdure.wire.Env), credentials from wherever boto3 finds them.
    """
    return _opened(uri, environ, of_origin=False)


def open_origin(uri: str, environ: Mapping[str, str]) -> Store:
    """The same for another training's root, from which this one begins: it may have an endpoint and keys of its own."""
    return _opened(uri, environ, of_origin=True)


def _opened(uri: str, environ: Mapping[str, str], *, of_origin: bool) -> Store:
    parts = urlsplit(uri)
    match parts.scheme:
        case "file" if parts.netloc in ("", "localhost") and parts.path.startswith("/"):
            from perdure.store.file import FileStore  # noqa: PLC0415  (needs what only this scheme needs)

            return with_meter(FileStore(Path(unquote(parts.path))))
        case "s3" if parts.netloc:
            try:
                from perdure.store.clients import options, origin_options  # noqa: PLC0415
                from perdure.store.s3 import S3Store  # noqa: PLC0415
            except ModuleNotFoundError as error:
                if error.name not in ("boto3", "botocore"):
                    raise
                raise UserError(
                    f"{uri} needs {error.name}, which is not installed: pip install 'perdure[s3]'"
                ) from None

            given = origin_options(environ) if of_origin else options(environ)
            return with_meter(S3Store(parts.netloc, parts.path.strip("/"), given))
        case "gs" | "gcs" | "az" | "azure" | "abfs" | "abfss":
            raise UserError(
                f"checkpoint root {uri!r}: {parts.scheme}:// is not supported: put a gateway with an S3 interface in "
                f"front, write s3://bucket/prefix with its {Env.S3_ENDPOINT}, and try it with `perdure store-check`"
            )
    raise UserError(f"checkpoint root {uri!r} is neither s3://bucket/prefix nor file:///folder: write it like that")
