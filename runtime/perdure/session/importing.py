"""A state_dict that no training has made, as if a script had registered an object with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.checkpoint.state import RankState
from perdure.state.registry import Registry


def as_registered(name: str, state: Mapping[Any, Any]) -> RankState:
    """What a session would save of an object with this state_dict, registered as `name`."""
    registry = Registry()
    registry.add(name, _Held(state))
    return registry.state(None)


class _Held:
    """An object that has this state_dict, and is never given another one."""

    def __init__(self, state: Mapping[Any, Any]) -> None:
        self._state = state

    def state_dict(self) -> Mapping[Any, Any]:
        return self._state

    def load_state_dict(self, _: Mapping[Any, Any], /) -> None: ...
