"""The table of signals in force, prepared for lookups of every node in every round. Pure.

Rows of the configuration come before shipped ones, so that a cluster's own rows win. For each thing that a
node shows, only the first matching row counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from perdure_operator.api.default_signals import DEFAULT_SIGNALS
from perdure_operator.api.signal_rows import BAD, WELL, Reaction, SignalRow, SignalSource


class SignalTable:
    """Rows by what they match."""

    def __init__(self, rows: tuple[SignalRow, ...]) -> None:
        self.rows: Final = rows
        self.choices: Final = frozenset(row.name for row in rows if row.source is not SignalSource.SILENCE)
        """The names for which a job may choose another reaction."""
        self.knows_faults: Final = any(row.enabled and row.reaction is Reaction.FAULT for row in rows)
        self._exact: dict[tuple[SignalSource, str], list[tuple[int, SignalRow]]] = defaultdict(list)
        self._patterns: dict[SignalSource, list[tuple[str, tuple[int, SignalRow]]]] = defaultdict(list)
        for place, row in enumerate(rows):
            if "*" in row.key:
                self._patterns[row.source].append((row.key, (place, row)))
            else:
                self._exact[row.source, row.key].append((place, row))

    def find(
        self, source: SignalSource, key: str = "", value: str = "", *, effect: str = "", reason: str = ""
    ) -> SignalRow | None:
        """The enabled row for what a node shows."""
        return next((row for row in self._matching(source, key, value, effect, reason) if row.enabled), None)

    def knows(self, source: SignalSource, key: str, value: str, reason: str = "") -> bool:
        """Whether any row covers it, enabled or not: a job may enable it."""
        return any(True for _ in self._matching(source, key, value, "", reason))

    def _matching(self, source: SignalSource, key: str, value: str, effect: str, reason: str) -> Iterator[SignalRow]:
        patterns = () if key in WELL.get(source, ()) else self._patterns.get(source, ())
        found = [row for pattern, row in patterns if matches(pattern, key)]
        for _, row in sorted([*found, *self._exact.get((source, key), ())], key=lambda one: one[0]):
            wanted = row.value if row.value is not None else BAD.get(source)
            if wanted in (None, value) and row.effect in ("", effect) and (not row.reasons or reason in row.reasons):
                yield row


def matches(pattern: str, key: str) -> bool:
    """Whether `*` can match the key: never in more time than their lengths multiplied.

    A regular expression tries all places for each `*`, and a node's label could make it try for years.
    """
    first, *middle, last = pattern.split("*")
    at, end = len(first), len(key) - len(last)
    if at > end or not (key.startswith(first) and key.endswith(last)):
        return False
    for part in middle:  # the first match leaves most room for the others
        found = key.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def merged(configured: tuple[SignalRow, ...]) -> tuple[SignalRow, ...]:
    """The shipped rows with those of the configuration: changed ones at their old place, new ones before all others."""
    shipped, given = {row.name for row in DEFAULT_SIGNALS}, {row.name: row for row in configured}
    new = tuple(row for row in configured if row.name not in shipped)
    return new + tuple(given.get(row.name, row) for row in DEFAULT_SIGNALS)


@lru_cache(maxsize=64)
def table(configured: tuple[SignalRow, ...] = (), chosen: tuple[tuple[str, Reaction], ...] = ()) -> SignalTable:
    """The table in force; `chosen` are a job's own reactions by the rows' names."""
    reactions = dict(chosen)
    return SignalTable(tuple(_chosen(row, reactions.get(row.name)) for row in merged(configured)))


def _chosen(row: SignalRow, reaction: Reaction | None) -> SignalRow:
    if reaction is None or row.source is SignalSource.SILENCE:
        return row
    return row.model_copy(
        update={
            "reaction": reaction,
            "enabled": True,
            "deadline_seconds": None,
            "deadline_in_value": False,
            "deadline_in_claim": False,
        }
    )


SHIPPED_TABLE: Final = table()
"""The table of an operator whose configuration has no rows."""
