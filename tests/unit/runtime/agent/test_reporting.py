"""What the operator hears in each state of the agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from perdure.agent.reporting import UNWATCHED_SECONDS, report_of
from perdure.agent.state import (
    AgentSettings,
    AgentState,
    AssignmentRead,
    Finish,
    ProcessEnded,
    SigtermReceived,
    Warmed,
)
from perdure.wire import CommitRef, ExitKind, Handover, Leave, Standby, Train
from perdure.wire.account import RunAccount
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
    Watched,
)
from perdure.wire.report import DeathCost, HandoverAct, Report, Standing, TrainerPhase
from tests.support.hints import HINTS
from tests.unit.runtime.agent.test_machine import Pod, attached, importing, opened, reported, training

START = "ab" * 16
OFFSET = 1_000_000.0
"""Between the pod's clock and Unix time."""
OFFERED = Train(2, 3, 4, "10.0.0.1:29501", handover=Handover(1, 4, (), (1,), "10.0.0.1:29602", 60, "ab" * 16))


def report(pod: Pod) -> Report:
    return report_of(pod.state, START, pod.now, OFFSET)


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
        *(TrainerPhase.SAVING, 12.5, 0.25, 0.5, 2.0, 0.75, 3600.0),
        death_cost=DeathCost.STEPS,
        death_steps=3,
        own_share=0.5,
        data_share=0.25,
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
        own_share=0.5,
        data_share=0.25,
    )


def test_values_are_those_of_rank_0_also_of_one_that_has_become_it() -> None:
    pod = offered()
    pod.sees(reported(Figures(values={"loss": 0.5})))
    assert report(pod).values == {"loss": 0.5}
    pod.sees(reported(Voting(1, 2)), reported(TookOver(2, 3, 4, 6)))
    assert report(pod).rank == 3
    assert report(pod).values == {}, "its rank 0 is elsewhere now"
    other = training(AgentSettings(processes=2))
    other.sees(reported(Figures(values={"loss": 0.25}), 1))
    assert report(other).values == {}, "of its first process, which has not reported any"


def test_what_a_job_has_measured_of_its_scaling_is_rank_0s_also_of_one_that_has_become_it() -> None:
    measured = Figures(batch=512, scaling=HINTS)
    pod = offered()
    pod.sees(reported(measured))
    assert (report(pod).batch, report(pod).scaling) == (512, HINTS)
    pod.sees(reported(Voting(1, 2)), reported(TookOver(2, 3, 4, 6)), reported(measured))
    assert (report(pod).batch, report(pod).scaling) == (None, None), "its rank 0 is elsewhere now"
    other = training(AgentSettings(processes=2))
    other.sees(reported(measured, 1))
    assert report(other).scaling is None, "of its first process, which has measured nothing"


def test_while_members_change_neither_what_a_death_costs_nor_who_is_slow_is_known() -> None:
    pod = voting()
    pod.sees(reported(Figures(death_cost=DeathCost.NO_STEP, own_share=0.9)))
    found = report(pod)
    assert (found.phase, found.death_cost, found.own_share) == (TrainerPhase.HANDING_OVER, None, None)


def test_each_act_of_a_hand_over_is_told_and_its_stop_is_no_training() -> None:
    pod, acts = offered(), [report(training()).handover_act]
    for told in (Figures(), Figures(stands=True), Voting(1, 2), TookOver(2, 3, 4, 6)):
        pod.sees(reported(told))
        acts.append(report(pod).handover_act)
        if acts[-1] is HandoverAct.MOVING:
            assert report(pod).phase is TrainerPhase.HANDING_OVER
    assert acts == [None, HandoverAct.CONNECTING, HandoverAct.MOVING, HandoverAct.VOTING, None]


def test_of_several_processes_the_one_that_waits_longest_for_data_counts() -> None:
    pod = training(AgentSettings(processes=2))
    pod.sees(reported(Figures(data_share=0.25), 0), reported(Figures(data_share=0.5), 1))
    assert report(pod).data_share == 0.5


def test_of_several_processes_the_slowest_one_counts_once_all_tell() -> None:
    pod = training(AgentSettings(processes=2))
    assert report(pod).own_share is None
    pod.sees(reported(Figures(own_share=0.5), 0))
    assert report(pod).own_share is None
    pod.sees(reported(Figures(own_share=0.75), 1))
    assert report(pod).own_share == 0.75
    pod.sees(reported(Figures(own_share=0.875), 0))
    assert report(pod).own_share == 0.875
    pod.sees(reported(Figures(), 1))
    assert report(pod).own_share is None


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


