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
    from perdure.loop.adapting.adapt import Adapt
    from perdure.loop.position.stopping import max_seconds, max_steps
    from perdure.session.current import current_epoch, finished_epochs, remaining_epochs_until
    from perdure.session.functions import (
        Progress,
        accumulator,
        all_reduce,
        describe,
        exit_requested,
        gather,
        poll,
        progress,
        report,
        report_every,
        restore,
        should_stop,
        stop_when,
    )
    from perdure.session.loading import Checkpoint, history, load
    from perdure.session.session import Session

__all__ = [
    "Adapt",
    "Checkpoint",
    "Commit",
    "Corrupt",
    "Fenced",
    "Job",
    "LogLost",
    "PeerLost",
    "PerdureError",
    "Progress",
    "RootTakenOver",
    "Session",
    "StorageError",
    "StorageRefused",
    "UserError",
    "accumulator",
    "all_reduce",
    "current_epoch",
    "describe",
    "exit_requested",
    "finished_epochs",
    "gather",
    "history",
    "load",
    "max_seconds",
    "max_steps",
    "poll",
    "progress",
    "remaining_epochs_until",
    "report",
    "report_every",
    "restore",
    "should_stop",
    "stop_when",
]

_LATER = {
    "Adapt": "perdure.loop.adapting.adapt",
    "Checkpoint": "perdure.session.loading",
    "Commit": "perdure.checkpoint.history",
    "Job": "perdure.adapters.job",
    "Progress": "perdure.session.functions",
    "Session": "perdure.session.session",
    "accumulator": "perdure.session.functions",
    "all_reduce": "perdure.session.functions",
    "current_epoch": "perdure.session.current",
    "describe": "perdure.session.functions",
    "exit_requested": "perdure.session.functions",
    "finished_epochs": "perdure.session.current",
    "gather": "perdure.session.functions",
    "history": "perdure.session.loading",
    "load": "perdure.session.loading",
    "max_seconds": "perdure.loop.position.stopping",
    "max_steps": "perdure.loop.position.stopping",
    "poll": "perdure.session.functions",
    "progress": "perdure.session.functions",
    "remaining_epochs_until": "perdure.session.current",
    "report": "perdure.session.functions",
    "report_every": "perdure.session.functions",
    "restore": "perdure.session.functions",
    "should_stop": "perdure.session.functions",
    "stop_when": "perdure.session.functions",
}
"""The module of each name that is loaded when it is first used."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module  # noqa: PLC0415 - see above

        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
