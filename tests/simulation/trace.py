"""A history for people: what was done to the cluster, what the operator said and did, what the members did."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.history import Result


def told(result: Result, *, steps: bool = False) -> Iterator[str]:
    """One line a fact; training steps only where they are asked for."""
    for fact in result.facts:
        if fact.what == "evicted":
            yield f"{fact.at:9.3f} {fact.who:<22} evicted {fact.facts['pod']}"
        elif steps or fact.what != "step":
            yield str(fact)
    yield f"{result.seconds:.0f} virtual seconds, {result.rounds} status writes, {result.events} events"
    yield f"faults: {', '.join(result.planned)}"
    yield f"broken: {result.violation}" if result.violation else "every invariant held"
