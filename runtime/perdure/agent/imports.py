"""Reads from a program's source what it will import, so that the zygote can import it beforehand.

It runs nothing, because a script has side effects. Only installed packages count: the script's own modules may read the
run's variables or change, so they are only read in turn. What this process has imported is not read: its imports have
run. Imports inside functions do not count, because they may never run.

Called in the zygote (perdure.agent.preload), whose sys.path is the program's.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

INSTALLED: Final = ("site-packages", "dist-packages")
"""Names of folders with installed packages."""


@dataclass(frozen=True)
class Import:
    """`import module`, or `from module import names`."""

    module: str
    names: tuple[str, ...] = ()


def imports_of(target: str, *, module: bool) -> tuple[Import, ...]:
    """The installed modules that the script or module imports when it runs, in order, each once."""
    reader = _Reader()
    found = reader.own(Import(target, ("__main__",))) if module else reader.read(Path(target), "")
    return tuple(dict.fromkeys(found))


class _Reader:
    """Reads files, each once."""

    def __init__(self) -> None:
        self._read: set[Path] = set()

    def read(self, file: Path, package: str) -> Iterator[Import]:
        """The imports of this file, a module of `package`, and of the script's own modules that it imports."""
        if file in self._read:
            return
        self._read.add(file)
        try:
            body = ast.parse(file.read_bytes()).body
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return  # the script itself will report it
        for found in _statements(body, package):
            yield from [found] if _is_installed(found.module) else self.own(found)

    def own(self, wanted: Import) -> Iterator[Import]:
        """The imports of one of the script's own modules, and of its packages, which run before it."""
        parts = wanted.module.split(".")
        above = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
        for name in (*above, *(f"{wanted.module}.{name}" for name in wanted.names)):
            file = None if name in sys.modules else _own_file(name)
            if file:
                yield from self.read(file, name if file.name == "__init__.py" else name.rpartition(".")[0])


def _statements(body: Sequence[ast.stmt], package: str) -> Iterator[Import]:
    """The imports of these statements, as far as they are static."""
    for statement in body:
        match statement:
            case ast.Import(names):
                yield from (Import(alias.name) for alias in names)
            case ast.ImportFrom(module, names, level):
                base = _absolute(module or "", level or 0, package)
                if base:
                    yield Import(base, tuple(alias.name for alias in names if alias.name != "*"))
            case ast.If(test, then, otherwise):
                typing = "TYPE_CHECKING" in ast.dump(test)
                yield from _statements(otherwise if typing else [*then, *otherwise], package)
            case ast.Try(body=tried, orelse=otherwise, finalbody=last):
                yield from _statements([*tried, *otherwise, *last], package)
            case ast.With(body=inner) | ast.For(body=inner) | ast.While(body=inner) | ast.ClassDef(body=inner):
                yield from _statements(inner, package)


def _absolute(module: str, level: int, package: str) -> str:
    """The full name of a relative import; "" if it goes beyond the top."""
    if not level:
        return module
    parts = package.split(".") if package else []
    base = parts[: len(parts) - level + 1] if level <= len(parts) else []
    return ".".join([*base, module] if module else base) if base else ""


def _is_installed(module: str) -> bool:
    """Whether the module belongs to an installed package, and is not shadowed by another."""
    return any(_is_in_packages(place) for place in _places(module.partition(".")[0]))


def _places(top: str) -> list[str]:
    """The locations of a top-level module, found without an import."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    return list(spec.submodule_search_locations or ([spec.origin] if spec.has_location and spec.origin else []))


def _is_in_packages(place: str) -> bool:
    roots = [path for path in sys.path if Path(path).name in INSTALLED]
    return any(Path(os.path.realpath(place)).is_relative_to(os.path.realpath(root)) for root in roots)


def _own_file(module: str) -> Path | None:
    """The file of one of the script's own modules; None if it is not found or not its own."""
    top, *rest = module.split(".")
    if top in sys.stdlib_module_names:
        return None
    for place in _places(top):
        if _is_in_packages(place):
            continue
        base = Path(place, *rest)
        files = [base / "__init__.py", base.with_suffix(".py")] if rest or base.is_dir() else [base]
        found = next((file for file in files if file.suffix == ".py" and file.is_file()), None)
        if found:
            return found
    return None
