"""Between two attempts at a larger run the one that is on rests: when it is tried again, and what is forgotten then."""

from __future__ import annotations

from perdure_operator.decide.draft import Draft
from perdure_operator.decide.facts import size_of, wanted_size
from perdure_operator.decide.growth import rests_until


def back_off_growth(draft: Draft) -> Draft:
    """Look again when the pause is over; a run of the wanted size has none."""
    current = draft.current
    if current is None or draft.status.growth is None:
        return draft
    if until := rests_until(draft, current):
        return draft.wake(until)
    fulfilled = draft.snapshot.spec.elastic is None or size_of(current.plan) == wanted_size(draft.snapshot)
    return draft.update(growth=None) if fulfilled else draft
