"""Reads the text of a file: YAML or JSON, one or several objects, no larger or deeper than what an API server takes."""

from __future__ import annotations

import math
from typing import Any, Final

import yaml

from perdure.errors import UserError
from perdure_operator.cli.convert.fields import Fields

MOST_CHARACTERS: Final = 1_000_000
MOST_VALUES: Final = 100_000
"""Values in all, each use of an alias counted: aliases of aliases would grow without limit."""
DEEPEST: Final = 100


def read(text: str) -> list[Fields]:
    """The objects in a text. UserError with the cause if it holds none."""
    if len(text) > MOST_CHARACTERS:
        raise UserError(f"more than {MOST_CHARACTERS} characters: no API server takes such an object")
    try:
        found = [one for one in yaml.safe_load_all(text) if one is not None]
    except yaml.YAMLError as error:
        raise UserError(f"not YAML: {' '.join(str(error).split())}") from None
    except (RecursionError, ValueError) as error:  # what no date of YAML can be is a ValueError
        raise UserError(f"not YAML that can be read: {error}") from None
    left = [MOST_VALUES]
    for one in found:
        _check(one, "", 0, left)
    if not found or not all(isinstance(one, dict) for one in found):
        raise UserError("no object of Kubernetes: apiVersion, kind, metadata and spec are expected")
    return found


def _check(value: Any, where: str, depth: int, left: list[int]) -> None:
    """Raise UserError unless this is what JSON can say, in bounds. `left` is how many values may still come."""
    left[0] -= 1
    if left[0] < 0 or depth > DEEPEST:
        raise UserError(f"more than {MOST_VALUES} values, or deeper than {DEEPEST} levels: no object of Kubernetes is")
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise UserError(f"{where or 'the object'}: the name {name!r} is no string: put it in quotes")
            _check(inner, f"{where}.{name}" if where else name, depth + 1, left)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            _check(inner, f"{where}[{place}]", depth + 1, left)
    elif not _is_scalar(value):
        raise UserError(f"{where}: a {type(value).__name__} that no object of Kubernetes has: put it in quotes")


def _is_scalar(value: Any) -> bool:
    if isinstance(value, int):
        return value.bit_length() < 64
    return value is None or isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))
