"""One party's machine, rule by rule. That the rules are enough together is shown by the model checks beside this."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.live.protocol import events as on
from perdure.live.protocol.events import Alarm, Choice
from perdure.live.protocol.machine import PartyPhase, PartyState, begin, named, step
from perdure.live.protocol.parties import Attempt
from perdure.live.protocol.state import lingers
from perdure.log.verdict import Verdict
from perdure.wire import ExitKind, HandoverWord

REPLACED = Attempt(3, 4, 2, (1,), (1,))
"""Rank 1 leaves, party 2 comes."""
GROWN = Attempt(3, 4, 2, (2,), ())
FIRST_LEAVES = Attempt(3, 4, 2, (0,), (0,))
THREE = Attempt(3, 4, 3, (2,), (2,))
ALL_LEAVE = Attempt(3, 4, 2, (0, 1), (0, 1))
ONE_REPLACED = Attempt(3, 4, 1, (0,), (0,))
SHRUNK_TO_ONE = Attempt(3, 4, 2, (), (1,))
D, LEAVER, NEWCOMER = 0, 1, 2
GO, ABORT, RESTART = HandoverWord.GO, HandoverWord.ABORT, HandoverWord.RESTART

READY = (on.StoreSeen(True), on.AllWarm(), on.Connected(), on.AllConnected())
TO_THE_VOTE: tuple[on.Event, ...] = (*READY, on.Stopped(), on.Moved(), on.FirstBatch(), on.Acknowledged())


class Machine:
    """One party, and what its last event made it do."""

    def __init__(self, attempt: Attempt, number: int, *happened: on.Event) -> None:
        self.state, self.did = begin(attempt, number)
        self.sees(*happened)

    def sees(self, *happened: on.Event) -> tuple[on.Action, ...]:
        for event in happened:
            self.state, self.did = step(self.state, event)
        return self.did

    @property
    def phase(self) -> PartyPhase:
        return self.state.phase


def prepared(number: int, attempt: Attempt = REPLACED) -> Machine:
    return Machine(attempt, number, *READY)


def standing(number: int, attempt: Attempt = REPLACED) -> Machine:
    """Stopped, or a newcomer with its state; not voted."""
    return Machine(attempt, number, *READY, on.Stopped(), on.Moved())


def voted(number: int, attempt: Attempt = REPLACED) -> Machine:
    return Machine(attempt, number, *TO_THE_VOTE)


def asking(number: int, attempt: Attempt = REPLACED) -> Machine:
    return Machine(attempt, number, *TO_THE_VOTE, on.LinkClosed())


def deciding(attempt: Attempt = REPLACED) -> Machine:
    return Machine(attempt, attempt.decider, *TO_THE_VOTE, on.VoteReduced(True))


def kinds(actions: tuple[on.Action, ...]) -> list[type[Any]]:
    return [type(action) for action in actions]


def ended(actions: tuple[on.Action, ...]) -> ExitKind | None:
    return next((action.kind for action in actions if isinstance(action, on.ExitProcess)), None)


def said(actions: tuple[on.Action, ...]) -> HandoverWord | None:
    return next((action.word for action in actions if isinstance(action, on.SayToAll)), None)


def wants(actions: tuple[on.Action, ...]) -> Choice | None:
    return next((action.choice for action in actions if isinstance(action, on.BeginRound)), None)


class TestTheLastThatHasTheState:
    """A leaver that knows go, where the newer run has one rank."""

    @pytest.mark.parametrize(
        ("of_the_newcomer", "kind"),
        [
            ((on.PartyGone(1),), ExitKind.PEER_LOST),
            ((on.Silent(1, lost=True),), ExitKind.PEER_LOST),
            ((on.Passed(Alarm.DEADLINE),), ExitKind.PEER_LOST),
            ((on.SeenBy(1),), ExitKind.HANDED_OVER),
            ((on.Silent(1), on.SeenBy(1)), ExitKind.HANDED_OVER),
        ],
    )
    def test_as_the_decider_keeps_it_unless_the_newcomer_knows_too(
        self, of_the_newcomer: tuple[on.Event, ...], kind: ExitKind
    ) -> None:
        machine = deciding(ONE_REPLACED)
        machine.sees(on.LogAnswered(Verdict.GO))
        assert ended(machine.sees(*of_the_newcomer)) is kind
        assert machine.state.word is GO

    def test_also_where_it_was_gone_before_the_log_had_answered(self) -> None:
        machine = deciding(ONE_REPLACED)
        machine.sees(on.PartyGone(1))
        assert ended(machine.sees(on.LogAnswered(Verdict.GO))) is ExitKind.PEER_LOST

    def test_lets_go_where_a_stayer_has_said_it(self) -> None:
        assert ended(voted(LEAVER, SHRUNK_TO_ONE).sees(on.Heard(GO))) is ExitKind.HANDED_OVER

    def test_keeps_it_where_only_the_log_says_so(self) -> None:
        assert ended(asking(LEAVER, SHRUNK_TO_ONE).sees(on.LogAnswered(Verdict.GO))) is ExitKind.PEER_LOST

    def test_keeps_it_where_all_other_ranks_are_in_one_pod(self) -> None:
        shrunk = Attempt(3, 4, 4, (), (2, 3), 2)
        assert ended(asking(2, shrunk).sees(on.LogAnswered(Verdict.GO))) is ExitKind.PEER_LOST
        assert ended(voted(2, shrunk).sees(on.Heard(GO))) is ExitKind.HANDED_OVER
        wider = Attempt(3, 4, 6, (), (4, 5), 2)
        assert ended(asking(4, wider).sees(on.LogAnswered(Verdict.GO))) is ExitKind.HANDED_OVER

    @pytest.mark.parametrize(
        ("of_the_newcomers", "kind"),
        [
            ((on.PartyGone(2), on.PartyGone(3)), ExitKind.PEER_LOST),
            ((on.SeenBy(2), on.PartyGone(3)), ExitKind.HANDED_OVER),
        ],
    )
    def test_as_the_decider_lets_go_once_one_rank_of_that_pod_knows(
        self, of_the_newcomers: tuple[on.Event, ...], kind: ExitKind
    ) -> None:
        machine = deciding(Attempt(3, 4, 2, (0, 1), (0, 1), 2))
        machine.sees(on.LogAnswered(Verdict.GO), on.SeenBy(1))
        assert ended(machine.sees(*of_the_newcomers)) is kind

    def test_lets_go_where_another_rank_has_it(self) -> None:
        assert ended(asking(LEAVER).sees(on.LogAnswered(Verdict.GO))) is ExitKind.HANDED_OVER


class TestTheWay:
    def test_every_party_says_that_it_is_warm_and_connects_when_all_are(self) -> None:
        for number in range(3):
            machine = Machine(REPLACED, number)
            assert machine.did == (on.SetWarm(),)
            assert machine.sees(on.AllWarm()) == (on.Connect(),)

    @pytest.mark.parametrize("number", [D, LEAVER])
    def test_an_old_rank_that_is_connected_does_not_stop_before_all_others_are(self, number: int) -> None:
        machine = Machine(REPLACED, number, on.StoreSeen(True), on.AllWarm())
        assert machine.sees(on.Connected()) == (on.SetConnected(),)
        assert named(machine.state) == 0
        machine.sees(on.AllConnected())
        assert named(machine.state) == 4

    def test_an_old_rank_names_the_attempt_while_it_is_ready_and_not_a_moment_longer(self) -> None:
        machine = Machine(GROWN, D, on.AllWarm())
        assert named(machine.state) == 0
        machine.sees(on.AllConnected())
        assert named(machine.state) == 0
        machine.sees(on.StoreSeen(True))
        assert named(machine.state) == 4
        machine.sees(on.StoreSeen(False))
        assert named(machine.state) == 0
        machine.sees(on.StoreSeen(True))
        assert named(machine.state) == 4
        machine.sees(on.Passed(Alarm.LIMIT))
        assert named(machine.state) == 0

    def test_state_moves_at_the_stop_and_a_newcomer_is_there_before(self) -> None:
        assert prepared(LEAVER).sees(on.Stopped()) == (on.MoveState(),)
        assert Machine(REPLACED, NEWCOMER, on.AllWarm()).sees(on.Connected()) == (on.SetConnected(), on.MoveState())

    def test_an_old_rank_votes_once_its_agent_knows(self) -> None:
        machine = prepared(D)
        machine.sees(on.Stopped())
        assert machine.sees(on.Moved()) == (on.TellVoting(),)
        assert machine.sees(on.Acknowledged()) == (on.Vote(),)

    def test_a_newcomer_votes_when_its_script_asks_for_the_first_batch(self) -> None:
        machine = standing(NEWCOMER)
        assert (machine.did, machine.phase) == ((), PartyPhase.RUNNING_ON)
        assert machine.sees(on.FirstBatch()) == (on.TellVoting(),)
        assert machine.sees(on.Acknowledged()) == (on.Vote(),)

    def test_only_the_decider_appends_and_only_when_everybody_has_voted(self) -> None:
        assert voted(LEAVER).sees(on.VoteReduced(True)) == ()
        assert voted(NEWCOMER).sees(on.VoteReduced(True)) == ()
        assert voted(D).sees(on.VoteReduced(True)) == (on.AppendOpened(),)


class TestGo:
    def test_the_decider_says_it_when_the_log_does(self) -> None:
        machine = deciding()
        did = machine.sees(on.LogAnswered(Verdict.GO))
        assert kinds(did) == [on.SayToAll, on.SetSeen, on.Install, on.TellTookOver]
        assert (said(did), machine.phase) == (GO, PartyPhase.TOOK_OVER)

    def test_a_leaver_exits_and_a_newcomer_takes_its_place(self) -> None:
        assert ended(voted(LEAVER).sees(on.Heard(GO))) is ExitKind.HANDED_OVER
        assert kinds(voted(NEWCOMER).sees(on.Heard(GO))) == [on.SetSeen, on.Install, on.TellTookOver]

    def test_a_deciding_leaver_goes_when_no_party_needs_its_store(self) -> None:
        machine = deciding(Attempt(3, 4, 1, (0,), (0,)))
        assert ended(machine.sees(on.LogAnswered(Verdict.GO))) is None
        assert kinds(machine.sees(on.SeenBy(1))) == [on.CloseStore, on.ExitProcess]
        assert machine.phase is PartyPhase.ENDED

    def test_a_deciding_leaver_waits_for_no_party_beyond_its_own_deadline(self) -> None:
        machine = deciding(Attempt(3, 4, 1, (0, 1), (0,)))
        machine.sees(on.LogAnswered(Verdict.GO))
        assert ended(machine.sees(on.Passed(Alarm.DEADLINE))) is ExitKind.HANDED_OVER

    def test_a_deciding_stayer_keeps_its_store_until_each_party_knows_or_is_gone(self) -> None:
        machine = deciding()
        machine.sees(on.LogAnswered(Verdict.GO))
        assert machine.sees(on.SeenBy(LEAVER)) == ()
        assert machine.sees(on.PartyGone(NEWCOMER)) == (on.CloseStore(),)
        assert machine.sees(on.PartyGone(LEAVER)) == ()

    def test_a_party_that_has_not_voted_does_not_believe_it(self) -> None:
        for number in (LEAVER, NEWCOMER):
            machine = standing(number)
            assert machine.sees(on.Heard(GO)) == ()


class TestAbort:
    def test_a_newcomer_exits_and_old_ranks_agree_to_train(self) -> None:
        for make in (standing, voted):
            assert ended(make(NEWCOMER).sees(on.Heard(ABORT))) is ExitKind.HANDOVER_FAILED
            machine = make(LEAVER)
            assert wants(machine.sees(on.Heard(ABORT))) is Choice.TRAIN
            assert kinds(machine.sees(on.RoundDone(Choice.TRAIN))) == [on.TellEnded, on.TrainOn]
            assert machine.phase is PartyPhase.ABORTED

    def test_the_decider_says_again_what_it_hears(self) -> None:
        for make in (prepared, standing, voted):
            assert said(make(D).sees(on.Heard(ABORT, "x"))) is ABORT

    @pytest.mark.parametrize(
        "event",
        [on.Unable("x"), on.LinkClosed(), on.Sigterm(), on.Newer(None), on.Newer(3), on.Passed(Alarm.QUIET)],
        ids=["unable", "link", "sigterm", "newer", "newer-attempt", "quiet"],
    )
    def test_a_stayer_that_has_not_voted_says_it(self, event: on.Event) -> None:
        machine = standing(1, THREE)
        assert said(machine.sees(event)) is ABORT
        assert machine.phase is PartyPhase.ROUND

    def test_a_decider_without_everybodys_vote_says_it(self) -> None:
        for event in (on.VoteReduced(False), on.PartyGone(NEWCOMER), on.Passed(Alarm.SILENCE)):
            assert said(voted(D).sees(event)) is ABORT

    def test_an_agent_that_does_not_acknowledge_is_a_reason(self) -> None:
        machine = standing(D)
        assert said(machine.sees(on.Passed(Alarm.ACK))) is ABORT

    def test_a_stop_that_comes_after_the_attempt_was_given_up_is_left_again(self) -> None:
        machine = prepared(D)
        machine.sees(on.Unable("x"))
        assert machine.phase is PartyPhase.ABORTED
        assert kinds(machine.sees(on.Stopped())) == [on.SayToAll, on.SetSeen, on.BeginRound]

    def test_given_up_before_the_stop_it_trains_on_and_its_entries_say_so(self) -> None:
        did = prepared(LEAVER).sees(on.Heard(ABORT, "x"))
        assert kinds(did) == [on.SetSeen, on.TellEnded, on.TrainOn]
        assert on.TrainOn(4) in did

    def test_without_a_newer_assignment_in_time_the_ranks_save_and_exit(self) -> None:
        machine = prepared(LEAVER)
        machine.sees(on.Heard(ABORT))
        assert machine.sees(on.Passed(Alarm.LAST_CALL)) == (on.AskExit(),)
        assert machine.sees(on.Passed(Alarm.LAST_CALL)) == ()
        assert machine.sees(on.ExitAgreed()) == (on.SaveAndExit(4),)
        assert ended(machine.sees(on.OlderRunEnded())) is ExitKind.CHECKPOINTED

    def test_a_growth_that_was_aborted_trains_on_whatever_the_time(self) -> None:
        machine = prepared(D, GROWN)
        machine.sees(on.Heard(ABORT))
        assert machine.sees(on.Passed(Alarm.LAST_CALL), on.Passed(Alarm.LIMIT)) == ()
        assert machine.phase is PartyPhase.ABORTED

    def test_a_goal_reached_while_preparing_ends_the_attempt(self) -> None:
        assert said(prepared(D).sees(on.TrainingDone())) is ABORT


class TestRestart:
    def test_an_exit_agreed_before_the_stop_makes_the_decider_say_it(self) -> None:
        machine = prepared(D)
        did = machine.sees(on.ExitAgreed())
        assert (said(did), did[-1]) == (RESTART, on.SaveAndExit())
        assert said(prepared(LEAVER).sees(on.ExitAgreed())) is None

    def test_at_the_limit_a_leaver_that_has_to_go_gets_its_exit_save(self) -> None:
        assert prepared(LEAVER).sees(on.Passed(Alarm.LIMIT)) == (on.AskExit(),)
        for make in (standing, voted):
            assert said(make(D).sees(on.Passed(Alarm.LIMIT))) is RESTART
            assert said(make(D, GROWN).sees(on.Passed(Alarm.LIMIT))) is ABORT

    def test_where_a_script_cannot_change_live_its_run_ends_and_newcomers_begin_in_place(self) -> None:
        assert prepared(LEAVER).sees(on.NotLive("x")) == (on.AskExit(),)
        larger = prepared(D, GROWN)
        assert larger.sees(on.NotLive("x")) == (on.AskExit(),)
        assert larger.sees(on.NotLive("x")) == ()
        assert said(larger.sees(on.ExitAgreed())) is RESTART

    def test_newcomers_join_in_place(self) -> None:
        for make in (prepared, standing, voted):
            machine = make(NEWCOMER)
            assert kinds(machine.sees(on.Heard(RESTART))) == [on.SetSeen, on.JoinInPlace]
            assert machine.sees(on.LinkClosed()) == ()

    def test_one_that_has_read_restart_is_enough_for_all(self) -> None:
        machine = standing(LEAVER)
        assert wants(machine.sees(on.Heard(RESTART))) is Choice.RESTART
        other = voted(LEAVER)
        other.sees(on.Heard(ABORT))
        assert other.sees(on.RoundDone(Choice.RESTART))[-1] == on.SaveAndExit()

    def test_a_run_that_ends_for_another_reason_marks_the_attempt_as_aborted(self) -> None:
        machine = voted(LEAVER)
        machine.sees(on.Heard(ABORT))
        assert machine.sees(on.RoundDone(Choice.EXIT))[-1] == on.SaveAndExit(4)


class TestRequests:
    def test_sigterm_at_a_stayer_that_has_voted_waits_for_the_word(self) -> None:
        machine = voted(D)
        assert machine.sees(on.Sigterm()) == ()
        assert wants(machine.sees(on.VoteReduced(False))) is Choice.EXIT

    def test_sigterm_at_a_leaver_changes_nothing_before_the_limit(self) -> None:
        machine = standing(LEAVER)
        assert machine.sees(on.Sigterm()) == ()
        assert machine.sees(on.Acknowledged()) == (on.Vote(),)

    def test_it_is_heard_when_the_older_run_trains_on(self) -> None:
        machine = prepared(LEAVER)
        machine.sees(on.Sigterm())
        assert machine.sees(on.Heard(ABORT))[-1] == on.AskExit()

    def test_a_newer_run_that_builds_on_this_one_waits_for_this_ones_word(self) -> None:
        for make in (prepared, standing, voted):
            for number in range(3):
                machine = make(number)
                before = machine.phase
                assert machine.sees(on.Newer(4)) == ()
                assert machine.phase is before

    def test_it_is_a_request_to_end_the_older_run_once_that_word_is_abort(self) -> None:
        """Its plan holds in both worlds; in this one the run it builds on never was."""
        for make in (prepared, standing, voted):
            machine = make(LEAVER)
            machine.sees(on.Newer(4))
            asks = machine.sees(on.Heard(ABORT))[-1]
            assert asks in (on.AskExit(), on.BeginRound(Choice.EXIT))

    def test_a_newer_assignment_says_what_comes_next_and_no_last_call(self) -> None:
        machine = prepared(LEAVER)
        machine.sees(on.Heard(ABORT), on.Newer(3))
        assert machine.sees(on.Passed(Alarm.LAST_CALL)) == ()

    def test_a_newer_attempt_for_the_same_run_is_no_request_to_end_it(self) -> None:
        machine = standing(LEAVER)
        assert wants(machine.sees(on.Newer(3))) is Choice.TRAIN
        other = standing(LEAVER)
        assert wants(other.sees(on.Newer(None))) is Choice.EXIT

    def test_a_stayer_asked_before_the_stop_does_not_begin_to_move_anything(self) -> None:
        machine = prepared(D)
        machine.sees(on.Sigterm())
        assert wants(machine.sees(on.Stopped())) is Choice.EXIT


class TestAskingTheLog:
    @pytest.mark.parametrize("number", [LEAVER, NEWCOMER])
    @pytest.mark.parametrize(
        "event", [on.LinkClosed(), on.VoteReduced(False), on.Passed(Alarm.LIMIT)], ids=["link", "vote", "limit"]
    )
    def test_who_has_voted_and_may_miss_the_word_asks(self, number: int, event: on.Event) -> None:
        assert voted(number).sees(event) == (on.ReadLog(),)

    def test_it_asks_again_until_time_is_up_and_then_settles(self) -> None:
        machine = voted(NEWCOMER)
        machine.sees(on.VoteReduced(False))
        assert machine.sees(on.LogAnswered(Verdict.OPEN)) == (on.ReadLog(again=True),)
        assert machine.sees(on.Passed(Alarm.QUIET)) == ()
        assert machine.sees(on.LogAnswered(None)) == (on.ReadLog(again=True),)
        assert machine.sees(on.LogAnswered(Verdict.OPEN)) == (on.AppendRefused(),)
        assert machine.sees(on.LogAnswered(Verdict.OPEN)) == (on.AppendRefused(),)
        assert ended(machine.sees(on.LogAnswered(Verdict.REFUSED))) is ExitKind.HANDOVER_FAILED

    @pytest.mark.parametrize("number", [LEAVER, NEWCOMER])
    @pytest.mark.parametrize("before", [(), (on.VoteReduced(False),), (on.Passed(Alarm.LIMIT),)])
    def test_who_has_lost_the_decider_settles_at_once(self, number: int, before: tuple[on.Event, ...]) -> None:
        machine = voted(number)
        machine.sees(*before, on.LinkClosed())
        assert machine.sees(on.LogAnswered(None)) == (on.ReadLog(again=True),)
        assert machine.sees(on.LogAnswered(Verdict.OPEN)) == (on.AppendRefused(),)

    def test_what_the_log_says_counts_also_for_who_has_lost_the_decider(self) -> None:
        assert asking(NEWCOMER).sees(on.LogAnswered(Verdict.GO))[1] == on.Install()

    def test_a_word_still_counts_meanwhile(self) -> None:
        assert asking(NEWCOMER).sees(on.Heard(GO))[1] == on.Install()
        assert asking(LEAVER).sees(on.Heard(ABORT))[-1] == on.BeginRound(Choice.TRAIN)

    @pytest.mark.parametrize(
        ("verdict", "old", "new"),
        [
            (Verdict.GO, PartyPhase.ENDED, PartyPhase.TOOK_OVER),
            (Verdict.REFUSED, PartyPhase.ROUND, PartyPhase.ENDED),
            (Verdict.ENDED, PartyPhase.ENDED, PartyPhase.JOINING),
            (Verdict.FENCED, PartyPhase.ENDED, PartyPhase.ENDED),
        ],
    )
    def test_the_logs_answer_is_the_word(self, verdict: Verdict, old: PartyPhase, new: PartyPhase) -> None:
        leaver, newcomer = asking(LEAVER), asking(NEWCOMER)
        leaver.sees(on.LogAnswered(verdict))
        newcomer.sees(on.LogAnswered(verdict))
        assert (leaver.phase, newcomer.phase) == (old, new)

    def test_who_never_learns_it_ends_as_one_that_lost_its_peers(self) -> None:
        assert ended(asking(LEAVER).sees(on.Passed(Alarm.DEADLINE))) is ExitKind.PEER_LOST
        assert ended(deciding().sees(on.Passed(Alarm.DEADLINE))) is ExitKind.PEER_LOST

    def test_a_newcomer_that_never_voted_looks_at_the_limit_whether_the_run_has_ended(self) -> None:
        machine = standing(NEWCOMER)
        assert machine.sees(on.Passed(Alarm.LIMIT)) == (on.ReadLog(),)
        assert machine.sees(on.Passed(Alarm.LIMIT)) == ()
        assert machine.sees(on.FirstBatch()) == ()
        assert machine.sees(on.LogAnswered(Verdict.OPEN)) == (on.ReadLog(again=True),)
        assert machine.sees(on.LogAnswered(Verdict.ENDED))[-1] == on.JoinInPlace()
        other = standing(NEWCOMER)
        assert other.sees(on.Passed(Alarm.LIMIT), on.Passed(Alarm.QUIET)) == ()
        assert ended(other.sees(on.Passed(Alarm.DEADLINE))) is ExitKind.HANDOVER_FAILED

    def test_a_newcomer_that_finds_no_party_believes_the_log(self) -> None:
        machine = Machine(REPLACED, NEWCOMER)
        assert machine.sees(on.LogAnswered(Verdict.OPEN)) == ()
        machine.sees(on.LogAnswered(Verdict.ENDED))
        assert machine.state.phase is PartyPhase.JOINING

    def test_an_exit_that_takes_long_to_be_agreed_still_is_a_restart(self) -> None:
        """Steps may be longer than the time after which the log is settled."""
        machine = prepared(D)
        assert machine.sees(on.Passed(Alarm.LIMIT)) == (on.AskExit(),)
        assert machine.sees(on.Passed(Alarm.QUIET)) == ()
        assert said(machine.sees(on.ExitAgreed())) is RESTART


class TestSilence:
    """It begins what costs nothing, and proves nothing."""

    @pytest.mark.parametrize("make", [standing, voted])
    def test_of_an_old_rank_makes_the_decider_say_abort_before_its_put(self, make: Any) -> None:
        assert said(make(D).sees(on.Silent(LEAVER))) is ABORT
        assert deciding().sees(on.Silent(LEAVER)) == ()

    @pytest.mark.parametrize("make", [standing, voted])
    def test_of_a_newcomer_is_only_that_of_its_vote(self, make: Any) -> None:
        """Its script may hold the interpreter's lock, in an import say."""
        assert make(D).sees(on.Silent(NEWCOMER)) == ()
        assert said(make(D).sees(on.Passed(Alarm.SILENCE))) is ABORT

    def test_of_the_decider_aborts_parties_that_have_not_voted(self) -> None:
        assert said(standing(LEAVER).sees(on.Silent(D))) is ABORT
        assert ended(standing(NEWCOMER).sees(on.Silent(D))) is ExitKind.HANDOVER_FAILED

    @pytest.mark.parametrize("number", [LEAVER, NEWCOMER])
    def test_of_the_decider_makes_parties_that_have_voted_settle(self, number: int) -> None:
        machine = voted(number)
        assert machine.sees(on.Silent(D)) == (on.ReadLog(),)
        assert machine.sees(on.LogAnswered(Verdict.OPEN)) == (on.AppendRefused(),)

    @pytest.mark.parametrize("number", [D, LEAVER])
    def test_disturbs_no_training(self, number: int) -> None:
        for silence in (on.Silent(1 - number), on.Silent(1 - number, lost=True)):
            assert prepared(number).sees(silence) == ()

    @pytest.mark.parametrize("number", [D, LEAVER])
    def test_ends_a_run_that_waits_for_a_rank_only_after_long(self, number: int) -> None:
        machine = standing(number)
        machine.sees(on.Silent(1 - number))
        assert machine.sees(on.Silent(1 - number)) == ()
        assert ended(machine.sees(on.Silent(1 - number, lost=True))) is ExitKind.PEER_LOST

    def test_of_a_newcomer_ends_no_run_that_does_not_need_it(self) -> None:
        machine = standing(D)
        machine.sees(on.Passed(Alarm.SILENCE))
        assert machine.sees(on.Silent(NEWCOMER, lost=True)) == ()

    def test_for_long_lets_a_decider_go_that_leaves(self) -> None:
        machine = deciding(Attempt(3, 4, 2, (0, 1), (0, 1)))
        machine.sees(on.LogAnswered(Verdict.GO), on.SeenBy(LEAVER), on.SeenBy(3))
        assert machine.sees(on.Silent(NEWCOMER)) == ()
        assert machine.sees(on.Silent(NEWCOMER, lost=True))[-1] == on.ExitProcess(ExitKind.HANDED_OVER)


