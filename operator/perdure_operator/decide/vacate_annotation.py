"""The annotation perdure.dev/vacate of a job, by which a person moves its members without a word about any node.

It names pods, which leave, and nodes, on which no member stays or comes as long as they are named. `true` means all the
members that there are when it is seen: whom that means is kept in status, for those made since are to stay.
"""

from __future__ import annotations

from perdure_operator.api.status import Vacating
from perdure_operator.decide.draft import Draft
from perdure_operator.state.vacate_request import moves_all


def note_vacate(draft: Draft) -> Draft:
    """Whom `true` means; taken away it means nobody."""
    if draft.status.finished_at:
        return draft
    if not moves_all(draft.snapshot.vacate):
        return draft.update(vacate=None)
    return draft if draft.status.vacate else draft.update(vacate=Vacating(below=draft.status.next_member))
