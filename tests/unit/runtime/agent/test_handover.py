"""The agent's part in a live hand-over, as a table over the pure rules and once with real processes."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.agent.environ import ProcessIdentity, process_environment
from perdure.agent.stage import AgentStage, due, stage_of
from perdure.agent.state import (
    Acknowledge,
    Ask,
    AssignmentRead,
    CommitImage,
    Event,
    Kill,
    MakesWay,
    OfferAssignment,
    ProcessEnded,
    Rescued,
    SigtermReceived,
    Start,
    Tick,
)
from perdure.wire import (
    LINGER_SECONDS,
    AttemptRecord,
    Env,
    ExitKind,
    Handover,
    HandoverRecord,
    HandoverWord,
    Leave,
    Train,
    read_handover,
)
from perdure.wire.channel import (
    Attached,
    CommitDone,
    Exiting,
    HandoverEnded,
    Imaged,
    SessionOpened,
    StepDone,
    TookOver,
    Voting,
)
from tests.unit.runtime.agent.member import TRAINER, Member
from tests.unit.runtime.agent.test_machine import COMMIT, GONE, ONE, TWO, Pod, attached, importing, reported, told

MASTER = "10.0.0.1:29501"
BLOCK = Handover(1, 2, (1,), (1,), "10.0.0.1:30000", limit=60, token="secret")
STAYS = Train(2, 0, 2, MASTER, cause="node n2 is leaving", seconds=600, wait=615, handover=BLOCK)
LEAVES = Leave(2, cause="node n1 is leaving", seconds=600, handover=BLOCK)
JOINS = replace(STAYS, handover=replace(BLOCK, joins=(0,), leavers=(0,)))
NEXT = replace(STAYS, run=3, handover=replace(BLOCK, run=2))
"""Takes over the run that takes over."""
PLAIN = Train(3, 0, 2, MASTER, cause="suspended", seconds=300)
VOTES = reported(Voting(1, 2))
WENT = reported(TookOver(2, 0, 2, 121, {"pause": 0.05}))
ABORTED = reported(HandoverEnded(2, HandoverWord.ABORT, "the newcomer is silent"))
DIED = ProcessEnded(0, -signal.SIGSEGV)
RESTARTS = reported(HandoverEnded(2, HandoverWord.RESTART, "limit"))


def living(*, live: bool = True) -> Pod:
    """Run 1 trains, in a Session that looks for offers."""
    pod = importing()
    pod.sees(
        reported(Attached(41, live, "" if live else "DTensor")), reported(SessionOpened(1)), reported(StepDone(120))
    )
    return pod


def offered(assignment: Train | Leave = STAYS) -> Pod:
    pod = living()
    assert pod.sees(AssignmentRead(assignment)) == (OfferAssignment(1, assignment),)
    return pod


def voting(assignment: Train | Leave = STAYS) -> Pod:
    pod = offered(assignment)
    assert pod.sees(VOTES) == (Acknowledge(1, 2),)
    return pod


WENT_AS_LAST = AttemptRecord(2, True, HandoverWord.GO)
BOTH_LOST = Train(3, 0, 1, MASTER, cause="lost", lost=(1, 2))


def keeps_the_state() -> Pod:
    """A leaver that has read go, and does not know whether its heirs have."""
    pod = voting(LEAVES)
    pod.sees(reported(Imaged(120)))
    assert told(pod, ExitKind.PEER_LOST, attempt=WENT_AS_LAST).sees(GONE) == ()
    return pod


def newcomer() -> Pod:
    pod = Pod()
    pod.sees(AssignmentRead(JOINS), reported(Attached(41, live=True)))
    return pod


class TestAnOffer:
    @pytest.mark.parametrize("assignment", [STAYS, LEAVES])
    def test_is_no_request(self, assignment: Train | Leave) -> None:
        pod = offered(assignment)
        assert stage_of(pod.state) is AgentStage.OFFERED
        assert pod.sees(reported(StepDone(121)), after=30) == ()

    def test_of_one_who_does_not_look_for_it_is_a_request(self) -> None:
        assert [type(action) for action in living(live=False).sees(AssignmentRead(STAYS))] == [Ask]

    def test_to_a_run_that_takes_over_another_is_a_request(self) -> None:
        other = replace(STAYS, run=7, handover=replace(BLOCK, run=6))
        assert [type(action) for action in living().sees(AssignmentRead(other))] == [Ask]

    def test_of_which_nothing_comes_is_a_request_after_its_limit(self) -> None:
        pod = offered()
        assert due(pod.state) == 1070.0
        assert pod.sees(Tick(), after=69) == ()
        assert pod.sees(Tick(), after=1) == (Ask(1, "node n2 is leaving", 1600.0, {0: 41}),)
        assert told(pod, ExitKind.CHECKPOINTED).sees(GONE) == (Start(STAYS),)

    def test_that_presses_is_shown_again(self) -> None:
        pressing = replace(STAYS, seconds=100)
        assert offered().sees(AssignmentRead(pressing)) == (OfferAssignment(1, pressing),)

    def test_is_over_with_a_plain_newer_run(self) -> None:
        assert offered().sees(AssignmentRead(PLAIN)) == (Ask(1, "suspended", 1300.0, {0: 41}),)

    def test_is_over_when_the_pod_is_deleted(self) -> None:
        assert [type(action) for action in offered().sees(SigtermReceived())] == [Ask]

    def test_of_a_run_that_takes_over_the_attempted_one_waits_for_its_word(self) -> None:
        pod = offered()
        assert pod.sees(AssignmentRead(NEXT)) == (OfferAssignment(1, NEXT),)
        pod.sees(VOTES)
        assert pod.sees(WENT) == ()
        assert stage_of(pod.state) is AgentStage.OFFERED

    def test_of_a_run_that_takes_over_an_aborted_one_is_a_request(self) -> None:
        pod = offered()
        pod.sees(ABORTED)
        assert [type(action) for action in pod.sees(AssignmentRead(NEXT))] == [Ask]

    def test_that_was_not_taken_may_be_followed_by_another(self) -> None:
        again = replace(STAYS, run=3)
        pod = offered()
        pod.sees(ABORTED)
        assert pod.sees(AssignmentRead(again)) == (OfferAssignment(1, again),)


class TestAVote:
    def test_is_acknowledged_each_time_and_needs_no_step(self) -> None:
        pod = importing()
        pod.sees(reported(Attached(41, live=True)), reported(SessionOpened(1)), AssignmentRead(STAYS), VOTES)
        assert pod.sees(VOTES) == (Acknowledge(1, 2),)
        assert pod.sees(Tick(), after=1e6) == ()

    def test_keeps_a_newcomer_that_has_opened_nothing_from_being_killed(self) -> None:
        pod = newcomer()
        assert pod.sees(VOTES) == (Acknowledge(2, 2),)
        assert pod.sees(AssignmentRead(PLAIN)) == (Ask(2, "suspended", 1300.0, {0: 41}),)

    def test_a_newcomer_that_has_not_voted_has_two_seconds_to_say_abort_for_a_newer_run(self) -> None:
        pod = newcomer()
        assert pod.sees(AssignmentRead(PLAIN)) == (Ask(2, "suspended", 1300.0, {0: 41}),)
        assert pod.sees(Tick(), after=1.9) == ()
        assert pod.sees(Tick(), after=0.2) == (Kill(),)

    @pytest.mark.parametrize("lost", [(1,), (2,)])
    def test_is_not_killed_where_one_of_its_runs_is_lost(self, lost: tuple[int, ...]) -> None:
        assert Kill() not in voting().sees(AssignmentRead(replace(NEXT, lost=lost)))

    def test_is_killed_where_both_of_its_runs_are_lost(self) -> None:
        assert voting().sees(AssignmentRead(replace(PLAIN, lost=(1, 2)))) == (Kill(),)

    def test_of_a_newcomer_whose_runs_are_both_lost_means_that_it_has_an_image_to_leave(self) -> None:
        """Nothing was trained here, and it holds what the older run's ranks hold."""
        pod = Pod()
        pod.sees(AssignmentRead(JOINS), reported(Attached(41, live=True, images=True)), VOTES)
        (asked,) = pod.sees(AssignmentRead(replace(PLAIN, lost=(1, 2))))
        assert isinstance(asked, Ask)
        assert asked.image
        assert pod.sees(reported(Imaged(120))) == (Kill(),)

    def test_the_run_that_the_word_tells_is_the_one_that_may_be_lost(self) -> None:
        pod = voting()
        pod.sees(AssignmentRead(replace(NEXT, lost=(1,))))
        assert pod.sees(ABORTED) == (Kill(),)
        pod = voting()
        pod.sees(AssignmentRead(replace(NEXT, lost=(1,))))
        assert pod.sees(WENT) == ()

    def test_is_not_killed_when_the_seconds_are_over(self) -> None:
        pod = voting()
        assert pod.sees(Tick(), after=1000) == ()
        assert due(pod.state) is None

    def test_is_asked_by_a_newer_run_and_not_killed_either(self) -> None:
        pod = voting()
        assert pod.sees(AssignmentRead(PLAIN)) == (Ask(1, "suspended", 1300.0, {0: 41}),)
        assert pod.sees(Tick(), after=1000) == ()

    @pytest.mark.parametrize("word", [WENT, ABORTED])
    def test_sigterm_is_held_until_the_word(self, word: Event) -> None:
        pod = voting()
        assert pod.sees(SigtermReceived()) == ()
        assert pod.sees(Tick(), after=10) == ()
        assert pod.sees(word) == (Ask(1, "the pod is being deleted", 1115.0, {0: 41}),)

    def test_without_a_word_it_dies_with_its_pod(self) -> None:
        pod = voting()
        pod.sees(SigtermReceived())
        assert due(pod.state) == 1115.0
        assert pod.sees(Tick(), after=115) == (Kill(),)


