"""How a user names a commit of a root: by finished epochs, by step, by its number in the log, or by a pin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from perdure.errors import UserError


@dataclass(frozen=True)
class CommitSelector:
    """One of these, or none: then the newest commit is meant."""

    epoch: int | None = None
    """The commit with so many finished epochs, of all loops, and no further epoch begun."""
    step: int | None = None
    """The commit after so many optimizer steps."""
    seq: int | None = None
    """The commit with this number in the log."""
    pin: str | None = None
    """The commit's pin."""

    def __post_init__(self) -> None:
        """UserError for what can name no commit."""
        given = self.given
        if len(given) > 1:
            raise UserError(f"{' and '.join(given)} are given: a commit is named by one of them")
        if self.pin is not None and not (isinstance(self.pin, str) and self.pin):
            raise UserError(f"pin is {self.pin!r}: give the name of a pin")
        for name, value in given.items():
            if name == "pin":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < (name == "seq"):
                raise UserError(f"{name} is {value!r}: give an integer from {int(name == 'seq')}")

    @property
    def given(self) -> dict[str, int | str]:
        """The given selectors, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        return next((f"{name} {value}" for name, value in self.given.items()), "the newest commit")


@dataclass(frozen=True)
class ResumeFrom:
    """Where a training should begin, instead of the newest commit of its own root."""

    wanted: CommitSelector
    uri: str | None = None
    """Another root than its own."""

    def write(self) -> str:
        """As JSON; always the same text for the same wish."""
        return json.dumps({**({"uri": self.uri} if self.uri else {}), **self.wanted.given}, sort_keys=True)


def read_resume_from(given: Mapping[str, Any]) -> ResumeFrom:
    """A wish with the keys `uri`, and one of those of CommitSelector. UserError for any other, or none."""
    names = [field.name for field in fields(CommitSelector)]
    if not isinstance(given, Mapping) or not given or not given.keys() <= {"uri", *names}:
        raise UserError(f"resume_from is {given!r}: give one of {', '.join(names)}, and uri for another root")
    uri = given.get("uri")
    if uri is not None and not (isinstance(uri, str) and uri):
        raise UserError(f"resume_from: uri is {uri!r}: give a folder or s3://bucket/prefix")
    wanted = CommitSelector(**{name: given.get(name) for name in names})
    if uri is None and not wanted.given:
        raise UserError(f"resume_from names no commit: give one of {', '.join(names)}, or uri for another root")
    return ResumeFrom(wanted, uri)
