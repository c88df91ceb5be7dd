"""What a script wants done at certain moments of its training: `session.on(name, fn)`.

A hook is the script's own code, called by the session between two of its own acts. One that fails where training can
go on without it is reported with its traceback, and training goes on; in `init`, `collect` and `exit` it ends the
process like any error of the script. A peer that is gone, or a newer writer, is no fault of the hook it is met in.

Owned by the session, which knows when each name's moment is; nothing here knows that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeVar

from perdure.errors import UserError
from perdure.loop.reporting import classify
from perdure.wire import ExitKind

log: Final = logging.getLogger("perdure")

F = TypeVar("F", bound=Callable[..., Any])


class HookName(StrEnum):
    """The moments a hook can be given for, and what it is called with."""

    INIT = "init"
    """(): nothing is trained yet; not on a resume."""
    RESUMED = "resumed"
    """(commit): everything registered is where this commit left it."""
    EPOCH = "epoch"
    """(epoch): the epoch's body is done; stop conditions and the epoch's commit come next."""
    COMMITTED = "committed"
    """(commit): this commit is in the log; a perdure.checkpoint.state.NewCommit tells who made it, in what time."""
    LEAVING = "leaving"
    """(cause): the exit's commit is in the log, and the time it had is not over."""
    COLLECT = "collect"
    """(tensors): the final commit is in the log, and the script is at its end."""
    EXIT = "exit"
    """(): after `collect`; what comes next is that the job is completed."""
    RANKS = "ranks"
    """(): the run has other ranks than the one whose work it goes on with."""
    REPORTED = "reported"
    """(report): the script has reported something; a perdure.loop.telemetry.events.Reported."""


FATAL: Final = frozenset({HookName.INIT, HookName.COLLECT, HookName.EXIT})
"""Where the result would be wrong or missing without the hook."""
BESIDE: Final = frozenset(HookName) - {HookName.EPOCH, HookName.COLLECT, HookName.EXIT}
"""Those that a resumed run does not call where this one does: the script's code around them runs again without them."""


class Hooks:
    """The hooks of one session, by name, in the order in which they were given."""

    def __init__(self, beside: Callable[[HookName], AbstractContextManager[None]] = lambda _: nullcontext()) -> None:
        """`beside` is what those of BESIDE run in."""
        self._beside = beside
        self._hooks: dict[HookName, list[Callable[..., Any]]] = {name: [] for name in HookName}

    def add(self, name: str, hook: F) -> F:
        """One more hook. UserError if there is no such name, or `hook` cannot be called."""
        known = read_name(name)
        if not callable(hook):
            raise UserError(f"on({name!r}): a {type(hook).__name__} cannot be called: give a function")
        self._hooks[known].append(hook)
        return hook

    def has(self, name: HookName) -> bool:
        """Whether anybody waits for this moment."""
        return bool(self._hooks[name])

    def names(self, name: HookName) -> list[str]:
        """What those of this moment are called."""
        return [name_of(hook) for hook in self._hooks[name]]

    def run(self, name: HookName, *arguments: Any) -> None:
        """Calls the hooks of this name. Raises what a hook has raised where it is fatal, or not the hook's fault."""
        with self._beside(name) if name in BESIDE else nullcontext():
            for hook in self._hooks[name]:
                called(f"the hook {name.value!r} ({name_of(hook)})", partial(hook, *arguments), fatal=name in FATAL)


def called(what: str, act: Callable[[], object], *, fatal: bool = False) -> None:
    """Calls a function of the script's. Raises what it has raised where that is `fatal`, or not its fault."""
    try:
        act()
    except Exception as error:
        if fatal or classify(error)[0] is not ExitKind.FAILED:
            error.add_note(f"in {what}")
            raise
        log.exception("%s failed, training goes on", what)


def read_name(name: str) -> HookName:
    """The moment that `name` means. UserError, with the list, if it means none."""
    if name not in set(HookName):
        raise UserError(f"on({name!r}): there is no such hook: take one of {', '.join(HookName)}")
    return HookName(name)


def name_of(hook: Callable[..., Any]) -> str:
    """What a function is called where it was written."""
    return getattr(hook, "__qualname__", type(hook).__qualname__)
