"""Lists of decisions: those that a script gives, to repeat another run, and those that a training has made.

The second is part of each checkpoint. `Loader.decisions` of an adaptive loader is what a script writes to a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from perdure.errors import UserError
from perdure.loop.adapting.decision import BatchDecision, read_decision

STATE: Final = "decisions"
"""The name of the value in a checkpoint."""


class DecisionHistory:
    """The decisions of this training, of all its runs."""

    def __init__(self) -> None:
        self.made: tuple[BatchDecision, ...] = ()

    def add(self, decision: BatchDecision) -> None:
        """A decision counts from now on."""
        self.made = (*self.made, decision)

    def state_dict(self) -> dict[str, Any]:
        """Nothing if there are none, as in each training that does not adapt."""
        return {STATE: [one.write() for one in self.made]} if self.made else {}

    def load_state_dict(self, saved: Mapping[str, Any], /) -> None:
        """Restores them."""
        self.made = tuple(read_decision(one, "a decision in the checkpoint") for one in saved.get(STATE, ()))


def read_decisions(given: str | Path | Sequence[Mapping[str, Any]]) -> tuple[BatchDecision, ...]:
    """The decisions in a JSON file, or in a list, in the order in which they count.

    UserError for a file that cannot be read, an empty list, or decisions that are none or in another order.
    """
    values, what = given, "Adapt(decisions=[...])"
    if isinstance(given, str | Path):
        what = f"Adapt(decisions={str(given)!r})"
        try:
            values = json.loads(Path(given).read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"{what}: the file cannot be read: {error}") from None
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise UserError(f"{what}: give a list of decisions, such as the `decisions` of an earlier run's loader")
    decisions = tuple(read_decision(one, f"{what}, number {number}") for number, one in enumerate(values))
    for number, (one, other) in enumerate(pairwise(decisions), start=1):
        if other.place < one.place:
            raise UserError(f"{what}, number {number}: it counts from {other.place} on, before the one above it")
    return decisions
