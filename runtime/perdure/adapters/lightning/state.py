"""What Lightning itself keeps of a training, beside the module, its optimizers and schedulers: loops, callbacks,
precision, datamodule, what was logged, and what the script's own checkpoint hooks add.

Each rank has its own, a callback's best score say, so all ranks' are saved; a run of another size goes on with the
first one's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import Tensor

from perdure.adapters.lightning import metrics
from perdure.adapters.lightning.inner import restore_loops
from perdure.session.driven import of_all_ranks
from perdure.session.session import Session

_FOLDER: Final = "dirpath"


class TrainerState:
    """Of one trainer, as something to register."""

    def __init__(self, trainer: Any, session: Session) -> None:
        self._trainer, self._session = trainer, session
        self._every: list[Any] | None = None
        self._accumulate = 0

    def put_together(self) -> None:
        """On all ranks, right before a save. UserError on all where one cannot tell."""
        self._every = of_all_ranks(self._session, "trainer", self._own)

    def state_dict(self) -> dict[str, Any]:
        """Of all ranks, as they were put together last."""
        return {"ranks": [self._own()] if self._every is None else self._every}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """Goes on from there."""
        every = self._every = list(saved["ranks"])
        rank, world = self._session.rank, self._session.world
        own, trainer = every[rank if len(every) == world else 0], self._trainer
        self._load_parts(own)
        if len(every) == world:
            for name, buffer in self._buffers().items():
                buffer.copy_(own["buffers"][name])
        metrics.restore(trainer, [found["metrics"] for found in every], rank, world)
        restore_loops(trainer, own["loops"])
        self._accumulate = own["accumulate"]
        if own["limits"] == _limits(trainer):  # else it was told to stop by a limit that is raised since
            trainer.should_stop = own["should_stop"]

    def begin_epoch(self) -> None:
        """Over how many batches gradients are accumulated is put back right before the first epoch: whoever changes it
        looks before that whether anybody else has."""
        if self._accumulate:
            self._trainer.accumulate_grad_batches, self._accumulate = self._accumulate, 0

    def _own(self) -> dict[str, Any]:
        trainer = self._trainer
        return {
            "loops": trainer.fit_loop.state_dict(),
            "limits": _limits(trainer),
            "should_stop": trainer.should_stop,
            "accumulate": trainer.accumulate_grad_batches,
            "callbacks": {found.state_key: state for found in trainer.callbacks if (state := found.state_dict())},
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
                    callback.dirpath = state[_FOLDER]  # else a new logger's folder counts, and its best ones are gone
                callback.load_state_dict(copy.deepcopy(state))
        if own["precision"]:
            trainer.precision_plugin.load_state_dict(own["precision"])
        if own["datamodule"]:
            trainer.datamodule.load_state_dict(own["datamodule"])
        checkpoint = self._checkpoint() | own["more"]
        for hook in self._hooks("on_load_checkpoint"):
            hook(checkpoint)

    def _buffers(self) -> dict[str, Tensor]:
        """Each rank's own, where Lightning keeps DDP from giving all ranks the first one's before each forward pass."""
        module = self._trainer.lightning_module
        if module.automatic_optimization or self._session.world == 1:
            return {}
        return dict(module.named_buffers())

    def _added_by_hooks(self) -> dict[str, Any]:
        """What `on_save_checkpoint` of the module, the datamodule and the callbacks puts into a checkpoint."""
        checkpoint = self._checkpoint()
        known = set(checkpoint)
        for hook in self._hooks("on_save_checkpoint"):
            hook(checkpoint)
        return {name: value for name, value in checkpoint.items() if name not in known}

    def _checkpoint(self) -> dict[str, Any]:
        """What such a hook may look at."""
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
