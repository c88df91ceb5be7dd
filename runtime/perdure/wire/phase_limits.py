"""How long each phase may last without progress: one table for a process that watches itself, and for the operator.

A process whose phase lasts longer writes its stacks (perdure.loop.hang_watch); a job whose rank 0 reports no new step
for longer makes no progress (perdure_operator.decide.health). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

from perdure.wire.report import TrainerPhase

STEP_TIMES: Final = 10
"""A step may take this many times what steps took before."""
UNKNOWN_SECONDS: Final = 1800.0
"""For a phase that this version does not know, and for training until the step time is known, because the first step
may compile."""
PHASE_SECONDS: Final[Mapping[TrainerPhase, float]] = {
    TrainerPhase.STANDBY: inf,  # an assignment ends it
    TrainerPhase.IMPORTING: 1800.0,
    TrainerPhase.CONNECTING: 1800.0,
    TrainerPhase.RESTORING: 1800.0,
    TrainerPhase.TRAINING: 300.0,
    TrainerPhase.SAVING: 900.0,
    TrainerPhase.EVALUATING: 3600.0,
    TrainerPhase.HANDING_OVER: 1800.0,
    TrainerPhase.LEAVING: inf,  # disruption.exitTimeoutSeconds ends it, or the script's end
}


def longest_standstill(phase: TrainerPhase | None, step_seconds: float | None, given: float | None = None) -> float:
    """Seconds without progress in this phase that mean nothing.

    `step_seconds` is what a step takes, if known; `given` replaces the table's seconds in all phases that have a limit.
    """
    least = UNKNOWN_SECONDS if phase is None else PHASE_SECONDS[phase]
    if phase is TrainerPhase.TRAINING and step_seconds is None:
        least = UNKNOWN_SECONDS
    if given is not None and least < inf:
        least = given
    return max(least, STEP_TIMES * (step_seconds or 0.0))
