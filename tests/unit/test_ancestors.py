"""docs/ancestors.md has each row once, and each test that it names exists and is never left out."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "ancestors.md").read_text()
NUMBERS = {
    "CF": [*range(1, 17), *range(20, 40)],
    "TK": [*range(1, 15)],
    "MS": [*range(1, 22)],
    "AD": [*range(1, 7), *range(20, 45), *range(50, 65), *range(70, 77)],
}
ROWS = [f"{ancestor}-{number:02}" for ancestor, numbers in NUMBERS.items() for number in numbers]
CHECKS = {"CF": 9, "MS": 5, "AD": 9}
"""Tests that the ancestors have of themselves: AC-CF-1 to AC-CF-9, and so on."""
LINES = re.findall(r"^\| ((?:AC-)?(?:CF|TK|MS|AD)-\d+) \| (.+?) \| (.+?) \|$", PAGE, re.M)
NODE = re.compile(r"`([\w/]+\.py)::([\w:]+)`")
NAMED = sorted({node for _, _, here in LINES for node in NODE.findall(here)})
LEFT_OUT = {"skip", "skipif", "xfail", "chaos"}
"""Marks of tests that an ordinary run does not run, or whose failure does not count."""


@cache
def module(path: str) -> ast.Module:
    return ast.parse((REPOSITORY / path).read_text())


def found(scope: ast.Module | ast.ClassDef, name: str) -> ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The last definition of that name, which is the one that pytest collects."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return next((node for node in reversed(scope.body) if isinstance(node, kinds) and node.name == name), None)


def marks(decorators: list[ast.expr]) -> set[str]:
    """Of `pytest.mark.skipif(...)`: skipif. A mark of one parameter leaves the others."""
    plain = [node.func if isinstance(node, ast.Call) else node for node in decorators]
    return {node.attr for node in plain if isinstance(node, ast.Attribute)}


def marks_of_module(tree: ast.Module) -> set[str]:
    given = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    return marks([mark for node in given for mark in (node.elts if isinstance(node, ast.List) else [node])])


def gives_up(*body: ast.stmt) -> bool:
    """Whether it calls pytest.skip, pytest.xfail or pytest.importorskip."""
    calls = [inner.func for node in body for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    return any(ast.unparse(call) in ("pytest.skip", "pytest.xfail", "pytest.importorskip") for call in calls)


def test_each_row_is_there_once_and_in_order() -> None:
    assert len(ROWS) == 124
    assert [row for row, _, _ in LINES if not row.startswith("AC-")] == ROWS


def test_each_check_of_an_ancestor_is_a_test_of_that_name() -> None:
    checks = [f"AC-{ancestor}-{number}" for ancestor, count in CHECKS.items() for number in range(1, count + 1)]
    shown = {row: here for row, _, here in LINES if row.startswith("AC-")}
    assert list(shown) == checks
    for check, here in shown.items():
        names = [name for path, name in NODE.findall(here) if path.startswith("tests/upstream/")]
        assert any(name.startswith(f"test_{check.lower().replace('-', '_')}_") for name in names), check


@pytest.mark.parametrize(("row", "here"), [(row, here) for row, _, here in LINES])
def test_a_row_names_a_test_or_says_why_there_is_none(row: str, here: str) -> None:
    assert NODE.search(here) or re.search(r"\*\*Not provided yet\*\*: .{20}", here), row
    assert re.sub(NODE, "", here).count("`") % 2 == 0, "a name of a test is misspelt"
    assert "::" not in re.sub(NODE, "", here), "a name of a test is misspelt"


@pytest.mark.parametrize(("path", "name"), NAMED, ids=lambda part: str(part).rpartition("/")[2])
def test_a_test_that_is_named_exists_and_is_never_left_out(path: str, name: str) -> None:
    assert path.startswith(("tests/", "e2e/scenarios/")), "pytest does not look there"
    assert Path(path).name.startswith("test_")
    *classes, function = name.split("::")
    scope: ast.Module | ast.ClassDef = module(path)
    given = marks_of_module(module(path))
    for part in classes:
        inner = found(scope, part)
        assert isinstance(inner, ast.ClassDef), f"{path} has no class {part}"
        assert part.startswith("Test")
        given |= marks(inner.decorator_list)
        scope = inner
    test = found(scope, function)
    assert isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef), f"{path} has no test {name}"
    assert function.startswith("test_")
    assert not (given | marks(test.decorator_list)) & LEFT_OUT
    assert not gives_up(*test.body, *(node for node in module(path).body if isinstance(node, ast.Expr)))
