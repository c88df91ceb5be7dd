"""What a script reports of its training: `perdure.report` and `perdure.report_every`.

Reported values go to a line of rank 0, to the trace and to the `reported` hooks. The main thread calls the script's
functions at its steps and polls, so they may look at everything it has; and once more when this process has done its
part, however that ends. These functions are no part of the training: random numbers that they draw do not count, and a
failure is only reported. Owned by the session's Run.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from perdure.errors import UserError
from perdure.loop.hooks import called, name_of
from perdure.state import rng

log: Final = logging.getLogger("perdure")

Value = bool | int | float | str | None
ReportFunction = Callable[[], Mapping[str, Any] | None]


def read_values(values: Mapping[str, Any]) -> dict[str, Value]:
    """The values of one report, as plain ones. UserError for values that cannot be reported."""
    if not values:
        raise UserError("report(): nothing is given: name what is reported, as in perdure.report(session, loss=loss)")
    return {name: _plain(name, value) for name, value in values.items()}


def _plain(name: str, value: Any) -> Value:
    """A tensor or an array of one element counts as a number."""
    if type(name) is not str:
        raise UserError(f"report: {name!r} is no name of a value: give a string")
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "size", None) is not None:
        with contextlib.suppress(RuntimeError, ValueError):  # of several elements
            value = item()
    if not isinstance(value, bool | int | float | str | None):
        raise UserError(
            f"report({name}=...): a {type(value).__name__} is nothing to report: give a number, a string, or a tensor "
            f"of one element"
        )
    return value


class Reports:
    """The timed report functions of one session."""

    def __init__(self, tell: Callable[[Mapping[str, Any]], None], now: Callable[[], float] = time.monotonic) -> None:
        """`tell` reports values."""
        self._tell = tell
        self._now = now
        self._every: list[tuple[float, ReportFunction]] = []
        self._next: list[float] = []
        self._ended = False

    def add(self, seconds: float, report: ReportFunction) -> None:
        """Adds a function that is called every `seconds` seconds. UserError for a bad argument."""
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise UserError(f"report_every({seconds!r}, ...): give seconds, more than 0")
        if not callable(report):
            raise UserError(
                f"report_every: a {type(report).__name__} cannot be called: give a function without arguments"
            )
        self._every.append((seconds, report))
        self._next.append(self._now() + seconds)

    def call_due(self) -> None:
        """Calls the functions that are due. Raises an error that is not their fault, such as a lost peer."""
        if not self._every or (now := self._now()) < min(self._next):
            return
        for number, (seconds, report) in enumerate(self._every):
            if now >= self._next[number]:
                self._next[number] = now + seconds
                called(f"report_every({seconds:g}, {name_of(report)})", partial(self._report, report))

    def end(self) -> None:
        """Calls all of them for the last time. Raises nothing."""
        if self._ended:
            return
        self._ended = True
        for _, report in self._every:
            try:
                self._report(report)
            except (Exception, SystemExit):
                log.exception("the last call of report_every's %s failed", name_of(report))

    def _report(self, report: ReportFunction) -> None:
        with rng.untouched():
            values = report()
        if values is not None and not isinstance(values, Mapping):
            raise UserError(
                f"report_every: {name_of(report)} gives a {type(values).__name__}: let it give a mapping, or None"
            )
        if values:
            self._tell(values)
