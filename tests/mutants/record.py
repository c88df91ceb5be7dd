"""Verdicts on a file, one line each: a run that was cut goes on where it was. Read and written by `__main__`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tests.mutants.judge import Effort, Found
from tests.mutants.mutant import Mutant


class Record:
    """What is known of this tree with this effort; several runs may write one file at the same time."""

    def __init__(self, path: Path | None, tree: str, effort: Effort) -> None:
        self._path = path
        self._about = {"tree": tree, **asdict(effort)}
        self._known: dict[str, tuple[Found, str]] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                one = json.loads(line)
                if one["about"] == self._about:
                    self._known[one["mutant"]] = Found(one["found"]), one["words"]

    def known(self, mutant: Mutant) -> tuple[Found, str] | None:
        return self._known.get(_key(mutant))

    def add(self, mutant: Mutant, found: Found, words: str) -> None:
        """One write to the end of the file, so that lines of several runs do not mix."""
        if self._path is not None:
            line = {"mutant": _key(mutant), "found": found.value, "words": words, "about": self._about}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _key(mutant: Mutant) -> str:
    return f"{mutant.name}: {mutant.file}: {mutant.old!r} -> {mutant.new!r}"
