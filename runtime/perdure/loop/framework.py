"""A framework that drives the loop in the script's place, as its adapter describes it to the session.

Holds no rules: the live hand-over asks the adapter whether the framework's ranks can change, and tells it
when they have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Framework:
    """The framework of one process."""

    name: str
    obstacle: Callable[[], str]
    """Why its ranks cannot change while it trains; "" if they can. Called from any thread."""
    renew: Callable[[], None] = _nothing
    """Called on each rank of the newer run, right after its ranks have changed live."""
    met_in_place: Callable[[], None] = _nothing
    """Called on a newcomer whose run begins in place, once its ranks are connected."""
