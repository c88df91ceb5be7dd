"""One planted bug: a piece of one file that is replaced by another. Pure but for `plant`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class Stale(Exception):
    """The code has changed: the piece to be replaced is not there, or not only once."""


@dataclass(frozen=True)
class Mutant:
    """A bug, and where it is planted."""

    name: str
    """The defect, in words."""
    file: str
    """Relative to the repository."""
    old: str
    """Occurs once in the file."""
    new: str
    faults: tuple[str, ...] = ()
    """Of the simulation: with these it matters soonest, and they are played alone before the swarm."""
    tests: tuple[str, ...] = ("tests/unit/operator",)
    """Unit tests that are asked where the simulation does not see it."""
    outside: str = ""
    """Why the simulation cannot see it, where it plays nothing of the kind: it is not asked then."""

    def plant(self, root: Path) -> None:
        """Change the file below `root`; raises Stale."""
        path = root / self.file
        path.write_text(self.changed(path.read_text(encoding="utf-8")), encoding="utf-8")

    def changed(self, text: str) -> str:
        """The file's text with the bug; raises Stale."""
        if text.count(self.old) != 1:
            raise Stale(f"{self.name}: {self.file} has this {text.count(self.old)} times, and not once: {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class At(Mutant):
    """A bug at one place of the text, for pieces that occur more than once."""

    offset: int = 0
    """Where `old` begins, in characters."""

    def changed(self, text: str) -> str:
        """The file's text with the bug; raises Stale."""
        end = self.offset + len(self.old)
        if text[self.offset : end] != self.old:
            raise Stale(f"{self.name}: {self.file} has something else at {self.offset}")
        return text[: self.offset] + self.new + text[end:]
