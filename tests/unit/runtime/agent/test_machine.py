"""Every line of the pod contract that is about the agent, as a table over the pure rules."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.agent.machine import react
from perdure.agent.memory import OutOfMemory
from perdure.agent.stage import due
from perdure.agent.state import (
    Action,
    AgentSettings,
    AgentState,
    Ask,
    AssignmentRead,
    Cleared,
    CommitImage,
    Event,
    Finish,
    ForgetImages,
    Kill,
    MakesWay,
    MarkWarm,
    PrintLine,
    ProcessEnded,
    ReportReceived,
    Rescued,
    SigtermReceived,
    Start,
    Tick,
    Unreadable,
    Warmed,
)
from perdure.wire import (
    LINGER_SECONDS,
    Beginning,
    CommitRef,
    Completion,
    ErrorKind,
    ErrorName,
    ExitKind,
    Failure,
    Leave,
    Outcome,
    Rescue,
    SkippedCommit,
    Standby,
    Train,
    Unsaved,
)
from perdure.wire.channel import (
    Attached,
    CommitDone,
    Exiting,
    Hangs,
    Imaged,
    Imaging,
    Resulted,
    SaveFailed,
    SessionOpened,
    StepDone,
    TookOver,
    TrainerReport,
    Watched,
)
from perdure.wire.report import Standing

ONE = AgentSettings()
TWO = AgentSettings(processes=2)
BY_EXIT_CODE = AgentSettings(completion=Completion.EXIT_CODE)
TWO_BY_EXIT_CODE = replace(TWO, completion=Completion.EXIT_CODE)
RUN1 = Train(1, 0, 2, "10.0.0.1:29500")
RUN2 = Train(2, 0, 2, "10.0.0.1:29501", cause="node n1 is leaving", seconds=600, wait=615)
RUN3 = Train(3, 1, 2, "10.0.0.2:29502", cause="node n2 is leaving", seconds=600, wait=615)
LEAVE2 = Leave(2, cause="node n1 is leaving", seconds=600)
COMMIT = CommitRef(7, 120)


@dataclass
class Pod:
    """A member's agent, with the clock in the test's hand."""

    state: AgentState = field(default_factory=lambda: AgentState(ONE))
    now: float = 1000.0

    def sees(self, *events: Event, after: float = 0.0) -> tuple[Action, ...]:
        """What the agent does about the last event, but for what it says."""
        self.now += after
        actions: tuple[Action, ...] = ()
        for event in events:
            self.state, actions = react(self.state, event, self.now)
        return tuple(action for action in actions if not isinstance(action, PrintLine))

    def says(self, event: Event) -> str:
        self.state, actions = react(self.state, event, self.now)
        return "\n".join(action.line for action in actions if isinstance(action, PrintLine))

    def outcome(self, event: Event, after: float = 0.0) -> Outcome:
        actions = self.sees(event, after=after)
        assert len(actions) == 1, actions
        assert isinstance(actions[0], Finish), actions
        return actions[0].outcome


def reported(report: TrainerReport, rank: int = 0) -> ReportReceived:
    return ReportReceived(rank, report)


def importing(settings: AgentSettings = ONE) -> Pod:
    """Run 1 has been started; nothing is known of it yet."""
    pod = Pod(AgentState(settings))
    pod.sees(AssignmentRead(RUN1))
    return pod


def attached(settings: AgentSettings = ONE) -> Pod:
    pod = importing(settings)
    pod.sees(reported(Attached(41)))
    return pod


def opened(settings: AgentSettings = ONE) -> Pod:
    pod = attached(settings)
    pod.sees(reported(SessionOpened(1)))
    return pod


def training(settings: AgentSettings = ONE, *, images: bool = False) -> Pod:
    """Run 1 has a step behind it."""
    pod = opened(settings)
    if images:
        pod.sees(reported(Attached(41, images=True)))
    pod.sees(reported(StepDone(120)))
    return pod


def told(pod: Pod, outcome: ExitKind, **more: Any) -> Pod:
    pod.sees(reported(replace(Exiting(outcome, 120), **more)))
    return pod


def alone() -> Pod:
    """Its trainer has lost its peers at step 120, has left an image, and the seat is held."""
    pod = training(images=True)
    pod.sees(reported(Imaged(120)), reported(Exiting(ExitKind.PEER_LOST, 120)), GONE)
    return pod


RUN2_LOST = replace(RUN2, lost=(1,))
SUSPECT = AssignmentRead(Leave(3, "node fault", lost=(1, 2), suspect=True))
GONE = ProcessEnded(0, 0)
BROKEN = ProcessEnded(0, 1, "Traceback: boom")


class TestMakingWay:
    """A trainer that has saved, and has only its interpreter to take down, is not waited for."""

    def test_the_next_run_begins_at_once(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(RUN2))
        told(pod, ExitKind.CHECKPOINTED)
        assert pod.sees(MakesWay(0)) == (Start(RUN2),)

    def test_a_run_that_is_assigned_later_begins_at_once(self) -> None:
        pod = told(training(), ExitKind.CHECKPOINTED)
        assert pod.sees(MakesWay(0)) == ()
        assert pod.sees(AssignmentRead(RUN2)) == (Start(RUN2),)

    @pytest.mark.parametrize("outcome", [one for one in ExitKind if one is not ExitKind.CHECKPOINTED])
    def test_any_other_end_is_waited_for(self, outcome: ExitKind) -> None:
        pod = training()
        pod.sees(AssignmentRead(RUN2))
        told(pod, outcome)
        assert pod.sees(MakesWay(0)) == ()

    def test_one_that_has_reported_nothing_is_waited_for(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(RUN2))
        assert pod.sees(MakesWay(0)) == ()

    def test_one_that_is_in_the_way_is_waited_for_and_the_log_says_why(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(RUN2))
        told(pod, ExitKind.CHECKPOINTED)
        assert pod.says(MakesWay(0, "it listens on port 8000")) == (
            "run 2 waits for the end of run 1: it listens on port 8000"
        )
        assert pod.sees(GONE) == (Start(RUN2),)

    @pytest.mark.parametrize("event", [AssignmentRead(LEAVE2), SigtermReceived()])
    def test_who_leaves_does_not_wait_for_it_either(self, event: Event) -> None:
        pod = training()
        pod.sees(event)
        told(pod, ExitKind.CHECKPOINTED)
        assert pod.outcome(MakesWay(0)).outcome is ExitKind.CHECKPOINTED

    @pytest.mark.parametrize("event", [AssignmentRead(LEAVE2), SigtermReceived()])
    def test_who_is_told_to_leave_when_nothing_else_is_left_ends_at_once(self, event: Event) -> None:
        pod = told(training(), ExitKind.CHECKPOINTED)
        assert pod.sees(MakesWay(0)) == ()
        assert pod.outcome(event).outcome is ExitKind.CHECKPOINTED

    def test_in_a_pod_that_is_being_deleted_no_other_run_begins(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(RUN2), SigtermReceived())
        told(pod, ExitKind.CHECKPOINTED)
        assert pod.outcome(MakesWay(0)).outcome is ExitKind.CHECKPOINTED

    def test_of_two_processes_one_that_has_failed_is_no_reason_to_cut_the_others_end(self) -> None:
        pod = training(TWO)
        pod.sees(reported(StepDone(120), 1), AssignmentRead(LEAVE2))
        pod.sees(reported(Exiting(ExitKind.CHECKPOINTED, 120), 0), ProcessEnded(1, 1))
        assert pod.sees(MakesWay(0)) == ()
        assert pod.outcome(GONE).outcome is ExitKind.FAILED

    @pytest.mark.parametrize("event", [AssignmentRead(LEAVE2), SigtermReceived()])
    def test_who_leaves_and_holds_something_ends_first(self, event: Event) -> None:
        pod = training()
        pod.sees(event)
        told(pod, ExitKind.CHECKPOINTED)
        why = "it has log.txt open for writing"
        assert pod.says(MakesWay(0, why)) == f"waiting for the trainer's end: {why}"
        assert pod.outcome(GONE).outcome is ExitKind.CHECKPOINTED

    def test_all_processes_of_a_member_make_way(self) -> None:
        pod = training(TWO)
        pod.sees(reported(StepDone(120), 1), AssignmentRead(RUN2))
        for rank in (0, 1):
            pod.sees(reported(Exiting(ExitKind.CHECKPOINTED, 120), rank))
        assert pod.sees(MakesWay(1)) == ()
        assert pod.sees(MakesWay(0)) == (Start(RUN2),)


class TestBeforeATrainer:
    def test_the_first_assignment_makes_the_member_warm(self) -> None:
        assert Pod().sees(AssignmentRead(Standby())) == (MarkWarm(),)

    def test_a_standby_waits_without_a_deadline(self) -> None:
        pod = Pod()
        pod.sees(AssignmentRead(Standby()))
        assert pod.sees(Tick(), after=1e6) == ()
        assert due(pod.state) is None

    def test_a_promoted_standby_starts_its_run(self) -> None:
        pod = Pod()
        assert pod.sees(AssignmentRead(Standby()), AssignmentRead(RUN1)) == (Start(RUN1),)

    def test_a_member_assigned_at_once_starts_and_is_warm(self) -> None:
        assert Pod().sees(AssignmentRead(RUN1)) == (MarkWarm(), Start(RUN1))

    def test_leave_without_a_trainer_exits_stopped(self) -> None:
        pod = Pod()
        pod.sees(AssignmentRead(Standby()))
        assert pod.outcome(AssignmentRead(LEAVE2)) == Outcome(ExitKind.STOPPED, run=2, rank=0)

    def test_sigterm_without_a_trainer_exits_stopped(self) -> None:
        pod = Pod()
        pod.sees(AssignmentRead(Standby()))
        assert pod.outcome(SigtermReceived()) == Outcome(ExitKind.STOPPED, run=0, rank=0)

    def test_sigterm_before_any_assignment_exits_stopped(self) -> None:
        assert Pod().outcome(SigtermReceived()).outcome is ExitKind.STOPPED

    def test_an_unknown_major_version_exits_failed_and_says_why(self) -> None:
        outcome = Pod().outcome(Unreadable("assignment: version 2", unsupported=True))
        assert outcome.outcome is ExitKind.FAILED
        assert outcome.error == Failure(ErrorKind.EXIT, "UnsupportedVersion", "assignment: version 2")

    def test_a_malformed_assignment_is_reported_and_waited_out(self) -> None:
        pod = Pod()
        assert "not JSON" in pod.says(Unreadable("assignment: not JSON: 'x'"))
        assert pod.sees(AssignmentRead(RUN1)) == (MarkWarm(), Start(RUN1))

    def test_more_processes_than_the_world_has_ranks_for_are_refused(self) -> None:
        pod = Pod(AgentState(AgentSettings(processes=3)))
        assert "exceed world 2" in pod.says(AssignmentRead(RUN1))
        assert pod.state.trainer is None


class TestWhileSomethingIsPrepared:
    """A zygote imports: a start would soon be quicker."""

    def pod(self) -> Pod:
        return Pod(AgentState(ONE, warming_until=1060.0))

    def test_a_standby_is_ready_when_it_is_done(self) -> None:
        pod = self.pod()
        assert pod.sees(AssignmentRead(Standby())) == ()
        assert pod.sees(Warmed(), after=10) == (MarkWarm(),)
        assert pod.sees(AssignmentRead(RUN1)) == (Start(RUN1),)

    def test_without_an_assignment_a_member_is_not_ready(self) -> None:
        pod = self.pod()
        assert pod.sees(Warmed()) == ()
        assert pod.sees(AssignmentRead(Standby())) == (MarkWarm(),)

    def test_a_run_waits_for_it(self) -> None:
        pod = self.pod()
        assert pod.sees(AssignmentRead(RUN1)) == ()
        assert pod.sees(Warmed(), after=10) == (MarkWarm(), Start(RUN1))

    def test_it_is_not_waited_for_without_end(self) -> None:
        pod = self.pod()
        pod.sees(AssignmentRead(RUN1))
        assert due(pod.state) == 1060.0
        assert pod.sees(Tick(), after=60) == (MarkWarm(), Start(RUN1))
        assert pod.sees(Warmed()) == ()

    def test_the_newest_run_is_the_one_that_starts(self) -> None:
        pod = self.pod()
        assert pod.sees(AssignmentRead(RUN1), AssignmentRead(RUN2)) == ()
        assert pod.sees(Warmed()) == (MarkWarm(), Start(RUN2))

    @pytest.mark.parametrize("event", [AssignmentRead(LEAVE2), SigtermReceived()])
    def test_a_member_that_is_not_wanted_any_more_does_not_wait(self, event: Event) -> None:
        pod = self.pod()
        pod.sees(AssignmentRead(RUN1))
        assert pod.outcome(event).outcome is ExitKind.STOPPED


class TestNewerRuns:
    def test_a_newer_run_is_the_exit_request_for_the_older_one(self) -> None:
        pod = training()
        assert pod.sees(AssignmentRead(RUN2)) == (Ask(1, "node n1 is leaving", 1600.0, {0: 41}),)

    def test_leave_is_an_exit_request_too(self) -> None:
        assert training().sees(AssignmentRead(LEAVE2)) == (Ask(1, "node n1 is leaving", 1600.0, {0: 41}),)

    def test_the_request_is_logged_readably(self) -> None:
        assert "run 1 asked to save: node n1 is leaving; 600 s" in training().says(AssignmentRead(RUN2))

    @pytest.mark.parametrize("older", [RUN1, Leave(1, seconds=1, lost=(2,))])
    def test_a_lower_run_is_ignored(self, older: Train | Leave) -> None:
        pod = Pod()
        pod.sees(AssignmentRead(RUN2))
        before = pod.state
        assert pod.sees(AssignmentRead(older)) == ()
        assert pod.state == before

    def test_a_standby_assignment_after_a_run_is_ignored(self) -> None:
        pod = training()
        assert pod.sees(AssignmentRead(Standby())) == ()

    def test_a_malformed_assignment_keeps_the_old_one(self) -> None:
        pod = training()
        before = pod.state
        assert pod.sees(Unreadable("assignment: not JSON")) == ()
        assert pod.state == before

    def test_the_same_assignment_again_changes_nothing(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(RUN2))
        assert pod.sees(AssignmentRead(RUN2), after=300) == ()
        assert due(pod.state) == 1600.0

    def test_a_lost_run_is_killed_at_once(self) -> None:
        pod = training()
        assert pod.sees(AssignmentRead(replace(RUN2, lost=(1,)))) == (Kill(),)
        assert pod.sees(ProcessEnded(0, -9)) == (Start(replace(RUN2, lost=(1,))),)

    def test_a_trainer_of_a_lost_run_that_can_is_asked_for_an_image_and_killed_when_it_has_reported(self) -> None:
        pod = training(images=True)
        (ask,) = pod.sees(AssignmentRead(replace(RUN2, lost=(1,))))
        assert ask == Ask(1, RUN2.cause, pod.now + 5, {0: 41}, image=True)
        assert pod.sees(AssignmentRead(replace(RUN2, lost=(1,)))) == ()
        assert pod.sees(reported(Imaged(120))) == (Kill(),)
        assert pod.sees(ProcessEnded(0, -9)) == (Start(replace(RUN2, lost=(1,))),)

    def test_one_that_does_not_answer_is_killed_all_the_same(self) -> None:
        pod = training(images=True)
        pod.sees(AssignmentRead(replace(RUN2, lost=(1,))))
        assert pod.sees(Tick(), after=4.9) == ()
        assert pod.sees(Tick(), after=0.2) == (Kill(),)

    def test_one_that_has_not_saved_in_time_leaves_an_image_for_the_next_run_in_its_pod(self) -> None:
        pod = training(images=True)
        pod.sees(AssignmentRead(replace(RUN2, seconds=3)))
        assert pod.sees(Tick(), after=3) == (Ask(1, RUN2.cause, pod.now + 5, {0: 41}, image=True),)
        assert pod.sees(Tick(), after=4.9) == ()
        assert pod.sees(reported(Imaged(120))) == (Kill(),)
        assert pod.sees(ProcessEnded(0, -9)) == (Start(replace(RUN2, seconds=3)),)

    def test_one_that_has_not_saved_in_time_and_leaves_no_image_is_killed_all_the_same(self) -> None:
        pod = training(images=True)
        pod.sees(AssignmentRead(replace(RUN2, seconds=3)))
        pod.sees(Tick(), after=3)
        assert pod.sees(Tick(), after=5) == (Kill(),)

    def test_one_that_leaves_and_has_not_saved_in_time_has_its_image_committed_before_its_pod_ends(self) -> None:
        pod = training(images=True)
        pod.sees(AssignmentRead(replace(LEAVE2, seconds=3)))
        (ask,) = pod.sees(Tick(), after=3)
        assert isinstance(ask, Ask)
        assert ask.image
        assert pod.sees(reported(Imaged(120))) == (Kill(),)
        assert pod.sees(ProcessEnded(0, -9)) == (CommitImage(1),)
        end = pod.outcome(Rescued(COMMIT))
        assert (end.outcome, end.commit) == (ExitKind.EXIT_TIMEOUT, COMMIT)

    def test_nor_does_a_suspect_one_that_was_given_time_leave_an_image(self) -> None:
        pod = training(images=True)
        pod.sees(AssignmentRead(replace(LEAVE2, seconds=3, suspect=True)))
        assert pod.sees(Tick(), after=3) == (Kill(),)

    @pytest.mark.parametrize(
        "goes",
        [(SigtermReceived(),), (AssignmentRead(replace(LEAVE2, seconds=115)), SigtermReceived())],
        ids=["deleted", "asked to leave and deleted"],
    )
    def test_one_that_is_deleted_and_has_not_saved_in_time_is_killed_at_once(self, goes: tuple[Event, ...]) -> None:
        """Its pod was given no longer."""
        pod = training(images=True)
        pod.sees(*goes)
        assert pod.sees(Tick(), after=115) == (Kill(),)

    def test_a_large_image_gets_the_time_that_it_takes(self) -> None:
        pod = training(images=True)
        pod.sees(AssignmentRead(replace(RUN2, lost=(1,))))
        pod.sees(reported(Imaging(2_000_000_000)), after=1)
        assert due(pod.state) == pod.now + 10
        assert pod.sees(Tick(), after=9.9) == ()
        assert pod.sees(Tick(), after=0.2) == (Kill(),)

    def test_the_end_of_the_pod_does_not_wait_for_an_image(self) -> None:
        pod = training(images=True)
        pod.sees(AssignmentRead(replace(RUN2, lost=(1,))), reported(Imaging(200_000_000_000)))
        pod.sees(SigtermReceived(pod.now - 114))
        assert pod.sees(Tick(), after=1.1) == (Kill(),)

    def test_one_that_has_reported_before_it_is_asked_is_killed_at_once(self) -> None:
        pod = training(images=True)
        pod.sees(reported(Imaged(None, "it stands in the middle of a step")))
        assert pod.sees(AssignmentRead(replace(RUN2, lost=(1,)))) == (Kill(),)

    @pytest.mark.parametrize("goes", [AssignmentRead(LEAVE2), SigtermReceived()], ids=["told to leave", "deleted"])
    def test_what_a_trainer_has_left_is_committed_before_its_pod_goes(self, goes: Event) -> None:
        pod = alone()
        assert pod.sees(goes) == (CommitImage(1),)
        outcome = pod.outcome(Rescued(COMMIT))
        assert (outcome.outcome, outcome.step, outcome.commit) == (ExitKind.PEER_LOST, 120, COMMIT)

    def test_a_leaver_that_loses_its_peers_is_waited_for_too(self) -> None:
        pod = training(images=True)
        pod.sees(AssignmentRead(LEAVE2), reported(Imaged(120)), reported(Exiting(ExitKind.PEER_LOST, 120)))
        assert pod.sees(GONE) == (CommitImage(1),)
        assert pod.outcome(Rescued(why="run 2 has begun")).commit is None

    @pytest.mark.parametrize(
        ("goes", "end"),
        [
            (AssignmentRead(replace(LEAVE2, run=3)), ProcessEnded(0, -9)),
            (SigtermReceived(), ProcessEnded(0, -9)),
            (Tick(), ProcessEnded(0, 1)),
        ],
        ids=["told to leave", "deleted", "failed"],
    )
    def test_what_is_left_of_an_older_run_is_committed_where_the_next_has_not_begun_from_it(
        self, goes: Event, end: ProcessEnded
    ) -> None:
        pod = alone()
        pod.sees(AssignmentRead(replace(RUN2, lost=(1,))))
        pod.sees(goes)
        pod.sees(Tick(), after=2.1)
        assert CommitImage(1, successor=pod.state.trainer.run if pod.state.trainer else 0) in pod.sees(end)
        assert pod.outcome(Rescued(COMMIT)).commit == COMMIT

    def test_but_not_where_it_has(self) -> None:
        pod = alone()
        pod.sees(AssignmentRead(replace(RUN2, lost=(1,))), reported(SessionOpened(2, COMMIT)))
        pod.sees(SigtermReceived())
        pod.sees(Tick(), after=2.1)
        assert not any(isinstance(one, CommitImage) for one in pod.sees(ProcessEnded(0, -9)))

    def test_so_is_a_seat_that_is_no_longer_needed(self) -> None:
        pod = alone()
        assert pod.sees(Tick(), after=LINGER_SECONDS + 0.1) == (CommitImage(1),)

    @pytest.mark.parametrize(("began", "seconds"), [(0, 60), (100, 15)], ids=["its own limit", "the pod's grace"])
    def test_a_store_that_does_not_answer_is_not_waited_for_for_ever(self, began: float, seconds: float) -> None:
        pod = alone()
        pod.sees(SigtermReceived(pod.now - began))
        assert due(pod.state) == pytest.approx(pod.now + seconds)
        assert pod.sees(Tick(), after=seconds - 0.1) == ()
        kill, finish = pod.sees(Tick(), after=0.2)
        assert kill == Kill()
        assert isinstance(finish, Finish)
        assert finish.outcome.commit is None

    def test_without_an_image_a_pod_goes_at_once(self) -> None:
        pod = told(training(images=True), ExitKind.PEER_LOST)
        pod.sees(reported(Imaged(None, "it stands in the middle of a step")), GONE)
        assert isinstance(pod.sees(AssignmentRead(LEAVE2))[0], Finish)

    @pytest.mark.parametrize("before", [(), (AssignmentRead(RUN2_LOST),)], ids=["training", "asked for an image"])
    def test_a_suspect_member_leaves_no_image(self, before: tuple[Event, ...]) -> None:
        pod = training(images=True)
        pod.sees(*before)
        assert pod.sees(SUSPECT) == (Kill(),)
        (finish,) = pod.sees(Cleared(), ProcessEnded(0, -9))
        assert isinstance(finish, Finish)

    def test_nor_is_the_image_of_a_suspect_member_committed(self) -> None:
        (finish,) = alone().sees(SUSPECT)
        assert isinstance(finish, Finish)

    def test_nor_any_longer_if_that_has_begun(self) -> None:
        pod = alone()
        pod.sees(AssignmentRead(replace(LEAVE2, lost=(1,))))
        kill, finish = pod.sees(SUSPECT)
        assert kill == Kill()
        assert isinstance(finish, Finish)

    def test_who_stays_shows_it_to_the_next_trainer(self) -> None:
        assert alone().sees(AssignmentRead(RUN2)) == (Start(RUN2),)

    def test_a_pod_whose_processes_differ_gets_the_images_that_there_are(self) -> None:
        pod = training(TWO, images=True)
        pod.sees(reported(StepDone(120), 1))
        (ask,) = pod.sees(AssignmentRead(replace(RUN2, lost=(1,))))
        assert isinstance(ask, Ask)
        assert ask.image
        assert pod.sees(reported(Imaged(120))) == (Kill(),)

    def test_one_without_a_step_has_nothing_to_leave(self) -> None:
        pod = importing()
        pod.sees(reported(Attached(41, images=True)), reported(SessionOpened(1)))
        assert pod.sees(AssignmentRead(replace(RUN2, lost=(1,)))) == (Kill(),)

    @pytest.mark.parametrize("told", [SessionOpened(2, COMMIT), StepDone(121)], ids=["restored", "trains"])
    def test_an_image_is_let_go_once_the_run_after_it_has_restored_or_trains(self, told: TrainerReport) -> None:
        pod = training(images=True)
        pod.sees(AssignmentRead(replace(RUN2, lost=(1,))), reported(Imaged(120)), ProcessEnded(0, -9))
        assert pod.sees(reported(SessionOpened(2))) == ()
        assert pod.sees(reported(told)) == (ForgetImages(),)
        assert pod.sees(reported(StepDone(122))) == ()

    def test_its_outcome_tells_the_newest_result_whatever_it_ends_of(self) -> None:
        pod = training()
        pod.sees(reported(Resulted({"best": 1})), reported(Resulted({"best": 2})))
        assert told(pod, ExitKind.COMPLETED).outcome(ProcessEnded(0, 0)).result == {"best": 2}
        pod = training()
        pod.sees(reported(Resulted({"best": 2})), reported(Resulted(None)))
        assert pod.outcome(ProcessEnded(0, -9)).result is None

    def test_its_outcome_tells_of_checkpoints_that_have_failed_since_the_last_that_was_made(self) -> None:
        pod = training()
        pod.sees(reported(SaveFailed(1, "no route")), reported(SaveFailed(2, "no space left")))
        assert pod.outcome(ProcessEnded(0, -9)).unsaved == Unsaved(2, "no space left")
        pod = training()
        pod.sees(reported(SaveFailed(1, "no route")), reported(CommitDone(COMMIT)))
        assert pod.outcome(ProcessEnded(0, -9)).unsaved is None

    def test_its_outcome_tells_what_the_run_has_begun_with(self) -> None:
        pod = training()
        pod.sees(reported(SessionOpened(3, COMMIT, rescued=13, rescued_of=1)), reported(TookOver(4, 0, 2, 130)))
        assert told(pod, ExitKind.COMPLETED).outcome(ProcessEnded(0, 0)).rescue == Rescue(3, 13, 1)

    def test_its_outcome_tells_where_runs_have_begun_and_how_far_those_before_them_had_come(self) -> None:
        """No living member may know both ends of the repeated steps."""
        pod = training()
        pod.sees(reported(SessionOpened(1, COMMIT, step=100)), reported(StepDone(120)))
        pod.sees(AssignmentRead(replace(RUN2, lost=(1,))), ProcessEnded(0, -9))
        pod.sees(reported(SessionOpened(2)))
        begun = SessionOpened(2, COMMIT, step=100, behind=CommitRef(9, 110), behind_why="shard-00000 is missing")
        pod.sees(reported(begun), reported(StepDone(101)))
        outcome = told(pod, ExitKind.COMPLETED).outcome(ProcessEnded(0, 0))
        assert outcome.begun == (Beginning(1, 100), Beginning(2, 100, 1, 120))
        assert outcome.skipped_commit == SkippedCommit(2, 10, "commit 9 of step 110: shard-00000 is missing")

    def test_a_run_that_has_never_begun_here_is_passed_over_in_that(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(replace(RUN2, lost=(1,))), ProcessEnded(0, -9))
        pod.sees(AssignmentRead(replace(RUN3, rank=0, lost=(1, 2))), ProcessEnded(0, -9))
        pod.sees(reported(SessionOpened(3, COMMIT, step=100)))
        assert told(pod, ExitKind.COMPLETED).outcome(ProcessEnded(0, 0)).begun == (Beginning(3, 100, 1, 120),)

    def test_a_trainer_killed_because_its_run_is_lost_has_stopped(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(replace(LEAVE2, lost=(1,))))
        assert pod.outcome(ProcessEnded(0, -9)) == Outcome(ExitKind.STOPPED, 1, 0, step=120, opened=1)

    def test_a_run_that_is_not_the_lost_one_is_asked_to_save(self) -> None:
        pod = Pod()
        pod.sees(AssignmentRead(RUN2), reported(StepDone(5)))
        assert [type(action) for action in pod.sees(AssignmentRead(replace(RUN3, lost=(1,))))] == [Ask]

    def test_seconds_count_from_first_sight(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(RUN2), after=50)
        assert due(pod.state) == 1650.0

    def test_a_smaller_seconds_of_the_same_run_is_accepted_and_counts_from_first_sight(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(RUN2))
        assert pod.sees(AssignmentRead(replace(RUN2, seconds=60)), after=10) == (
            Ask(1, "node n1 is leaving", 1060.0, {0: 41}, again=True),
        )
        assert due(pod.state) == 1060.0

    def test_a_larger_seconds_of_the_same_run_is_ignored(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(RUN2))
        assert pod.sees(AssignmentRead(replace(RUN2, seconds=900))) == ()
        assert due(pod.state) == 1600.0

    @pytest.mark.parametrize(
        "changed",
        [replace(RUN2, rank=1), replace(RUN2, master="10.0.0.9:1"), replace(RUN2, lost=(1,)), LEAVE2],
    )
    def test_nothing_but_seconds_changes_within_a_run(self, changed: Train | Leave) -> None:
        pod = training()
        pod.sees(AssignmentRead(RUN2))
        assert pod.sees(AssignmentRead(changed)) == ()
        assert pod.sees(reported(Exiting(ExitKind.CHECKPOINTED, 121)), GONE) == (Start(RUN2),)

    def test_the_next_run_knows_of_the_commit_that_was_made_after_its_plan(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(RUN2), reported(CommitDone(COMMIT)))
        found = pod.sees(reported(Exiting(ExitKind.CHECKPOINTED, 120, COMMIT)), GONE)
        assert found == (Start(replace(RUN2, floor=COMMIT)),)

    def test_a_still_newer_run_replaces_the_one_in_hand_and_never_gives_more_time(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(RUN2))
        assert pod.sees(AssignmentRead(RUN3), after=100) == ()
        assert due(pod.state) == 1600.0
        assert told(pod, ExitKind.CHECKPOINTED).sees(GONE) == (Start(RUN3),)

    def test_a_still_newer_run_may_press(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(RUN2))
        assert pod.sees(AssignmentRead(replace(RUN3, seconds=30)), after=100) == (
            Ask(1, "node n2 is leaving", 1130.0, {0: 41}, again=True),
        )

    def test_a_run_found_lost_while_it_saves_is_killed(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(RUN2))
        assert pod.sees(AssignmentRead(replace(RUN3, lost=(1, 2)))) == (Kill(),)


class TestWhatARequestDoes:
    def test_a_session_that_has_not_opened_its_run_is_asked_and_killed_after_two_seconds(self) -> None:
        pod = attached()
        assert pod.sees(AssignmentRead(LEAVE2)) == (Ask(1, "node n1 is leaving", 1600.0, {0: 41}),)
        assert pod.sees(Tick(), after=1.9) == ()
        assert pod.sees(Tick(), after=0.1) == (Kill(),)
        assert pod.outcome(ProcessEnded(0, -9)) == Outcome(ExitKind.STOPPED, 1, 0)

    def test_a_session_whose_entry_was_on_its_way_has_two_seconds_from_then_on_to_close_its_run(self) -> None:
        pod = attached()
        pod.sees(AssignmentRead(LEAVE2))
        assert pod.sees(reported(SessionOpened(1)), after=1.5) == ()
        assert due(pod.state) == 1003.5

    def test_a_session_that_attaches_long_after_the_request_is_killed_at_once(self) -> None:
        pod = importing()
        assert [type(action) for action in pod.sees(AssignmentRead(LEAVE2))] == [Ask]
        assert pod.sees(reported(Attached(41)), after=2) == (Kill(),)

    def test_opened_without_a_step_is_asked_and_killed_after_two_seconds(self) -> None:
        pod = opened()
        assert pod.sees(AssignmentRead(LEAVE2)) == (Ask(1, "node n1 is leaving", 1600.0, {0: 41}),)
        assert due(pod.state) == 1002.0
        assert pod.sees(Tick(), after=1.9) == ()
        assert pod.sees(Tick(), after=0.1) == (Kill(),)
        assert pod.outcome(ProcessEnded(0, -9)).outcome is ExitKind.STOPPED

    def test_less_than_two_seconds_to_save_is_the_limit_without_a_step_too(self) -> None:
        pod = opened()
        pod.sees(AssignmentRead(replace(LEAVE2, seconds=1)))
        assert due(pod.state) == 1001.0

    def test_a_first_step_that_meets_the_request_gives_the_full_seconds(self) -> None:
        pod = opened()
        pod.sees(AssignmentRead(LEAVE2))
        assert pod.sees(reported(StepDone(1)), after=1) == ()
        assert due(pod.state) == 1600.0

    def test_a_run_opened_after_the_request_has_two_seconds_for_its_first_step_too(self) -> None:
        pod = importing()
        pod.sees(AssignmentRead(LEAVE2))
        assert pod.sees(reported(SessionOpened(1)), after=10) == ()
        assert due(pod.state) == 1012.0

    @pytest.mark.parametrize("event", [SigtermReceived(), AssignmentRead(LEAVE2), AssignmentRead(RUN2)])
    def test_a_trainer_that_has_reported_its_end_is_let_out_and_not_disturbed(self, event: Event) -> None:
        pod = told(training(), ExitKind.PEER_LOST)
        assert pod.sees(event, after=1) == ()
        assert due(pod.state) == 1030.0

    def test_a_trainer_that_has_reported_its_end_has_no_more_than_the_seconds_of_a_request(self) -> None:
        pod = told(training(), ExitKind.PEER_LOST)
        assert pod.sees(AssignmentRead(replace(LEAVE2, seconds=3))) == ()
        assert due(pod.state) == 1003.0

    def test_a_step_reported_by_a_process_killed_already_changes_nothing(self) -> None:
        pod = opened()
        pod.sees(AssignmentRead(LEAVE2))
        pod.sees(Tick(), after=2)
        pod.sees(reported(StepDone(1)))
        assert pod.outcome(ProcessEnded(0, -9)).outcome is ExitKind.STOPPED

    def test_a_trainer_with_a_step_has_the_full_seconds_and_then_is_killed(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(LEAVE2))
        assert pod.sees(Tick(), after=599) == ()
        assert pod.sees(Tick(), after=1) == (Kill(),)
        assert pod.sees(Tick(), after=1) == ()
        assert pod.outcome(ProcessEnded(0, -9)) == Outcome(ExitKind.EXIT_TIMEOUT, 1, 0, step=120, opened=1)

    def test_an_exit_timeout_tells_the_last_commit(self) -> None:
        pod = training()
        pod.sees(reported(CommitDone(COMMIT)), reported(StepDone(125)), AssignmentRead(replace(LEAVE2, seconds=0)))
        outcome = pod.outcome(ProcessEnded(0, -9))
        assert (outcome.outcome, outcome.step, outcome.commit) == (ExitKind.EXIT_TIMEOUT, 125, COMMIT)

    def test_a_killed_trainer_was_in_the_epoch_of_its_last_step(self) -> None:
        pod = training()
        pod.sees(reported(StepDone(125, 3)))
        assert pod.outcome(ProcessEnded(0, -9)).epoch == 3

    def test_an_ending_tells_the_epoch_that_its_last_step_has_finished(self) -> None:
        pod = training()
        pod.sees(reported(StepDone(125, 3)))
        assert told(pod, ExitKind.COMPLETED, epoch=4).outcome(GONE).epoch == 4

    def test_a_command_without_a_session_is_asked_with_the_full_seconds(self) -> None:
        pod = importing()
        assert pod.sees(AssignmentRead(LEAVE2)) == (Ask(1, "node n1 is leaving", 1600.0, {}),)
        assert due(pod.state) == 1600.0

    @pytest.mark.parametrize("status", [0, 1, -15, 143])
    def test_a_command_without_a_session_that_ends_when_asked_has_stopped(self, status: int) -> None:
        pod = importing()
        pod.sees(AssignmentRead(LEAVE2))
        assert pod.outcome(ProcessEnded(0, status)) == Outcome(ExitKind.STOPPED, 1, 0)

    def test_a_session_that_fails_when_asked_has_failed(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(LEAVE2))
        outcome = pod.outcome(BROKEN)
        assert outcome.error == Failure(ErrorKind.EXIT, "1", "Traceback: boom")

    def test_a_cause_is_made_up_where_the_assignment_has_none(self) -> None:
        assert "run 2 follows" in training().says(AssignmentRead(replace(RUN2, cause="")))


class TestWhenATrainerHasEnded:
    @pytest.mark.parametrize("newer", [None, RUN2, LEAVE2])
    def test_completed_exits_whatever_is_in_hand(self, newer: Train | Leave | None) -> None:
        pod = told(training(), ExitKind.COMPLETED, commit=COMMIT)
        if newer:
            pod.sees(AssignmentRead(newer))
        assert pod.outcome(GONE) == Outcome(ExitKind.COMPLETED, 1, 0, step=120, opened=1, commit=COMMIT)

    @pytest.mark.parametrize("end", [GONE, BROKEN, ProcessEnded(0, -9)])
    @pytest.mark.parametrize(
        "ending", [None, *(ended for ended in ExitKind if ended not in (ExitKind.COMPLETED, ExitKind.EXIT_TIMEOUT))]
    )
    def test_a_newer_run_in_hand_is_started_however_the_old_one_ended(
        self, ending: ExitKind | None, end: ProcessEnded
    ) -> None:
        pod = training()
        pod.sees(AssignmentRead(RUN2))
        if ending:
            told(pod, ending)
        assert pod.sees(end) == (Start(RUN2),)

    def test_a_leave_in_hand_exits_with_the_outcome(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(LEAVE2))
        told(pod, ExitKind.CHECKPOINTED, commit=COMMIT, seconds={"commit": 0.5}, opened=1)
        expected = Outcome(ExitKind.CHECKPOINTED, 1, 0, step=120, commit=COMMIT, opened=1, seconds={"commit": 0.5})
        assert pod.outcome(GONE) == expected

    @pytest.mark.parametrize("ending", [ExitKind.CHECKPOINTED, ExitKind.PEER_LOST, ExitKind.STOPPED])
    def test_the_seat_is_held_for_ten_minutes(self, ending: ExitKind) -> None:
        pod = told(training(), ending)
        assert pod.sees(GONE) == ()
        assert due(pod.state) == 1600.0
        assert pod.sees(Tick(), after=599) == ()
        assert pod.outcome(Tick(), after=1).outcome is ending

    def test_a_newer_run_takes_the_held_seat(self) -> None:
        pod = told(training(), ExitKind.CHECKPOINTED)
        pod.sees(GONE)
        assert pod.sees(AssignmentRead(RUN2), after=20) == (Start(RUN2),)
        assert due(pod.state) is None

    @pytest.mark.parametrize("event", [AssignmentRead(LEAVE2), SigtermReceived()])
    def test_a_held_seat_is_given_up_with_the_outcome(self, event: Event) -> None:
        pod = told(training(), ExitKind.CHECKPOINTED, commit=COMMIT)
        pod.sees(GONE)
        assert pod.outcome(event).commit == COMMIT

    def test_an_own_exception_exits_at_once(self) -> None:
        error = Failure(ErrorKind.EXCEPTION, "ValueError", "Traceback ... ValueError: boom")
        pod = told(training(), ExitKind.FAILED, error=error)
        assert pod.outcome(BROKEN) == Outcome(ExitKind.FAILED, 1, 0, step=120, opened=1, error=error)

    @pytest.mark.parametrize(
        ("status", "kind", "name"),
        [
            (-9, ErrorKind.SIGNAL, "SIGKILL"),
            (-11, ErrorKind.SIGNAL, "SIGSEGV"),
            (137, ErrorKind.SIGNAL, "SIGKILL"),
            (3, ErrorKind.EXIT, "3"),
            (127, ErrorKind.EXIT, "127"),
            (255, ErrorKind.EXIT, "255"),
        ],
    )
    def test_an_own_signal_or_exit_status_exits_at_once(self, status: int, kind: ErrorKind, name: str) -> None:
        outcome = training().outcome(ProcessEnded(0, status, "last words"))
        assert outcome == Outcome(ExitKind.FAILED, 1, 0, step=120, opened=1, error=Failure(kind, name, "last words"))

    def test_fenced_exits_at_once_with_the_highest_run_seen(self) -> None:
        assert told(training(), ExitKind.FENCED, opened=9).outcome(GONE).opened == 9

    def test_an_exit_status_of_zero_without_a_session_proves_nothing(self) -> None:
        outcome = importing().outcome(ProcessEnded(0, 0, "can't open file 'nosuch.py'\n"))
        assert outcome.error
        assert (outcome.outcome, outcome.error.name) == (ExitKind.FAILED, ErrorName.NO_SESSION)
        assert not outcome.infrastructure
        assert outcome.error.tail.startswith("can't open file 'nosuch.py'\n")
        assert "set -o pipefail" in outcome.error.tail
        assert "completion: ExitCode" in outcome.error.tail

    @pytest.mark.parametrize("pod", [importing, training])
    def test_an_exit_status_of_zero_completes_where_the_exit_code_counts(
        self, pod: Callable[[AgentSettings], Pod]
    ) -> None:
        assert pod(BY_EXIT_CODE).outcome(GONE).outcome is ExitKind.COMPLETED

    def test_an_exit_when_asked_completes_nothing_where_the_exit_code_counts(self) -> None:
        pod = importing(BY_EXIT_CODE)
        pod.sees(AssignmentRead(LEAVE2))
        assert pod.outcome(GONE).outcome is ExitKind.STOPPED

    def test_a_session_that_has_saved_is_not_completed_although_the_exit_code_counts(self) -> None:
        pod = told(training(BY_EXIT_CODE), ExitKind.CHECKPOINTED)
        pod.sees(GONE)
        assert pod.outcome(SigtermReceived()).outcome is ExitKind.CHECKPOINTED

    def test_a_session_that_ends_without_a_word_has_failed(self) -> None:
        outcome = training().outcome(GONE)
        assert outcome.error
        assert (outcome.outcome, outcome.error.name) == (ExitKind.FAILED, "0")
        assert "epochs()" in outcome.error.tail

    @pytest.mark.parametrize(("status", "outcome"), [(0, ExitKind.COMPLETED), (3, ExitKind.FAILED)])
    def test_after_the_goals_commit_the_exit_status_tells_whether_the_work_is_done(
        self, status: int, outcome: ExitKind
    ) -> None:
        pod = training()
        pod.sees(reported(CommitDone(COMMIT, goal=True)))
        assert pod.outcome(replace(GONE, status=status)).outcome is outcome

    def test_a_loop_after_the_goal_of_another_has_a_goal_of_its_own(self) -> None:
        pod = training()
        pod.sees(reported(CommitDone(COMMIT, goal=True)), reported(CommitDone(COMMIT)))
        assert pod.outcome(GONE).outcome is ExitKind.FAILED

    def test_a_pipe_does_not_hide_that_memory_was_short(self) -> None:
        outcome = training().outcome(replace(GONE, out_of_memory=OutOfMemory(2**30)))
        assert outcome.error
        assert (outcome.error.name, outcome.infrastructure) == (ErrorName.OUT_OF_MEMORY, True)

    def test_an_exception_after_the_kernel_has_killed_a_worker_names_both(self) -> None:
        error = Failure(ErrorKind.EXCEPTION, "RuntimeError", "DataLoader worker is killed by signal: Killed.\n")
        pod = told(training(), ExitKind.FAILED, error=error)
        outcome = pod.outcome(replace(BROKEN, out_of_memory=OutOfMemory(2**30)))
        assert outcome.error
        assert (outcome.error.kind, outcome.error.name) == (ErrorKind.EXCEPTION, "RuntimeError")
        assert outcome.error.tail.startswith("DataLoader worker is killed")
        assert "memory limit of 1024 MiB" in outcome.error.tail

    def test_a_trainer_killed_by_its_agent_has_not_run_out_of_memory(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(replace(RUN2, lost=(1,))))
        pod.sees(ProcessEnded(0, -9, out_of_memory=OutOfMemory(2**30)))
        assert pod.state.trainer
        assert pod.state.trainer.run == 2

    def test_what_the_trainer_reported_counts_more_than_how_it_died(self) -> None:
        pod = told(training(), ExitKind.CHECKPOINTED, commit=COMMIT)
        pod.sees(ProcessEnded(0, -6))
        assert pod.outcome(SigtermReceived()).outcome is ExitKind.CHECKPOINTED

    def test_a_run_is_never_started_twice(self) -> None:
        pod = told(training(), ExitKind.PEER_LOST)
        pod.sees(GONE)
        assert pod.sees(AssignmentRead(RUN1), AssignmentRead(replace(RUN1, master="10.0.0.7:1"))) == ()

    def test_the_commit_resumed_from_is_reported_without_a_newer_one(self) -> None:
        pod = importing()
        pod.sees(reported(SessionOpened(1, COMMIT)))
        outcome = pod.outcome(ProcessEnded(0, -9))
        assert (outcome.commit, outcome.step) == (COMMIT, 120)

    def test_a_process_that_reported_its_end_but_hangs_is_killed(self) -> None:
        pod = told(training(), ExitKind.PEER_LOST)
        assert pod.sees(Tick(), after=29) == ()
        assert pod.sees(Tick(), after=1) == (Kill(),)

    def test_a_script_may_go_on_for_long_after_its_last_epoch_but_not_for_ever(self) -> None:
        pod = told(training(), ExitKind.COMPLETED, commit=COMMIT)
        assert pod.sees(Tick(), after=3599) == ()
        assert pod.sees(Tick(), after=1) == (Kill(),)
        assert pod.outcome(ProcessEnded(0, -9)) == Outcome(ExitKind.COMPLETED, 1, 0, step=120, opened=1, commit=COMMIT)


class TestACompletedTrainerIsNotAsked:
    @pytest.mark.parametrize(
        "event", [AssignmentRead(RUN2), AssignmentRead(LEAVE2), AssignmentRead(replace(LEAVE2, lost=(1,)))]
    )
    def test_its_limit_is_the_seconds_of_the_request(self, event: Event) -> None:
        pod = told(training(), ExitKind.COMPLETED)
        assert pod.sees(event) == ()
        assert pod.sees(Tick(), after=599) == ()
        assert pod.sees(Tick(), after=1) == (Kill(),)
        assert pod.outcome(ProcessEnded(0, -9)).outcome is ExitKind.COMPLETED

    def test_sigterm_limits_it_to_the_grace(self) -> None:
        pod = told(training(), ExitKind.COMPLETED)
        assert pod.sees(SigtermReceived()) == ()
        assert due(pod.state) == 1115.0

    def test_it_had_no_step_to_do(self) -> None:
        assert told(attached(), ExitKind.COMPLETED).sees(AssignmentRead(LEAVE2)) == ()

    def test_a_request_that_came_before_the_word_keeps_its_seconds(self) -> None:
        pod = opened()
        pod.sees(AssignmentRead(LEAVE2))
        assert due(told(pod, ExitKind.COMPLETED).state) == 1600.0
        assert pod.sees(AssignmentRead(replace(LEAVE2, seconds=60))) == ()
        assert due(pod.state) == 1060.0

    def test_one_process_speaks_for_its_neighbours_for_the_goal_is_in_the_log(self) -> None:
        assert told(training(TWO), ExitKind.COMPLETED).sees(AssignmentRead(LEAVE2)) == ()


class TestWhatSigkillDoesNotEnd:
    def test_a_killed_trainer_that_does_not_end_is_given_up_with_its_outcome(self) -> None:
        pod = training()
        pod.sees(reported(CommitDone(COMMIT)), AssignmentRead(replace(RUN2, seconds=0)))
        assert due(pod.state) == 1030.0
        assert pod.sees(Tick(), after=29) == ()
        assert pod.outcome(Tick(), after=1) == Outcome(ExitKind.EXIT_TIMEOUT, 1, 0, step=120, commit=COMMIT, opened=1)

    def test_what_the_last_process_left_behind_is_waited_for(self) -> None:
        pod = told(training(), ExitKind.CHECKPOINTED)
        pod.sees(AssignmentRead(RUN2))
        assert pod.sees(replace(GONE, left_behind=True)) == ()
        assert pod.sees(Cleared(), after=29) == (Start(RUN2),)
        assert due(pod.state) is None

    def test_what_the_last_process_left_behind_is_given_up_and_nothing_is_started_beside_it(self) -> None:
        pod = told(training(), ExitKind.CHECKPOINTED)
        pod.sees(AssignmentRead(RUN2), replace(GONE, left_behind=True))
        assert pod.outcome(Tick(), after=30).outcome is ExitKind.CHECKPOINTED

    def test_a_crash_is_reported_as_it_was_although_something_is_left(self) -> None:
        pod = training()
        pod.sees(replace(BROKEN, left_behind=True))
        assert pod.outcome(Tick(), after=30).error == Failure(ErrorKind.EXIT, "1", "Traceback: boom")

    def test_what_is_left_of_a_killed_trainer_has_no_second_teardown(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(replace(LEAVE2, seconds=0)))
        assert pod.sees(ProcessEnded(0, -9, left_behind=True), after=20) == ()
        assert due(pod.state) == 1030.0

    def test_after_sigterm_the_outcome_is_written_within_the_grace(self) -> None:
        pod = training()
        pod.sees(SigtermReceived())
        assert pod.sees(Tick(), after=115) == (Kill(),)
        assert due(pod.state) == 1117.5
        assert pod.outcome(Tick(), after=2.5).outcome is ExitKind.EXIT_TIMEOUT


class TestSigterm:
    def test_sigterm_is_the_final_leave_with_the_grace_that_is_left(self) -> None:
        pod = training()
        assert pod.sees(SigtermReceived()) == (Ask(1, "the pod is being deleted", 1115.0, {0: 41}),)
        assert due(pod.state) == 1115.0

    def test_a_short_grace_is_not_eaten_up_by_its_margin(self) -> None:
        pod = training(AgentSettings(grace=4))
        pod.sees(SigtermReceived())
        assert due(pod.state) == 1003.0

    def test_the_outcome_follows_at_once_without_holding_the_seat(self) -> None:
        pod = training()
        pod.sees(SigtermReceived())
        assert told(pod, ExitKind.CHECKPOINTED).outcome(GONE).outcome is ExitKind.CHECKPOINTED

    def test_sigterm_never_gives_more_time(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(replace(RUN2, seconds=20)))
        assert pod.sees(SigtermReceived()) == ()
        assert due(pod.state) == 1020.0

    def test_sigterm_during_a_longer_save_shortens_it(self) -> None:
        pod = training()
        pod.sees(AssignmentRead(RUN2))
        assert pod.sees(SigtermReceived(), after=10) == (
            Ask(1, "the pod is being deleted", 1125.0, {0: 41}, again=True),
        )
        assert told(pod, ExitKind.CHECKPOINTED).outcome(GONE).run == 1

    def test_sigterm_twice_is_sigterm_once(self) -> None:
        pod = training()
        pod.sees(SigtermReceived())
        assert pod.sees(SigtermReceived(), after=50) == ()
        assert due(pod.state) == 1115.0

    def test_nothing_is_started_after_sigterm(self) -> None:
        pod = training()
        pod.sees(SigtermReceived(), AssignmentRead(RUN2))
        assert told(pod, ExitKind.CHECKPOINTED).outcome(GONE).run == 1

    def test_sigterm_before_the_run_is_open_leaves_two_seconds(self) -> None:
        pod = attached()
        assert [type(action) for action in pod.sees(SigtermReceived())] == [Ask]
        assert pod.sees(Tick(), after=2) == (Kill(),)


class TestUnknownVersion:
    def test_the_trainer_is_asked_and_the_outcome_says_why(self) -> None:
        pod = training()
        message = "assignment: version 2, this side knows 1: use matching images"
        assert [type(action) for action in pod.sees(Unreadable(message, unsupported=True))] == [Ask]
        outcome = told(pod, ExitKind.CHECKPOINTED, commit=COMMIT).outcome(GONE)
        assert (outcome.outcome, outcome.commit) == (ExitKind.CHECKPOINTED, COMMIT)
        assert outcome.error == Failure(ErrorKind.EXIT, "UnsupportedVersion", message)


class TestSeveralProcesses:
    def test_the_pod_has_one_outcome_once_all_have_ended(self) -> None:
        pod = training(TWO)
        pod.sees(
            reported(Exiting(ExitKind.CHECKPOINTED, 120, COMMIT)), reported(Exiting(ExitKind.CHECKPOINTED, 120), 1)
        )
        pod.sees(AssignmentRead(LEAVE2))
        assert pod.sees(GONE) == ()
        assert pod.outcome(ProcessEnded(1, 0)).commit == COMMIT

    def test_when_one_fails_the_others_are_killed_after_a_short_grace(self) -> None:
        pod = training(TWO)
        assert pod.sees(ProcessEnded(1, -11, "segfault")) == ()
        assert due(pod.state) == 1005.0
        assert pod.sees(Tick(), after=5) == (Kill(),)
        outcome = pod.outcome(ProcessEnded(0, -9))
        assert outcome.error == Failure(ErrorKind.SIGNAL, "SIGSEGV", "segfault")
        assert (outcome.rank, outcome.step) == (1, 120)

    def test_a_first_step_does_not_undo_what_a_failed_neighbour_limits(self) -> None:
        pod = opened(TWO)
        pod.sees(ProcessEnded(1, -11, "segfault"), AssignmentRead(LEAVE2))
        assert due(pod.state) == 1002.0
        pod.sees(reported(StepDone(1)), after=1)
        assert due(pod.state) == 1005.0

    def test_an_own_failure_is_reported_before_its_consequences(self) -> None:
        pod = training(TWO)
        pod.sees(reported(Exiting(ExitKind.PEER_LOST, 120)), GONE)
        assert pod.outcome(ProcessEnded(1, 1, "boom")).error == Failure(ErrorKind.EXIT, "1", "boom")

    def test_code_is_blamed_before_infrastructure(self) -> None:
        pod = training(TWO)
        pod.sees(ProcessEnded(0, -9))
        outcome = pod.outcome(ProcessEnded(1, 1, "boom"))
        assert outcome.error == Failure(ErrorKind.EXIT, "1", "boom")

    def test_a_commit_of_one_is_a_commit_of_all(self) -> None:
        pod = training(TWO)
        pod.sees(
            AssignmentRead(replace(LEAVE2, seconds=10)), reported(Exiting(ExitKind.CHECKPOINTED, 120, COMMIT)), GONE
        )
        assert pod.sees(Tick(), after=10) == (Kill(),)
        outcome = pod.outcome(ProcessEnded(1, -9))
        assert (outcome.outcome, outcome.commit) == (ExitKind.CHECKPOINTED, COMMIT)

    def test_a_clean_end_of_one_leaves_the_others_alone(self) -> None:
        pod = importing(TWO_BY_EXIT_CODE)
        pod.sees(GONE)
        assert due(pod.state) is None
        assert pod.outcome(ProcessEnded(1, 0)).outcome is ExitKind.COMPLETED

    def test_an_exit_status_of_zero_does_not_speak_for_a_neighbour_that_was_stopped(self) -> None:
        pod = importing(TWO_BY_EXIT_CODE)
        pod.sees(GONE, AssignmentRead(LEAVE2))
        assert pod.outcome(ProcessEnded(1, -15)).outcome is ExitKind.STOPPED

    def test_ranks_follow_the_members_first(self) -> None:
        pod = Pod(AgentState(TWO))
        pod.sees(AssignmentRead(Train(1, 2, 4, "10.0.0.1:1")))
        trainer = pod.state.trainer
        assert trainer
        assert [process.rank for process in trainer.processes] == [2, 3]


# Any events, in any order.

runs = st.integers(1, 5)
assignments = st.one_of(
    st.just(Standby()),
    st.builds(Leave, run=runs, seconds=st.integers(0, 50), lost=st.lists(runs).map(tuple)),
    st.builds(
        Train,
        run=runs,
        rank=st.integers(0, 3),
        world=st.just(4),
        master=st.just("h:1"),
        seconds=st.integers(0, 50),
        lost=st.lists(runs).map(tuple),
    ),
)
reports = st.one_of(
    st.just(Attached(41)),
    st.builds(SessionOpened, run=runs),
    st.builds(StepDone, step=st.integers(0, 9)),
    st.builds(Exiting, outcome=st.sampled_from(ExitKind), step=st.integers(0, 9)),
)
happenings = st.one_of(
    assignments.map(AssignmentRead),
    st.builds(Unreadable, st.just("bad"), st.booleans()),
    st.tuples(st.integers(0, 1), reports),
    st.tuples(st.integers(0, 1), st.sampled_from([0, 1, -9, -15])),
    st.just(Cleared()),
    st.just(Tick()),
    st.just(SigtermReceived()),
)


def _event(happening: object, state: AgentState) -> Event | None:
    """A happening of one of the two processes, where that process is running."""
    if not isinstance(happening, tuple):
        assert isinstance(happening, AssignmentRead | Unreadable | Cleared | Tick | SigtermReceived)
        return happening
    index, what = happening
    process = state.trainer.processes[index] if state.trainer else None
    if process is None or process.outcome:
        return None
    return ProcessEnded(process.rank, what) if isinstance(what, int) else ReportReceived(process.rank, what)


@given(st.lists(st.tuples(happenings, st.floats(0, 20)), max_size=40))
def test_whatever_happens_runs_only_grow_never_overlap_and_the_end_is_the_end(
    happened: list[tuple[object, float]],
) -> None:
    state, now, started, killed = AgentState(TWO), 0.0, [0], []
    for happening, pause in happened:
        now += pause
        event = _event(happening, state)
        if event is None:
            continue
        was_finished, was_alive = state.finished, state.trainer is not None and bool(state.trainer.alive)
        state, actions = react(state, event, now)
        for action in actions:
            assert not was_finished
            match action:
                case Start(train):
                    assert train.run > started[-1]
                    assert not was_alive or isinstance(event, ProcessEnded)
                    started.append(train.run)
                case Kill():
                    assert started[-1] not in killed
                    killed.append(started[-1])
                case Finish():
                    assert state.trainer is None or not state.trainer.alive
                    assert action == actions[-1]
                case Ask():
                    assert was_alive


@given(st.lists(happenings, max_size=20))
def test_after_sigterm_the_agent_is_gone_within_the_grace(happened: list[object]) -> None:
    state = AgentState(TWO)
    for happening in happened:
        event = _event(happening, state)
        if event:
            state, _ = react(state, event, 0.0)
    state, _ = react(state, SigtermReceived(), 0.0)
    state, _ = react(state, Tick(), TWO.grace)
    trainer = state.trainer
    if not state.finished:
        assert trainer
        assert trainer.killed
        for process in trainer.processes:
            if process.outcome is None:
                state, _ = react(state, ProcessEnded(process.rank, -9), TWO.grace)
    assert state.finished


class TestATrainerThatHangs:
    """With failure.progressTimeoutSeconds."""

    SETTINGS = AgentSettings(ends_hangs=True)

    @pytest.mark.parametrize("place", [Standing.STANDS, Standing.RUNS, None])
    def test_one_that_waits_for_no_rank_is_killed_once_its_stacks_are_written_and_counts_as_a_failure_of_the_script(
        self, place: Standing | None
    ) -> None:
        pod = training(self.SETTINGS)
        assert pod.sees(reported(Hangs(60.0, place, ends=True))) == ()
        assert pod.sees(Tick(), after=10) == (Kill(),)
        error = pod.outcome(ProcessEnded(0, -9)).error
        assert error
        assert (error.name, error.infrastructure) == (ErrorName.NO_PROGRESS, False)
        assert error.tail.startswith("rank 0 made no progress for longer than failure.progressTimeoutSeconds allows: ")

    def test_one_that_waits_for_others_gets_three_times_as_much(self) -> None:
        pod = training(self.SETTINGS)
        assert pod.sees(reported(Hangs(60.0, Standing.WAITS_FOR_RANKS, ends=True))) == ()
        assert pod.sees(Tick(), after=129.9) == ()
        assert pod.sees(Tick(), after=0.2) == (Kill(),)

    def test_one_that_loses_the_peer_that_it_waits_for_leaves_as_ever(self) -> None:
        pod = training(self.SETTINGS, images=True)
        pod.sees(reported(Hangs(60.0, Standing.WAITS_FOR_RANKS, ends=True)), reported(Imaged(120)))
        pod.sees(reported(Exiting(ExitKind.PEER_LOST, 120)))
        assert pod.sees(Tick(), after=25) == ()

    def test_one_that_makes_progress_again_in_time_trains_on(self) -> None:
        pod = training(self.SETTINGS)
        pod.sees(reported(Hangs(60.0, Standing.STANDS, ends=True)), reported(Hangs(None)))
        assert due(pod.state) is None

    def test_one_that_says_nothing_any_more_is_killed_before_those_that_wait_for_it(self) -> None:
        pod = training(self.SETTINGS)
        pod.sees(reported(Watched(60.0)))
        assert pod.sees(Tick(), after=99.9) == ()
        assert pod.sees(Tick(), after=0.2) == (Kill(),)
        error = pod.outcome(ProcessEnded(0, -9)).error
        assert error
        assert error.name == ErrorName.NO_PROGRESS
        assert error.tail.startswith("rank 0 said nothing for 90 s: its interpreter was held, or it was stopped;")

    def test_one_that_looks_at_itself_is_as_slow_as_it_says_that_it_may_be(self) -> None:
        """A phase that may take longer, such as an evaluation, whose end brings no step at once."""
        pod = training(self.SETTINGS)
        for _ in range(100):
            pod.sees(reported(Watched(3600.0)), after=5)
        for _ in range(100):
            assert pod.sees(reported(Watched(60.0)), after=5) == ()

    def test_one_that_may_stand_for_ever_is_left_alone(self) -> None:
        pod = training(self.SETTINGS)
        pod.sees(reported(Watched(60.0)), reported(Watched(None)))
        assert due(pod.state) is None

    def test_the_limit_of_the_log_that_comes_later_changes_nothing(self) -> None:
        pod = training(self.SETTINGS)
        pod.sees(reported(Hangs(60.0, Standing.WAITS_FOR_RANKS, ends=True)), reported(Watched(60.0)))
        pod.sees(reported(Hangs(100.0, Standing.WAITS_FOR_RANKS)), reported(Watched(60.0)), after=40)
        assert pod.sees(reported(Watched(60.0)), after=50) == ()
        assert pod.sees(reported(Watched(60.0)), after=45) == (Kill(),)

    @pytest.mark.parametrize("place", [Standing.STANDS, Standing.WAITS_FOR_RANKS])
    def test_the_limit_of_the_log_ends_nothing(self, place: Standing) -> None:
        pod = training(self.SETTINGS)
        pod.sees(reported(Hangs(5.0, place)))
        assert due(pod.state) is None

    def test_one_that_is_asked_to_leave_has_the_time_of_the_request(self) -> None:
        pod = training(self.SETTINGS)
        pod.sees(reported(Hangs(60.0, Standing.WAITS_FOR_RANKS, ends=True)), AssignmentRead(LEAVE2))
        assert pod.sees(Tick(), after=300) == ()

    def test_without_that_field_nothing_is_ended(self) -> None:
        pod = training()
        pod.sees(reported(Watched(60.0)), reported(Hangs(300.0, Standing.STANDS, ends=True)))
        assert due(pod.state) is None

    def test_its_neighbours_in_the_pod_end_with_it(self) -> None:
        pod = training(replace(self.SETTINGS, processes=2))
        pod.sees(reported(Hangs(60.0, Standing.STANDS, ends=True), rank=1))
        assert pod.sees(Tick(), after=10) == (Kill(),)
