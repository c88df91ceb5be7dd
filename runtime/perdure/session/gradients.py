"""Warns a script that calls `session.step()` for each part of a larger batch: a stop in between loses gradients.

A batch without an optimizer step leaves gradients. The script may drop them, for example after a spike. The next batch
shows which: dropped gradients come back as other tensors, accumulated ones are the same tensors, written to once more.
A script without an optimizer changes its weights itself, so it has used the gradients if a weight has changed.
Gradients that FSDP2 has not reduced yet are there only to be added to.
Owned by `Session`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from perdure.checkpoint import boxes
from perdure.console import warn
from perdure.loop.run import Run
from perdure.session.describing import scripts_own
from perdure.state.shards import unreduced
from perdure.state.write_detection import elements_of

LOOKED_AT: Final = 4
"""How many parameters are watched: a script accumulates the gradients of all, or of none."""


class _Noted(NamedTuple):
    parameter: Tensor
    place: int
    version: int
    elements: bytes | None
    """Some of the parameter's."""


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
        self._noted = list(_noted(run.registry.parameters())) if left else []
        if left and self._found is None:
            modules = (one for one in run.registry.named.values() if isinstance(one, nn.Module))
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
        """Stops watching optimizers."""
        self._hook.remove()

    def _look(self) -> None:
        """Looks while the gradients exist, because scripts drop them after the optimizer's step."""
        used = any(elements_of(one.parameter) != one.elements for one in self._noted)
        added = (one.parameter for one in self._noted if not used and _is_added_to(one))
        self._found, self._noted = next(added, self._found), []


def _is_added_to(noted: _Noted) -> bool:
    if noted.parameter.grad is None:
        return False
    now = boxes.local(noted.parameter.grad)
    return now.data_ptr() == noted.place and now._version > noted.version  # noqa: SLF001 - torch's


def _name_of(parameter: Tensor, registered: dict[str, Any]) -> str:
    modules = ((name, one) for name, one in registered.items() if isinstance(one, nn.Module))
    named = (
        f"{name}.{inner}" for name, one in modules for inner, found in one.named_parameters() if found is parameter
    )
    return next(named, "a parameter")


def _noted(parameters: Iterable[Tensor]) -> Iterable[_Noted]:
    held = [(one, boxes.local(one.grad)) for one in parameters if one.grad is not None][:LOOKED_AT]
    return (_Noted(one, grad.data_ptr(), grad._version, elements_of(one)) for one, grad in held)  # noqa: SLF001
