"""What the operator hears in each state of the agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from perdure.agent.reporting import report_of
from perdure.agent.state import AgentSettings, AgentState, AssignmentRead, ProcessEnded, SigtermReceived, Warmed
from perdure.wire import CommitRef, ExitKind, Handover, Leave, Standby, Train
from perdure.wire.channel import (
    Attached,
    CommitDone,
    Exiting,
    Figures,
    Hangs,
    SaveFailed,
    SessionOpened,
    StepDone,
    TookOver,
    Voting,
)
from perdure.wire.report import DeathCost, Report, Standing, TrainerPhase
from tests.unit.runtime.agent.test_machine import Pod, attached, importing, opened, reported, training

START = "ab" * 16
OFFSET = 1_000_000.0
"""Between the pod's clock and Unix time."""
OFFERED = Train(2, 3, 4, "10.0.0.1:29501", handover=Handover(1, 4, (), (1,), "10.0.0.1:29602", 60, "ab" * 16))


def report(pod: Pod) -> Report:
    return report_of(pod.state, START, OFFSET)


def standby() -> Pod:
    pod = Pod()
    pod.sees(AssignmentRead(Standby()))
    return pod


def warming() -> Pod:
    pod = Pod(AgentState(AgentSettings(), warming_until=1060.0))
    pod.sees(AssignmentRead(Train(1, 0, 2, "10.0.0.1:29500")))
    return pod


def restored() -> Pod:
    pod = attached()
    pod.sees(reported(SessionOpened(1, CommitRef(7, 100), step=100)))
    return pod


def evaluating() -> Pod:
    pod = training()
    pod.sees(reported(Figures(TrainerPhase.EVALUATING)))
    return pod


def offered() -> Pod:
    pod = importing()
    pod.sees(reported(Attached(41, live=True)), reported(SessionOpened(1)), reported(StepDone(5)))
    pod.sees(AssignmentRead(OFFERED))
    return pod


def voting() -> Pod:
    pod = offered()
    pod.sees(reported(Voting(1, 2)))
    return pod


def leaving() -> Pod:
    pod = training()
    pod.sees(AssignmentRead(Leave(2, seconds=600)))
    return pod


def ending() -> Pod:
    pod = training()
    pod.sees(reported(Exiting(ExitKind.COMPLETED, 200)))
    return pod


def held() -> Pod:
    pod = training()
    pod.sees(reported(Exiting(ExitKind.PEER_LOST, 120)), ProcessEnded(0, 1))
    return pod


