"""How long each phase may last without progress: one table for a process that watches itself, and for the operator.

A process whose phase lasts longer writes its stacks (perdure.loop.hang_watch), and says whether it may be at work all
the same. The operator judges by that (perdure_operator.decide.health); of a process that does not watch itself it
judges by the table, and by the steps that it reports. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

from perdure.wire.report import Standing, TrainerPhase

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

WORK_SECONDS: Final[Mapping[Standing, float]] = {
    Standing.RUNS: PHASE_SECONDS[TrainerPhase.EVALUATING],
    Standing.STANDS: UNKNOWN_SECONDS,  # for its loader's workers, a server, another program
}
"""Between two steps a script may work for so long without its session, as in an evaluation with a loader of its own."""


def longest_standstill(
    phase: TrainerPhase | None, step_seconds: float | None, given: float | None = None, training: float | None = None
) -> float:
    """Seconds without progress in this phase that mean nothing.

    `step_seconds` is what a step takes, if known; `training` replaces the table's seconds for training, and no other
    phase has less; `given` replaces those of all phases that have a limit.
    """
    least = UNKNOWN_SECONDS if phase is None else PHASE_SECONDS[phase]
    if phase is TrainerPhase.TRAINING and step_seconds is None:
        least = UNKNOWN_SECONDS
    if training is not None:
        known = phase is TrainerPhase.TRAINING and step_seconds is not None
        least = training if known else max(least, training)
    if given is not None and least < inf:
        least = given
    return max(least, STEP_TIMES * (step_seconds or 0.0))


def may_be_work(
    phase: TrainerPhase,
    place: Standing | None,
    seconds: float,
    given: float | None = None,
    training: float | None = None,
) -> bool:
    """Whether a process that has made no progress for so long, which is longer than its phase allows, may be at work
    all the same: its script trains, and is in no call that waits for other ranks. Where a person gave a limit, as for
    `longest_standstill`, that one counts alone."""
    if given is not None or phase is not TrainerPhase.TRAINING:
        return False
    if training is not None:
        return seconds < training
    return place is not None and seconds < WORK_SECONDS.get(place, 0.0)
