"""How documents of the other side are read: field by field, each error naming its field.

Called by `outcome` and `handover`; what need not be read field by field is read by `codec`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from perdure.errors import PerdureError

VERSION: Final = 1
"""The contract's major version, `v` in an assignment and in an outcome."""

LARGEST: Final = 2**53 - 1
"""No number in an outcome or an assignment is larger: JSON readers of other languages keep no more."""


class ContractError(PerdureError):
    """A document of the other side cannot be read; the message says which field and why."""


class UnsupportedVersion(ContractError):
    """The document's major version is not one this side knows."""


@dataclass(frozen=True)
class CommitRef:
    """A commit as its readers know it: its entry in the log and its step."""

    seq: int
    step: int


def read_commit(value: Any) -> CommitRef | None:
    """The commit in a JSON object, None for anything else: neither a run nor its outcome depends on it."""
    try:
        return commit_of(value)
    except ContractError:
        return None


def commit_of(value: Any) -> CommitRef | None:
    return CommitRef(integer(value, "seq", 1), integer(value, "step", 0)) if isinstance(value, dict) else None


def document(what: str, text: str) -> dict[str, Any]:
    try:
        doc = json.loads(text)
    except (ValueError, RecursionError):
        raise ContractError(f"{what}: not JSON: {text[:80]!r}") from None
    if not isinstance(doc, dict):
        raise ContractError(f"{what}: not a JSON object: {text[:80]!r}")
    version = doc.get("v")
    if isinstance(version, bool) or not isinstance(version, int):
        raise ContractError(f"{what}: field v is not an integer: {version!r}")
    if version != VERSION:
        raise UnsupportedVersion(f"{what}: version {version}, this side knows {VERSION}: use matching images")
    return doc


def integer(doc: Mapping[str, Any], name: str, least: int, *, default: int | None = None) -> int:
    value = doc.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
        raise ContractError(f"field {name} is not an integer from {least} to 2^53 - 1: {str(value)[:80]}")
    return value


def string(doc: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = doc.get(name, default)
    if not isinstance(value, str):
        raise ContractError(f"field {name} is not a string: {value!r}")
    return value
