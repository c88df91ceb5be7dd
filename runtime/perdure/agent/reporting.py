"""What the agent reports to the operator: its state in the words of perdure.wire.report. Pure.

The shell gives the report to `reporter`, whose process sends it. Times in the state are time.monotonic() of this pod,
those in a report are Unix time.
"""

from __future__ import annotations

from dataclasses import replace

from perdure.agent.stage import AgentStage, stage_of
from perdure.agent.state import AgentState, TrainerProcesses
from perdure.wire import Train
from perdure.wire.channel import Figures
from perdure.wire.report import Report, Standing, TrainerPhase

_PHASES = {
    AgentStage.STARTED: TrainerPhase.IMPORTING,
    AgentStage.ATTACHED: TrainerPhase.CONNECTING,
    AgentStage.VOTING: TrainerPhase.HANDING_OVER,
}
"""The phases that follow from the stage alone. `_phase` looks further at NONE, OPENED, STEPPED and OFFERED."""

_WITH_DEATH_COST = frozenset({TrainerPhase.TRAINING, TrainerPhase.SAVING, TrainerPhase.EVALUATING})
"""While members change, what a death costs is another question, and what was said before does not answer it."""


def report_of(state: AgentState, start: str, offset: float) -> Report:
    """The report of this state, by the agent that began as `start`. The process that sends it counts its sequence.

    `offset` is what has to be added to a time in the state to get Unix time.
    """
    report, trainer = Report(start, 1, _phase(state)), state.trainer
    if trainer is None:
        train = state.current if isinstance(state.current, Train) else None
        return replace(report, run=train.run, rank=train.rank) if train else report
    report = _of_training(state, trainer, replace(report, run=trainer.run, rank=trainer.processes[0].rank_now), offset)
    figures = _figures(trainer)
    awaited = figures.awaited if report.phase is TrainerPhase.CONNECTING else ()
    return _of_hang(_of_figures(replace(report, awaited=awaited), figures), trainer, offset)


def _phase(state: AgentState) -> TrainerPhase:
    stage = stage_of(state)
    if stage is AgentStage.NONE:
        return TrainerPhase.IMPORTING if state.current else TrainerPhase.STANDBY
    if stage in (AgentStage.OPENED, AgentStage.STEPPED, AgentStage.OFFERED) and (trainer := state.trainer):
        restored = trainer.stepped or _beginning(state, trainer) is not None
        return _said(_figures(trainer).phase) if restored else TrainerPhase.RESTORING
    return _PHASES.get(stage, TrainerPhase.LEAVING)


def _said(phase: TrainerPhase) -> TrainerPhase:
    """What a trainer said before its run was open no longer counts: it trains until it says otherwise."""
    return TrainerPhase.TRAINING if phase is TrainerPhase.CONNECTING else phase


def _of_training(state: AgentState, trainer: TrainerProcesses, report: Report, offset: float) -> Report:
    """How far it is, how much of it is saved, and how its members may change."""
    first = trainer.processes[0]
    furthest = max(trainer.processes, key=lambda process: -1 if process.step is None else process.step)
    saved = max(trainer.processes, key=lambda process: process.commit.seq if process.commit else 0)
    failing = next((process for process in trainer.processes if process.unsaved), first)
    return replace(
        report,
        step=_beginning(state, trainer) if furthest.step is None else furthest.step,
        epoch=furthest.epoch,
        commit_step=saved.commit.step if saved.commit else None,
        commit_at=_unix(saved.committed_at, offset),
        store_failing_since=_unix(failing.failing_since, offset),
        store_why=failing.unsaved.why if failing.unsaved else "",
        live=trainer.live if trainer.attached else None,
        live_why=next((process.live_why for process in trainer.processes if process.live_why), ""),
    )


def _of_figures(report: Report, figures: Figures) -> Report:
    trains = report.phase in _WITH_DEATH_COST
    return replace(
        report,
        samples_per_second=figures.samples_per_second,
        step_seconds=figures.step_seconds,
        save_stall_seconds=figures.save_stall_seconds,
        required_grace_seconds=figures.required_grace_seconds,
        progress=figures.progress,
        remaining_seconds=figures.remaining_seconds,
        death_cost=figures.death_cost if trains else None,
        death_steps=figures.death_steps if trains else None,
    )


def _of_hang(report: Report, trainer: TrainerProcesses, offset: float) -> Report:
    """Its processes wait for ranks only if each of them does: a rank that another one waits for may be in this pod."""
    since = [one.hangs_since for one in trainer.processes if one.hangs_since is not None]
    if not since or report.phase is TrainerPhase.LEAVING:
        return report
    places = [one.hangs.place if one.hangs else None for one in trainer.processes]
    place = next((one for one in places if one is not Standing.WAITS_FOR_RANKS), Standing.WAITS_FOR_RANKS)
    return replace(report, hangs_since=_unix(min(since), offset), hangs_in=place)


def _figures(trainer: TrainerProcesses) -> Figures:
    """The figures of the pod's first process that reported any."""
    return next((process.figures for process in trainer.processes if process.figures), Figures())


def _beginning(state: AgentState, trainer: TrainerProcesses) -> int | None:
    """The step at which its run began here; None until it has restored."""
    return next((one.step for one in state.begun if one.run == trainer.run), None)


def _unix(at: float | None, offset: float) -> float | None:
    """Whole seconds: the two clocks are never read at the same time."""
    return None if at is None else float(round(at + offset))
