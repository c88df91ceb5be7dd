"""The test files nearest to a change, nearest first. Pure: it is given the text of every Python file.

Near is counted in imports: a module's tests import it, or import a module that imports it; a conftest.py is imported by
all tests below it. A file that is not imported (a page, a chart, an example) is near to the test files that name it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePosixPath

SERVED = ("tests/api/", "tests/cluster/")
ROOTS = ("operator/", "runtime/")
"""Their packages are imported without the folder's name."""
IMPORTS = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|.+)|import (.+))", re.MULTILINE)
NAMES = re.compile(r"(?<![\w.])[a-zA-Z_][\w.]*")
"""Also `as` and the text behind it: no module has such a name."""
FARTHEST = 3
"""Imports between a change and a test near to it."""


def module_of(path: str) -> str:
    """The name that a Python file is imported by."""
    below = next((path.removeprefix(root) for root in ROOTS if path.startswith(root)), path)
    return below.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def is_test(path: str) -> bool:
    """Whether pytest finds tests in it that need no cluster and no API server."""
    return path.startswith("tests/") and not path.startswith(SERVED) and PurePosixPath(path).match("test_*.py")


def nearest(changed: Collection[str], sources: Mapping[str, str]) -> list[str]:
    """Test files; at one distance those named after the changed file come first, then those of a folder of its name."""
    imported = {path: set(_imported(path, text)) for path, text in sources.items()}
    far = dict.fromkeys(changed, 0)
    for distance in range(1, FARTHEST + 1):
        names = {module_of(path) for path, so_far in far.items() if so_far == distance - 1}
        for path, modules in imported.items():
            if names & modules:
                far.setdefault(path, distance)
    for path in changed:
        if not any(module_of(path) in modules for modules in imported.values()):
            for other in _naming(path, sources):
                far.setdefault(other, 1)
    names, folders = {f"test_{_name(path)}" for path in changed}, {PurePosixPath(path).parent.name for path in changed}

    def order(path: str) -> tuple[int, bool, bool, str]:
        file = PurePosixPath(path)
        return far[path], file.stem not in names, file.parent.name not in folders, path

    return sorted((path for path in far if is_test(path) and path in sources), key=order)


def _name(path: str) -> str:
    file = PurePosixPath(path)
    return file.parent.name if file.stem == "__init__" else file.stem


def _imported(path: str, text: str) -> Iterator[str]:
    """The modules a file imports; for `from a import b` both a and a.b, one of which may be none."""
    for package, names, modules in IMPORTS.findall(text):
        if package:
            yield package
        prefix = f"{package}." if package else ""
        yield from (f"{prefix}{name}" for name in NAMES.findall(names or modules))
    if is_test(path):
        yield from (module_of(str(folder / "conftest.py")) for folder in PurePosixPath(path).parents)


def _naming(path: str, sources: Mapping[str, str]) -> Iterator[str]:
    """The test files that name the file and its folder, or take all files of its kind from a folder above."""
    file = PurePosixPath(path)
    for other, text in sources.items():
        named = file.name in text and file.parent.name in text
        taken = f'rglob("*{file.suffix}")' in text and any(f'"{folder}"' in text for folder in file.parent.parts)
        if is_test(other) and (named or taken):
            yield other
