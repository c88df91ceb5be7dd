"""Takes the squared norms of a step's gradients, by parameter group: those of its parts, and that of their mean.

With several ranks a part is a rank's share. Its gradient is looked at where DistributedDataParallel averages it, or
where FSDP2 does; then each rank has a shard of the mean, and the shards' squared norms add up to that of the mean. One
rank alone has its micro-batches for parts, or two steps in a row, which are parts of one batch but for the small step
between them; of the first one a copy of the gradient is kept. Only parameters that an optimizer owns count.

Nothing here waits for a device. A step that synchronises a gradient twice has no norms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import is_
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from perdure.checkpoint import boxes


class Things(Protocol):
    """What norms need of a Registry."""

    things: list[Any]

    @property
    def sharded_modules(self) -> list[nn.Module]:
        """The registered modules that are sharded over the ranks."""
        ...


@dataclass(frozen=True)
class StepNorms:
    """Squared norms by parameter group."""

    own: Tensor
    """The sum of those of this rank's parts."""
    mean: Tensor
    """That of the mean over all parts."""
    of_shards: bool = False
    """Whether `mean` is that of this rank's shard alone."""


class Owned:
    """The parameters that registered optimizers own, with the numbers of their groups over all of them."""

    def __init__(self, registry: Things) -> None:
        self._registry = registry
        self._listed: list[Tensor] = []
        self.group_of: Mapping[Tensor, int] = {}
        self.groups = 0

    def look(self) -> bool:
        """Whether others are owned since the last look."""
        optimizers = [one for one in self._registry.things if isinstance(one, Optimizer)]
        groups = [group["params"] for one in optimizers for group in one.param_groups]
        listed = [parameter for group in groups for parameter in group]
        if len(groups) == self.groups and len(listed) == len(self._listed) and all(map(is_, listed, self._listed)):
            return False
        self._listed, self.groups = listed, len(groups)
        self.group_of = {parameter: number for number, group in enumerate(groups) for parameter in group}
        return True

    def unscaling(self, device: torch.device) -> Tensor | None:
        """What the present gradients are to be multiplied by; None if a registered GradScaler scales no loss."""
        scalers = [one for one in self._registry.things if isinstance(one, GradScaler) and one.is_enabled()]
        if not scalers:
            return None
        one = torch.ones((), dtype=torch.float64, device=device)
        for scaler in scalers:
            one = one / scaler.scale(torch.ones((), dtype=torch.float64, device=device))
        return one


class RankNorms:
    """Of one of several ranks: a GradientWatch of perdure.state.wrapping and a ShardWatch of
    perdure.state.fully_sharded."""

    def __init__(self, owned: Owned) -> None:
        self._owned = owned
        self.looks = True
        """Whether it looks at the present step."""
        self.forget()

    def forget(self) -> None:
        """Begins a step."""
        self._own: list[tuple[int, Tensor]] = []
        self._mean: list[tuple[int, Tensor]] = []
        self._seen: set[int] = set()
        self._void = False
        self._of_shards = False
        self._unscaling: Tensor | None = None

    def before_mean(self, bucket: Any) -> Callable[[], None]:
        """Sees this rank's gradients, and returns what sees their mean."""
        if not self.looks:
            return _see_nothing
        parameters, buffer = bucket.parameters(), bucket.buffer()
        self._note(parameters[0], buffer)
        pieces = [] if buffer.is_sparse else self._pieces(parameters, bucket)
        self._own += [(number, squared_norm(tensors)) for number, tensors in pieces]

        def see_mean() -> None:
            self._mean.extend((number, squared_norm(tensors)) for number, tensors in pieces)

        return see_mean

    def before_shards(self, parameters: Sequence[Tensor], gradients: Tensor) -> Callable[[Tensor], None]:
        """Sees this rank's gradients, in one tensor, and returns what sees this rank's shard of their mean.

        FSDP2 lays them together piece by piece. So they cannot be told apart: those of several groups count for the
        first one, and the step has no norms if no optimizer owns some of them.
        """
        if not self.looks:
            return _see_nothing
        self._note(parameters[0], gradients)
        numbers = [self._owned.group_of.get(parameter) for parameter in parameters]
        self._void, self._of_shards = self._void or None in numbers, True
        number = numbers[0] or 0
        self._own.append((number, squared_norm([gradients])))
        return lambda shard: self._mean.append((number, squared_norm([shard])))

    def _note(self, first: Tensor, gradients: Tensor) -> None:
        """Gradients of this parameter and others are about to be averaged."""
        if not self._seen:
            self._unscaling = self._owned.unscaling(gradients.device)
        self._void = self._void or id(first) in self._seen
        self._seen.add(id(first))

    def _pieces(self, parameters: list[Tensor], bucket: Any) -> list[tuple[int, list[Tensor]]]:
        """The gradients in a bucket, by group. That of a whole bucket is one tensor."""
        numbers = [self._owned.group_of.get(parameter) for parameter in parameters]
        if numbers[0] is not None and len(set(numbers)) == 1:
            return [(numbers[0], [bucket.buffer()])]
        by_number: dict[int, list[Tensor]] = {}
        for number, gradient in zip(numbers, bucket.gradients(), strict=True):
            if number is not None:
                by_number.setdefault(number, []).append(gradient)
        return [*by_number.items()]

    def take(self) -> StepNorms | None:
        """Those of the step that is done, without the loss scale; None if there are none."""
        own, mean, unscaling, of_shards, void = self._own, self._mean, self._unscaling, self._of_shards, self._void
        self.forget()
        if void or not own or len(own) != len(mean):
            return None
        factor = 1.0 if unscaling is None else unscaling.square()
        groups = self._owned.groups
        return StepNorms(by_group(own, groups) * factor, by_group(mean, groups) * factor, of_shards)


