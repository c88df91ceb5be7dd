"""What an error that ends a script means. No torch: perdure.loop.reporting knows its errors."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from perdure.errors import Fenced, HandoverRefused, LogLost, PerdureError, RootTakenOver, StorageError
from perdure.wire import CommitRef, ErrorKind, ErrorName, ExitKind, Failure
from perdure.wire.channel import Exiting
from perdure.wire.truncation import shortened

TAIL_CHARACTERS: Final = 3000
_FENCED: Final = {RootTakenOver: ExitKind.ROOT_TAKEN_OVER, HandoverRefused: ExitKind.HANDOVER_FAILED}


def outcome_of(error: BaseException, is_lost_peer: Callable[[BaseException], bool]) -> tuple[ExitKind, Failure | None]:
    """The outcome of an uncaught exception. `is_lost_peer` tells of one error, without its causes."""
    causes = list(_causes(error))
    fenced = next((cause for cause in causes if isinstance(cause, Fenced)), None)
    if fenced:
        kind = next((kind for error, kind in _FENCED.items() if isinstance(fenced, error)), ExitKind.FENCED)
        return kind, Failure(ErrorKind.EXCEPTION, type(fenced).__name__, str(fenced))
    if any(is_lost_peer(cause) for cause in causes):
        return ExitKind.PEER_LOST, None
    if isinstance(error, StorageError):
        return ExitKind.FAILED, Failure(ErrorKind.STORAGE, type(error).__name__, str(error))
    if isinstance(error, PerdureError):
        return ExitKind.FAILED, Failure(ErrorKind.EXCEPTION, type(error).__name__, str(error))
    if isinstance(error, SystemExit):
        return ExitKind.FAILED, Failure(ErrorKind.EXIT, str(exit_status(error)), f"the script has exited: {error}")
    lines = "".join(traceback.format_exception(error))
    return ExitKind.FAILED, Failure(ErrorKind.EXCEPTION, _name(type(error)), shortened(lines, TAIL_CHARACTERS))


def ended_by(
    error: BaseException,
    known: tuple[ExitKind, Failure | None],
    now: Exiting,
    asked_early: Callable[[], bool],
) -> Exiting:
    """What the end of a script by this error, whose outcome is `known`, says. `now` has all else, and the outcome of an
    error of the script's own.

    `asked_early`: whether the run was asked to leave before its first step. Rank 0 then leaves at once, so its loss is
    no failure.
    """
    outcome, failure = known
    if outcome is ExitKind.PEER_LOST and asked_early():
        outcome = ExitKind.STOPPED
    if now.outcome is ExitKind.HANDOVER_FAILED and outcome is ExitKind.FAILED:
        outcome = now.outcome
    opened = max(now.opened, getattr(error, "opened", 0))
    commit = CommitRef(*error.found) if isinstance(error, LogLost) and error.found else now.commit
    return replace(now, outcome=outcome, error=failure, opened=opened, commit=commit)


def exit_status(error: BaseException | None) -> int:
    """The exit status of an interpreter that ends by this exception; 0 without one."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        return 1
    return error.code if isinstance(error.code, int) else int(error.code is not None)


def _name(kind: type[BaseException]) -> str:
    """A script's class with the name of one of ours does not mean the same."""
    name = kind.__name__
    return f"{kind.__module__}.{kind.__qualname__}" if name in set(ErrorName) else name


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)