class TestTheWord:
    def test_go_makes_the_trainer_one_of_the_newer_run(self) -> None:
        pod = voting()
        assert pod.sees(WENT) == ()
        assert stage_of(pod.state) is AgentStage.STEPPED
        assert due(pod.state) is None
        pod.sees(reported(CommitDone(COMMIT)), reported(StepDone(130)))
        outcome = told(pod, ExitKind.COMPLETED).outcome(GONE)
        assert (outcome.run, outcome.step, outcome.opened) == (2, 130, 2)
        assert outcome.handovers == (HandoverRecord(2, HandoverWord.GO, parts={"pause": 0.05}),)
        assert (outcome.live, outcome.live_why) == (True, "")

    def test_a_trainer_that_went_over_is_asked_where_its_files_are(self) -> None:
        pod = voting()
        pod.sees(WENT)
        assert pod.sees(AssignmentRead(PLAIN)) == (Ask(1, "suspended", 1300.0, {0: 41}),)

    def test_the_rank_is_the_one_of_the_newer_run(self) -> None:
        pod = voting()
        pod.sees(reported(TookOver(2, 5, 8, 121)))
        assert told(pod, ExitKind.PEER_LOST).sees(GONE) == ()
        assert pod.outcome(Tick(), after=600).rank == 5

    def test_a_leaver_is_done(self) -> None:
        pod = voting(LEAVES)
        outcome = told(pod, ExitKind.HANDED_OVER).outcome(GONE)
        assert (outcome.outcome, outcome.run) == (ExitKind.HANDED_OVER, 1)
        assert outcome.handovers == (HandoverRecord(2, HandoverWord.GO),)

    def test_a_leavers_container_does_not_wait_for_its_interpreters_end(self) -> None:
        pod = voting(LEAVES)
        outcome = told(pod, ExitKind.HANDED_OVER).outcome(MakesWay(0))
        assert outcome.outcome is ExitKind.HANDED_OVER
        assert outcome.handovers == (HandoverRecord(2, HandoverWord.GO),)

    def test_a_leaver_that_learned_of_a_later_run_has_gone_over_to_its_own(self) -> None:
        pod = voting(LEAVES)
        assert pod.sees(AssignmentRead(replace(LEAVES, run=3, handover=NEXT.handover))) != ()
        outcome = told(pod, ExitKind.HANDED_OVER).outcome(GONE)
        assert outcome.handovers == (HandoverRecord(2, HandoverWord.GO),)

    def test_abort_lets_it_train_on(self) -> None:
        pod = voting()
        assert pod.sees(ABORTED) == ()
        assert stage_of(pod.state) is AgentStage.STEPPED
        assert pod.sees(Tick(), after=1e6) == ()

    @pytest.mark.parametrize("ending", [ExitKind.CHECKPOINTED, ExitKind.PEER_LOST])
    def test_an_aborted_run_is_never_started(self, ending: ExitKind) -> None:
        pod = voting()
        pod.sees(ABORTED)
        assert told(pod, ending).sees(GONE) == ()
        assert stage_of(pod.state) is AgentStage.HELD
        assert pod.sees(AssignmentRead(PLAIN)) == (Start(PLAIN),)

    def test_restart_begins_the_newer_run_in_place_within_its_seconds(self) -> None:
        pod = offered()
        assert pod.sees(RESTARTS) == ()
        assert due(pod.state) == 1600.0
        assert told(pod, ExitKind.CHECKPOINTED).sees(GONE) == (Start(STAYS),)

    def test_restart_is_pressed_when_the_pod_is_deleted(self) -> None:
        pod = offered()
        pod.sees(RESTARTS)
        assert pod.sees(SigtermReceived()) == (Ask(1, "the pod is being deleted", 1115.0, {0: 41}, again=True),)

    def test_a_newcomer_whose_attempt_fails_is_done(self) -> None:
        pod = newcomer()
        pod.sees(VOTES, ABORTED)
        outcome = told(pod, ExitKind.HANDOVER_FAILED).outcome(GONE)
        assert (outcome.outcome, outcome.run) == (ExitKind.HANDOVER_FAILED, 2)
        assert outcome.handovers == (HandoverRecord(2, HandoverWord.ABORT, "the newcomer is silent"),)

    def test_of_one_process_is_the_word_of_all(self) -> None:
        pod = importing(TWO)
        for rank in (0, 1):
            pod.sees(reported(Attached(41 + rank, live=True), rank), reported(SessionOpened(1), rank))
        block = replace(BLOCK, world=4)
        pod.sees(AssignmentRead(replace(STAYS, world=4, handover=block)), reported(Voting(1, 2), 0), WENT)
        assert pod.sees(reported(Voting(1, 2), 1)) == (Acknowledge(1, 2),)
        assert stage_of(pod.state) is AgentStage.STEPPED
        pod.sees(reported(TookOver(2, 1, 4, 121), 1))
        assert len(pod.state.handovers) == 1

    def test_the_newest_four_attempts_are_reported(self) -> None:
        pod = living()
        for run in range(2, 8):
            pod.sees(AssignmentRead(replace(STAYS, run=run)), reported(HandoverEnded(run, HandoverWord.ABORT)))
        outcome = told(pod, ExitKind.COMPLETED).outcome(GONE)
        assert [record.run for record in outcome.handovers] == [4, 5, 6, 7]


