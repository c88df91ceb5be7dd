"""Reads frozen dataclasses from JSON objects, by the types of their fields; `dataclasses.asdict` writes them.

Unknown fields are ignored, and a field that is missing has its default. A field of another type than its own
makes the object unreadable, and the error names it. A field of type `Annotated[T, reader]` is read by that function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from perdure.wire.reading import LARGEST, ContractError

Natural = Annotated[int, 0]
"""From 0 to LARGEST."""
Positive = Annotated[int, 1]
"""From 1 to LARGEST."""


def fits(number: float) -> bool:
    """Whether it is from 0 to LARGEST; NaN is not."""
    return 0 <= number <= LARGEST


def read_amount(value: Any) -> float:
    """The number; TypeError unless it is finite and from 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not fits(value):
        raise TypeError(f"{str(value)[:80]!r} is not a number from 0 to 2^53 - 1")
    return float(value)


Amount = Annotated[float, read_amount]
"""Finite, and from 0."""

T = TypeVar("T")
FieldReader = Callable[[Any], Any]
"""Makes a field's value from JSON; ValueError or TypeError if it does not fit."""


def from_json(kind: type[T], body: Mapping[str, Any]) -> T:
    """The dataclass in the object. Raises ContractError that names the field."""
    values = {}
    for name, reader, optional in _readers(kind):  # type: ignore[arg-type] # a class is hashable
        if name not in body and optional:
            continue
        try:
            values[name] = reader(body.get(name))
        except (ContractError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise ContractError(f"field {name} of {kind.__name__}: {error}") from None
    return kind(**values)


@cache
def _readers(kind: type) -> tuple[tuple[str, FieldReader, bool], ...]:
    """Name, reader and whether there is a default, by field."""
    types = get_type_hints(kind, include_extras=True)
    return tuple(
        (one.name, _reader(types[one.name]), (one.default, one.default_factory) != (MISSING, MISSING))
        for one in fields(kind)
    )


def _reader(of: Any) -> FieldReader:
    """Raises TypeError for a type that the codec does not know: a mistake in the code."""
    origin, parts = get_origin(of), get_args(of)
    if origin is Annotated:
        return parts[1] if callable(parts[1]) else partial(_number, parts[1])
    if of in (bool, int, float, str):
        return partial(_plain, of)
    if origin in (UnionType, Union):  # the latter is what `Annotated[...] | None` makes
        (inner,) = (part for part in parts if part is not NoneType)
        return partial(_optional, _reader(inner))
    if origin is tuple:
        return partial(_sequence, _reader(parts[0]))
    if origin is Mapping:
        return partial(_mapping, _reader(parts[1]))
    if isinstance(of, type) and issubclass(of, Enum):
        return of
    if isinstance(of, type) and hasattr(of, "__dataclass_fields__"):
        return partial(_nested, of)
    raise TypeError(f"no codec for {of}")


def _plain(of: type, value: Any) -> Any:
    fits = type(value) is of or (of is float and type(value) is int)
    if not fits:
        raise TypeError(f"{str(value)[:80]!r} is not of type {of.__name__}")
    return of(value)


def _number(least: int, value: Any) -> int:
    if type(value) is not int or not least <= value <= LARGEST:
        raise TypeError(f"{str(value)[:80]!r} is not an integer from {least} to 2^53 - 1")
    return value


def _optional(reader: FieldReader, value: Any) -> Any:
    return None if value is None else reader(value)


def _sequence(reader: FieldReader, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:80]!r} is not a list")
    return tuple(map(reader, value))


def _mapping(reader: FieldReader, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{str(value)[:80]!r} is not an object")
    return {str(name): reader(one) for name, one in value.items()}


def _nested(kind: type, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise TypeError(f"{str(value)[:80]!r} is not an object")
    return from_json(kind, value)
