"""Verdicts on a file, one line each: a run that was cut goes on where it was. Read and written by `__main__`.

What the simulation has found with little effort it finds with more as well: all are tried with few histories first,
and with hundreds only those that survive.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.mutants.judge import Effort, Found
from tests.mutants.mutant import Mutant


class Record:
    """The known verdicts on this tree with at most this effort; several runs may write one file at the same time."""

    def __init__(self, path: Path | None, tree: str, effort: Effort) -> None:
        self._path = path
        self._tree, self._effort = tree, effort
        self._known: dict[str, tuple[Found, str]] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                one = json.loads(line)
                if self._holds(Found(one["found"]), one["about"]):
                    self._known[one["mutant"]] = Found(one["found"]), one["words"]

    def _holds(self, found: Found, about: dict[str, Any]) -> bool:
        """Whether it would be found again now."""
        made = dict(about)
        if made.pop("tree") != self._tree:
            return False
        then, now = Effort(**made), self._effort
        less = then.histories <= now.histories and then.aimed <= now.aimed
        return then == now or (found is Found.SIMULATION and then.seed == now.seed and less)

    def known(self, mutant: Mutant) -> tuple[Found, str] | None:
        return self._known.get(_key(mutant))

    def add(self, mutant: Mutant, found: Found, words: str) -> None:
        """One write to the end of the file, so that lines of several runs do not mix."""
        if self._path is not None:
            about = {"tree": self._tree, **asdict(self._effort)}
            line = {"mutant": _key(mutant), "found": found.value, "words": words, "about": about}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _key(mutant: Mutant) -> str:
    return f"{mutant.name}: {mutant.symbol}: {mutant.old!r} -> {mutant.new!r}"
