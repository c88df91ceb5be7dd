"""A history for people: what was done to the cluster, the operator's words and actions, the members' actions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from tests.simulation.history import Result
from tests.simulation.world import Fact


def told(result: Result, *, steps: bool = False) -> Iterator[str]:
    """One line a fact; training steps only where they are asked for."""
    for fact in result.facts:
        if steps or fact.what != "step":
            yield _line(fact)
    yield f"{result.seconds:.0f} virtual seconds, {result.rounds} status writes, {result.events} events"
    yield f"faults: {', '.join(result.planned)}"
    yield f"broken: {result.violation}" if result.violation else "every invariant held"
    yield f"digest: {digest(result)}"


def digest(result: Result) -> str:
    """The same for the same history, wherever and in whatever order it was played.

    The operator's log lines are left out: only a replay keeps them, and some are logged once in a process.
    """
    whole = hashlib.sha256(f"{result.seconds!r} {result.rounds} {result.events}".encode())
    for fact in result.facts:
        if not fact.who.startswith("log "):
            whole.update(_line(fact).encode())
    return whole.hexdigest()[:16]


def _line(fact: Fact) -> str:
    if fact.what == "evicted":
        return f"{fact.at:9.3f} {fact.who:<22} evicted {fact.facts['pod']}"
    return str(fact)
