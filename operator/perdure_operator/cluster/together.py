"""Calls that rest on nothing but each other's company: some at once, for a whole pool of nodes may be asked for.

Called by `read.observe`; `write.order` makes its batches as large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE: Final = 16
"""Calls under way at once: a thousand members are told, or looked at, within seconds, and other jobs still get an
answer."""


async def each(ask: Callable[[T], Awaitable[R]], those: Sequence[T]) -> list[R]:
    """The answers in the order of those that are asked for; raises the first error once nothing is under way.

    No more are asked after an error: a server that does not answer would be waited for as often.
    """
    answers = list[R]()
    for first in range(0, len(those), AT_ONCE):
        batch = await asyncio.gather(*(ask(one) for one in those[first : first + AT_ONCE]), return_exceptions=True)
        for answer in batch:
            if isinstance(answer, BaseException):
                raise answer
            answers.append(answer)
    return answers