@pytest.mark.parametrize(
    ("pod", "phase", "run"),
    [
        (Pod, TrainerPhase.STANDBY, None),
        (standby, TrainerPhase.STANDBY, None),
        (warming, TrainerPhase.IMPORTING, 1),
        (importing, TrainerPhase.IMPORTING, 1),
        (attached, TrainerPhase.CONNECTING, 1),
        (opened, TrainerPhase.RESTORING, 1),
        (restored, TrainerPhase.TRAINING, 1),
        (training, TrainerPhase.TRAINING, 1),
        (evaluating, TrainerPhase.EVALUATING, 1),
        (offered, TrainerPhase.TRAINING, 1),
        (voting, TrainerPhase.HANDING_OVER, 1),
        (leaving, TrainerPhase.LEAVING, 1),
        (ending, TrainerPhase.LEAVING, 1),
        (held, TrainerPhase.LEAVING, 1),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_each_stage_has_its_phase(pod: Callable[[], Pod], phase: TrainerPhase, run: int | None) -> None:
    found = report(pod())
    assert (found.phase, found.run) == (phase, run)


def test_a_standby_that_has_imported_says_no_more_than_that() -> None:
    pod = standby()
    pod.sees(Warmed())
    assert report(pod) == Report(START, 1, TrainerPhase.STANDBY)


def test_a_run_that_is_awaited_is_named_with_its_rank() -> None:
    assert report(warming()) == Report(START, 1, TrainerPhase.IMPORTING, run=1, rank=0)


def test_a_run_stands_at_the_step_that_it_has_restored_until_it_has_one_of_its_own() -> None:
    pod = restored()
    assert (report(pod).step, report(pod).epoch) == (100, None)
    pod.sees(reported(StepDone(101, 2)))
    assert (report(pod).step, report(pod).epoch) == (101, 2)


def test_the_commit_that_a_run_began_with_has_no_time_and_its_own_have() -> None:
    pod = restored()
    assert (report(pod).commit_step, report(pod).commit_at) == (100, None)
    pod.sees(reported(CommitDone(CommitRef(8, 110))), after=5)
    assert (report(pod).commit_step, report(pod).commit_at) == (110, OFFSET + 1005)


def test_a_store_has_failed_since_the_first_of_the_saves_that_failed_in_a_row() -> None:
    pod = training()
    assert (report(pod).store_failing_since, report(pod).store_why) == (None, "")
    pod.sees(reported(SaveFailed(1, "no route")), after=5)
    pod.sees(reported(SaveFailed(2, "access denied")), after=60)
    assert (report(pod).store_failing_since, report(pod).store_why) == (OFFSET + 1005, "access denied")
    pod.sees(reported(CommitDone(CommitRef(8, 130))), after=60)
    assert (report(pod).store_failing_since, report(pod).store_why) == (None, "")
    pod.sees(reported(SaveFailed(1, "again")), after=1)
    assert report(pod).store_failing_since == OFFSET + 1126


def test_the_figures_of_the_trainer_are_passed_on() -> None:
    pod = training()
    figures = Figures(
        *(TrainerPhase.SAVING, 12.5, 0.25, 0.5, 2.0, 0.75, 3600.0), death_cost=DeathCost.STEPS, death_steps=3
    )
    pod.sees(reported(figures))
    found = report(pod)
    assert found == replace(
        report(training()),
        phase=TrainerPhase.SAVING,
        samples_per_second=12.5,
        step_seconds=0.25,
        save_stall_seconds=0.5,
        required_grace_seconds=2.0,
        progress=0.75,
        remaining_seconds=3600.0,
        death_cost=DeathCost.STEPS,
        death_steps=3,
    )


def test_while_members_change_what_a_death_costs_is_not_known() -> None:
    pod = voting()
    pod.sees(reported(Figures(death_cost=DeathCost.NO_STEP)))
    assert (report(pod).phase, report(pod).death_cost) == (TrainerPhase.HANDING_OVER, None)


def test_of_several_processes_the_furthest_step_and_the_newest_commit_count() -> None:
    pod = training(AgentSettings(processes=2))
    pod.sees(reported(StepDone(9, 1), 1), reported(CommitDone(CommitRef(9, 130)), 0))
    pod.sees(reported(CommitDone(CommitRef(8, 120)), 1), after=3)
    found = report(pod)
    assert (found.commit_step, found.commit_at) == (130, OFFSET + 1000)
    assert found.step == 120


def test_a_run_that_was_taken_over_is_named_with_the_new_rank() -> None:
    pod = voting()
    pod.sees(reported(TookOver(2, 3, 4, 6)))
    found = report(pod)
    assert (found.phase, found.run, found.rank, found.step) == (TrainerPhase.TRAINING, 2, 3, 6)


@pytest.mark.parametrize(
    ("told", "live", "why"),
    [(Attached(41, live=True), True, ""), (Attached(41, live_why="it compiles"), False, "it compiles")],
    ids=["live", "not live"],
)
def test_whether_members_can_change_live_is_known_from_the_session_on(told: Attached, live: bool, why: str) -> None:
    pod = importing()
    assert (report(pod).live, report(pod).live_why) == (None, "")
    pod.sees(reported(told))
    assert (report(pod).live, report(pod).live_why) == (live, why)


def test_the_ranks_that_are_awaited_are_named_while_ranks_look_for_each_other() -> None:
    pod = attached()
    pod.sees(reported(Figures(TrainerPhase.CONNECTING, awaited=(3,))))
    assert (report(pod).phase, report(pod).awaited) == (TrainerPhase.CONNECTING, (3,))
    pod.sees(reported(SessionOpened(1)))
    assert (report(pod).phase, report(pod).awaited) == (TrainerPhase.RESTORING, ())
    pod.sees(reported(SessionOpened(1, step=0)))
    assert (report(pod).phase, report(pod).awaited) == (TrainerPhase.TRAINING, ())


WAITS, STANDS = Standing.WAITS_FOR_RANKS, Standing.STANDS


def test_a_process_that_hangs_is_reported_with_its_place_until_it_makes_progress() -> None:
    pod = training()
    assert report(pod).hangs_since is None
    pod.sees(reported(Hangs(300.0, WAITS)), after=400.0)
    since = OFFSET + pod.now - 300
    pod.sees(after=50.0)
    assert (report(pod).hangs_since, report(pod).hangs_in) == (since, WAITS)
    pod.sees(reported(Hangs(None)))
    assert (report(pod).hangs_since, report(pod).hangs_in) == (None, None)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ((Hangs(300.0, WAITS), Hangs(310.0, WAITS)), (310, WAITS)),
        ((Hangs(300.0, WAITS), Hangs(310.0, STANDS)), (310, STANDS)),
        ((Hangs(300.0, WAITS), None), (300, None)),
        ((None, Hangs(300.0, STANDS)), (300, None)),
        ((None, None), (None, None)),
    ],
)
def test_a_pods_processes_wait_for_ranks_only_if_each_of_them_does(
    said: tuple[Hangs | None, ...], expected: tuple[float | None, Standing | None]
) -> None:
    pod = training(replace(AgentSettings(), processes=2))
    for rank, hangs in enumerate(said):
        if hangs:
            pod.sees(reported(hangs, rank))
    seconds, place = expected
    since = None if seconds is None else OFFSET + pod.now - seconds
    assert (report(pod).hangs_since, report(pod).hangs_in) == (since, place)


def test_what_leaves_does_not_hang() -> None:
    pod = training()
    pod.sees(reported(Hangs(300.0, STANDS)), SigtermReceived())
    assert report(pod).hangs_since is None


def test_a_pod_that_is_deleted_leaves() -> None:
    pod = training()
    pod.sees(SigtermReceived())
    assert report(pod).phase is TrainerPhase.LEAVING
