"""Exchanges small values between ranks: `perdure.gather(session, value)` and `perdure.all_reduce(session, value)`.

Meant for scores, counts and decisions; use torch.distributed for large tensors. The values go over the connection that
saves use. A value that cannot be sent is an error on all ranks, and so are calls at different places. Sums are rounded
once, so they do not depend on the order of ranks. Called by `Session`.
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
"""The largest size of one rank's value, as JSON."""


def gather(value: Any, call: str, peers: Peers) -> list[Any]:
    """Each rank's value, by rank. `call` names the place in the script, the same on all ranks. Collective."""
    return on_all(peers, f"calls {call}", lambda: (None, _plain(call, value)))[1]


def all_reduce(value: Any, how: str, call: str, peers: Peers) -> Any:
    """The reduced value of all ranks, in the form of this rank's. Collective; UserError on all if forms differ."""
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
            f"{call}: {error}: give numbers, strings, lists and mappings; for a tensor its tolist()"
        ) from None
    if len(text) > EXCHANGED_BYTES:
        raise UserError(
            f"{call}: the value has {len(text)} bytes as JSON, more than {EXCHANGED_BYTES}: use torch.distributed "
            f"for large values"
        )
    return json.loads(text)


def _reduced(values: Sequence[Any], reduce: Callable[[Sequence[float]], float], call: str) -> Any:
    """Reduce `values`, one of each rank."""
    first = values[0]
    if all(isinstance(value, int | float) for value in values):
        return reduce(values)
    if all(isinstance(value, Mapping) and value.keys() == first.keys() for value in values):
        return {name: _reduced([value[name] for value in values], reduce, f"{call}[{name!r}]") for name in first}
    if all(isinstance(value, list) and len(value) == len(first) for value in values):
        return [_reduced(column, reduce, call) for column in zip(*values, strict=True)]
    raise UserError(
        f"{call}: the ranks give {_forms(values)}, which cannot be reduced together: give numbers, or lists, "
        f"mappings or tensors of numbers, in the same form on all ranks"
    )


def _forms(values: Sequence[Any]) -> str:
    forms = [
        f"a {type(value).__name__}" + (f" of {len(value)}" if hasattr(value, "__len__") else "") for value in values
    ]
    return ", ".join(f"{form} on rank {rank}" for rank, form in enumerate(forms))


def _sum(values: Sequence[float]) -> float:
    """Integers stay integers; a sum of floats is rounded once."""
    if all(isinstance(value, int) for value in values):
        return sum(values)
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # the sum overflows, or there are infinities of both signs
        return sum(values)


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value; the sum is rounded once."""
    return _sum(values) / len(values)


_REDUCTIONS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "sum": _sum,
    "mean": mean,
    "min": min,
    "max": max,
}
