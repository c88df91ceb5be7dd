"""The script's functions for certain moments of its training: `session.on(name, fn)`.

The session calls a hook, the script's own code, between two of its own acts. If training can continue without a hook,
its failure is reported with the traceback, and training continues. In `init`, `collect` and `exit` a failure ends the
process like any error of the script. A lost peer, or a newer writer, is not the fault of the hook in which it appears.

Owned by the session, which knows the moments; this module does not.
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
    """The moments for hooks, and what hooks are called with."""

    INIT = "init"
    """(): nothing is trained yet; not on a resume."""
    RESUMED = "resumed"
    """(commit): everything registered is restored from this commit."""
    EPOCH = "epoch"
    """(epoch): the epoch's body is done; stop conditions and the epoch's commit come next."""
    COMMITTED = "committed"
    """(commit): this commit is in the log; a perdure.checkpoint.state.NewCommit says who made it, and how long it
    took."""
    LEAVING = "leaving"
    """(cause): the exit's commit is in the log, and the time to exit is not over."""
    COLLECT = "collect"
    """(tensors): the final commit is in the log, and the script is at its end."""
    EXIT = "exit"
    """(): after `collect`, right before the job is completed."""
    RANKS = "ranks"
    """(): the run has another number of ranks than the run that it continues."""
    REPORTED = "reported"
    """(report): the script has reported something; a perdure.loop.telemetry.events.Reported."""


FATAL: Final = frozenset({HookName.INIT, HookName.COLLECT, HookName.EXIT})
"""Hooks without which the result would be wrong or missing."""
BESIDE: Final = frozenset(HookName) - {HookName.EPOCH, HookName.COLLECT, HookName.EXIT}
"""Hooks that a resumed run calls elsewhere, so surrounding script code may run again without them."""


class Hooks:
    """The hooks of one session, by name, in the order in which they were added."""

    def __init__(self, beside: Callable[[HookName], AbstractContextManager[None]] = lambda _: nullcontext()) -> None:
        """`beside` is the context in which hooks in BESIDE run."""
        self._beside = beside
        self._hooks: dict[HookName, list[Callable[..., Any]]] = {name: [] for name in HookName}

    def add(self, name: str, hook: F) -> F:
        """Adds a hook. UserError if there is no such name, or `hook` cannot be called."""
        known = read_name(name)
        if not callable(hook):
            raise UserError(f"on({name!r}): a {type(hook).__name__} cannot be called: give a function")
        self._hooks[known].append(hook)
        return hook

    def has(self, name: HookName) -> bool:
        """Whether there is a hook for this moment."""
        return bool(self._hooks[name])

    def names(self, name: HookName) -> list[str]:
        """The names of the functions for this moment."""
        return [name_of(hook) for hook in self._hooks[name]]

    def run(self, name: HookName, *arguments: Any) -> None:
        """Calls the hooks of this name. Raises the error of a fatal hook, and errors that are not the hook's fault."""
        with self._beside(name) if name in BESIDE else nullcontext():
            for hook in self._hooks[name]:
                called(f"the hook {name.value!r} ({name_of(hook)})", partial(hook, *arguments), fatal=name in FATAL)


def called(what: str, act: Callable[[], object], *, fatal: bool = False) -> None:
    """Calls a function of the script. Raises its error if that is `fatal`, or not its fault."""
    try:
        act()
    except Exception as error:
        if fatal or classify(error)[0] is not ExitKind.FAILED:
            error.add_note(f"in {what}")
            raise
        log.exception("%s failed, training goes on", what)


def read_name(name: str) -> HookName:
    """The moment called `name`. UserError, with a list, if there is none."""
    if name not in set(HookName):
        raise UserError(f"on({name!r}): there is no such hook: take one of {', '.join(HookName)}")
    return HookName(name)


def name_of(hook: Callable[..., Any]) -> str:
    """The name under which a function was defined."""
    return getattr(hook, "__qualname__", type(hook).__qualname__)