class TestTheLastThatHoldsTheState:
    """A newcomer that replaces a single rank: it would end, and the decider is silent."""

    ONE = Attempt(3, 4, 1, (0,), (0,))

    @pytest.mark.parametrize("happened", [on.LinkClosed(), on.Silent(0)])
    def test_a_newcomer_keeps_its_seat_at_an_abort(self, happened: on.Event) -> None:
        assert ended(standing(1, self.ONE).sees(happened)) is ExitKind.PEER_LOST
        machine = voted(1, self.ONE)
        machine.sees(happened)
        assert ended(machine.sees(on.LogAnswered(Verdict.REFUSED))) is ExitKind.PEER_LOST
        assert machine.state.word is ABORT

    def test_it_does_not_if_the_decider_has_said_abort_or_it_holds_nothing_yet(self) -> None:
        assert ended(voted(1, self.ONE).sees(on.Heard(ABORT))) is ExitKind.HANDOVER_FAILED
        assert ended(prepared(1, self.ONE).sees(on.LinkClosed())) is ExitKind.HANDOVER_FAILED


class TestThePut:
    def test_it_is_repeated_until_it_is_answered_over_the_older_runs_own_commits(self) -> None:
        machine = deciding()
        assert machine.sees(on.LogAnswered(None)) == (on.AppendOpened(again=True),)
        assert machine.sees(on.LogAnswered(Verdict.OPEN)) == (on.AppendOpened(),)

    def test_once_it_has_begun_nothing_but_the_log_is_believed(self) -> None:
        machine = deciding()
        for event in (
            on.Heard(ABORT),
            on.Heard(RESTART),
            on.PartyGone(NEWCOMER),
            on.VoteReduced(False),
            on.Passed(Alarm.LIMIT),
            on.Passed(Alarm.QUIET),
            on.Passed(Alarm.SILENCE),
        ):
            assert machine.sees(event) == ()
            assert machine.phase is PartyPhase.DECIDING

    def test_a_refusal_that_was_first_sends_the_decider_back(self) -> None:
        machine = deciding()
        assert wants(machine.sees(on.LogAnswered(Verdict.REFUSED))) is Choice.TRAIN

    def test_another_runs_entry_fences_it(self) -> None:
        assert ended(deciding().sees(on.LogAnswered(Verdict.FENCED))) is ExitKind.FENCED


