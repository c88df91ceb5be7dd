"""What explorers of small worlds share. They make millions of values, of which most live to the end."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def uncollected() -> Iterator[None]:
    """Nothing of it is garbage, and the collector would look through it again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def replacing_quickly(*modules: ModuleType) -> Iterator[None]:
    """The `dataclasses.replace` of these modules copies what does not change: it sets no field through a class."""
    before = [vars(module)["replace"] for module in modules]
    for module in modules:
        vars(module)["replace"] = _replaced
    try:
        yield
    finally:
        for module, replace in zip(modules, before, strict=True):
            vars(module)["replace"] = replace


def _replaced(value: Any, /, **changes: Any) -> Any:
    new, own = object.__new__(type(value)), vars(value)
    vars(new).update(own, **changes)
    assert len(vars(new)) == len(own), changes
    return new


def replaced_quickly(*kinds: Any) -> None:
    """These NamedTuples' `_replace` looks up the fields that change, and not all the others."""
    for kind in kinds:
        kind._replace = _replace_of(kind)


def _replace_of(kind: Any) -> Any:
    places, new = {name: place for place, name in enumerate(kind._fields)}, tuple.__new__

    def replace(value: Any, /, **changes: Any) -> Any:
        fields = list(value)
        for name, change in changes.items():
            fields[places[name]] = change
        return new(kind, fields)

    return replace
