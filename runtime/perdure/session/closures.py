"""Averages over ranks the loss that an optimizer's closure returns.

Optimizers such as LBFGS call a closure until the loss satisfies a line search. With its own loss each rank would
call the closure a different number of times, and the ranks would deadlock in collectives that do not match. Gradients
are means over ranks. With the mean loss as well, all ranks decide alike, as one process with the whole batch would.
Owned by `Session`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from torch import Tensor
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from perdure.errors import UserError
from perdure.group.collectives import on_all
from perdure.loop.run import Run
from perdure.session.exchanging import mean
from perdure.state.holding import with_held

TORCH: Final = "torch.optim."
"""Optimizers of this package call a closure once and do not read the loss, except LBFGS."""


class Closures:
    """Replaces the closures of a run's registered optimizers, on several ranks."""

    def __init__(self, run: Run) -> None:
        self._run = run
        own = weakref.ref(self)

        def replace(optimizer: Optimizer, arguments: Any, named: Any) -> Any:
            return None if (found := own()) is None else found._replaced(optimizer, arguments, named)  # noqa: SLF001

        self._hooks = register_optimizer_step_pre_hook(replace), register_optimizer_step_post_hook(_end_step)

    def end(self) -> None:
        """Removes the hooks from torch's optimizers."""
        for hook in self._hooks:
            hook.remove()

    def _replaced(self, optimizer: Optimizer, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The arguments of its step, with a closure that returns the mean over ranks; None to keep them unchanged."""
        closure = _closure(arguments, named)
        if not callable(closure) or isinstance(closure, AveragedClosure) or not _may_read_losses(optimizer):
            return None
        if self._run.opening is None or self._run.world == 1 or not self._is_registered(optimizer):
            return None
        averaged = AveragedClosure(closure, self._run)
        if "closure" in named:
            return arguments, {**named, "closure": averaged}
        return (arguments[0], averaged, *arguments[2:]), named

    def _is_registered(self, optimizer: Optimizer) -> bool:
        """Whether the Session knows it. Only one rank may use an unregistered one, for example to optimize an input."""
        registered = [one for one in self._run.registry.named.values() if isinstance(one, Optimizer)]
        return any(one is optimizer for one in registered) or any(one is optimizer for one in with_held(registered))


class AveragedClosure:
    """The closure that an optimizer gets instead of the script's, for one step."""

    def __init__(self, closure: Callable[[], Any], run: Run) -> None:
        self._closure, self._run = closure, run
        self._calls = 0

    def __call__(self) -> Any:
        """Calls the script's closure, and returns the mean of its losses over ranks, in the same form.

        Collective. Raises UserError on all ranks if they call it unequally often.
        """
        self._calls += 1
        if self._calls > 1:  # before the call: if only some ranks make it, they hang in the model's collectives
            self._exchanged(f"makes call {self._calls}", None)
        loss = self._closure()
        own = loss.item() if isinstance(loss, Tensor) else loss
        losses = self._exchanged(f"has made call {self._calls}", own if own is None else float(own))
        if None in losses:
            return loss
        whole = mean(losses)
        if not isinstance(loss, Tensor):
            return whole
        averaged = loss.clone()  # keeps this rank's graph, for an optimizer that computes gradients itself
        averaged.detach().fill_(whole)
        return averaged

    def end(self) -> None:
        """Ends the optimizer's step. Collective. Raises UserError if ranks called the closure unequally often."""
        self._exchanged(f"is done after call {self._calls}", None)

    def _exchanged(self, place: str, loss: float | None) -> list[Any]:
        _, of_ranks = on_all(self._run.peers, "is in an optimizer's closure", lambda: (None, [place, loss]))
        first = of_ranks[0][0]
        for rank, (other, _) in enumerate(of_ranks):
            if other != first:
                raise UserError(
                    f"after step {self._run.progress.step} the ranks call an optimizer's closure unequally often: "
                    f"rank 0 {first}, rank {rank} {other}: the closure must leave the same gradients on all ranks: "
                    f"call the model that session.wrap returned, and let no decision depend on one rank's values"
                )
        return [found for _, found in of_ranks]


def _closure(arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    return named["closure"] if "closure" in named else (*arguments, None)[1]


def _end_step(_optimizer: Optimizer, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
    if isinstance(closure := _closure(arguments, named), AveragedClosure):
        closure.end()


def _may_read_losses(optimizer: Optimizer) -> bool:
    return isinstance(optimizer, LBFGS) or not type(optimizer).step.__module__.startswith(TORCH)
