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

    from perdure.adapters.job import Job
    from perdure.checkpoint.history import Commit
    from perdure.session.current import current_epoch, finished_epochs, remaining_epochs_until
    from perdure.session.loading import Checkpoint, history, load
    from perdure.session.session import Session

__all__ = [
    "Checkpoint",
    "Commit",
    "Corrupt",
    "Fenced",
    "Job",
    "LogLost",
    "PeerLost",
    "PerdureError",
    "RootTakenOver",
    "Session",
    "StorageError",
    "StorageRefused",
    "UserError",
    "current_epoch",
    "finished_epochs",
    "history",
    "load",
    "remaining_epochs_until",
]

_LATER = {
    "Checkpoint": "perdure.session.loading",
    "Commit": "perdure.checkpoint.history",
    "Job": "perdure.adapters.job",
    "Session": "perdure.session.session",
    "current_epoch": "perdure.session.current",
    "finished_epochs": "perdure.session.current",
    "history": "perdure.session.loading",
    "load": "perdure.session.loading",
    "remaining_epochs_until": "perdure.session.current",
}
"""Where to import from what is loaded when it is first used."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module  # noqa: PLC0415 - see above

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
