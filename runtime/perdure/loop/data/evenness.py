"""Whether the ranks of a run have equal shares of a global batch, and what to report otherwise.

In each step all ranks wait for the one with the largest share. A size that divides the batch costs nothing extra, and
only the loader knows the batch, so the loader reports this. Pure.
"""

from __future__ import annotations

from math import isqrt
from typing import Final

SHOWN: Final = 3
"""How many numbers of ranks are named on each side of the present one."""


def why_uneven(loader: str, batch: int, world: int) -> str:
    """The ranks' shares, and which numbers of ranks would have equal ones; "" if the shares are equal."""
    least, more = divmod(batch, world)
    if not more:
        return ""
    have = f"{more} of {world} ranks {'has' if more == 1 else 'have'} {least + 1}"
    *others, last = map(str, near(batch, world))
    even = f"{', '.join(others)} or {last} ranks have equal shares" if others else f"{last} rank has all of it"
    return (
        f"{loader}: of {batch} samples of a global batch {have}, the others {least}, and in each step all wait for the "
        f"largest share: {even}; elastic.globalBatchSize {batch} gives the job such sizes and no others, elastic.sizes "
        f"names some of them"
    )


def why_another(loader: str, batch: int, declared: int | None) -> str:
    """Says that the job's sizes were chosen for another batch; "" if they suit this one."""
    if declared is None or batch % declared == 0:
        return ""
    return (
        f"{loader}: its global batch has {batch} samples, and the sizes of the job are those for "
        f"elastic.globalBatchSize {declared}: give {batch} there, or batch_size={declared} here; with several loaders, "
        f"a number there by which the batch of each can be divided"
    )


def near(batch: int, world: int) -> tuple[int, ...]:
    """Divisors of the batch that are nearest to this number of ranks on each side, ascending."""
    small = [number for number in range(1, isqrt(batch) + 1) if batch % number == 0]
    all_of_them = sorted({*small, *(batch // number for number in small)})
    below = [number for number in all_of_them if number < world]
    above = [number for number in all_of_them if number > world]
    return (*below[-SHOWN:], *above[:SHOWN])
