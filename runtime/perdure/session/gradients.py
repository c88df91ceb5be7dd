"""Warns a script that calls `session.step()` for each part of a larger batch: a stop in between loses gradients.

A batch without an optimizer step leaves gradients. The script may drop them, for example after a spike: it removes
them, or makes them zero. The next backward pass shows that, where autograd is about to add to them. Their memory and
their versions do not: a removed gradient may come back in the same place, as a view of the same bucket (DDP).
A script without an optimizer changes its weights itself, so it has used the gradients if a weight has changed.
Gradients that FSDP2 has not reduced yet are there only to be added to.
Owned by `Session`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.optim.optimizer import register_optimizer_step_pre_hook

from perdure.console import warn
from perdure.loop.run import Run
from perdure.session.describing import scripts_own
from perdure.state.shards import leaves, unreduced
from perdure.state.write_detection import elements_of, numbers_of

LOOKED_AT: Final = 4
"""How many parameters are watched: a script accumulates the gradients of all, or of none."""


class _Noted:
    """A parameter with a gradient that a step of the session has left."""

    def __init__(self, parameter: Tensor, leaf: Tensor) -> None:
        """`leaf`: what autograd computes the gradient for."""
        self.parameter = parameter
        self.elements = elements_of(parameter)
        self.is_added_to: bool | None = None
        """Whether the next backward pass has found the gradient there; None before it."""
        self._node = get_gradient_edge(leaf).node  # torch keeps only a weak reference, and the hook is of this one
        own = weakref.ref(self)

        def about_to_add(_gradients: Any) -> None:
            if (noted := own()) is not None and noted.is_added_to is None:
                noted.is_added_to = _has_gradient(parameter)

        self._hook = self._node.register_prehook(about_to_add)

    def end(self) -> None:
        """Stops watching autograd."""
        self._hook.remove()


class HeldGradients:
    """The gradients that a step of the session has left for the next batch."""

    def __init__(self) -> None:
        self._noted: list[_Noted] = []
        self._has_stepped = False
        """True if an optimizer has stepped since the session's last step."""
        self._found: Tensor | None = None
        own = weakref.ref(self)

        def note(_optimizer: Any, _arguments: Any, _named: Any) -> None:
            if (held := own()) is not None:
                held._look()  # noqa: SLF001 - of this class
                held._has_stepped = True  # noqa: SLF001

        self._hook = register_optimizer_step_pre_hook(note)

    def stepped(self, run: Run) -> bool:
        """The session's step is done. Returns True after it has reported a finding; then nothing is left to watch."""
        self._look()
        left, self._has_stepped = not self._has_stepped, False
        if left and self._found is None:
            modules = [one for one in run.registry.named.values() if isinstance(one, nn.Module)]
            self._noted = list(_noted(run.registry.parameters(), modules))
            self._found = next((held for module in modules for held in unreduced(module)), None)
        if self._found is None:
            return False
        self.end()
        warn(
            f"session.step() was called without a step of an optimizer, and the next batch was added to the gradients "
            f"that were there, of {_name_of(self._found, scripts_own(run))}: a checkpoint holds no gradients, so a run "
            f"that stops in between goes on without them: call session.step() only after optimizer.step()"
        )
        return True

    def end(self) -> None:
        """Stops watching optimizers and autograd."""
        self._hook.remove()
        self._forget()

    def _look(self) -> None:
        used = any(elements_of(one.parameter) != one.elements for one in self._noted)
        added = (one.parameter for one in self._noted if not used and one.is_added_to)
        self._found = next(added, self._found)
        self._forget()

    def _forget(self) -> None:
        for one in self._noted:
            one.end()
        self._noted = []


def _has_gradient(parameter: Tensor) -> bool:
    """Whether it has a gradient that is not zero."""
    numbers = None if parameter.grad is None else numbers_of(parameter.grad)
    return numbers is not None and bool(numbers.any())


def _name_of(parameter: Tensor, registered: dict[str, Any]) -> str:
    modules = ((name, one) for name, one in registered.items() if isinstance(one, nn.Module))
    named = (
        f"{name}.{inner}" for name, one in modules for inner, found in one.named_parameters() if found is parameter
    )
    return next(named, "a parameter")


def _noted(parameters: Iterable[Tensor], modules: Iterable[nn.Module]) -> Iterable[_Noted]:
    held = (one for one in parameters if one.requires_grad and _has_gradient(one))
    of_shards = {id(shard): leaf for module in modules for shard, leaf in leaves(module)}
    return (_Noted(one, of_shards.get(id(one), one)) for one in islice(held, LOOKED_AT))
