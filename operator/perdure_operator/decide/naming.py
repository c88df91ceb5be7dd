"""New names for members: their numbers go to status before any pod exists, and never come back."""

from __future__ import annotations

from perdure_operator.api import names
from perdure_operator.decide.draft import Draft
from perdure_operator.decide.facts import own


def new_names(draft: Draft, count: int) -> tuple[Draft, tuple[str, ...]]:
    """So many names that were never used, and the draft that has given them away."""
    snapshot = draft.snapshot
    first = max([draft.status.next_member, *(names.member_number(name) + 1 for name in own(snapshot))])
    new = tuple(names.member(snapshot.name, snapshot.uid, first + index) for index in range(count))
    return draft.update(next_member=first + len(new)), new
