"""Warns a script that changes restored state above the batch loop of the epoch that it resumes.

The run that began the epoch made the same change there, and the checkpoint contains it: a rate multiplied at each
epoch's beginning, a schedule stepped there, weights scaled. A value that the script sets from the epoch's number equals
the restored one and is not reported; neither is a rate that is set again before an optimizer steps with it. Owned by
the boundary, on rank 0 alone, and run once: a look takes milliseconds.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from perdure.console import warn
from perdure.loop.run import Run
from perdure.session.describing import scripts_own
from perdure.state.write_detection import elements_of

TENSORS: Final = 4096
"""So many of one module are looked at."""
_NAMED: Final = 3


class Repeated:
    """The restored values, from where a resumed epoch begins to its first step."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._before: Mapping[str, Any] | None = None
        self._changed: dict[str, Any] = {}
        self._used: set[str] = set()
        """The changed settings by which an optimizer has stepped."""
        self._hook: Any = None

    def begin(self) -> None:
        """An epoch begins."""
        self.end()
        if self._run.rank == 0 and self._run.progress.epoch_resumed and not self._run.joining:
            self._before = _looked_at(scripts_own(self._run))

    def first_batch(self) -> None:
        """The batch loop begins: the code above it has run."""
        if self._before is None:
            return
        now, before, self._before = _looked_at(scripts_own(self._run)), self._before, None
        self._changed = {name: value for name, value in now.items() if before.get(name, value) != value}
        if self._changed:
            own = weakref.ref(self)

            def note(_optimizer: Any, _arguments: Any, _named: Any) -> None:
                if (found := own()) is not None:
                    found._note()  # noqa: SLF001 - of this class

            self._hook = register_optimizer_step_pre_hook(note)

    def stepped(self) -> None:
        """The session's step is done."""
        used = [name for name in self._changed if name in self._used]
        self.end()
        if used:
            some = ", ".join([*used[:_NAMED], *["..."] * (len(used) > _NAMED)])
            warn(
                f"the script has changed {some} above the batch loop of an epoch that this run resumes: the run that "
                f"began the epoch did so, too, and the checkpoint has it, so it is changed twice: set it by the "
                f"epoch's number, or change it below the batch loop"
            )

    def end(self) -> None:
        """Nothing is looked at any more."""
        if self._hook is not None:
            self._hook.remove()
        self._before, self._changed, self._used, self._hook = None, {}, set(), None

    def _note(self) -> None:
        """An optimizer is about to step; modules are looked at where the batch loop begins, as a step changes them."""
        settings = _settings(scripts_own(self._run))
        self._used |= {name for name, value in self._changed.items() if settings.get(name, value) == value}


def _looked_at(registered: Mapping[str, Any]) -> dict[str, Any]:
    found = _settings(registered)
    for name, thing in registered.items():
        if isinstance(thing, nn.Module):
            tensors = islice((*thing.named_parameters(), *thing.named_buffers()), TENSORS)
            found |= {f"{name}.{path}": elements_of(one) for path, one in tensors if not one.is_meta}
        elif isinstance(thing, LRScheduler):
            found[f"{name}.last_epoch"] = thing.last_epoch
    return found


def _settings(registered: Mapping[str, Any]) -> dict[str, Any]:
    """What optimizers step by."""
    groups = (
        (f"{name}.param_groups[{number}]", group)
        for name, thing in registered.items()
        if isinstance(thing, Optimizer)
        for number, group in enumerate(thing.param_groups)
    )
    return {
        f"{place}[{key!r}]": repr(value) for place, group in groups for key, value in group.items() if key != "params"
    }
