"""What a table of `tables` can say about a field, and the walk along a source that obeys it.

A table's rows are the documentation too: docs/migrate.md prints them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.errors import UserError

Fields = dict[str, Any]


@dataclass(frozen=True)
class CarriedTo:
    """The value goes to this field of the TrainingJob; `change` is what then differs in meaning."""

    to: str
    change: str = ""


@dataclass(frozen=True)
class NotCarried:
    """The value is left out, and a remark says why, or what to do instead."""

    why: str


@dataclass(frozen=True)
class Meaningless:
    """The value is left out in silence, because nothing is lost."""

    why: str


@dataclass(frozen=True)
class Computed:
    """Code of `sources` or `template` reads the value; `to` says what it makes of it."""

    to: str


FieldTable = Mapping[str, "CarriedTo | NotCarried | Meaningless | Computed | FieldTable"]


@dataclass(frozen=True)
class Remark:
    """What a user has to know about one field of the source, or of the result."""

    where: str
    text: str

    def __str__(self) -> str:
        """One printable line, whatever names the source has."""
        line = " ".join(f"{self.where}: {self.text}".split())
        return "".join(letter if letter.isprintable() else "?" for letter in line)


@dataclass
class Conversion:
    """The manifest while it is made, and the remarks so far."""

    manifest: Fields = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)

    def remark(self, where: str, text: str) -> None:
        """Add a remark; the same one only once."""
        one = Remark(where, text)
        if one not in self.remarks:
            self.remarks.append(one)

    def put(self, to: str, value: Any) -> None:
        """Set a field of the manifest by its path, such as spec.failure.maxCodeFailures."""
        *parents, last = to.split(".")
        inner = self.manifest
        for name in parents:
            inner = inner.setdefault(name, {})
        inner[last] = copy.deepcopy(value)

    def get(self, path: str) -> Any:
        """A field of the manifest; None if it has none."""
        inner: Any = self.manifest
        for name in path.split("."):
            inner = inner.get(name) if isinstance(inner, dict) else None
        return inner

    def carry(self, where: str, to: str, value: Any, change: str = "") -> None:
        """Set a field of the manifest from one of the source. Of several the first counts, the others are remarked."""
        earlier = self.get(to)
        if earlier is None:
            self.put(to, value)
            if change:
                self.remark(where, f"became {to}: {change}")
        elif earlier != value:
            self.remark(where, f"not carried over: {to} is {earlier!s:.60} by another field")

    def follow(self, table: FieldTable, given: Any, where: str) -> Fields:
        """Do what the table says about each field of a mapping; returns the mapping. Null is as good as absent."""
        fields = mapping(given, where)
        for name, value in fields.items():
            path = f"{where}.{name}" if where else name
            match table.get(name):
                case None:
                    self.remark(path, "not carried over: convert does not know this field")
                case CarriedTo(to, change):
                    self.carry(path, to, value, change)
                case NotCarried(why):
                    self.remark(path, f"not carried over: {why}")
                case Meaningless() | Computed():
                    pass
                case inner:
                    self.follow(inner, value, path)
        return fields


def mapping(given: Any, where: str) -> Fields:
    """A mapping without its nulls. UserError if it is none."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise UserError(f"{where}: a mapping is expected, and this is {given!r:.60}")
    return {name: value for name, value in given.items() if value is not None}


def items(given: Any, where: str) -> list[tuple[str, Fields]]:
    """The mappings of a list, each with its path. UserError if it is no such list."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise UserError(f"{where}: a list is expected, and this is {given!r:.60}")
    return [(f"{where}[{place}]", mapping(one, f"{where}[{place}]")) for place, one in enumerate(given)]


def words(given: Any, where: str) -> list[str]:
    """A list of strings. UserError if it is none."""
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(word, str) for word in given):
        raise UserError(f"{where}: a list of strings is expected, and this is {given!r:.60}")
    return list(given)


def number(given: Any, where: str, default: int) -> int:
    """A whole number; absent, the default. UserError if it is none."""
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, int):
        raise UserError(f"{where}: a whole number is expected, and this is {given!r:.60}")
    return given


def text(given: Any, where: str, default: str = "") -> str:
    """A string; absent, the default. UserError if it is none."""
    if given is None:
        return default
    if not isinstance(given, str):
        raise UserError(f"{where}: a string is expected, and this is {given!r:.60}")
    return given


def rows(table: FieldTable, where: str = "") -> Iterator[tuple[str, str]]:
    """The table for a reader: each field's path, and where it goes."""
    for name, rule in table.items():
        path = f"{where}.{name}" if where else name
        match rule:
            case CarriedTo(to, change):
                yield path, f"`{to}`" + (f": {change}" if change else "")
            case NotCarried(why):
                yield path, f"**not carried over**: {why}"
            case Meaningless(why):
                yield path, f"nothing: {why}"
            case Computed(to):
                yield path, to
            case inner:
                yield from rows(inner, path)
