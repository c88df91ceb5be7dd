"""`kubectl perdure explain --internals`: what the operator keeps in status for itself, and what it means. Pure.

`kubectl describe` shows these fields by name alone. Those that are as they are by default are not stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pydantic import BaseModel
from pydantic_core import to_json

from perdure_operator.api.model import Model
from perdure_operator.api.status import TrainingJobStatus
from perdure_operator.cli.kubectl.page import Page, Table

_NAMES: Final = tuple(TrainingJobStatus.model_fields)
_FIRST: Final = _NAMES.index("current")
"""Fields from here on are for the operator only."""


class InternalField(Model):
    """A field of a job's status that is for the operator only."""

    field: str
    """Its path in the status."""
    value: str
    """As JSON; a text without quotes."""
    meaning: str


def internals(status: TrainingJobStatus) -> list[InternalField]:
    """What the operator keeps of the job, where it differs from the default."""
    return list(_below(status, "", _NAMES[_FIRST:]))


def _below(model: BaseModel, path: str, names: Sequence[str]) -> Iterator[InternalField]:
    for name in names:
        field, value = type(model).model_fields[name], getattr(model, name)
        if not field.is_required() and value == field.get_default(call_default_factory=True):
            continue
        here = f"{path}{field.alias or name}"
        parts = value if isinstance(value, tuple) else (value,)
        if all(isinstance(one, BaseModel) for one in parts):
            for place, one in enumerate(parts):
                number = f"[{place}]" if isinstance(value, tuple) else ""
                yield from _below(one, f"{here}{number}.", tuple(type(one).model_fields))
        else:
            text = value if isinstance(value, str) else to_json(value).decode()
            yield InternalField(field=here, value=text, meaning=field.description or "")


def page(fields: Sequence[InternalField]) -> Page:
    """The same for people."""
    if not fields:
        return ("The operator keeps nothing of this job.",)
    return (Table(("FIELD", "VALUE", "MEANING"), tuple((one.field, one.value, one.meaning) for one in fields)),)
