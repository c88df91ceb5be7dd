"""Finds out what the end of a process means, and reports it: one Exiting on the agent's pipe, before anything is
undone.

An exception that reaches the top of the script is classified once: a lost peer (gloo raises RuntimeError, also in the
user's backward pass), a newer writer, a store failure, a user's mistake, or an error of the script. Only the last two
are faults of this process. Used by the session; `Reporter` is its only way to the agent. perdure.loop.leaving ends the
process.
"""

from __future__ import annotations

import contextlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, NoReturn

import torch.distributed as dist

from perdure.errors import (
    Fenced,
    HandoverRefused,
    LogLost,
    PeerLost,
    PerdureError,
    RootTakenOver,
    StorageError,
    UserError,
)
from perdure.group.world import NO_MESSAGE
from perdure.loop.telemetry.events import Events, Sink
from perdure.loop.telemetry.sinks import AgentPipe
from perdure.wire import CommitRef, ErrorKind, ErrorName, ExitKind, Failure
from perdure.wire.channel import Exiting
from perdure.wire.truncation import shortened

TAIL_CHARACTERS: Final = 3000
STOPPED_EARLY: Final = "asked to leave before the first step was done: rank 0 has left, and nothing is lost"

NO_GROUP: Final = (
    "Default process group has not been initialized",
    "error_on_collective",
    "Backend fake ",
    NO_MESSAGE,
)
"""torch's messages for what follows, and ours for a message over a placeholder."""
NO_GROUP_YET: Final = (
    "this process joins a living run, and has no process group before its first batch: what needs one (a "
    "DistributedDataParallel, new_group, a device mesh, a collective or a message of the script's own) goes after the "
    "first batch; wrap the model with session.wrap, or set PERDURE_LIVE=no to have members replaced in place"
)
_PEER_GONE: Final = re.compile(
    r"gloo/transport|Connection (closed|reset) by peer|Broken pipe.*gloo|NCCL (communicator|error)|ncclRemoteError"
    r"|Timed out waiting \d+ms for (recv|send|unbound)|Application timeout caused pair closure"
)
"""Messages of collectives that lost another rank: their exceptions have no class for it."""


_FENCED: Final = {RootTakenOver: ExitKind.ROOT_TAKEN_OVER, HandoverRefused: ExitKind.HANDOVER_FAILED}


def classify(error: BaseException) -> tuple[ExitKind, Failure | None]:
    """The outcome of an uncaught exception."""
    causes = list(_causes(error))
    fenced = next((cause for cause in causes if isinstance(cause, Fenced)), None)
    if fenced:
        kind = next((kind for error, kind in _FENCED.items() if isinstance(fenced, error)), ExitKind.FENCED)
        return kind, Failure(ErrorKind.EXCEPTION, type(fenced).__name__, str(fenced))
    if any(_is_lost_peer(cause) for cause in causes):
        return ExitKind.PEER_LOST, None
    if isinstance(error, StorageError):
        return ExitKind.FAILED, Failure(ErrorKind.STORAGE, type(error).__name__, str(error))
    if isinstance(error, PerdureError):
        return ExitKind.FAILED, Failure(ErrorKind.EXCEPTION, type(error).__name__, str(error))
    if isinstance(error, SystemExit):
        return ExitKind.FAILED, Failure(ErrorKind.EXIT, str(exit_status(error)), f"the script has exited: {error}")
    lines = "".join(traceback.format_exception(error))
    return ExitKind.FAILED, Failure(ErrorKind.EXCEPTION, _name(type(error)), shortened(lines, TAIL_CHARACTERS))


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


def _is_lost_peer(error: BaseException) -> bool:
    if isinstance(error, PeerLost | dist.DistNetworkError):
        return True
    return isinstance(error, RuntimeError) and bool(_PEER_GONE.search(str(error)))


