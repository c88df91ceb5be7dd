"""What a `collect` hook gets: the trained tensors of the registered objects, one at a time.

It gets those of modules and other objects, not of optimizers, because it is for exports. A tensor in this machine's
memory is the live one. Any other is a copy of just that tensor, so nothing is held twice. Called by perdure.session.job
on rank 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from torch import Tensor

from perdure.checkpoint.state import RankState, TwinRef

_REGISTERED: Final = re.compile(r"(\w+)\.")
"""An optimizer's tensor has a slash instead of the dot."""


def collected(state: RankState, leave_out: str) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor, on the CPU and without a gradient. Names begin with the registered object's, as in a checkpoint.

    The object called `leave_out` is left out.
    """
    twins = _twins(state)
    for tensors in (state.shared, state.replicated):
        for name, tensor in tensors.items():
            found = _REGISTERED.match(name)
            if found and found[1] != leave_out:
                yield from ((each, tensor.detach().cpu()) for each in (name, *twins.get(name, ())))


def _twins(state: RankState) -> dict[str, list[str]]:
    """Further names of tied weights, by the first name."""
    twins: dict[str, list[str]] = {}
    for registered, left in state.objects.items():
        extra = left.get("extra", {}) if isinstance(left, Mapping) else {}
        for name, ref in extra.items() if isinstance(extra, Mapping) else ():
            if type(ref) is TwinRef:
                twins.setdefault(ref.name, []).append(f"{registered}.{name}")
    return twins