class TestATrainerThatDiesUndecided:
    @pytest.mark.parametrize("pod", [offered, voting], ids=["offered", "voting"])
    def test_by_a_peers_failure_holds_the_seat(self, pod: type[Pod]) -> None:
        here = pod()
        assert told(here, ExitKind.PEER_LOST).sees(GONE) == ()
        assert stage_of(here.state) is AgentStage.HELD
        assert here.sees(AssignmentRead(PLAIN)) == (Start(PLAIN),)

    def test_by_its_own_failure_is_reported_at_once(self) -> None:
        assert voting().outcome(ProcessEnded(0, -9)).outcome is ExitKind.FAILED

    def test_with_a_final_commit_lets_the_newer_run_begin(self) -> None:
        assert told(offered(), ExitKind.CHECKPOINTED).sees(GONE) == (Start(STAYS),)

    @pytest.mark.parametrize(("word", "aborted"), [(VOTES, 2), (ABORTED, 2), (RESTARTS, 0)])
    def test_of_a_leaver_says_with_its_image_that_no_run_takes_over_any_more(self, word: Event, aborted: int) -> None:
        pod = offered(LEAVES)
        pod.sees(word, reported(Imaged(120)))
        told(pod, ExitKind.PEER_LOST)
        assert pod.sees(GONE)[-1] == CommitImage(1, aborted)

    def test_of_a_leaver_that_has_read_go_and_may_be_the_last_keeps_the_state_in_its_seat(self) -> None:
        pod = keeps_the_state()
        assert stage_of(pod.state) is AgentStage.HELD
        assert pod.state.handovers == (HandoverRecord(2, HandoverWord.GO),)
        assert pod.sees(AssignmentRead(BOTH_LOST)) == (Start(BOTH_LOST),)

    @pytest.mark.parametrize(("lost", "successor"), [((1, 2), 2), ((1,), 0), ((), 0)])
    def test_which_is_the_newer_runs_last_word_only_where_that_is_lost(
        self, lost: tuple[int, ...], successor: int
    ) -> None:
        """A silent party may be alive."""
        pod = keeps_the_state()
        assert pod.sees(AssignmentRead(Leave(3, "lost", lost=lost))) == (CommitImage(1, successor=successor),)
        outcome = pod.outcome(Rescued(COMMIT if successor else None, "run 2 has begun"))
        assert (outcome.attempt, outcome.outcome) == (AttemptRecord(2, True, HandoverWord.GO), ExitKind.PEER_LOST)

    def test_nor_where_no_party_says_anything_more(self) -> None:
        pod = keeps_the_state()
        assert pod.sees(Tick(), after=LINGER_SECONDS + 0.1) == (CommitImage(1),)

    @pytest.mark.parametrize(
        ("word", "lost", "aborted", "successor"),
        [(VOTES, (), 2, 0), (ABORTED, (), 2, 0), (VOTES, (1,), 2, 0), (VOTES, (1, 2), 2, 2)],
    )
    def test_of_a_newcomer_leaves_an_image_of_the_run_that_it_was_to_take_over(
        self, word: Event, lost: tuple[int, ...], aborted: int, successor: int
    ) -> None:
        pod = newcomer()
        pod.sees(VOTES, word, reported(Imaged(120, of=1)))
        told(pod, ExitKind.PEER_LOST).sees(GONE)
        assert pod.sees(AssignmentRead(Leave(3, "evicted", lost=lost)))[-1] == CommitImage(1, aborted, successor)

    def test_without_an_image_it_has_nothing_to_keep(self) -> None:
        pod = voting(LEAVES)
        pod.sees(reported(Imaged(None, "parameters are on an accelerator")))
        assert told(pod, ExitKind.PEER_LOST, attempt=WENT_AS_LAST).outcome(GONE).outcome is ExitKind.PEER_LOST

    def test_of_a_leaver_ends_the_pod(self) -> None:
        assert told(voting(LEAVES), ExitKind.PEER_LOST).outcome(GONE).outcome is ExitKind.PEER_LOST


