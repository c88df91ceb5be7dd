"""Bugs that nobody thought of: drawn by seed from the operator's code, one small change each.

A comparison gets the wrong bound or the wrong sense, `and` becomes `or`, a `not` is forgotten, a number is one off, a
default is the other truth value. Left alone is what no test should hold or can see: messages and how they are put
together, logging, decorators, annotations, `__repr__`, lengths of texts.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.mutants.mutant import At

Where = Callable[[int, int], int]
"""Line and column, as ast counts them, to an index into the text."""

FOLDERS: Final = (
    "operator/perdure_operator/decide",
    "operator/perdure_operator/cluster",
    "operator/perdure_operator/loop",
)
NOT_PLAYED: Final = {
    "operator/perdure_operator/cluster/decode.py": "the simulated API server hands over objects, and nobody reads JSON",
    "operator/perdure_operator/cluster/kube.py": "the simulation has a client of its own",
    "operator/perdure_operator/cluster/protocol.py": "it only says what a client is",
    "operator/perdure_operator/loop/guard.py": "the simulation begins where kopf's event handlers do",
    "operator/perdure_operator/loop/install.py": "the simulation has the CRD of its own tree",
    "operator/perdure_operator/loop/logs.py": "nobody reads logs in the simulation",
    "operator/perdure_operator/loop/operator.py": "the simulation begins where kopf's event handlers do",
}
"""Files whose bugs the simulation cannot see, and why."""
_COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: (" in ", " not in "),
    ast.NotIn: (" not in ", " in "),
    ast.Is: (" is ", " is not "),
    ast.IsNot: (" is not ", " is "),
}

_NO_BEHAVIOUR: Final = frozenset({"decorator_list", "annotation", "returns", "bases"})
_WORDS: Final = frozenset({"message", "words", "cause"})
"""Names of what is told to people."""


def draw(root: Path, seed: int, count: int) -> list[At]:
    """`count` different bugs, always the same for a seed and a state of the code."""
    found = sorted(_all(root), key=lambda one: (one.file, one.offset, one.new))
    return random.Random(seed).sample(found, min(count, len(found)))  # noqa: S311 - a draw, no secret


def _all(root: Path) -> Iterator[At]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            yield from of_text(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))


def of_text(file: str, text: str) -> Iterator[At]:
    """Every bug that can be planted in one file."""
    starts = _line_starts(text)

    def where(line: int, column: int) -> int:
        begin = starts[line - 1]
        return begin + len(text[begin:].encode()[:column].decode(errors="ignore"))

    for node in _worth_changing(ast.parse(text)):
        for offset, old, new in _changes(node, text, where):
            name = f"{file}:{node.lineno}: {new.strip()} instead of {old.strip()}"
            yield At(name, file, old, new, offset=offset, outside=NOT_PLAYED.get(file, ""))


def _worth_changing(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions that decide something."""
    if isinstance(node, ast.expr):
        yield node
    for name, value in ast.iter_fields(node):
        if name in _NO_BEHAVIOUR:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_text(child):
                yield from _worth_changing(child)


def _is_text(node: ast.AST) -> bool:
    """Whether all of it is about words for people."""
    match node:
        case ast.JoinedStr():
            return True
        case ast.FunctionDef(name="__repr__" | "__str__"):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"))):
            return True
        case ast.Call(func=ast.Attribute(attr="because" | "tell")):
            return not any(isinstance(part, ast.Call) and part is not node for part in ast.walk(node))
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name in _WORDS or name.endswith(("_LENGTH", "_BYTES"))
        case ast.keyword(arg="warning"):
            return True
    return False


def _changes(node: ast.expr, text: str, where: Where) -> Iterator[tuple[int, str, str]]:
    begin, end = where(node.lineno, node.col_offset), _end(node, where)
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARISONS:
            span = _end(left, where), where(right.lineno, right.col_offset)
            yield from _between(text, span, _COMPARISONS[type(operator)])
        case ast.BoolOp(op=operator, values=[first, second, *_]):
            span = _end(first, where), where(second.lineno, second.col_offset)
            yield from _between(text, span, (" and ", " or ") if isinstance(operator, ast.And) else (" or ", " and "))
        case ast.UnaryOp(op=ast.Not()):
            yield begin, text[begin:end], text[begin:end].removeprefix("not").lstrip()
        case ast.Constant(value=bool() as value):
            yield begin, str(value), str(not value)
        case ast.Constant(value=int() as value) if text[begin:end] == str(value):
            yield begin, str(value), str(value + 1)


def _between(text: str, span: tuple[int, int], words: tuple[str, str]) -> Iterator[tuple[int, str, str]]:
    """The operator between two operands, once: brackets and comments may be there as well."""
    index = text.find(words[0], *span)
    if index >= 0:
        yield index, *words


def _end(node: ast.expr, where: Where) -> int:
    return where(node.end_lineno or node.lineno, node.end_col_offset or 0)


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts
