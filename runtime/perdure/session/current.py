"""The epochs of the process's session, as functions of the package: for scripts that have no session to pass on.

AdaptDL has them, and scripts that were written for it keep their loops. A process has one session at a time, the one
that was made last. `perdure.remaining_epochs_until`, `current_epoch` and `finished_epochs` are these functions.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Protocol

from perdure.errors import UserError


class Session(Protocol):
    """As much of a session as is asked here."""

    @property
    def epoch(self) -> int | None:
        """The number of the epoch of the loop that is on."""
        ...

    @property
    def finished_epochs(self) -> int:
        """Of all loops."""
        ...

    def remaining_epochs_until(self, count: int) -> Iterator[int]:
        """Those that are left."""
        ...


_sessions: list[weakref.ref[Session]] = []
"""Those that are open, in the order in which they were made."""


def remaining_epochs_until(count: int) -> Iterator[int]:
    """The epochs that are left until `count` are finished, of all loops and runs together, by their numbers from 0.

    See `Session.remaining_epochs_until`. UserError without a session, too.
    """
    return _session("remaining_epochs_until").remaining_epochs_until(count)


def current_epoch() -> int | None:
    """The number of the epoch that is on, from 0, of all loops and runs together; None outside of the loops.

    UserError without a session.
    """
    session = _session("current_epoch")
    return None if session.epoch is None else session.finished_epochs


def finished_epochs() -> int:
    """How many epochs are finished, of all loops and runs together; within one, its number.

    It is 0 before anything is restored, by the first loop or by `Session.restore`. UserError without a session.
    """
    return _session("finished_epochs").finished_epochs


def opened(session: Session) -> None:
    """This is the process's session from here on."""
    _sessions.append(weakref.ref(session))


def closed(session: Session) -> None:
    """It is no more."""
    _sessions[:] = [one for one in _sessions if one() not in (None, session)]


def _session(call: str) -> Session:
    session = _sessions[-1]() if _sessions else None
    if session is None:
        raise UserError(
            f"perdure.{call}() goes by the process's session, and there is none: make it first, by "
            f"session = perdure.Session.from_env()"
        )
    return session
