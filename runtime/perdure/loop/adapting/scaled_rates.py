"""An optimizer's step at the decided learning rates: before and after it the optimizer has the script's own.

So schedulers, reports and checkpoints know nothing of the factor, and a run without `adapt` continues a checkpoint of
one with it. An optimizer's `step` is replaced on the object, as torch's schedulers do, because torch calls no hook
after a step that raises.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import MethodType
from typing import Any

from torch.optim import Optimizer


class ScaledRates:
    """The optimizers whose rates are multiplied."""

    def __init__(
        self, factor: Callable[[Optimizer], float], stepped: Callable[[Optimizer], None] = lambda _: None
    ) -> None:
        """`factor` is called at each step, with the optimizer. It may raise, if no step is due. `stepped` is called
        after a step that has not raised."""
        self._factor = factor
        self._stepped = stepped
        self._scaled: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._groups: set[int] = set()
        """The groups that have the decided rate just now: optimizers may share them, and call each other."""

    @property
    def followed(self) -> list[Optimizer]:
        """Those that step at the decided rates."""
        return list(self._scaled)

    def follow(self, optimizers: Iterable[Optimizer]) -> None:
        """From now on these step at the decided rates."""
        for optimizer in optimizers:
            if optimizer not in self._scaled:
                self._scaled.add(optimizer)
                optimizer.step = MethodType(self._stepping(optimizer.step), optimizer)  # type: ignore[method-assign]

    def _stepping(self, step: Callable[..., Any]) -> Callable[..., Any]:
        function = getattr(step, "__func__", step)  # a scheduler has put a function without an object there
        bound = function is not step

        @wraps(function)
        def stepped(optimizer: Optimizer, *arguments: Any, **named: Any) -> Any:
            with self._at_decided_rates(optimizer):
                found = function(optimizer, *arguments, **named) if bound else function(*arguments, **named)
            self._stepped(optimizer)
            return found

        return stepped

    @contextmanager
    def _at_decided_rates(self, optimizer: Optimizer) -> Iterator[None]:
        factor = self._factor(optimizer)
        groups = [] if factor == 1.0 else [one for one in optimizer.param_groups if id(one) not in self._groups]
        before = [(group, group["lr"], group["lr"] * factor) for group in groups if "lr" in group]
        mine = {id(group) for group, _, _ in before}
        self._groups |= mine
        for group, _, scaled in before:
            group["lr"] = scaled
        try:
            yield
        finally:
            self._groups -= mine
            for group, own, scaled in before:
                if group["lr"] is scaled:  # otherwise the step has set another one
                    group["lr"] = own