def explained(error: BaseException) -> BaseException:
    """The error of a process that was to join a living run, or an explanation that torch could not give."""
    if isinstance(error, ValueError | RuntimeError) and any(words in str(error) for words in NO_GROUP):
        return UserError(NO_GROUP_YET)
    return error


class Reporter(Events):
    """The event stream of this process. The agent is the first sink, if there is an agent."""

    def __init__(self, fd: int | None, *others: Sink) -> None:
        super().__init__(AgentPipe(fd), *others)


def exit_status(error: BaseException | None) -> int:
    """The exit status of an interpreter that ends by this exception; 0 without one."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        return 1
    return error.code if isinstance(error.code, int) else int(error.code is not None)


def tell_error(
    reporter: Reporter, state: Callable[[], Exiting], error: BaseException, asked_early: Callable[[], bool]
) -> ExitKind:
    """Reports that the script has failed, and returns the outcome. `state` gives everything else that is reported.

    `asked_early`: whether the run was asked to leave before its first step. Rank 0 then leaves at once, so its loss is
    no failure.
    """
    now = state()
    outcome, failure = classify(error)
    if outcome is ExitKind.PEER_LOST and asked_early():
        outcome = ExitKind.STOPPED
    if now.outcome is ExitKind.HANDOVER_FAILED and outcome is ExitKind.FAILED:
        outcome = now.outcome
    opened = max(now.opened, getattr(error, "opened", 0))
    commit = CommitRef(*error.found) if isinstance(error, LogLost) and error.found else now.commit
    reporter.tell(replace(now, outcome=outcome, error=failure, opened=opened, commit=commit))
    return outcome


def shown(error: BaseException, otherwise: Callable[[], object]) -> None:
    """Prints one message without a traceback for an error that the user can fix. Shows other errors as before."""
    if isinstance(error, PerdureError):
        print(f"perdure: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    else:
        otherwise()


@contextlib.contextmanager
def shown_in_words() -> Iterator[None]:
    """Errors here, before there is an ExitWatch, are printed as one message too if they end the script."""
    try:
        yield
    except PerdureError:
        hook = sys.excepthook
        sys.excepthook = lambda kind, error, trace: shown(error, lambda: hook(kind, error, trace))
        raise


class ExitWatch:
    """Reports an uncaught exception, and knows the interpreter's exit status, as far as it can be known.

    An error that the user can fix is shown as one message without a traceback. `sys.exit` is watched, because an exit
    handler does not get the status.
    """

    def __init__(
        self,
        tell: Callable[[BaseException], ExitKind],
        explain: Callable[[BaseException], BaseException] = lambda error: error,
    ) -> None:
        """`tell` reports an error and returns its outcome. `explain` gives the error that is reported and shown."""
        self._tell, self._explain = tell, explain
        self.status = 0
        """Not 0 if the script has failed."""
        self.exited = False
        """True if the script has called sys.exit."""
        self._hook, self._exit = sys.excepthook, sys.exit
        self._own_hook, self._own_exit = self._uncaught, self._exiting
        sys.excepthook, sys.exit = self._own_hook, self._own_exit

    def stop(self) -> None:
        """Restores the earlier hooks, unless they were replaced since."""
        if sys.excepthook is self._own_hook:
            sys.excepthook = self._hook
        if sys.exit is self._own_exit:
            sys.exit = self._exit

    def tell_last_error(self) -> None:
        """Reports, at the interpreter's end, an uncaught exception that a hook of the script has not passed on."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            self.status = 1
            self._tell(self._explain(error))

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self.status = 1
        error = self._explain(error)
        if self._tell(error) is ExitKind.STOPPED:
            print(f"perdure: {STOPPED_EARLY}", file=sys.stderr, flush=True)
        else:
            shown(error, lambda: self._hook(kind, error, trace))

    def _exiting(self, code: Any = None, /) -> NoReturn:
        error = SystemExit(code)
        self.status, self.exited = exit_status(error), True
        raise error
