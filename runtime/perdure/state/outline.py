"""Of what parts and parameters a module is made, as it was when somebody last walked it.

Walking a module by names takes longer than many a step of a small one, and it finds the same each time. Comparing what
it is made of with what it was made of takes a tenth of that, and notices whatever was replaced, added or removed.
Called by perdure.state.modules.
"""

from __future__ import annotations

from itertools import chain
from operator import is_
from typing import Any

from torch import Tensor, nn


class Outline:
    """One module's."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._parts: list[nn.Module] = []
        self._inside: list[Any] | None = None
        """Of all parts in turn: parts of theirs, and parameters with their names, which pruning changes alone."""
        self._parameters: list[Tensor] = []

    def parameters(self) -> list[Tensor]:
        """Each once; the same list for as long as they are the same."""
        inside = self._found()
        if self._inside is None or len(inside) != len(self._inside) or not all(map(is_, inside, self._inside)):
            self._parts = list(self._module.modules())
            self._inside = self._found()
            self._parameters = list(self._module.parameters())
        return self._parameters

    def parts(self) -> list[nn.Module]:
        """The module and all parts of it, as they were when its parameters were last asked for; the same list for as
        long as they are the same."""
        if self._inside is None:
            self.parameters()
        return self._parts

    def _found(self) -> list[Any]:
        inside = ((part._modules.values(), part._parameters, part._parameters.values()) for part in self._parts)  # noqa: SLF001
        return list(chain.from_iterable(chain.from_iterable(inside)))
