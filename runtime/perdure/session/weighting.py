"""Weights a rank's mean loss by its number of items, such as tokens, pixels or labels that are not ignored.

Ranks may have different numbers of items, and a plain average over ranks ignores that. So each rank's mean is weighted
by its share of all items of the step. Called by `Session.weighted`; each call exchanges the ranks' numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from perdure.console import warn
from perdure.errors import UserError
from perdure.group.collectives import on_all
from perdure.group.peers import Peers
from perdure.loop.run import Run
from perdure.session.acting import check_items


def weighted(run: Run, loss: Tensor, n: Any, of: Any) -> Tensor:
    """See `Session.weighted`."""
    if run.measurements:
        run.measurements.weighted()
    if run.part_gradients:
        run.part_gradients.weighted()
    if n is not None:
        if of is None:
            check_items(run)
        return weigh(loss, n, of, run.peers)
    if of is not None:
        raise UserError("weighted(loss, of=...): also give n, the number of items that this loss is the mean of")
    if names := run.progress.unlike_shares():
        warn(
            f"weighted(loss) uses this rank's share of the last batch, and this step has batches of "
            f"{' and '.join(names)} of which it has unlike shares: give the number of items of each loss: "
            f"weighted(loss, n=...)"
        )
    return run.progress.weighted(_checked(loss))


def weigh(loss: Tensor, n: Any, of: Any, peers: Peers) -> Tensor:
    """`loss` times this rank's weight. Collective; UserError on all ranks if one of them gives a wrong number."""

    def counted() -> tuple[tuple[float, float], tuple[float, float]]:
        _checked(loss)
        counts = _counts(n, of)
        return counts, counts

    own, reported = on_all(peers, "calls weighted(n=...)", counted)
    factor = share(own[0], [whole for _, whole in reported])
    if factor == 1.0:
        return loss
    return loss * factor if factor else torch.nan_to_num(loss) * 0.0


def share(n: float, wholes: Sequence[float]) -> float:
    """The weight of a mean over `n` items in the mean over all ranks. `wholes`: each rank's items of the step."""
    items = math.fsum(wholes)
    return n * len(wholes) / items if items else 0.0


def _checked(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor):
        raise UserError(f"weighted({loss!r}): give the loss as a tensor")
    return loss


def _counts(n: Any, of: Any) -> tuple[float, float]:
    part = _count("n", n)
    whole = part if of is None else _count("of", of)
    if part > whole:
        raise UserError(
            f"weighted(loss, n={part:g}, of={whole:g}): of= is the number of items of this rank in the whole step, "
            f"including those of this loss: it cannot be less than n"
        )
    return part, whole


def _count(name: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise UserError(
            f"weighted(loss, {name}={value!r}): give the number of items that the loss is the mean of, or 0"
        )
    return number
