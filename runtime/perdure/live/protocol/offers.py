"""Which offers an old rank takes. Pure; called by the shell, which looks for them while it trains."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.wire import Handover, Leave, Train


@dataclass(frozen=True)
class ReadOffer:
    """What an offer of a hand-over means."""

    block: Handover
    begins: bool
    """Whether an attempt begins: it is for the run that trains here."""
    later: bool
    """Whether it is for the run of the attempt that is on: it is looked at again if that comes to go."""


def read_offer(offer: Train | Leave | None, *, run: int, tried: int, attempted: int) -> ReadOffer | None:
    """What the offer means where `run` trains; None if nothing.

    `tried` is the highest run for which this rank has begun an attempt, and `attempted` that of the attempt that is on.
    """
    if offer is None or offer.handover is None or offer.run <= max(tried, run):
        return None
    block = offer.handover
    return ReadOffer(block, begins=block.run == run, later=block.run == attempted)
