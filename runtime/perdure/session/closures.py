"""Gives optimizers that evaluate the loss themselves, through a closure, the loss of all ranks.

A line search ends depending on the loss. If each rank used its own loss, the ranks would call the closure unequally
often, and then wait for each other in collectives that do not match. The gradients are a mean over ranks, so this gives
the closure's loss as that mean too: all ranks decide alike, as one process with the whole batch would. Owned by
`Session`.
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
    """Watches the registered optimizers of a run with several ranks."""

    def __init__(self, run: Run) -> None:
        self._run = run
        own = weakref.ref(self)

        def share(optimizer: Optimizer, arguments: Any, named: Any) -> Any:
            return None if (found := own()) is None else found._shared(optimizer, arguments, named)  # noqa: SLF001

        self._hooks = register_optimizer_step_pre_hook(share), register_optimizer_step_post_hook(_end)

    def end(self) -> None:
        """Stops watching optimizers."""
        for hook in self._hooks:
            hook.remove()

    def _shared(self, optimizer: Optimizer, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The arguments of its step, with a closure that returns the mean over ranks; None to leave them as they
        are."""
        closure = _closure(arguments, named)
        if not callable(closure) or isinstance(closure, Shared) or not _may_read_losses(optimizer):
            return None
        if self._run.opening is None or self._run.world == 1 or not self._is_registered(optimizer):
            return None
        shared = Shared(closure, self._run)
        if "closure" in named:
            return arguments, {**named, "closure": shared}
        return (arguments[0], shared, *arguments[2:]), named

    def _is_registered(self, optimizer: Optimizer) -> bool:
        """Whether it is registered. Another one may be this rank's own, for example to optimize an input."""
        registered = [one for one in self._run.registry.named.values() if isinstance(one, Optimizer)]
        return any(one is optimizer for one in registered) or any(one is optimizer for one in with_held(registered))


class Shared:
    """A closure during one step of an optimizer."""

    def __init__(self, closure: Callable[[], Any], run: Run) -> None:
        self._closure, self._run = closure, run
        self._calls = 0

    def __call__(self) -> Any:
        """Returns the mean over ranks of what the closure returns, in its form. Collective; UserError on all ranks if
        they call it unequally often."""
        self._calls += 1
        if self._calls > 1:  # first, because a call that some ranks do not make would wait in the model's collectives
            self._exchanged(f"makes call {self._calls}", None)
        loss = self._closure()
        own = loss.item() if isinstance(loss, Tensor) else loss
        losses = self._exchanged(f"has made call {self._calls}", own if own is None else float(own))
        if None in losses:
            return loss
        whole = mean(losses)
        if not isinstance(loss, Tensor):
            return whole
        shared = loss.clone()  # with this rank's graph, for an optimizer that computes gradients itself
        shared.detach().fill_(whole)
        return shared

    def end(self) -> None:
        """The optimizer's step is done. Collective, with the same error."""
        self._exchanged(f"is done after call {self._calls}", None)

    def _exchanged(self, place: str, loss: float | None) -> list[Any]:
        _, told = on_all(self._run.peers, "is in an optimizer's closure", lambda: (None, [place, loss]))
        for rank, (other, _) in enumerate(told):
            if other != told[0][0]:
                raise UserError(
                    f"after step {self._run.progress.step} the ranks call an optimizer's closure unequally often: "
                    f"rank 0 {told[0][0]}, rank {rank} {other}: the gradients that it leaves have to be the same on "
                    f"all ranks: call what session.wrap returned in it, and decide by nothing that is a rank's own"
                )
        return [found for _, found in told]


def _closure(arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    return named["closure"] if "closure" in named else (*arguments, None)[1]


def _end(_optimizer: Optimizer, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
    if isinstance(closure := _closure(arguments, named), Shared):
        closure.end()


def _may_read_losses(optimizer: Optimizer) -> bool:
    return isinstance(optimizer, LBFGS) or not type(optimizer).step.__module__.startswith(TORCH)
