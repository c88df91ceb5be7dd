"""The meeting of all ranks before their optimizers step, as one rank sees it, and the loss that it notices there.

Whether ranks meet, and what a rank does with what it hears: perdure.loop.last_step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from perdure.errors import PeerLost
from perdure.group.agreement import Agreement
from perdure.loop.last_step import StepEvent
from perdure.loop.position.progress import ProgressTracker

LOOK_SECONDS: Final = 0.25
"""How often a rank that waits for the others looks whether it still is to wait."""


class Attending(Protocol):
    """What OptimizerMeeting needs of a Run."""

    agreement: Agreement
    progress: ProgressTracker


class OptimizerMeeting:
    """One rank's place in each meeting."""

    def __init__(self, run: Attending) -> None:
        self._run = run
        self.lost: PeerLost | None = None
        """Another rank is lost, and this one finishes its step alone."""
        self._lost_at = 0
        """The steps done by then."""

    def attend(self, waits: Callable[[], bool], *, finishes: bool) -> StepEvent:
        """Comes to the meeting, and waits for the others as long as `waits` says. Returns what it heard; ASKED if it
        waits no more.

        PeerLost if another rank is lost and this one does not finish the step alone. UserError if the ranks are at
        different places.
        """
        agreement = self._run.agreement
        agreement.waits = "waits for the others before its optimizer steps"
        try:
            meeting = agreement.meet(self._run.progress.step + 1)
            while not meeting.is_over(LOOK_SECONDS):
                if not waits():
                    return StepEvent.ASKED
        except PeerLost as error:
            if not finishes:  # its step may wait for the lost rank, and no image comes of it
                raise
            self.lose(error)
            return StepEvent.SILENCE
        finally:
            agreement.waits = ""
        return StepEvent.MET

    def lose(self, why: PeerLost) -> None:
        """Another rank is lost. The first reason counts."""
        if self.lost is None:
            self.lost, self._lost_at = why, self._run.progress.step

    @property
    def alone(self) -> int:
        """How many steps this rank has done since it lost another one."""
        return self._run.progress.step - self._lost_at if self.lost else 0
