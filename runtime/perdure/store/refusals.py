"""What an S3 server means when it refuses a call, and what the user can do about it: a table of error codes.

Pure: knows codes and statuses of AWS S3, MinIO, Ceph and versitygw, but neither boto3 nor a network. perdure.store.s3
makes a StorageError or StorageRefused of it. An unknown error counts as temporary: trying again in vain costs time,
giving up in vain costs a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class Kind(Enum):
    """Whether the same call can succeed later."""

    PASSES = auto()
    """Yes: by itself, or when space is made or a clock is set."""
    STAYS = auto()
    """Ends only when the bucket, its policy or the job changes."""
    KEYS = auto()
    """The server does not know these keys, or they are wrong."""
    EXPIRED = auto()
    """The keys were valid once."""


@dataclass(frozen=True)
class RefusalRule:
    """How to treat a refusal. In the remedy `{keys}` and `{endpoint}` stand for the actual ones, and `{spec}` for the
    block of the job's spec with the fields that it names."""

    kind: Kind
    remedy: str = ""

    def remedy_for(self, *, keys: str, endpoint: str, spec: str) -> str:
        """The end of a message: the remedy, if there is one."""
        return f": {self.remedy.format(keys=keys, endpoint=endpoint, spec=spec)}" if self.remedy else ""


_BUCKET: Final = RefusalRule(
    Kind.STAYS, "create the bucket, or correct {spec}.uri or {spec}.s3.endpoint (now {endpoint})"
)
_REGION: Final = RefusalRule(Kind.STAYS, "the bucket is in another region: correct {spec}.s3.region")
REDIRECTED: Final = RefusalRule(
    Kind.STAYS,
    "the server redirects to another: correct {spec}.s3.endpoint (now {endpoint}; https:// perhaps) or "
    "{spec}.s3.region",
)
_ACCESS: Final = RefusalRule(
    Kind.STAYS, "check the credentials in {keys}, and that they may get, put, list and delete in this bucket"
)
_WRONG_KEYS: Final = RefusalRule(Kind.KEYS, "these keys are wrong or no longer valid: check the credentials in {keys}")
_EXPIRED: Final = RefusalRule(Kind.EXPIRED, "these keys have expired: check the credentials in {keys}")
_SPACE: Final = RefusalRule(Kind.PASSES, "make room there or raise the quota; the same call succeeds then")
_CLOCK: Final = RefusalRule(Kind.PASSES, "set the clock of this node")
NOT_S3: Final = RefusalRule(
    Kind.STAYS,
    "what answers at {endpoint} is no S3 server, or one that lacks what is needed: correct "
    "{spec}.s3.endpoint (the API's port, not the console's) and {spec}.s3.pathStyle",
)
_KEY_NAME: Final = RefusalRule(Kind.STAYS, "shorten {spec}.uri")
_ENCRYPTION: Final = RefusalRule(
    Kind.STAYS, "the bucket's encryption key cannot be used: enable it, or allow it to {keys}"
)
_UNSAID: Final = RefusalRule(Kind.PASSES, "this may be an expired token: check the credentials in {keys}")
TROUBLE: Final = RefusalRule(Kind.PASSES, "the server is in trouble, the same call may succeed later")

_CODES: Final = {
    "NoSuchBucket": _BUCKET,
    "InvalidBucketName": _BUCKET,
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "EndpointNotFound": _REGION,
    "InvalidAccessKeyId": _WRONG_KEYS,
    "SignatureDoesNotMatch": _WRONG_KEYS,
    "InvalidToken": _WRONG_KEYS,
    "InvalidClientTokenId": _WRONG_KEYS,
    "XAdminUserNotFound": _WRONG_KEYS,
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "QuotaExceeded": _SPACE,  # Ceph: with status 403
    "XMinioAdminBucketQuotaExceeded": _SPACE,
    "XMinioStorageFull": _SPACE,
    "RequestTimeTooSkewed": _CLOCK,
    "KeyTooLongError": _KEY_NAME,
    "KMS.DisabledException": _ENCRYPTION,
    "KMS.KMSInvalidStateException": _ENCRYPTION,
    "KMS.NotFoundException": _ENCRYPTION,
    "MethodNotAllowed": NOT_S3,
    "NotImplemented": NOT_S3,
}

_STATUSES: Final = {
    301: REDIRECTED,
    302: REDIRECTED,
    308: REDIRECTED,
    403: _ACCESS,
    405: NOT_S3,
    501: NOT_S3,
    507: _SPACE,
}


def read(code: str, status: int) -> RefusalRule:
    """What a refusal means. A HEAD's answer has no body: its code is the status."""
    if code in _CODES:
        return _CODES[code]
    if status in _STATUSES:
        return _STATUSES[status]
    if status == 400 and code == "400":
        return _UNSAID
    if status == 404 and code == "404":
        return NOT_S3
    return TROUBLE if status >= 500 else RefusalRule(Kind.PASSES)


def may_be_keys(code: str, status: int) -> bool:
    """Whether other keys could have been accepted: expired ones are 400 or 403 to a HEAD, without a word."""
    return read(code, status).kind in (Kind.KEYS, Kind.EXPIRED) or code in ("400", "403")
