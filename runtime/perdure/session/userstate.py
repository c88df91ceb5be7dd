"""`session.state`: a script's plain values that are part of the training, such as the best score so far.

Each value is checked when it is set: one that a checkpoint could not hold is refused there, by name, and not at the
exit save. Rank 0's values are the ones that are saved; a resumed run has them on every rank. Owned by the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from perdure.checkpoint.codec import encode
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
        encode(value, _place(name))
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
        """Everything as it is now. UserError if a value was changed into something that cannot be saved."""
        for name, value in self._values.items():
            encode(value, _place(name))
        return dict(self._values)

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """A resumed run has what was saved; what the script has set beside it stays."""
        self._values.update(saved)


def _place(name: str) -> str:
    return f"session.state[{name!r}]"
