"""What a checkpoint holds of objects that the script registers late, kept in memory on the CPU until it does.

So it is part of every save, even if retention deletes the commit that it came from. Pure; used by the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from perdure.checkpoint.manifest import REPLICATED, SHARED, Item
from perdure.checkpoint.stage import described
from perdure.checkpoint.tree import owner
from perdure.state.renaming import Renames

LATE: Final = "session_late"
"""The name under which a checkpoint lists its late objects."""


@dataclass(frozen=True)
class PendingState:
    """A part of a checkpoint's state, by present names."""

    objects: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    replicated: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors of it."""
        return {**self.shared, **self.replicated}

    @property
    def held(self) -> list[str]:
        """All names in it, of objects and of tensors."""
        return [*self.objects, *self.shared, *self.replicated]

    def of(self, names: Collection[str]) -> PendingState:
        """The part of these objects."""
        return self._where(lambda name: name in names)

    def besides(self, names: Collection[str]) -> PendingState:
        """The part of all other objects."""
        return self._where(lambda name: name not in names)

    def _where(self, counts: Callable[[str], bool]) -> PendingState:
        objects = {name: saved for name, saved in self.objects.items() if counts(name)}
        shared, replicated = (
            {name: tensor for name, tensor in found.items() if owner(name) in objects}
            for found in (self.shared, self.replicated)
        )
        return PendingState(objects, shared, replicated)

    def named(self, names: Collection[str]) -> PendingState:
        """The tensors with these names, without their objects."""
        shared, replicated = (
            {name: tensor for name, tensor in found.items() if name in names}
            for found in (self.shared, self.replicated)
        )
        return PendingState({}, shared, replicated)

    def __or__(self, more: PendingState) -> PendingState:
        """Both together."""
        return PendingState(
            {**self.objects, **more.objects}, {**self.shared, **more.shared}, {**self.replicated, **more.replicated}
        )

    def called(self, renames: Renames) -> PendingState:
        """The part under new names."""
        shared, replicated = (
            {renames(name): tensor for name, tensor in found.items()} for found in (self.shared, self.replicated)
        )
        return PendingState(renames.objects(self.objects), shared, replicated)

    def items(self, known: Mapping[str, Item]) -> dict[str, Item]:
        """The tensors as a manifest lists them, by name: as `known` from the commit that they came from, the others as
        they are."""
        found = dict(known)
        for part, named in ((SHARED, self.shared), (REPLICATED, self.replicated)):
            for name, tensor in named.items():
                if name not in found:
                    found[name] = described(part, name, tensor)
        return found
