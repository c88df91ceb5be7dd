"""What a run is to have measured, for tests of what it decides: nobody waits until it has measured that itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perdure import Session
from perdure.loop.measuring.measurements import STATE
from perdure.loop.measuring.speed_profile import KEPT
from perdure.session.session import core_of


def know(session: Session, noise: float, *micros: int) -> None:
    """From now on it has measured that a step takes a second with any of these micro-batches on its ranks, and this
    noise scale. As a restored checkpoint it counts like steps of its own: those that it makes change it slowly."""
    run = core_of(session).run
    assert run.measurements is not None
    speed = {"cpu": [*_steps(run.world, micros)]}
    run.measurements.load_state_dict(
        {STATE: {"speed": speed, "noise": {"noise": [noise], "signal": [1.0], "steps": 100}}}
    )


def _steps(ranks: int, micros: Iterable[int]) -> Iterable[Any]:
    for micro in micros:
        yield [[1, ranks, micro, 0], [[0.0, 1.0]] * KEPT]
