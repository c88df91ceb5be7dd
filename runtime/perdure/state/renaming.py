"""New names for objects, or parts of modules, that a checkpoint holds under old ones.

A name includes everything below it, up to a dot, or a slash for an optimizer. Pure; used by the registry.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from perdure.checkpoint.tree import renamed
from perdure.errors import UserError
from perdure.state.modules import is_module
from perdure.state.optimizers import is_optimizer

_NAME: Final = re.compile(r"[^\W\d]\w*(\.\w+)*")


@dataclass(frozen=True)
class Renames:
    """New names by old ones."""

    names: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, more: Mapping[str, str]) -> Renames:
        """Adds more names. UserError for an invalid name, or for a second new name."""
        for old, new in more.items():
            if not all(isinstance(name, str) and _NAME.fullmatch(name) for name in (old, new)):
                raise UserError(
                    f"register(rename={{{old!r}: {new!r}}}): give names of registered objects, or of parts of modules "
                    f"such as 'model.head': the checkpoint's first, then the present one"
                )
            if self.names.get(old, new) != new:
                raise UserError(f"register(rename=...): {old!r} is to be {self.names[old]!r} and {new!r}: keep one")
        return Renames({**self.names, **more})

    def of(self, held: Collection[str]) -> Renames:
        """The renames that apply to a checkpoint with these names. A checkpoint that has the new name already was saved
        with it.

        UserError if that is ambiguous, because each of two names replaces the other, or if two names become one.
        """
        olds = {old: new for old, new in self.names.items() if _has(held, old)}
        for old, new in olds.items():
            if new != old and new in olds and _has(held, new):
                raise UserError(
                    f"register(rename=...): {old!r} is to be {new!r}, and that {olds[new]!r}, and the checkpoint has "
                    f"both: whether it was saved before or since is unclear: take a name that is not in it"
                )
        names = {old: new for old, new in olds.items() if not _has(held, new)}
        if len(set(names.values())) < len(names):
            _refuse_one_of_two(names)
        return Renames(names)

    def __call__(self, name: str) -> str:
        """The present name for `name` in the checkpoint. The longest matching old name counts."""
        fitting = [old for old in self.names if _is_below(name, old)]
        if not fitting:
            return name
        old = max(fitting, key=len)
        return f"{self.names[old]}{name[len(old) :]}"

    def objects(self, objects: Mapping[str, Any]) -> dict[str, Any]:
        """Everything outside of the shards, under the present names."""
        if not self.names:
            return dict(objects)
        return {self(name): self._object(name, saved) for name, saved in objects.items()}

    def _object(self, name: str, saved: Any) -> Any:
        found = renamed(saved, self)
        if is_module(saved):
            return {part: self._relative(name, values) for part, values in found.items()}
        if is_optimizer(saved):
            groups = [{**group, "params": [self(one) for one in group["params"]]} for group in found["groups"]]
            state = found["state"] and {self._key(key): values for key, values in found["state"].items()}
            return {**found, "groups": groups, "state": state}
        return found

    def _relative(self, module: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values under the present names within a module."""
        return {self(f"{module}.{name}").removeprefix(f"{self(module)}."): value for name, value in values.items()}

    def _key(self, key: Any) -> Any:
        return self(key) if isinstance(key, str) else key


def _refuse_one_of_two(names: Mapping[str, str]) -> NoReturn:
    new = next(new for new in names.values() if list(names.values()).count(new) > 1)
    both = " and ".join(repr(old) for old in names if names[old] == new)
    raise UserError(f"register(rename=...): {both} are to be {new!r}, and the checkpoint has both: keep one")


def _has(held: Iterable[str], name: str) -> bool:
    return any(_is_below(one, name) for one in held)


def _is_below(name: str, above: str) -> bool:
    return name == above or name.startswith((f"{above}.", f"{above}/"))
