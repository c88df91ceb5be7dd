"""Lightning's own state, in addition to the module, its optimizers and schedulers: loops, callbacks, precision,
datamodule, logged values, and what the script's checkpoint hooks add.

Ranks may differ, for example in a callback's best score. So the states of all ranks are saved. A run with another
number of ranks restores the state of rank 0 on all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import Tensor

from perdure.adapters.lightning import metrics
from perdure.adapters.lightning.inner import (
    has_just_begun,
    read_checkpoints,
    restore_checkpoints,
    restore_loops,
)
from perdure.session.driven import get_generators, of_all_ranks, set_generators
from perdure.session.session import Session

_FOLDER: Final = "dirpath"


class TrainerState:
    """The state of one trainer, for `Session.register`."""

    def __init__(self, trainer: Any, session: Session) -> None:
        self._trainer, self._session = trainer, session
        self._every: list[Any] | None = None
        self._accumulate = 0
        self._draws: dict[str, Any] = {}

    def put_together(self) -> None:
        """Gather the states of all ranks before a save. Collective; UserError on all ranks if one has none."""
        self._every = of_all_ranks(self._session, "trainer", self._own)

    def state_dict(self) -> dict[str, Any]:
        """The states of all ranks, as last gathered."""
        return {"ranks": [self._own()] if self._every is None else self._every}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """Restore this rank's state."""
        every = self._every = list(saved["ranks"])
        rank, world = self._session.rank, self._session.world
        own, trainer = every[rank if len(every) == world else 0], self._trainer
        self._load_parts(own)
        if len(every) == world:
            for name, buffer in self._buffers().items():
                buffer.copy_(own["buffers"][name])
            self._draws = own.get("draws", {})  # older commits have none
        metrics.restore(trainer, [found["metrics"] for found in every], rank, world)
        restore_loops(trainer, own["loops"])
        self._accumulate = own["accumulate"]
        if own["limits"] == _limits(trainer):  # else it stopped at a limit that has been raised since
            trainer.should_stop = own["should_stop"]

    def begin_epoch(self) -> None:
        """Restore `accumulate_grad_batches` right before the first epoch: a callback that changes it checks before that
        whether it has its default."""
        if self._accumulate:
            self._trainer.accumulate_grad_batches, self._accumulate = self._accumulate, 0

    def begin_batches(self) -> None:
        """Restore the generators right before an epoch's first batch, if its hooks are not called again.

        The hooks may have drawn, and the Session's own generators are those from before them.
        """
        draws, self._draws = self._draws, {}
        set_generators(draws)

    def _own(self) -> dict[str, Any]:
        trainer = self._trainer
        return {
            "draws": get_generators() if has_just_begun(trainer) else {},
            "loops": trainer.fit_loop.state_dict(),
            "limits": _limits(trainer),
            "should_stop": trainer.should_stop,
            "accumulate": trainer.accumulate_grad_batches,
            "callbacks": {found.state_key: state for found in trainer.callbacks if (state := found.state_dict())},
            "checkpoints": read_checkpoints(trainer),
            "precision": trainer.precision_plugin.state_dict(),
            "datamodule": trainer.datamodule.state_dict() if trainer.datamodule else {},
            "metrics": metrics.read(trainer),
            "buffers": self._buffers(),
            "more": self._added_by_hooks(),
        }

    def _load_parts(self, own: Mapping[str, Any]) -> None:
        trainer = self._trainer
        for callback in trainer.callbacks:
            if state := own["callbacks"].get(callback.state_key):
                if _FOLDER in state and hasattr(callback, _FOLDER):
                    callback.dirpath = state[_FOLDER]  # else it takes a new logger's folder, and forgets its best files
                callback.load_state_dict(copy.deepcopy(state))
        restore_checkpoints(trainer, own.get("checkpoints", {}))  # older commits have none
        if own["precision"]:
            trainer.precision_plugin.load_state_dict(own["precision"])
        if own["datamodule"]:
            trainer.datamodule.load_state_dict(own["datamodule"])
        checkpoint = self._checkpoint() | own["more"]
        for hook in self._hooks("on_load_checkpoint"):
            hook(checkpoint)

    def _buffers(self) -> dict[str, Tensor]:
        """This rank's buffers under manual optimization, where Lightning turns DDP's buffer broadcast off."""
        module = self._trainer.lightning_module
        if module.automatic_optimization or self._session.world == 1:
            return {}
        return dict(module.named_buffers())

    def _added_by_hooks(self) -> dict[str, Any]:
        """What the `on_save_checkpoint` hooks of module, datamodule and callbacks add to a checkpoint."""
        checkpoint = self._checkpoint()
        known = set(checkpoint)
        for hook in self._hooks("on_save_checkpoint"):
            hook(checkpoint)
        return {name: value for name, value in checkpoint.items() if name not in known}

    def _checkpoint(self) -> dict[str, Any]:
        """The part of a Lightning checkpoint that these hooks may read."""
        trainer = self._trainer
        return {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "state_dict": trainer.lightning_module.state_dict(),
        }

    def _hooks(self, name: str) -> list[Callable[[dict[str, Any]], Any]]:
        trainer, module = self._trainer, self._trainer.lightning_module
        hooks = [_bound(callback, name, trainer, module) for callback in trainer.callbacks]
        parts = [part for part in (trainer.datamodule, module) if part is not None]
        return [*hooks, *(getattr(part, name) for part in parts if hasattr(part, name))]


def _bound(callback: Any, name: str, trainer: Any, module: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda checkpoint: getattr(callback, name)(trainer, module, checkpoint)


def _limits(trainer: Any) -> list[Any]:
    return [trainer.fit_loop.max_epochs, trainer.fit_loop.max_steps]