def test_a_session_that_cannot_change_membership_says_why_in_the_outcome() -> None:
    pod = living(live=False)
    outcome = told(pod, ExitKind.COMPLETED).outcome(GONE)
    assert (outcome.live, outcome.live_why) == (False, "DTensor")


def test_a_pod_without_a_session_or_with_an_older_one_says_nothing_of_it() -> None:
    assert importing(ONE).outcome(ProcessEnded(0, 1)).live is None
    assert told(attached(), ExitKind.COMPLETED).outcome(GONE).live is None


@pytest.mark.parametrize(("train", "joins"), [(JOINS, True), (STAYS, False), (replace(JOINS, handover=None), False)])
def test_a_newcomer_alone_finds_the_block_in_its_environment(train: Train, joins: bool) -> None:
    place = ProcessIdentity(0, 1, 5, Path("request.json"), Path("handover.json"), 12.5, None)
    found = process_environment({Env.HANDOVER: "an older one"}, train, place)
    assert found[Env.HANDOVER_FILE] == "handover.json"
    assert read_handover(json.loads(found.get(Env.HANDOVER, "null"))) == (train.handover if joins else None)


def test_a_trainer_finds_the_offer_votes_once_it_is_acknowledged_and_goes_over(tmp_path: Path) -> None:
    word = tmp_path / "word"
    with Member(tmp_path, *TRAINER, "goes_over", str(word)) as member:
        member.assign(Train(1, 0, 2, MASTER))
        member.told("training")
        member.assign(STAYS)
        assert member.told("offered") == 2
        assert member.told("acknowledged") is True
        member.process.send_signal(signal.SIGTERM)
        member.hears("leaving: the pod is being deleted")
        word.touch()
        assert member.told("held") is True
        member.hears("run 2 has taken over: rank 0 of 2, step 6")
        member.hears("run 2 asked to save: the pod is being deleted")
        outcome, status = member.outcome()
        assert (outcome.outcome, outcome.run, outcome.step, status) == (ExitKind.CHECKPOINTED, 2, 6, 0)
        assert [record.word for record in outcome.handovers] == [HandoverWord.GO]


