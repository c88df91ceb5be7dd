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
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, NoReturn

import torch.distributed as dist

from perdure.errors import PeerLost, PerdureError, UserError
from perdure.group.world import NO_MESSAGE
from perdure.loop.failures import ended_by, exit_status, outcome_of
from perdure.loop.telemetry.events import Events, Sink
from perdure.loop.telemetry.sinks import AgentPipe
from perdure.wire import ExitKind, Failure
from perdure.wire.channel import Exiting

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


def classify(error: BaseException) -> tuple[ExitKind, Failure | None]:
    """The outcome of an uncaught exception."""
    return outcome_of(error, _is_lost_peer)


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


def tell_error(
    reporter: Reporter, state: Callable[[], Exiting], error: BaseException, asked_early: Callable[[], bool]
) -> ExitKind:
    """Reports that the script has failed, and returns the outcome. `state` and `asked_early`: see `ended_by`."""
    ending = ended_by(error, classify(error), state(), asked_early)
    reporter.tell(ending)
    return ending.outcome


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
