"""`session.state`: a script's plain values that are part of the training, such as the best score so far.

Each value is checked when it is set, so that one that a checkpoint cannot hold is refused by name there, and not at the
last save. Rank 0's values are saved; a resumed run has them on every rank. Owned by the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor

from perdure.checkpoint.codec import encode
from perdure.checkpoint.tensors import refuse_odd
from perdure.checkpoint.tree import split
from perdure.errors import UserError


class UserState(MutableMapping[str, Any]):
    """Values by name, of the codec's closed set."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if type(name) is not str:
            raise UserError(f"session.state[{name!r}]: a {type(name).__name__} is no name: give a string")
        _check(name, value)
        self._values[name] = value

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


def _check(name: str, value: Any) -> None:
    """UserError unless the value can be saved and comes back the same. Looks at tensors without reading them."""
    place = f"session.state[{name!r}]"
    tensors: dict[str, Tensor] = {}
    encode(split(value, f"{place}.", tensors), place)
    for tensor in tensors.values():
        refuse_odd(f"in {place}", tensor)
        if tensor.requires_grad:
            raise UserError(f"{place} holds a tensor that requires a gradient, which would not come back: detach() it")
