"""The sink that tells the agent how training goes, for people: rates, progress, what a death costs, the script's
values, and whether it saves or evaluates.

It sends at a step, every few seconds at most, and when the script begins to save or to evaluate and ends that. Nothing
waits for it: a full pipe loses what the next one repeats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from perdure.loop.telemetry.events import (
    Event,
    GoalReached,
    HandoverStop,
    Leaving,
    PhaseBegan,
    Reported,
    Resumed,
    SaveWaited,
    Stepped,
)
from perdure.loop.telemetry.ledger import STEPS, Ledger
from perdure.loop.telemetry.own_time import OwnTime
from perdure.wire import CommitRef
from perdure.wire.channel import CommitDone, Exiting, Figures, SessionOpened, TookOver, write_report
from perdure.wire.report import DeathCost, TrainerPhase, read_values
from perdure.wire.scaling import ScalingHints

SEND_SECONDS: Final = 3.0
"""Seconds between two reports while only numbers change."""
FARTHEST_SECONDS: Final = 10 * 365 * 86400.0
"""No estimate is longer: a loop whose end is farther away has none, as with max_steps=sys.maxsize."""

_LEDGER: Final = {TrainerPhase.SAVING: "save", TrainerPhase.EVALUATING: "evaluation"}
"""The ledger's words for these phases."""


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
        own_time: OwnTime | None = None,
        started: float | None = None,
    ) -> None:
        """`progress` gives the part of the present loop that is done, `save_seconds` what a save takes, if known, and
        `death_cost` what a death costs now. `started`: see Ledger."""
        self._fd, self._world = fd, world
        self._progress, self._save_seconds, self._death_cost, self._now = progress, save_seconds, death_cost, now
        self.own_time = own_time or OwnTime()
        """It is told of steps, pauses and draws here."""
        self.ledger = Ledger(started, now=now)
        """Of hand-overs and hangs it is told by others. Without an agent it has no account."""
        self._run: int | None = None
        """The run that it has opened in the log; a newcomer has opened none."""
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
        self._stands = False
        """Whether the ranks stand for a live hand-over."""
        self._values: Mapping[str, float] = {}
        """What the script has reported, the newest first."""
        self._batch: Callable[[], int | None] = lambda: None
        self._scaling: Callable[[], ScalingHints | None] = lambda: None
        self._begun: tuple[float, float] | None = None
        """When this process first knew its progress, and how much that was."""

    def phase(self, step: int) -> TrainerPhase:
        """What the script does at this step, once its run is open. From any thread."""
        return TrainerPhase.LEAVING if step == self._left_at else self._phase

    def tell_scaling(self, batch: Callable[[], int | None], scaling: Callable[[], ScalingHints | None]) -> None:
        """The script lets its session choose the batch: from now on the batch in use is told, and what is measured."""
        self._batch, self._scaling = batch, scaling

    def begin_draw(self) -> None:
        """The script waits for a batch."""
        self.own_time.begin_draw()
        self.ledger.begin_draw()

    def end_draw(self) -> None:
        """The script has its batch."""
        self.own_time.end_draw()
        self.ledger.end_draw()

    def take(self, event: Event) -> None:
        """Sends what has changed, if it matters or enough time has passed."""
        if type(event) is Stepped:  # of each step, so without a match
            if self._fd is not None:
                self._stepped(event.step, len(event.samples))
            elif self._phase is not TrainerPhase.TRAINING:
                self._phase = TrainerPhase.TRAINING
            return
        self._enter(event)
        match event:
            case PhaseBegan(phase):
                self._turn(phase)
            case SaveWaited(seconds):
                self._stall = seconds
                self._turn(self._phase_before)
            case Reported(_, _, values) if self._fd is not None:
                before = {name: value for name, value in self._values.items() if name not in values}
                self._values = read_values({**values, **before})
            case HandoverStop() | TookOver():
                self._hand_over(event)
            case GoalReached(step) | Leaving(step) | CommitDone(CommitRef(_, step), goal=True):
                self._left_at = step
            case Exiting():
                self._left_at, self._fd = event.step, None

    def _hand_over(self, event: HandoverStop | TookOver) -> None:
        """A live hand-over stops the ranks, may change them, and lets them go on."""
        if isinstance(event, TookOver):
            self._world, self._since, self._step_seconds = event.world, None, None
            self.own_time.begin_anew()
        elif event.stands is self._stands:
            return  # it took over, and has told so
        self._stands = isinstance(event, HandoverStop) and event.stands
        self._send(self._now(), knows_cost=not isinstance(event, TookOver))

    def _enter(self, event: Event) -> None:
        """What this event means for the ledger. A newcomer opens no run."""
        match event:
            case SessionOpened(run) if self._fd is not None:
                self._run = run
            case Resumed(step, parts) if self._run is not None:
                self.ledger.begin(self._run, step, parts.get("restore", 0.0))
                self._send(self._now(), knows_cost=False)
            case TookOver(run, _, _, step) if self._fd is not None:
                self.ledger.take_over(run, step)
            case HandoverStop(stands):
                self.ledger.does("handover" if stands else STEPS)
            case CommitDone(CommitRef(_, step), goal):
                self.ledger.committed(step)
                if goal:
                    self.ledger.does("evaluation")
            case GoalReached() | Leaving():
                self.ledger.does("save")

    def _turn(self, phase: TrainerPhase) -> None:
        now = self._now()
        if self._phase is TrainerPhase.TRAINING:
            self._paused_at = now
        if phase is TrainerPhase.TRAINING and self._phase is not phase:
            self._paused += now - self._paused_at
        if phase is TrainerPhase.TRAINING:
            self.own_time.go_on()
        else:
            self.own_time.pause()
        self._phase_before, self._phase = self._phase, phase
        self.ledger.does(_LEDGER.get(phase, STEPS))
        self._send(now)

    def _stepped(self, step: int, samples: int) -> None:
        now = self._now()
        if self._phase is not TrainerPhase.TRAINING:  # the script has left an evaluation without its end
            self._turn(TrainerPhase.TRAINING)
        self.own_time.stepped()
        self.ledger.stepped(step)
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

    def _send(self, now: float, *, knows_cost: bool = True) -> None:
        """`knows_cost`: whether what a death costs is known. It is not where a run has just begun, with a mirror or
        images that nothing has been written to."""
        if self._fd is None:
            return
        done = self._progress()
        cost, steps = self._death_cost() if knows_cost else (None, None)
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
            own_share=self.own_time.share,
            data_share=self.own_time.data_share,
            stands=self._stands,
            values=self._values,
            accounts=self.ledger.accounts,
            batch=self._batch(),
            scaling=self._scaling(),
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
