"""What a checkpoint holds of objects that the script registers late, until it does: it lies in memory, on the CPU.

So it goes on into every save, whatever retention does with the commit it came from. Pure; used by the registry.
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
"""The name under which a checkpoint tells which of its objects were registered when its run had begun."""


@dataclass(frozen=True)
class PendingState:
    """As in a checkpoint's state, by the names that there are now."""

    objects: Mapping[str, Any] = field(default_factory=dict)
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    replicated: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All of them."""
        return {**self.shared, **self.replicated}

    @property
    def held(self) -> list[str]:
        """Every name there is, of objects and of tensors."""
        return [*self.objects, *self.shared, *self.replicated]

    def of(self, names: Collection[str]) -> PendingState:
        """What there is of these objects."""
        return self._where(lambda name: name in names)

    def besides(self, names: Collection[str]) -> PendingState:
        """What there is of others."""
        return self._where(lambda name: name not in names)

    def _where(self, counts: Callable[[str], bool]) -> PendingState:
        objects = {name: saved for name, saved in self.objects.items() if counts(name)}
        shared, replicated = (
            {name: tensor for name, tensor in found.items() if owner(name) in objects}
            for found in (self.shared, self.replicated)
        )
        return PendingState(objects, shared, replicated)

    def named(self, names: Collection[str]) -> PendingState:
        """Of its tensors those of these names, without their objects."""
        shared, replicated = (
            {name: tensor for name, tensor in found.items() if name in names}
            for found in (self.shared, self.replicated)
        )
        return PendingState({}, shared, replicated)

    def __or__(self, more: PendingState) -> PendingState:
        """With more."""
        return PendingState(
            {**self.objects, **more.objects}, {**self.shared, **more.shared}, {**self.replicated, **more.replicated}
        )

    def called(self, renames: Renames) -> PendingState:
        """The same under other names."""
        shared, replicated = (
            {renames(name): tensor for name, tensor in found.items()} for found in (self.shared, self.replicated)
        )
        return PendingState(renames.objects(self.objects), shared, replicated)

    def items(self, known: Mapping[str, Item]) -> dict[str, Item]:
        """As a manifest lists the tensors, by name: what is `known` of the commit that they came from, and what shows
        in them of the rest."""
        found = dict(known)
        for part, named in ((SHARED, self.shared), (REPLICATED, self.replicated)):
            for name, tensor in named.items():
                if name not in found:
                    found[name] = described(part, name, tensor)
        return found
