"""The sink that tells the agent how training goes, for people: rates, progress, what a death costs, and whether it
saves or evaluates.

It sends at a step, every few seconds at most, and when the script begins to save or to evaluate and ends that. Nothing
waits for it: a full pipe loses what the next one repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from perdure.loop.telemetry.events import Event, GoalReached, Leaving, PhaseBegan, SaveWaited, Stepped
from perdure.wire import CommitRef
from perdure.wire.channel import CommitDone, Exiting, Figures, TookOver, write_report
from perdure.wire.report import DeathCost, TrainerPhase

SEND_SECONDS: Final = 3.0
"""Seconds between two reports while only numbers change."""
FARTHEST_SECONDS: Final = 10 * 365 * 86400.0
"""No estimate is longer: a loop whose end is farther away has none, as with max_steps=sys.maxsize."""


class FiguresToAgent:
    """Counts the steps and samples of one process; without an agent it knows the phase alone. The caller passes the
    clock."""

    def __init__(
        self,
        fd: int | None,
        world: int,
        progress: Callable[[], float | None],
        save_seconds: Callable[[], float | None],
        death_cost: Callable[[], tuple[DeathCost | None, int | None]],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`progress` gives the part of the present loop that is done, `save_seconds` what a save takes, if known, and
        `death_cost` what a death costs now."""
        self._fd, self._world = fd, world
        self._progress, self._save_seconds, self._death_cost, self._now = progress, save_seconds, death_cost, now
        self._phase = self._phase_before = TrainerPhase.TRAINING
        self._left_at = -1
        """The step after which it leaves, or has reached its goal."""
        self._stall: float | None = None
        self._rate: float | None = None
        self._step_seconds: float | None = None
        self._since: float | None = None
        """The time since which the next rates are measured; None before the first step."""
        self._steps = self._samples = 0
        """Steps and samples since then."""
        self._paused = 0.0
        """Seconds since then in which the script saved or evaluated."""
        self._paused_at = 0.0
        self._begun: tuple[float, float] | None = None
        """When this process first knew its progress, and how much that was."""

    def phase(self, step: int) -> TrainerPhase:
        """What the script does at this step, once its run is open. From any thread."""
        return TrainerPhase.LEAVING if step == self._left_at else self._phase

    def take(self, event: Event) -> None:
        """Sends what has changed, if it matters or enough time has passed."""
        if type(event) is Stepped:  # of each step, so without a match
            if self._fd is not None:
                self._stepped(len(event.samples))
            elif self._phase is not TrainerPhase.TRAINING:
                self._phase = TrainerPhase.TRAINING
            return
        match event:
            case PhaseBegan(phase):
                self._turn(phase)
            case SaveWaited(seconds):
                self._stall = seconds
                self._turn(self._phase_before)
            case TookOver(_, _, world):
                self._world, self._since = world, None
                self._send(self._now(), members_changed=True)
            case GoalReached(step) | Leaving(step) | CommitDone(CommitRef(_, step), goal=True):
                self._left_at = step
            case Exiting():
                self._left_at, self._fd = event.step, None

    def _turn(self, phase: TrainerPhase) -> None:
        now = self._now()
        if self._phase is TrainerPhase.TRAINING:
            self._paused_at = now
        if phase is TrainerPhase.TRAINING and self._phase is not phase:
            self._paused += now - self._paused_at
        self._phase_before, self._phase = self._phase, phase
        self._send(now)

    def _stepped(self, samples: int) -> None:
        now = self._now()
        if self._phase is not TrainerPhase.TRAINING:  # the script has left an evaluation without its end
            self._turn(TrainerPhase.TRAINING)
        if self._since is None:
            self._measure_from(now)
            return
        self._steps += 1
        self._samples += samples
        if now - self._since >= SEND_SECONDS:
            seconds = max(now - self._since - self._paused, 1e-6)
            self._step_seconds = seconds / self._steps
            self._rate = self._samples * self._world / seconds if self._samples else None
            self._measure_from(now)
            self._send(now)

    def _measure_from(self, now: float) -> None:
        self._since, self._steps, self._samples, self._paused = now, 0, 0, 0.0

    def _send(self, now: float, *, members_changed: bool = False) -> None:
        """`members_changed`: until the next time, what was said of a death counts no longer."""
        if self._fd is None:
            return
        done = self._progress()
        cost, steps = (None, None) if members_changed else self._death_cost()
        figures = Figures(
            self._phase,
            self._rate,
            self._step_seconds,
            self._stall,
            self._save_seconds(),
            done,
            self._left(done, now),
            death_cost=cost,
            death_steps=steps,
        )
        write_report(self._fd, figures)

    def _left(self, done: float | None, now: float) -> float | None:
        """Seconds to the end, if it goes on as it has gone in this process, with all its pauses."""
        if done is None:
            return None
        if self._begun is None:
            self._begun = (now, done)
        at, before = self._begun
        left = (1 - done) * (now - at) / (done - before) if done > before else None
        return left if left is not None and left <= FARTHEST_SECONDS else None
