"""Whether the ranks of a run have equal shares of a global batch, and what to say where they have not.

All wait in each step for whoever has most. A size that divides the batch costs nothing more, and nobody but the loader
knows the batch: so it is the loader that says so. Pure.
"""

from __future__ import annotations

from math import isqrt
from typing import Final

SHOWN: Final = 3
"""So many numbers of ranks are named on each side of the one that there is."""


def why_uneven(loader: str, batch: int, world: int) -> str:
    """Which shares so many ranks have, and which numbers of ranks would have equal ones; "" where these have."""
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
    """That the job's sizes were chosen for another batch, "" where they suit this one."""
    if declared is None or batch % declared == 0:
        return ""
    return (
        f"{loader}: its global batch has {batch} samples, and the sizes of the job are those for "
        f"elastic.globalBatchSize {declared}: give {batch} there, or batch_size={declared} here; with several loaders, "
        f"a number there by which the batch of each can be divided"
    )


def near(batch: int, world: int) -> tuple[int, ...]:
    """The numbers by which the batch can be divided that are nearest to this one on each side, ascending."""
    small = [number for number in range(1, isqrt(batch) + 1) if batch % number == 0]
    all_of_them = sorted({*small, *(batch // number for number in small)})
    below = [number for number in all_of_them if number < world]
    above = [number for number in all_of_them if number > world]
    return (*below[-SHOWN:], *above[:SHOWN])
