"""S3 keys that may change while a process runs, and the warnings before they expire.

Keys in the environment cannot be renewed in a running process, so an expired session token costs the exit save. The
kubelet replaces the files of a mounted Secret within a minute or two of a change. It swaps a whole folder behind a
symbolic link, so keys are read through the link's current target, never half old and half new.

Knows files and variables, neither boto3 nor a network. Used by perdure.store.clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from perdure.errors import UserError

ACCESS_KEY: Final = "AWS_ACCESS_KEY_ID"
SECRET_KEY: Final = "AWS_SECRET_ACCESS_KEY"  # noqa: S105  (a name)
TOKEN: Final = "AWS_SESSION_TOKEN"  # noqa: S105  (a name)
EXPIRATION: Final = "AWS_CREDENTIAL_EXPIRATION"
"""ISO 8601, as AWS's tools set it."""
WARN_SECONDS: Final = 1800.0
"""How long before the keys expire the warning comes."""

SPEC: Final = "spec.checkpoint"
"""The block of the job's spec that says how to reach its own root."""
_LINK: Final = "..data"
_VARIABLES: Final = (ACCESS_KEY, SECRET_KEY, TOKEN, EXPIRATION)


@dataclass(frozen=True)
class AccessKeys:
    """Keys to sign requests with."""

    access: str
    """The access key; "" for those of a role, which botocore keeps and renews."""
    secret: str
    token: str | None
    expires: datetime | None
    """When the keys expire; None if unknown."""
    source: str
    """Their source, for messages."""
    renewable: bool
    """Whether the source may have other keys later."""

    def same(self, other: AccessKeys) -> bool:
        """Whether both are known to be the same keys."""
        return bool(self.access) and (self.access, self.secret, self.token) == (other.access, other.secret, other.token)


def keys_in_environment(environ: Mapping[str, str]) -> AccessKeys | None:
    """The keys in variables; None if there are none."""
    return _keys(environ, f"{ACCESS_KEY} and {SECRET_KEY} {_secret(SPEC)}", renewable=False)


def keys_in_folder(folder: Path, spec: str = SPEC) -> AccessKeys | None:
    """The keys in a folder with one file per key, such as a mounted Secret; None if there are none.

    `spec` is the block of the job's spec that names the Secret.
    """
    shown = folder
    if (folder / _LINK).is_symlink():
        folder = (folder / _LINK).resolve()
    found: dict[str, str] = {}
    for name in _VARIABLES:
        try:
            found[name] = (folder / name).read_text().strip()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"the S3 key {shown / name} cannot be read: {error}: check the mounted Secret") from error
    return _keys(found, f"{ACCESS_KEY} and {SECRET_KEY} under {shown} {_secret(spec)}", renewable=True)


def _secret(spec: str) -> str:
    return f"(in Kubernetes: the Secret that {spec}.s3.credentialsSecret names)"


def stamp(*paths: Path | None) -> tuple[tuple[int, int, int] | None, ...]:
    """A value that changes with any of the files, or with a folder's link."""
    return tuple(_stamp_of(path) for path in paths if path)


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = (path / ACCESS_KEY if path.is_dir() else path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _keys(values: Mapping[str, str], source: str, *, renewable: bool) -> AccessKeys | None:
    access, secret = values.get(ACCESS_KEY), values.get(SECRET_KEY)
    if not access and not secret:
        return None
    if not access or not secret:
        raise UserError(f"S3 credentials are incomplete: of {source} one is missing: set both")
    return AccessKeys(access, secret, values.get(TOKEN) or None, read_time(values.get(EXPIRATION)), source, renewable)


def read_time(text: str | None) -> datetime | None:
    """A time; None if it cannot be parsed, because keys work without it."""
    try:
        found = datetime.fromisoformat(text.strip()) if text else None
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found and found.tzinfo is None else found


def said_at_first(keys: AccessKeys) -> str:
    """A warning about keys that cannot be renewed, for their first use; "" for none."""
    if keys.renewable or not (keys.token or keys.expires):
        return ""
    end = f"end at {_clock(keys.expires)}" if keys.expires else "end at an unknown time (there is a token)"
    return (
        f"the S3 keys of this process {end}, and it cannot get others: a checkpoint after that fails. They come from "
        f"{keys.source}; keys from a mounted file, or a role of the pod, are read again"
    )


def seconds_to_warning(keys: AccessKeys, now: datetime) -> float | None:
    """Seconds until the warning is due; None if it is due now, or if the expiry is unknown."""
    until = (keys.expires - now).total_seconds() - WARN_SECONDS if keys.expires else 0.0
    return until if until > 0 else None


def said_before_the_end(keys: AccessKeys, now: datetime) -> str:
    """The warning before keys expire; "" until it is due, or if the expiry is unknown."""
    if keys.expires is None or seconds_to_warning(keys, now) is not None:
        return ""
    left = (keys.expires - now).total_seconds()
    when = f"in {left / 60:.0f} min, at" if left > 0 else "since"
    verb = "run out" if left > 0 else "have run out"
    remedy = "replace them there, they are read again" if keys.renewable else "start the job again with others"
    return f"the S3 keys {verb} {when} {_clock(keys.expires)}: a checkpoint fails then: {keys.source}: {remedy}"


def _clock(time: datetime | None) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%MZ") if time else "?"
