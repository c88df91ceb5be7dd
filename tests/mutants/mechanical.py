"""Unforeseen bugs: drawn by seed from the operator's code, one small change each.

A comparison gets the wrong bound or the wrong sense, `and` becomes `or`, a `not` is forgotten, a number is one off, a
default is the other truth value. Left alone is what no test should hold or can see: messages and how they are put
together, logging, decorators, annotations, `__repr__`, lengths of texts.

Functions are drawn first, by their names, then one change in each, by its kind and its number among those of its kind:
so an edit of a function moves no draw but its own, and last week's table still describes today's bugs. Code outside
functions counts as one for each class and for each file.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.mutant import Mutant, Stale

Where = Callable[[int, int], int]
"""Line and column, as ast counts them, to an index into the text."""

FOLDERS: Final = (
    "operator/perdure_operator/decide",
    "operator/perdure_operator/cluster",
    "operator/perdure_operator/loop",
)
NOT_PLAYED: Final = {
    "operator/perdure_operator/cluster/decode.py": "no object of the simulation is malformed, or nested too deep",
    "operator/perdure_operator/cluster/protocol.py": "it only says what a client is",
    "operator/perdure_operator/loop/heap.py": "nobody collects a simulated operator's garbage, as `loop.operator` does",
    "operator/perdure_operator/loop/guard.py": "the simulation begins where kopf's event handlers do",
    "operator/perdure_operator/loop/install.py": "the simulation has the CRD of its own tree",
    "operator/perdure_operator/loop/logs.py": "nobody reads logs in the simulation",
    "operator/perdure_operator/loop/operator.py": "the simulation begins where kopf's event handlers do",
}
"""Files whose bugs the simulation cannot see, and why."""
NO_DIFFERENCE: Final = {
    "operator/perdure_operator/decide/handing_over.py.resolve_handover, or 1": (
        "an intent is a part of the run that is on: there is none without it, and a next run with a plan has both"
    ),
    "operator/perdure_operator/decide/waiting.py.await_leavers, >= 1": (
        "at that very moment it waits until that very moment: the same round comes again at once"
    ),
    "operator/perdure_operator/cluster/write/order.py, number 1": (
        "no simulated job has so many members that a batch of their writes is divided"
    ),
}
"""Function and place of bugs that change nothing, or nothing that is played, and why."""
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
"""Names of messages for people."""


@dataclass(frozen=True)
class Drawn(Mutant):
    """A bug that is known by its place among those of its function. Its `symbol` is `file.qualified name`."""

    file: str = ""
    offset: int = 0
    """Where `old` begins in the file, in characters."""
    place: str = ""
    """Its kind, and its number among those of its kind in the function, from 1."""

    def changed(self, root: Path) -> tuple[Path, str]:
        """The file to change, relative to `root`, and its text with the bug; raises Stale."""
        text = (root / self.file).read_text(encoding="utf-8")
        end = self.offset + len(self.old)
        if text[self.offset : end] != self.old:
            raise Stale(f"{self.name}: {self.file} has changed since the bug was drawn")
        return Path(self.file), text[: self.offset] + self.new + text[end:]


def draw(root: Path, seed: int, count: int) -> list[Drawn]:
    """`count` different bugs in as many functions, always the same for a seed and for what these functions are."""
    found = defaultdict[str, list[Drawn]](list)
    for one in _all(root):
        found[one.symbol].append(one)
    functions = sorted(found, key=lambda name: _lot(seed, name))[:count]
    return [min(found[name], key=lambda one: _lot(seed, name, one.place)) for name in functions]


def _lot(seed: int, *words: str) -> bytes:
    """A number for each of the words, which depends on no other that is drawn from."""
    return hashlib.sha256("\0".join((str(seed), *words)).encode()).digest()


def _all(root: Path) -> Iterator[Drawn]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            yield from of_text(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"))


def of_text(file: str, text: str) -> Iterator[Drawn]:
    """Every bug that can be planted in one file."""
    starts = _line_starts(text)
    numbers = Counter[tuple[str, str]]()

    def where(line: int, column: int) -> int:
        begin = starts[line - 1]
        return begin + len(text[begin:].encode()[:column].decode(errors="ignore"))

    for scope, node in _worth_changing(ast.parse(text), ()):
        for kind, (offset, old, new) in _changes(node, text, where):
            symbol = ".".join((file, *scope))
            numbers[symbol, kind] += 1
            place = f"{kind} {numbers[symbol, kind]}"
            name = f"{file}: {'.'.join(scope) or 'outside functions'}, {place}: {new.strip()} instead of {old.strip()}"
            outside = NOT_PLAYED.get(file, "") or NO_DIFFERENCE.get(f"{symbol}, {place}", "")
            yield Drawn(name, symbol, old, new, outside=outside, file=file, offset=offset, place=place)


def _worth_changing(node: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ast.expr]]:
    """Expressions that decide something, each with the classes and functions that it is in."""
    if isinstance(node, ast.expr):
        yield scope, node
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        scope = (*scope, node.name)
    for name, value in ast.iter_fields(node):
        if name in _NO_BEHAVIOUR:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_text(child):
                yield from _worth_changing(child, scope)


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
            return name in _WORDS or name.endswith(("_LENGTH", "_CHARACTERS", "_BYTES"))
        case ast.keyword(arg="warning"):
            return True
    return False


def _changes(node: ast.expr, text: str, where: Where) -> Iterator[tuple[str, tuple[int, str, str]]]:
    """The kind of each change, and where what becomes what."""
    begin, end = where(node.lineno, node.col_offset), _end(node, where)
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARISONS:
            span, words = (_end(left, where), where(right.lineno, right.col_offset)), _COMPARISONS[type(operator)]
            yield from ((words[0].strip(), one) for one in _between(text, span, words))
        case ast.BoolOp(op=operator, values=[first, second, *_]):
            span = _end(first, where), where(second.lineno, second.col_offset)
            words = (" and ", " or ") if isinstance(operator, ast.And) else (" or ", " and ")
            yield from ((words[0].strip(), one) for one in _between(text, span, words))
        case ast.UnaryOp(op=ast.Not()):
            yield "not", (begin, text[begin:end], text[begin:end].removeprefix("not").lstrip())
        case ast.Constant(value=bool() as value):
            yield str(value), (begin, str(value), str(not value))
        case ast.Constant(value=int() as value) if text[begin:end] == str(value):
            yield "number", (begin, str(value), str(value + 1))


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
