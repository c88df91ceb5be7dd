"""How a model's parameters lie in memory, as lines that ranks compare before they average gradients.

A rank adds its gradients to the others' in the order in which they lie in memory. So a parameter that lies otherwise on
one rank would get other elements' gradients, or torch would stop some ranks and leave the others waiting. Called
before a model is wrapped; a hand-over compares its own lines in the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final

from torch import nn
from torch.nn.parameter import is_lazy

from perdure.checkpoint import tensors
from perdure.errors import UserError

OWN_GROUP: Final = frozenset({"process_group", "device_mesh"})
"""Options of DistributedDataParallel that name its group."""
_END: Final = "nothing more"

AllGather = Callable[[str, Any], list[Any]]
"""Returns each rank's JSON value, by rank, given what the exchange is for and this rank's value. Collective."""


def check_alike(gather: AllGather, model: nn.Module, options: Mapping[str, Any]) -> None:
    """UserError on all ranks if a rank trains other parameters than rank 0, or has one with other strides.

    Collective, as DistributedDataParallel is. With `options` that name a group of the script's own, the ranks outside
    may wrap nothing, so nothing is compared. Parameters that DistributedDataParallel is told to ignore may differ.
    """
    if options.keys() & OWN_GROUP:
        return
    lines = _lines(model)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    if len(set(gather("wraps a model", digest))) == 1:
        return
    first, *others = gather("compares the parameters of its model", lines)
    for rank, other in enumerate(others, start=1):
        if found := first_difference(first, other):
            raise UserError(
                f"session.wrap: the ranks' models have different parameters: rank 0 has {found[0]}, rank {rank} has "
                f"{found[1]}: build the same model on every rank, with the same memory format"
            )


def first_difference(some: Sequence[str], others: Sequence[str]) -> tuple[str, str] | None:
    """The first two lines that differ; "nothing more" stands for a line where one list has ended. None if the lists are
    equal."""
    pairs = zip_longest(some, others, fillvalue=_END)
    return next(((one, other) for one, other in pairs if one != other), None)


def _lines(model: nn.Module) -> list[str]:
    ignored = frozenset(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))
    return [
        f"{name}: {tensors.dtype_name(parameter)} {list(parameter.shape)} with strides {list(parameter.stride())}"
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in ignored and not is_lazy(parameter)
    ]
