"""`session.state`: a script's plain values that are part of the training, such as the best score so far.

Each value is checked when it is set, so that one that a checkpoint cannot hold is refused by name there, and not at the
last save. Rank 0's values are saved; a resumed run has them on every rank. Owned by the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from perdure.checkpoint.codec import encode
from perdure.checkpoint.tensors import address, refuse_odd
from perdure.checkpoint.tree import split
from perdure.errors import UserError


class UserState(MutableMapping[str, Any]):
    """Values by name, of the codec's closed set."""

    def __init__(self, trained: Callable[[], Iterable[Tensor]] = tuple) -> None:
        """`trained`: the tensors that steps change, and a value may not be."""
        self._values: dict[str, Any] = {}
        self._trained = trained

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if type(name) is not str:
            raise UserError(f"session.state[{name!r}]: a {type(name).__name__} is no name: give a string")
        tensors = _check(name, value)
        if tensors:
            self._refuse_trained(tensors)
        self._values[name] = value

    def _refuse_trained(self, tensors: Mapping[str, Tensor]) -> None:
        """UserError for live tensors: training changes them in the run that set them, and in none that resumes."""
        memory = {_memory(tensor) for tensor in self._trained()}
        for path, tensor in tensors.items():
            if tensor.numel() and _memory(tensor) in memory:
                raise UserError(
                    f"{path} is a live tensor that training keeps changing, not a copy: after a resume it would "
                    f"stay at its saved value; to keep its present value, clone() it"
                )

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"session.state {self._values!r}"

    def state_dict(self) -> dict[str, Any]:
        """All values as they are now. UserError if one was changed into something that cannot be saved."""
        for name, value in self._values.items():
            _check(name, value)
        return dict(self._values)

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """Restores the saved values. Others that the script has set stay."""
        self._values.update(saved)


def _memory(tensor: Tensor) -> int:
    """Where it lies; equal for a tensor and its views."""
    return (address(tensor) if tensor.layout is torch.strided else 0) or id(tensor)


def _check(name: str, value: Any) -> dict[str, Tensor]:
    """Its tensors, by path. UserError unless the value can be saved and comes back the same. Reads no tensor."""
    place = f"session.state[{name!r}]"
    tensors: dict[str, Tensor] = {}
    encode(split(value, f"{place}.", tensors), place)
    for tensor in tensors.values():
        refuse_odd(f"in {place}", tensor)
        if tensor.requires_grad:
            raise UserError(f"{place} holds a tensor that requires a gradient, which would not come back: detach() it")
    return tensors
