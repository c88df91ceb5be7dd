"""Runs independent calls in batches of bounded size.

Called by `read.observe`; `write.order` makes its batches as large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE: Final = 16
"""Concurrent calls: a thousand members are read or written within seconds, and other jobs still get answers."""


async def gather_in_batches(call: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """The results in the order of `items`. Raises the first error once its batch has ended.

    After an error no more calls start: a silent server would cost a timeout per batch.
    """
    answers = list[R]()
    for first in range(0, len(items), AT_ONCE):
        batch = await asyncio.gather(*(call(one) for one in items[first : first + AT_ONCE]), return_exceptions=True)
        for answer in batch:
            if isinstance(answer, BaseException):
                raise answer
            answers.append(answer)
    return answers
