"""One planted bug: a piece of one symbol's code that is replaced by another. It reads files and writes none."""

from __future__ import annotations

import ast
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_FOLDERS: Final = {"perdure": "runtime", "perdure_operator": "operator"}


class Stale(Exception):
    """The bug's place in the code has changed, and the bug has to follow it."""


@dataclass(frozen=True)
class Mutant:
    """A bug, and where it is planted."""

    name: str
    """The defect, in words."""
    symbol: str
    """`package:qualified name` of the function, class or constant with the bug. It may be in any module of the
    package."""
    old: str
    """Occurs once in the symbol's code as `ast.unparse` writes it, so that layout, quotes and comments of the source do
    not matter. If the package has several symbols of this name, it occurs in one of them."""
    new: str
    faults: tuple[str, ...] = ()
    """Of the simulation: with these it matters soonest, and they are played alone before the swarm."""
    tests: tuple[str, ...] = ("tests/unit/operator",)
    """Unit tests that are asked where the simulation does not see it."""
    outside: str = ""
    """Why the simulation cannot see it, where it plays nothing of the kind: it is not asked then."""

    def changed(self, root: Path) -> tuple[Path, str]:
        """The file to change, relative to `root`, and its text with the bug; raises Stale."""
        package, _, name = self.symbol.partition(":")
        found = [(file, node, ast.unparse(node)) for file, node in _symbols(root, package)[name]]
        if (times := sum(code.count(self.old) for *_, code in found)) != 1:
            places = [f"{file}:{node.lineno} as ast.unparse writes it:\n{code}" for file, node, code in found]
            raise Stale(
                f"{self.name}: {self.symbol} has this {times} times, and not once:\n{self.old}\n"
                "Copy a piece that occurs once, or name the symbol that has the code now.\n"
                + "\n".join(places or [f"{package} has no {name}"])
            )
        file, node, code = next(one for one in found if self.old in one[2])
        lines = (root / file).read_text(encoding="utf-8").split("\n")
        begin = min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
        bug = textwrap.indent(code.replace(self.old, self.new), " " * node.col_offset)
        return file, "\n".join([*lines[: begin - 1], bug, *lines[node.end_lineno :]])


@cache
def _symbols(root: Path, package: str) -> dict[str, list[tuple[Path, ast.stmt]]]:
    """All that the package's modules define, by qualified name, each with its file."""
    folder = root / _FOLDERS[package.partition(".")[0]] / package.replace(".", "/")
    found = defaultdict[str, list[tuple[Path, ast.stmt]]](list)
    for file in sorted(folder.rglob("*.py")):
        for name, node in _defined(ast.parse(file.read_text(encoding="utf-8")).body):
            found[name].append((file.relative_to(root), node))
    return found


def _defined(body: list[ast.stmt], within: str = "") -> Iterator[tuple[str, ast.stmt]]:
    for one in body:
        match one:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield within + name, one
                yield from _defined(one.body, f"{within}{name}.")
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield within + name, one