def test_a_hang_of_one_of_its_processes_that_may_be_work_may_be_work() -> None:
    pod = training(replace(AgentSettings(), processes=2))
    pod.sees(reported(Hangs(300.0, WAITS)))
    assert report(pod).hang_may_be_work is False
    pod.sees(reported(Hangs(300.0, Standing.RUNS, may_be_work=True), 1))
    assert report(pod).hang_may_be_work is True
    pod.sees(reported(Hangs(None)), reported(Hangs(None), 1))
    assert report(pod).hang_may_be_work is None


def test_a_pod_is_watched_while_each_of_its_processes_says_that_it_looks_at_itself() -> None:
    pod = training(replace(AgentSettings(), processes=2))
    pod.sees(reported(Watched(None)))
    assert report(pod).watched is False
    pod.sees(reported(Watched(None), 1))
    assert report(pod).watched is True
    pod.sees(after=UNWATCHED_SECONDS - 1)
    assert report(pod).watched is True
    pod.sees(reported(Watched(None)), after=1)
    assert report(pod).watched is False


def test_what_leaves_does_not_hang() -> None:
    pod = training()
    pod.sees(reported(Hangs(300.0, STANDS)), SigtermReceived())
    assert report(pod).hangs_since is None


def test_a_pod_that_is_deleted_leaves() -> None:
    pod = training()
    pod.sees(SigtermReceived())
    assert report(pod).phase is TrainerPhase.LEAVING


EARLIER = RunAccount(1, 0, 120, productive=100.0)
GROWN = RunAccount(1, 0, 130, productive=110.0, unfinished=0.5, unsaved=4.0)


def test_an_account_of_time_goes_on_to_the_report_and_keeps_that_of_the_run_before() -> None:
    pod = training()
    pod.sees(reported(Figures(accounts=(EARLIER,))))
    pod.sees(reported(Figures(accounts=(GROWN,))))
    pod.now += 4.0
    assert report(pod).accounts == (replace(GROWN, unfinished=4.5),)
    newer = RunAccount(2, 130, 130, live=True)
    pod.sees(reported(TookOver(2, 0, 2, 130)), reported(Figures(accounts=(GROWN, newer))))
    assert report(pod).accounts == (GROWN, newer)


def test_the_time_of_a_hang_is_no_unfinished_step() -> None:
    pod = training()
    pod.sees(reported(Figures(accounts=(GROWN,))))
    pod.now += 1000.0
    pod.sees(reported(Hangs(990.0, Standing.STANDS)))
    pod.now += 5.0
    assert report(pod).accounts == (replace(GROWN, hang=995.0, unfinished=10.5),)
    pod.sees(reported(Hangs(996.0, Standing.RUNS, may_be_work=True)))
    assert report(pod).accounts == (replace(GROWN, unfinished=1005.5),)


def test_the_last_account_of_a_run_stays_as_it_is() -> None:
    pod = training()
    pod.sees(reported(Figures(accounts=(EARLIER,))))
    pod.sees(reported(Exiting(ExitKind.PEER_LOST, 130, accounts=(GROWN,))))
    pod.now += 4.0
    assert report(pod).accounts == (GROWN,)
    pod.sees(ProcessEnded(0, 1), AssignmentRead(Train(2, 0, 2, "10.0.0.1:29502")))
    pod.now += 4.0
    assert (report(pod).run, report(pod).accounts) == (2, (GROWN,))


def test_a_process_that_was_killed_gives_no_more_account() -> None:
    pod = training()
    pod.sees(reported(Figures(accounts=(GROWN,))))
    pod.sees(ProcessEnded(0, -9))
    pod.now += 4.0
    assert report(pod).accounts == (GROWN,)


def test_of_several_processes_the_first_gives_account() -> None:
    pod = training(AgentSettings(processes=2))
    pod.sees(reported(Figures(accounts=(GROWN,))), reported(Figures(accounts=(EARLIER,)), rank=1))
    assert report(pod).accounts == (GROWN,)


def test_a_pod_that_ends_gives_account_in_its_outcome() -> None:
    pod = training()
    pod.sees(reported(Exiting(ExitKind.COMPLETED, 130, accounts=(GROWN,))))
    (finish,) = (one for one in pod.sees(ProcessEnded(0, 0)) if isinstance(one, Finish))
    assert finish.outcome.accounts == (GROWN,)
