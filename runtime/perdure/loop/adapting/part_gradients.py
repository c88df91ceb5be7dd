"""Finds, before an optimizer steps, that the gradient of a batch in parts is not that of the whole batch.

A script that clears gradients at the head of its loop drops those of the parts before. Autograd shows that where it is
about to add to a gradient. Clearing is no mistake by itself: after the step, before a batch's first backward pass, of
an optimizer that does not step, or by a script that adds up the parts elsewhere. So only the step of an optimizer that
would use what is left is refused. And a script that never weights a loss gets the sum of the parts' means.

Nothing here waits for a device, unless the script itself has written to a gradient between two parts. A batch of one
part is not looked at. Owned by the session's Run, if its loader adapts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.optim import Optimizer

from perdure.errors import UserError
from perdure.loop.adapting.parts import PartShare
from perdure.state.shards import unreduced
from perdure.state.write_detection import numbers_of, some_of

LOOKED_AT: Final = 4
"""How many parameters of an optimizer are watched: a script clears the gradients of all, or of a model."""


class PartGradients:
    """What the parts of the present batch have left in the gradients of registered optimizers."""

    def __init__(
        self, optimizers: Callable[[], Iterable[Optimizer]], sharded: Callable[[], Iterable[nn.Module]]
    ) -> None:
        self._optimizers, self._sharded = optimizers, sharded
        self._left: dict[Optimizer, list[_Left]] = {}
        self._is_noted = False
        """Whether the gradients of the present part are noted."""
        self._adds_up = False
        """Whether a part before the last one has left a gradient."""
        self._weighted = False

    def part_begins(self, part: PartShare) -> None:
        """The script gets this part next."""
        if part.start == part.batch.start:
            self._begin_batch()
        elif not self._is_noted:  # its backward pass was behind the block of `micro`
            self._note()
        self._is_noted = False

    def _begin_batch(self) -> None:
        for left in self._left.values():
            _end(left)
        self._left, self._adds_up, self._weighted = {}, False, False

    def weighted(self) -> None:
        """The script has weighted a loss."""
        self._weighted = True

    def part_done(self, *, last: bool) -> None:
        """The script's block around forward and backward has ended."""
        if not last:
            self._note()
            return
        for left in self._left.values():
            for one in left:
                one.note_last()

    def _note(self) -> None:
        for optimizer in self._optimizers():
            before = self._left.get(optimizer, [])
            kept = [one for one in before if one.cleared or not one.was_added_to]
            _end([one for one in before if one not in kept])
            known = {id(one.parameter) for one in kept}
            found = [_Left(one, its) for one, its in _with_gradients(optimizer) if id(one) not in known]
            self._is_noted = self._is_noted or bool(found)
            self._left[optimizer] = [*kept, *found]
        self._is_noted = self._is_noted or any(True for module in self._sharded() for _ in unreduced(module))
        self._adds_up = self._adds_up or self._is_noted

    def check(self, optimizer: Optimizer, loader: str, parts: int) -> None:
        """The optimizer is about to step with the last part. UserError if its gradient is not that of the batch."""
        left = self._left.get(optimizer, [])
        if any(one.is_lost for one in left):
            raise UserError(
                f"{loader}: this batch has {parts} parts, and the gradient of an earlier one was cleared before a "
                f"later one was added: call zero_grad() behind optimizer.step(), and not at the head of the loop or "
                f"for each part. A script that adds up the parts itself assigns the sum to .grad"
            )
        if self._adds_up and not self._weighted:
            raise UserError(
                f"{loader}: this batch has {parts} parts, and none of its losses went through session.weighted(): the "
                f"sum of the means of its parts is {parts} times the mean of the batch: write "
                f"session.weighted(loss).backward(). If the loss is already this part's share of the whole batch's "
                f"mean, write session.weighted(loss, n=1, of=1), which leaves it as it is"
            )
        self._forget({id(one.parameter) for one in left})

    def _forget(self, stepped: set[int]) -> None:
        """These parameters are stepped. An optimizer may wrap another one with the same parameters."""
        for left in self._left.values():
            _end([one for one in left if id(one.parameter) in stepped])
            left[:] = [one for one in left if id(one.parameter) not in stepped]


class _Left:
    """A parameter with a gradient that a part of a batch has left for the next one."""

    def __init__(self, parameter: Tensor, gradient: Tensor) -> None:
        self.parameter = parameter
        self.cleared = False
        """Whether it was gone when autograd was about to add the next part to it."""
        self.was_added_to = False
        self._place, self._some = _place(gradient), some_of(gradient)
        self._last: Any = None
        """Where the gradient was after the last part."""
        self._node = get_gradient_edge(parameter).node  # torch keeps only a weak reference, and the hook is of this one
        own = weakref.ref(self)

        def about_to_add(_gradients: Any) -> None:
            if (left := own()) is not None:
                left._look()  # noqa: SLF001 - of this class

        self._hook = self._node.register_prehook(about_to_add)

    def _look(self) -> None:
        if self.was_added_to:
            return
        self.was_added_to, gradient = True, self.parameter.grad
        if gradient is None:
            self.cleared = True
        elif _place(gradient) != self._place:
            self.cleared = self._some is not None and bool(self._some.any()) and not _has_numbers(gradient)

    def note_last(self) -> None:
        """The last part was added."""
        if self.cleared and self.parameter.grad is not None:
            self._last = _place(self.parameter.grad)[0]

    @property
    def is_lost(self) -> bool:
        """Whether the gradient that the optimizer would use lacks a part: it is not zero, and not one that the script
        has put there since."""
        gradient = self.parameter.grad if self.cleared else None
        if gradient is None or (self._last is not None and _place(gradient)[0] != self._last):
            return False
        return gradient.is_sparse or _has_numbers(gradient)

    def end(self) -> None:
        """Stops watching autograd."""
        self._hook.remove()


def _end(left: Iterable[_Left]) -> None:
    for one in left:
        one.end()


def _place(gradient: Tensor) -> tuple[int, int]:
    """Where it is, and how often it was written to; there is no public name for that."""
    return 0 if gradient.is_sparse else gradient.data_ptr(), gradient._version  # noqa: SLF001


def _has_numbers(gradient: Tensor) -> bool:
    numbers = numbers_of(gradient)
    return numbers is not None and bool(numbers.any())


def _with_gradients(optimizer: Optimizer) -> Iterable[tuple[Tensor, Tensor]]:
    owned = (one for group in optimizer.param_groups for one in group["params"])
    trained = (one for one in owned if one.requires_grad and one.is_leaf)
    return islice(((one, one.grad) for one in trained if one.grad is not None), LOOKED_AT)
