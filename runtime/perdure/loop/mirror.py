"""When ranks mirror their parts of a sharded model, and in which slot each snapshot goes: a pure machine.

Without replicas no other rank holds a rank's part, so a death would cost the steps since the newest commit. So each
rank keeps a snapshot of its part, and sends it to a buddy in another pod. After a death the next run begins at the
newest snapshot of which it finds all parts (perdure.log.images).

Owner and buddy have two slots each. The next snapshot goes to the slot of the one before the last, and only once all
ranks know that the last one lies in two pods: otherwise a death while it is overwritten would leave no whole one. They
agree on that before they count the step behind which the next snapshot is due. So with a snapshot after every step a
death costs one finished step at most, and with one after every N steps 2 N - 1.

perdure.loop.mirroring carries this out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

MOST_PAUSE: Final = 256
"""Snapshots that are left out after failures in a row, at most."""


@dataclass(frozen=True)
class MirrorWord:
    """What one rank says when the ranks agree."""

    whole: int
    """The number of the newest snapshot that it knows to be whole; 0 for none."""
    delivered: bool
    """Whether its part of the next one lies in its own slot and in its buddy's."""


@dataclass(frozen=True)
class MirrorState:
    """What one rank knows. `taken_at` and `under_way` are equal on all ranks."""

    every: int
    """Steps from one snapshot to the next."""
    whole: int = 0
    """The number of the newest snapshot of which each part lies in two pods, as all ranks know; 0 for none."""
    taken_at: int | None = None
    """The steps that were done at the last snapshot; None before the first of these ranks."""
    under_way: bool = False
    """Whether that snapshot is not agreed on yet."""
    failures: int = 0
    """How many have failed in a row."""
    bounds: bool = False
    """Whether a death of one of these ranks costs `most_lost` finished steps at most."""

    @property
    def most_lost(self) -> int:
        """The finished steps that a death costs at most once the mirror is whole."""
        return 2 * self.every - 1

    @property
    def slot(self) -> int:
        """Where the next snapshot goes: 0 or 1."""
        return (self.whole + 1) % 2


def is_due(state: MirrorState, step: int) -> bool:
    """Whether ranks take a snapshot where `step` steps are done."""
    return not state.under_way and _has_come(state, step)


def must_agree(state: MirrorState, step: int) -> bool:
    """Whether ranks agree on the last snapshot before they count step `step`."""
    return state.under_way and _has_come(state, step)


def taken(state: MirrorState, step: int) -> MirrorState:
    """All ranks have taken a snapshot, or tried to."""
    return replace(state, taken_at=step, under_way=True)


def agreed(state: MirrorState, words: Sequence[MirrorWord]) -> MirrorState:
    """What all ranks have said. A new member knows of no snapshot yet.

    If a part did not reach its buddy, that one may be dead, and the snapshots that did are of use: the next one goes to
    their slot only after as many steps again, which ranks that have lost one do not finish. After more failures in a
    row it takes twice as many each time.
    """
    newest = max(word.whole for word in words)
    if all(word.delivered and word.whole == newest for word in words):
        return replace(state, whole=newest + 1, under_way=False, failures=0, bounds=True)
    pause = state.every * min(2**state.failures, MOST_PAUSE)
    later = None if state.taken_at is None else state.taken_at + pause
    failures = state.failures + 1
    return replace(state, whole=newest, taken_at=later, under_way=False, failures=failures, bounds=False)


def renewed(state: MirrorState) -> MirrorState:
    """The ranks have changed: none of their parts is mirrored."""
    return replace(state, taken_at=None, under_way=False, failures=0, bounds=False)


def _has_come(state: MirrorState, step: int) -> bool:
    return state.taken_at is None or step - state.taken_at >= state.every