class LoneNorms:
    """Of the only rank. Hooks of its parameters are there from `attach` to `detach`."""

    def __init__(self, owned: Owned) -> None:
        self._owned = owned
        self._handles: list[RemovableHandle] = []
        self.looks = True
        """Whether it looks at the present step."""
        self.parts: int | None = None
        """How many parts the last step had, as this one should; None before there was one."""
        self._kept: dict[Tensor, Tensor] = {}
        """The gradients of the first step of two."""
        self._first: tuple[Tensor, int, Tensor | None] | None = None
        """That step's squared norms, samples, and what its gradients are to be multiplied by."""
        self._begin_step()

    def _begin_step(self) -> None:
        self._calls: dict[Tensor, int] = {}
        self._own: list[tuple[int, Tensor]] = []
        self._total: dict[Tensor, Tensor] = {}
        self._products: list[tuple[int, Tensor]] = []
        self._unscaling: Tensor | None = None

    def attach(self) -> None:
        """Looks at the gradients of the parameters that are owned now."""
        self.detach()
        for parameter, number in self._owned.group_of.items():
            if parameter.requires_grad and parameter.is_leaf and not boxes.is_sharded(parameter):
                see = parameter.register_hook(partial(self._see_part, parameter, number))
                see_total = parameter.register_post_accumulate_grad_hook(partial(self._see_total, number))
                self._handles += [see, see_total]

    def detach(self) -> None:
        """Looks at none."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._first = [], None
        self._kept.clear()
        self._begin_step()

    def _see_part(self, parameter: Tensor, number: int, gradient: Tensor) -> None:
        if not self.looks or self.parts is None:
            return
        if not self._calls:
            self._unscaling = self._owned.unscaling(gradient.device)
        self._calls[parameter] = self._calls.get(parameter, 0) + 1
        if self.parts > 1 and not gradient.is_sparse:
            self._own.append((number, squared_norm([gradient])))

    def _see_total(self, number: int, parameter: Tensor) -> None:
        gradient = parameter.grad
        if gradient is None or gradient.is_sparse or self._calls.get(parameter, 0) != (self.parts or -1):
            return  # another part follows, or nothing looks at this step
        self._total[parameter] = squared_norm([gradient])
        if self.parts != 1:
            return
        if self._first is None:
            self._kept[parameter] = gradient.detach().clone()
        elif (kept := self._kept.get(parameter)) is not None:
            self._products.append((number, product(kept, gradient)))

    def take(self, sizes: list[int]) -> tuple[StepNorms, list[int]] | None:
        """Those of the step that is done, of so many samples in each micro-batch, and the samples of the parts."""
        parts = len(sizes)
        as_known = bool(self._total) and max(self._calls.values()) == parts == self.parts
        found = None
        if not as_known:
            self._first = None
        elif parts == 1:
            found = self._pair(sizes[0])
        elif max(sizes) - min(sizes) <= 1:  # as parts of one batch are
            factor = 1.0 if self._unscaling is None else self._unscaling.square()
            own = by_group(self._own, self._owned.groups) * factor * parts**2  # each adds its part of the mean
            found = StepNorms(own, self._totals() * factor), sizes
        self.parts = parts
        if self._first is None:
            self._kept.clear()
        self._begin_step()
        return found

    def _totals(self) -> Tensor:
        group_of = self._owned.group_of
        return by_group([(group_of[one], found) for one, found in self._total.items()], self._owned.groups)

    def _pair(self, samples: int) -> tuple[StepNorms, list[int]] | None:
        unscaling = self._unscaling
        own = self._totals() * (1.0 if unscaling is None else unscaling.square())
        if self._first is None:
            self._first = own, samples, unscaling
            return None
        (before, samples_before, unscaling_before), self._first = self._first, None
        factor = 1.0 if unscaling is None or unscaling_before is None else unscaling * unscaling_before
        both = own + before
        mean = (both + 2 * factor * by_group(self._products, self._owned.groups)) / 4
        return StepNorms(both, mean), [samples_before, samples]


def _see_nothing(*_: Any) -> None:
    pass


def by_group(found: Iterable[tuple[int, Tensor]], groups: int) -> Tensor:
    """The sums of these numbers, in a vector by group."""
    sums: dict[int, list[Tensor]] = {}
    for number, value in found:
        sums.setdefault(number, []).append(value)
    if not sums:
        return torch.zeros(groups, dtype=torch.float64, device="cpu")
    device = next(iter(sums.values()))[0].device
    nothing = torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack(
        [torch.stack([one.to(device) for one in sums[n]]).sum() if n in sums else nothing for n in range(groups)]
    )


def squared_norm(tensors: Iterable[Tensor]) -> Tensor:
    """Of all of them together."""
    return torch.stack([product(tensor, tensor) for tensor in tensors]).sum()


def product(one: Tensor, other: Tensor) -> Tensor:
    """The sum of the products of their elements. torch's dot is more exact than its norm, which adds in one order."""
    if one.dtype in (torch.float32, torch.float64) and one.is_contiguous() and other.is_contiguous():
        return torch.dot(one.view(-1), other.view(-1)).double()
    return (one.float() * other.float()).sum(dtype=torch.float64)
