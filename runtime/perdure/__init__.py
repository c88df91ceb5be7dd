"""Perdure's runtime: what a training script imports, and what the operator shares with it.

Importing it must stay free of torch: the operator and the agent's parent process do so too. So the public names that
need torch are loaded when they are first used.
"""

from __future__ import annotations

from perdure.errors import (
    Corrupt,
    Fenced,
    LogLost,
    PeerLost,
    PerdureError,
    RootTakenOver,
    StorageError,
    StorageRefused,
    UserError,
)

TYPE_CHECKING = False  # typing would be the longest part of the way to the first line of `perdure run`
if TYPE_CHECKING:
    from typing import Any

    from perdure.session.session import Session

__all__ = [
    "Corrupt",
    "Fenced",
    "LogLost",
    "PeerLost",
    "PerdureError",
    "RootTakenOver",
    "Session",
    "StorageError",
    "StorageRefused",
    "UserError",
]


def __getattr__(name: str) -> Any:
    if name == "Session":
        from perdure.session.session import Session  # noqa: PLC0415 - imports torch

        return Session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