@pytest.mark.parametrize(
    "attempt",
    [REPLACED, FIRST_LEAVES, *(pytest.param(one, marks=pytest.mark.chaos) for one in (GROWN, ALL_LEAVE))],
    ids=["one-is-replaced", "the-first-leaves", "one-comes", "all-leave"],
)
def test_any_event_may_come_in_any_state(attempt: Attempt) -> None:
    """Every state that one event after another leads to, and every event there."""
    every: list[on.Event] = [
        *TO_THE_VOTE, on.StoreSeen(False), on.NotLive("x"), on.Unable("x"), on.ExitAgreed(), on.TrainingDone(),
        on.VoteReduced(True), on.VoteReduced(False), on.LinkClosed(), on.SeenBy(1), on.PartyGone(2), on.RoundDone(None),
        on.OlderRunEnded(), on.Sigterm(), on.Newer(None), on.Newer(3), on.Newer(4),
        on.Silent(0), on.Silent(2), on.Silent(1, lost=True),
        *(on.LogAnswered(verdict) for verdict in (None, *Verdict)), *(on.Heard(word) for word in HandoverWord),
        *(on.RoundDone(choice) for choice in Choice), *(on.Passed(alarm) for alarm in Alarm),
    ]  # fmt: skip
    for party in attempt.parties:
        seen: set[PartyState] = set()
        left = [begin(attempt, party.number)[0]]
        while left:
            state = left.pop()
            if state in seen:
                continue
            seen.add(state)
            for event in every:
                after, did = step(state, event)
                assert (after.phase is PartyPhase.ENDED and state.phase is not PartyPhase.ENDED) == (
                    ended(did) is not None
                )
                if after is not state:  # most events change nothing
                    left.append(after)


@pytest.mark.parametrize(
    ("seconds", "missing", "stays"), [(9.9, (), True), (10.1, (), False), (2.9, (2,), True), (3.1, (2,), False)]
)
def test_a_decider_that_has_saved_stays_for_parties_that_came_and_hardly_for_others(
    seconds: float, missing: tuple[int, ...], stays: bool
) -> None:
    decider = prepared(D, GROWN)
    decider.sees(on.ExitAgreed(), on.OlderRunEnded(), on.SeenBy(0), on.SeenBy(1))
    assert decider.phase is PartyPhase.LINGERING
    assert lingers(decider.state, seconds, lambda: missing) == stays
    decider.sees(on.SeenBy(2))
    assert not lingers(decider.state, 0.0, lambda: missing)


def test_a_party_that_does_not_linger_asks_the_deciders_store_nothing() -> None:
    def asked() -> tuple[int, ...]:
        raise AssertionError("it has asked")

    for number in (D, 1):
        party = prepared(number, GROWN)
        assert party.phase is not PartyPhase.LINGERING
        assert not lingers(party.state, 0.0, asked)
