"""Names of code in README and docs/ exist in the code: a reader who searches for one finds it.

`session.step()` and `perdure.gather` are checked in all pages but docs/decisions, which may name what was not built.
Names behind a file (`decide/leaving.py`: `debounce`) are checked in all pages. That the files exist: test_layout.py.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
RUNTIME = REPOSITORY / "runtime"
DECISIONS = REPOSITORY / "docs" / "decisions"
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
OF_SESSION = re.compile(r"(?<![\w./])session\.(?!py\b|md\b)([a-z_]\w*)\b(?!/)")
OF_PACKAGE = re.compile(r"(?<![\w./-])perdure((?:\.[A-Za-z_]\w*\b)+)(?![/\w])")
BEHIND = re.compile(r"`([\w/]+\.py)`(?:: | \()((?:`[\w.]+`(?: \([^)]*\))?(?:, | with )?)+)")
ARGUMENTS = {"if_absent"}
"""Named behind a function of the file that takes it."""


@cache
def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return [f"/{line}" for line in listed.stdout.splitlines()]


@cache
def defined(file: Path) -> frozenset[str]:
    """What a module defines or imports, and the members of its classes."""
    return frozenset(_names(ast.parse(file.read_text()).body))


def _names(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from _names(node.body)
        if isinstance(node, ast.If):
            yield from _names(node.body)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield from (alias.asname or alias.name for alias in node.names)


def files_named(name: str) -> list[Path]:
    return [REPOSITORY / file[1:] for file in tracked() if file.endswith(f"/{name}")]


def is_of_package(dotted: list[str]) -> bool:
    """Whether `perdure.` and these names lead to a module, or to what it defines."""
    folder, names = RUNTIME / "perdure", list(dotted)
    while names and (folder / names[0] / "__init__.py").is_file():
        folder = folder / names.pop(0)
    module = folder / "__init__.py"
    if names and (folder / f"{names[0]}.py").is_file():
        module = folder / f"{names.pop(0)}.py"
    return not names or names[0] in defined(module)


def members_of_session() -> frozenset[str]:
    tree = ast.parse((RUNTIME / "perdure" / "session" / "session.py").read_text())
    (session,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Session")
    return frozenset(_names(session.body))


def unknown(page: Path, text: str) -> list[str]:
    """The names in this text that nothing in the repository has."""
    found = []
    if page.parent != DECISIONS:
        session = members_of_session()
        found += [f"session.{name}" for name in OF_SESSION.findall(text) if name not in session]
        dotted = [name[1:].split(".") for name in OF_PACKAGE.findall(text)]
        found += [f"perdure.{'.'.join(names)}" for names in dotted if names[0] != "dev" and not is_of_package(names)]
    for name, behind in BEHIND.findall(text):
        known = ARGUMENTS.union(*map(defined, files_named(name)))
        named = [one for dotted in re.findall(r"`([\w.]+)`", behind) for one in dotted.split(".")]
        found += [f"{name}: {one}" for one in named if one not in known]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_each_name_of_code_exists(page: Path) -> None:
    assert unknown(page, page.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "`session.stop_when`",
        "`perdure.gone(session)`",
        "::: perdure.session.gone",
        "`decide/leaving.py`: `debounce` (why), `gone`",
        "`decide/signals.py` (`_gone`: why)",
        "`state/snapshot.py` (`NodeView.nowhere`)",
    ],
)
def test_a_name_that_does_not_exist_is_found(text: str) -> None:
    assert len(unknown(REPOSITORY / "README.md", text)) == 1


def test_each_decision_has_a_number_of_its_own() -> None:
    numbers = [page.name.partition("-")[0] for page in DECISIONS.glob("*.md")]
    assert sorted(numbers) == sorted(set(numbers))
    assert all(re.fullmatch(r"\d{3}", number) for number in numbers)
