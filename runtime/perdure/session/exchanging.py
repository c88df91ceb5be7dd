"""Small values that ranks tell each other: `perdure.gather(session, value)` and `perdure.all_reduce(session, value)`.

For scores, counts and decisions, over the connection that saves use; large tensors are torch.distributed's. What one
rank cannot tell is an error on all of them, and so are ranks that call at different places. Sums are rounded once, so
they do not depend on the order of ranks. Called by `Session`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from perdure.errors import UserError
from perdure.group.collectives import on_all
from perdure.group.peers import Peers

EXCHANGED_BYTES: Final = 2**20
"""Of one rank's value, as JSON."""


def gather(value: Any, call: str, peers: Peers) -> list[Any]:
    """Each rank's value, by rank. `call` names the place, which is the same on all ranks. Collective."""
    return on_all(peers, f"calls {call}", lambda: (None, _plain(call, value)))[1]


def all_reduce(value: Any, how: str, call: str, peers: Peers) -> Any:
    """All ranks' values as one, of the form of this rank's. Collective; UserError on all ranks where they differ."""
    reduce = _REDUCTIONS.get(how)
    if reduce is None:
        raise UserError(f"all_reduce(..., {how!r}): take one of {', '.join(_REDUCTIONS)}")
    plain = value.tolist() if isinstance(value, Tensor) else value
    found = _reduced(gather(plain, call, peers), reduce, call)
    if not isinstance(value, Tensor):
        return found
    whole = how == "mean" and not value.is_floating_point()
    return torch.tensor(found, dtype=torch.get_default_dtype() if whole else value.dtype, device=value.device)


def _plain(call: str, value: Any) -> Any:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"{call}: {error}: give numbers, strings, lists and mappings; of a tensor its tolist()"
        ) from None
    if len(text) > EXCHANGED_BYTES:
        raise UserError(
            f"{call}: the value has {len(text)} bytes as JSON, at most {EXCHANGED_BYTES} are exchanged: use "
            f"torch.distributed for what is large"
        )
    return json.loads(text)


def _reduced(values: Sequence[Any], reduce: Callable[[Sequence[float]], float], call: str) -> Any:
    """`values` are one of each rank."""
    first = values[0]
    if all(isinstance(value, int | float) for value in values):
        return reduce(values)
    if all(isinstance(value, Mapping) and value.keys() == first.keys() for value in values):
        return {name: _reduced([value[name] for value in values], reduce, f"{call}[{name!r}]") for name in first}
    if all(isinstance(value, list) and len(value) == len(first) for value in values):
        return [_reduced(column, reduce, call) for column in zip(*values, strict=True)]
    raise UserError(
        f"{call}: the ranks give {_forms(values)}, of which nothing in common can be made: give numbers, or lists, "
        f"mappings or tensors of numbers, of one form on all ranks"
    )


def _forms(values: Sequence[Any]) -> str:
    forms = [
        f"a {type(value).__name__}" + (f" of {len(value)}" if hasattr(value, "__len__") else "") for value in values
    ]
    return ", ".join(f"{form} on rank {rank}" for rank, form in enumerate(forms))


def _sum(values: Sequence[float]) -> float:
    """Whole numbers stay whole; others are rounded once."""
    if all(isinstance(value, int) for value in values):
        return sum(values)
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # too large, or infinities of both signs
        return sum(values)


def mean(values: Sequence[float]) -> float:
    """Of at least one; the sum is rounded once."""
    return _sum(values) / len(values)


_REDUCTIONS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "sum": _sum,
    "mean": mean,
    "min": min,
    "max": max,
}
