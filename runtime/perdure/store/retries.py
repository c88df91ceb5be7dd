"""Whether a piece of a large transfer is tried again, and after how long.

A busy server (5xx, 429) and a connection that breaks cost a part of an upload, its end, or the rest of a range that is
read, and not the whole save or restore. A server that is not there, or that does not answer in time, is left to the
caller, who alone knows how long to try. Used by perdure.store.s3.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    IncompleteReadError,
    ResponseStreamingError,
)

from perdure.store import draws, refusals
from perdure.store.clients import code_and_status

WAITS: Final = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each further try of a piece, at most; botocore has tried twice before each."""
T = TypeVar("T")

_BROKEN: Final = (ConnectionClosedError, IncompleteReadError, ResponseStreamingError)


def persist(act: Callable[[], T]) -> T:
    """What it returns, after as many tries as it takes. Raises the error of the last."""
    retries = Retries()
    while True:
        try:
            return act()
        except (ClientError, BotoCoreError) as error:
            if not retries.waited(error):
                raise


class Retries:
    """Of one piece."""

    def __init__(self) -> None:
        self._waits = iter(WAITS)

    def waited(self, error: Exception, *, moved: bool = False) -> bool:
        """Whether there is another try, before which this has waited. Once something has `moved`, tries begin anew."""
        if moved:
            self._waits = iter(WAITS)
        seconds = next(self._waits, None) if passes(error) else None
        if seconds is None:
            return False
        time.sleep(draws.OWN.uniform(0.5, 1.0) * seconds)
        return True


def passes(error: Exception) -> bool:
    """Whether the same call may soon succeed: the server is busy, or the connection broke."""
    if isinstance(error, ClientError):
        code, status = code_and_status(error)
        return status == 429 or refusals.read(code, status) is refusals.TROUBLE
    return isinstance(error, _BROKEN)
