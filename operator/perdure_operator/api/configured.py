"""The operator's configuration file of signals: YAML or JSON text to rows, and what is wrong with it in one line.

A malformed row aborts the start: an ignored signal would cost training steps later. Called by `cli`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from perdure.errors import UserError
from perdure_operator.api.default_signals import DEFAULT_SIGNALS
from perdure_operator.api.signal_rows import SignalRow, changed


def read_rows(path: Path | None) -> tuple[SignalRow, ...]:
    """The rows of a file; none without a file. Raises UserError with the row, the field and the remedy."""
    return () if path is None else rows_of(read_yaml(path), str(path))


def rows_of(given: Any, path: str) -> tuple[SignalRow, ...]:
    """The rows of what a file held; `path` names it in the UserError of a wrong row."""
    if not isinstance(given, list) or not all(isinstance(row, dict) for row in given):
        raise UserError(f"{path}: a list of signals is expected, such as [{{name: cordon, reaction: Ignore}}]")
    for place, row in enumerate(given):
        _check(path, place, row)
    try:
        return changed(DEFAULT_SIGNALS, given)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def read_yaml(path: Path) -> Any:
    """What a YAML or JSON file holds."""
    try:
        return yaml.safe_load(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None


def _check(path: str, place: int, row: dict[str, Any]) -> None:
    try:
        changed(DEFAULT_SIGNALS, [row])
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        where = f"signals[{place}] ({row.get('name', 'without a name')})" + (f", field {field}" if field else "")
        raise UserError(f"{path}: {where}: {_remedy(first['type'], first['msg'], row, field)}") from None
    except ValueError as error:
        raise UserError(f"{path}: signals[{place}] ({row.get('name')}): {error}") from None


def _remedy(kind: str, message: str, row: dict[str, Any], field: str) -> str:
    words = message.removeprefix("Value error, ")
    if kind == "missing" and field in ("source", "reaction"):
        known = ", ".join(one.name for one in DEFAULT_SIGNALS)
        return f"it is missing: a row of your own needs it, and a shipped one is called by its name, one of {known}"
    if kind == "missing" and field == "name":
        return "it is missing: give the row its own name, or that of the shipped row that it changes"
    if kind == "extra_forbidden":
        fields = ", ".join(field.alias or name for name, field in SignalRow.model_fields.items())
        return f"there is no such field: remove it, or use one of {fields}"
    return f"{words}, and is {row[field]!r}: correct it" if field in row else words