class TestWhatAnOutcomeTellsOfAnAttempt:
    """Nothing but what this pod's trainer did and read: silence of others is in no outcome."""

    def test_one_that_was_killed_before_its_vote_has_not_voted(self) -> None:
        assert offered().outcome(DIED).attempt == AttemptRecord(2)
        assert newcomer().outcome(DIED).attempt == AttemptRecord(2)

    def test_one_that_was_killed_behind_its_vote_knows_no_word(self) -> None:
        outcome = voting().outcome(DIED)
        assert (outcome.attempt, outcome.opened) == (AttemptRecord(2, voted=True), 1)

    def test_a_newcomers_vote_is_no_opening(self) -> None:
        pod = newcomer()
        pod.sees(VOTES)
        aborted = AttemptRecord(2, voted=True, word=HandoverWord.ABORT)
        pod.sees(reported(Exiting(ExitKind.HANDOVER_FAILED, 120, attempt=aborted)))
        outcome = pod.outcome(GONE)
        assert (outcome.attempt, outcome.opened) == (aborted, 0)

    @pytest.mark.parametrize(("report", "word"), [(WENT, HandoverWord.GO), (ABORTED, HandoverWord.ABORT)])
    def test_the_word_stays_true_whatever_the_trainer_dies_of_later(self, report: Event, word: HandoverWord) -> None:
        pod = voting()
        pod.sees(report)
        assert pod.outcome(DIED).attempt == AttemptRecord(2, voted=True, word=word)

    def test_a_run_that_begins_in_place_is_no_hand_over(self) -> None:
        pod = voting()
        pod.sees(RESTARTS)
        told(pod, ExitKind.CHECKPOINTED).sees(GONE)
        assert pod.outcome(DIED).attempt is None

    def test_another_attempt_is_reported_instead(self) -> None:
        pod = voting()
        pod.sees(ABORTED, AssignmentRead(replace(STAYS, run=3)))
        assert pod.outcome(DIED).attempt == AttemptRecord(3)

    def test_none_is_reported_where_there_was_none(self) -> None:
        assert living().outcome(DIED).attempt is None
