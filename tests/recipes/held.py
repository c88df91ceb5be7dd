"""What a recipe holds at its end, one digest for each name, without asking Perdure."""

import dataclasses
import hashlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Held = dict[str, Any]
WEIGHTS = 32
steps_counted_by: list[Callable[[], None]] = []


def stepped_by_hand() -> None:
    """The step of an optimizer is noticed; a recipe that has none calls this."""
    for count in steps_counted_by:
        count()


def tell(held: Held, *, when: str = "held") -> None:
    print(*(f"{when} {name} {digest(value)}" for name, value in held.items()), sep="\n")


def digest(value: Any) -> str:
    """One for each element of a list."""
    if isinstance(value, list):
        return ",".join(map(digest, value))
    return hashlib.sha256(spelled(value).encode()).hexdigest()[:16]


def whole(thing: Any) -> Any:
    """What makes up a registered object: of a module also the buffers that its state_dict lacks, of a list its entries.

    The modes of a module are left out, because they come back later, with the first batch.
    """
    if isinstance(thing, nn.Module):
        module = thing.module if isinstance(thing, DistributedDataParallel) else thing
        return {"state": module.state_dict(), "buffers": dict(module.named_buffers())}
    match list(thing.state_dict().values()):
        case [list() as entries]:
            return entries
    return thing


def tell_weights(held: Held) -> None:
    """Some of all modules' parameters, as numbers."""
    modules = [thing for thing in held.values() if isinstance(thing, nn.Module)]
    numbers = [value for module in modules for one in module.parameters() for value in one.detach().flatten().tolist()]
    print(*(f"weight {value:.6f}" for value in numbers[:: max(1, len(numbers) // WEIGHTS)]), sep="\n")


def spelled(value: Any) -> str:
    """Equal for equal values alone, whatever memory they are in."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().contiguous()
        return f"{value.dtype}{tuple(value.shape)}" + np.from_dlpack(plain.flatten().view(torch.uint8)).tobytes().hex()
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}" + np.ascontiguousarray(value).tobytes().hex()
    if isinstance(value, torch.Generator):
        return spelled(value.get_state())
    if isinstance(value, np.random.Generator):
        return spelled(value.bit_generator.state)
    if isinstance(value, random.Random):
        return spelled(value.getstate())
    if hasattr(value, "state_dict"):
        return spelled(value.state_dict())
    if dataclasses.is_dataclass(value):
        return spelled(vars(value))
    if isinstance(value, Mapping):
        return "{" + ",".join(sorted(f"{key!r}:{spelled(one)}" for key, one in value.items())) + "}"
    if isinstance(value, str | bytes | int | float | None):
        return repr(value)
    return "[" + ",".join(spelled(one) for one in value) + "]"
