"""The parts and parameters of a module, as of the last walk through it.

Walking a module by names takes longer than many a step of a small one, and usually finds the same. Comparing its
present parts with the last ones takes a tenth of that, and notices everything that was replaced, added or removed.
Called by perdure.state.modules.
"""

from __future__ import annotations

from itertools import chain
from operator import is_
from typing import Any

from torch import Tensor, nn


class Outline:
    """The outline of one module."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._parts: list[nn.Module] = []
        self._inside: list[Any] | None = None
        """For all parts in turn: their parts, and their parameters with names, because pruning changes only names."""
        self._parameters: list[Tensor] = []

    def parameters(self) -> list[Tensor]:
        """The parameters, each once. The same list as long as they do not change."""
        inside = self._found()
        if self._inside is None or len(inside) != len(self._inside) or not all(map(is_, inside, self._inside)):
            self._parts = list(self._module.modules())
            self._inside = self._found()
            self._parameters = list(self._module.parameters())
        return self._parameters

    def parts(self) -> list[nn.Module]:
        """The module and all its parts, as of the last call of `parameters`. The same list as long as they do not
        change."""
        if self._inside is None:
            self.parameters()
        return self._parts

    def _found(self) -> list[Any]:
        inside = ((part._modules.values(), part._parameters, part._parameters.values()) for part in self._parts)  # noqa: SLF001
        return list(chain.from_iterable(chain.from_iterable(inside)))
