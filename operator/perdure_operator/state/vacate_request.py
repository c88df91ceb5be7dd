"""What a job's annotation perdure.dev/vacate says. Pure."""

from __future__ import annotations

from functools import lru_cache

_NOTHING = frozenset({"", "false"})
_ALL = "true"


def moves_all(text: str) -> bool:
    """Whether all members are meant."""
    return text.strip().lower() == _ALL


def named(text: str) -> tuple[str, ...]:
    """The pods and nodes that it names."""
    if moves_all(text):
        return ()
    return tuple(dict.fromkeys(name for name in text.replace(",", " ").split() if name.lower() not in _NOTHING))


@lru_cache(maxsize=64)
def places(text: str) -> frozenset[str]:
    """Like `named`, cached because a round asks it again and again for each pod."""
    return frozenset(named(text))
