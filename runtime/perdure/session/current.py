"""The epochs of the process's session, as functions of the package: for scripts that cannot pass a session on.

AdaptDL has such functions, so scripts written for it keep their loops. A process's session is the one that was made
last. `perdure.remaining_epochs_until`, `current_epoch` and `finished_epochs` are these functions.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Protocol

from perdure.errors import UserError
from perdure.loop.position.stopping import read_goal
from perdure.loop.run import Run
from perdure.session.job import EpochLoops


class SessionCore(Protocol):
    """The parts of a session's core that these functions use."""

    run: Run
    loops: EpochLoops


_open: list[weakref.ref[SessionCore]] = []
"""The open sessions, in the order in which they were made."""


def remaining_epochs_until(count: int) -> Iterator[int]:
    """The epochs left until `count` are finished, of all loops and runs together, by their numbers from 0.

    It is a loop like `Session.epochs`, and `stop`, `stop_when` or `break` end it earlier. After a loop until 30, a loop
    until 60 has the epochs 30 to 59, or those of them that earlier runs have left. UserError for a number below 1,
    within another epoch, and without a session.
    """
    return _core("remaining_epochs_until").loops.epochs(read_goal(count or 0, ()), (), in_all=True)


def current_epoch() -> int | None:
    """The number of the current epoch, from 0, over all loops and runs; None outside of the loops.

    UserError without a session.
    """
    progress = _core("current_epoch").run.progress
    return None if progress.epoch is None else progress.epochs_done


def finished_epochs() -> int:
    """How many epochs are finished, over all loops and runs; within an epoch, its number.

    It is 0 before the first loop, or `perdure.restore`, has restored anything. UserError without a session.
    """
    return _core("finished_epochs").run.progress.epochs_done


def opened(core: SessionCore) -> None:
    """Makes this the process's session."""
    _open.append(weakref.ref(core))


def closed(core: SessionCore) -> None:
    """Removes it from the open sessions."""
    _open[:] = [one for one in _open if one() not in (None, core)]


def _core(call: str) -> SessionCore:
    core = _open[-1]() if _open else None
    if core is None:
        raise UserError(
            f"perdure.{call}() goes by the process's session, and there is none: make it first with "
            f"session = perdure.Session.from_env()"
        )
    return core
