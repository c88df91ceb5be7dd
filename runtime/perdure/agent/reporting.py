"""What the agent reports to the operator: its state in the words of perdure.wire.report. Pure.

The shell gives the report to `reporter`, whose process sends it. Times in the state are time.monotonic() of this pod,
those in a report are Unix time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from perdure.agent.stage import AgentStage, stage_of
from perdure.agent.state import AgentState, TrainerProcesses
from perdure.wire import Train
from perdure.wire.account import RunAccount
from perdure.wire.channel import Figures
from perdure.wire.report import HandoverAct, Report, Standing, TrainerPhase, read_values

UNWATCHED_SECONDS: Final = 30.0
"""A process that has not said for so long that it looks at itself does not: it says so every few seconds."""

_PHASES = {
    AgentStage.STARTED: TrainerPhase.IMPORTING,
    AgentStage.ATTACHED: TrainerPhase.CONNECTING,
    AgentStage.VOTING: TrainerPhase.HANDING_OVER,
}
"""The phases that follow from the stage alone. `_phase` looks further at NONE, OPENED, STEPPED and OFFERED."""

_TRAINS = frozenset({TrainerPhase.TRAINING, TrainerPhase.SAVING, TrainerPhase.EVALUATING})
"""While members change, what a death costs and who is slow are other questions, and what was said before does not
answer them."""


def report_of(
    state: AgentState, start: str, now: float, offset: float, posted: Mapping[str, float] = MappingProxyType({})
) -> Report:
    """The report of this state, by the agent that began as `start`. The process that sends it counts its sequence.

    `now` is a time like those in the state; `offset` is what has to be added to one to get Unix time.
    `posted` are values that the script has reported past its session.
    """
    act, trainer = _act(state), state.trainer
    phase = TrainerPhase.HANDING_OVER if act is HandoverAct.MOVING else _phase(state)
    report = Report(start, 1, phase, handover_act=act, accounts=_accounts(state, now))
    if trainer is None:
        train = state.current if isinstance(state.current, Train) else None
        return replace(report, run=train.run, rank=train.rank) if train else report
    report = _of_training(state, trainer, replace(report, run=trainer.run, rank=trainer.processes[0].rank_now), offset)
    figures = _figures(trainer)
    if report.phase in _TRAINS:
        own, data = (_largest(trainer, share) for share in (lambda one: one.own_share, lambda one: one.data_share))
        report = replace(report, own_share=own, data_share=data)
    report = replace(report, watched=_watched(trainer, now), values=_values(trainer, posted))
    if report.rank == 0 and (first := trainer.processes[0].figures):
        report = replace(report, batch=first.batch, scaling=first.scaling)
    return _of_hang(_of_figures(report, figures), trainer, offset)


def _act(state: AgentState) -> HandoverAct | None:
    stage = stage_of(state)
    if stage is AgentStage.OFFERED and state.trainer:
        stands = any(one.figures.stands for one in state.trainer.processes if one.figures)
        return HandoverAct.MOVING if stands else HandoverAct.CONNECTING
    return HandoverAct.VOTING if stage is AgentStage.VOTING else None


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
    trains = report.phase in _TRAINS
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


def _watched(trainer: TrainerProcesses, now: float) -> bool:
    looked = [process.watched_at for process in trainer.processes]
    return all(at is not None and now - at < UNWATCHED_SECONDS for at in looked)


def _of_hang(report: Report, trainer: TrainerProcesses, offset: float) -> Report:
    """Its processes wait for ranks only if each of them does: a rank that another one waits for may be in this pod."""
    since = [one.hangs_since for one in trainer.processes if one.hangs_since is not None]
    if not since or report.phase is TrainerPhase.LEAVING:
        return report
    places = [one.hangs.place if one.hangs else None for one in trainer.processes]
    place = next((one for one in places if one is not Standing.WAITS_FOR_RANKS), Standing.WAITS_FOR_RANKS)
    works = any(one.hangs.may_be_work for one in trainer.processes if one.hangs)
    return replace(report, hangs_since=_unix(min(since), offset), hangs_in=place, hang_may_be_work=works)


def _accounts(state: AgentState, now: float) -> tuple[RunAccount, ...]:
    """The accounts of its process, the newest one continued up to now while the process lives."""
    trainer, accounts = state.trainer, state.accounts
    if trainer is None or not accounts or state.accounts_at is None:
        return accounts
    *before, last = accounts
    first = trainer.processes[0]
    if last.run != trainer.run or first.outcome is not None:
        return accounts
    hangs = first.hangs is not None and not first.hangs.may_be_work and first.hangs_since is not None
    began = max(state.accounts_at, first.hangs_since or 0.0) if hangs else now
    unfinished = last.unfinished + began - state.accounts_at
    return (*before, replace(last, hang=last.hang + now - began, unfinished=unfinished))


def _figures(trainer: TrainerProcesses) -> Figures:
    """The figures of the pod's first process that reported any."""
    return next((process.figures for process in trainer.processes if process.figures), Figures())


def _values(trainer: TrainerProcesses, posted: Mapping[str, float]) -> Mapping[str, float]:
    """Those of rank 0, whose script speaks for the job; first what it told its session."""
    first = trainer.processes[0]
    told = first.figures.values if first.figures else {}
    beside = {name: value for name, value in posted.items() if name not in told}
    return read_values({**told, **beside}) if first.rank_now == 0 else {}


def _largest(trainer: TrainerProcesses, share: Callable[[Figures], float | None]) -> float | None:
    """The share of its process for which this is the longest part of its time; None if one does not tell."""
    shares = [share(one.figures) if one.figures else None for one in trainer.processes]
    known = [share for share in shares if share is not None]
    return max(known) if len(known) == len(shares) else None


def _beginning(state: AgentState, trainer: TrainerProcesses) -> int | None:
    """The step at which its run began here; None until it has restored."""
    return next((one.step for one in state.begun if one.run == trainer.run), None)


def _unix(at: float | None, offset: float) -> float | None:
    """Whole seconds: the two clocks are never read at the same time."""
    return None if at is None else float(round(at + offset))
