"""What a run has cost: how far it had come, and where the next one has begun, as those tell who know one of the two."""

from __future__ import annotations

import pytest

from perdure.wire import Beginning, ExitKind, HandoverRecord, HandoverWord, SkippedCommit
from perdure_operator.api.reasons import ConditionType, Reason
from perdure_operator.api.status import HistoryEntry, LiveRefused
from perdure_operator.state.snapshot import NodeView
from tests.support.jobs import PATIENT, Job, job, killed

WHY = "commit 2 of step 10: data/1/10-ab/shard-00001 is missing"


def _next_run(here: Job) -> Job:
    return here.after(10).settle().ready().settle()


def _lost_together() -> Job:
    """Run 1 had come to step 12, and its newest commit was of step 10; run 2 is on, and all its members are new."""
    here = job().running(world=2).ended(1, ExitKind.FAILED, error=killed(), step=12, commit=(2, 10)).settle()
    return _next_run(here.ended(0, ExitKind.PEER_LOST, step=12, commit=(2, 10)).settle())


def _running() -> Job:
    here = job(disruption=PATIENT).having(nodes=tuple(NodeView(name=f"n{number + 1}") for number in range(5)))
    return here.running(world=3).status(live_refused=LiveRefused(template="t1", why="its model is sharded"))


def _one_is_silent() -> Job:
    """Of run 1 one member has died without a word, and the others go on in their pods: run 2."""
    here = _next_run(_running().exited(1, code=137).settle())
    assert here.now.run == 2
    return here


def _skipped(here: Job) -> list[str]:
    events = [event for decision in here.history for event in decision.events]
    return [event.message for event in events if event.reason == Reason.COMMIT_SKIPPED]


@pytest.mark.parametrize("other", [0, 2, 99999])
def test_what_a_member_tells_of_another_run_is_no_step_of_this_one(other: int) -> None:
    here = job().running(world=2).ended(1, ExitKind.FAILED, error=killed(), run=1, step=12, commit=(2, 10)).settle()
    here = here.ended(0, ExitKind.PEER_LOST, run=other, step=7777).settle()
    assert here.now.steps_lost == 2


class TestADamagedCommit:
    def test_the_steps_behind_it_count_as_lost_and_it_is_said_once(self) -> None:
        here = _lost_together()
        assert here.now.steps_lost == 2
        told = {"run": 2, "begun": (Beginning(2, 4),), "skipped_commit": SkippedCommit(2, 6, WHY)}
        here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(5, 20), **told).settle()
        entry = here.now.history[-1]
        assert (entry.run, entry.steps_lost, entry.steps_behind_skipped, entry.began) == (2, 8, 6, 4)
        assert (here.now.steps_lost, here.now.runs_unreported) == (8, 0)
        assert _skipped(here) == [f"run 2 could not use {WHY}; it began 6 steps before it"]

    def test_a_run_of_new_members_that_has_never_begun_hides_nothing_of_what_the_one_before_it_had_done(self) -> None:
        here = _lost_together().ended(2, ExitKind.FAILED, error=killed(), run=2, step=0).settle()
        here = _next_run(here.ended(3, ExitKind.PEER_LOST, run=2, step=0).settle())
        assert here.now.run == 3
        told = {"run": 3, "begun": (Beginning(3, 4),)}
        here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(5, 20), **told).settle()
        assert here.now.steps_lost == 8

    def test_a_second_run_that_begins_behind_it_costs_what_that_one_had_done(self) -> None:
        here = _lost_together()
        ends = {"error": killed(), "run": 2, "step": 7, "commit": (1, 4)}
        told = {"begun": (Beginning(2, 4),), "skipped_commit": SkippedCommit(2, 6, WHY)}
        here = _next_run(here.all_ended(ExitKind.FAILED, **ends, **told).settle())
        assert here.now.steps_lost == 8 + 3
        told = {"begun": (Beginning(3, 4),), "skipped_commit": SkippedCommit(3, 6, WHY)}
        here = here.all_ended(ExitKind.CHECKPOINTED, run=3, step=20, commit=(5, 20), **told).settle()
        assert here.now.steps_lost == 8 + 3
        assert [one.steps_behind_skipped for one in here.now.history[-2:]] == [6, 6]

    def test_a_run_that_ends_before_it_has_begun_hides_nothing_of_what_the_one_before_it_had_done(self) -> None:
        """Its members tell of no step, and the next one may be of new members, who know of none."""
        here = _running().cordon("n2").settle().after(1).settle().ready().settle()
        here = here.ended(1, ExitKind.CHECKPOINTED, run=1, step=12, commit=(2, 12), opened=1).settle()
        here = here.ended(0, ExitKind.STOPPED, run=2, opened=1).ended(2, ExitKind.STOPPED, run=2, opened=1)
        here = _next_run(here.exited(3, code=137).settle())
        assert (here.now.run, here.now.steps_lost, here.now.runs_unreported) == (3, 0, 0)
        told = {"run": 3, "begun": (Beginning(3, 4),), "skipped_commit": SkippedCommit(3, 8, WHY)}
        here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(5, 20), **told).settle()
        assert (here.now.steps_lost, here.now.steps_in_doubt, here.now.runs_unreported) == (8, 0, 0)

    def test_where_no_member_reported_how_far_the_run_before_had_come_the_commit_does(self) -> None:
        here = job().status(step=10, commit_seq=2).running(world=1)
        here = _next_run(here.missing(here.members[0]).settle().after(300).settle())
        assert (here.now.steps_lost, here.now.runs_unreported) == (0, 1)
        told = {"run": 2, "begun": (Beginning(2, 4),), "skipped_commit": SkippedCommit(2, 6, WHY)}
        here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(5, 20), **told).settle()
        assert (here.now.steps_lost, here.now.runs_unreported) == (6, 1)


class TestWhatNobodyCanKnowYet:
    def test_a_run_without_a_report_is_counted_as_unreported(self) -> None:
        here = _one_is_silent()
        assert (here.now.steps_lost, here.now.steps_in_doubt, here.now.runs_unreported) == (0, 0, 1)

    def test_a_stayer_reports_both_ends(self) -> None:
        here, told = _one_is_silent(), {"run": 2, "begun": (Beginning(2, 10, 1, 17),)}
        here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(5, 20), **told).settle()
        assert (here.now.steps_lost, here.now.runs_unreported) == (7, 0)
        assert [(one.run, one.steps_lost, one.unreported) for one in here.now.history] == [(1, 0, False), (2, 7, False)]

    def test_a_newcomer_alone_tells_of_one(self) -> None:
        here, told = _one_is_silent(), {"run": 2, "begun": (Beginning(2, 10),)}
        here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(5, 20), **told).settle()
        assert (here.now.steps_lost, here.now.runs_unreported) == (0, 1)

    def test_what_is_in_no_commit_is_in_doubt_while_members_may_have_kept_it(self) -> None:
        for begun, lost in ((20, 0), (18, 2), (10, 10)):
            dead = {"run": 1, "step": 20, "commit": (4, 10), "error": killed()}
            here = _next_run(_running().ended(1, ExitKind.FAILED, **dead).settle())
            assert (here.now.steps_lost, here.now.steps_in_doubt, here.now.runs_unreported) == (0, 10, 0)
            assert here.condition(ConditionType.SAVED).status == "False"
            told = {"run": 2, "begun": (Beginning(2, begun, 1, 20),)}
            here = here.all_ended(ExitKind.CHECKPOINTED, step=30, commit=(6, 30), **told).settle()
            assert (here.now.steps_lost, here.now.steps_in_doubt) == (lost, 0)

    def test_of_a_run_that_has_never_begun_nothing_is_lost(self) -> None:
        """Its members tell of the one before it, which is counted where the next one begins."""
        here = _one_is_silent()
        here = here.all_ended(ExitKind.PEER_LOST, run=1, step=17, commit=(2, 10)).settle()
        assert (here.now.steps_lost, here.now.runs_unreported) == (7, 0)
        here = _next_run(here)
        told = [(one.run, one.steps_lost, one.unreported) for one in here.now.history[-2:]]
        assert told == [(2, 0, False), (3, 7, False)]

    def test_members_that_never_began_the_next_run_hide_nothing_of_the_one_they_had_trained(self) -> None:
        """All of run 1 go on in run 2, so that their last words are of run 2."""
        here = _next_run(_running().spec(replicas=4).settle().after(1).settle())
        assert (here.now.run, here.now.current is None) == (2, False)
        here = here.all_ended(ExitKind.FAILED, run=2, error=killed(), opened=1).settle()
        assert (here.now.current, here.now.steps_lost, here.now.runs_unreported) == (None, 0, 1)

    def test_what_a_member_given_up_for_silent_reports_after_all_is_the_commit_to_begin_with(self) -> None:
        here = _running().node("n2", ready=False).settle().after(60).settle()
        assert [one.name for one in here.outcomes if not one.outcome] == [here.name(1)]
        here = here.ended(1, ExitKind.PEER_LOST, step=12, commit=(2, 10), opened=1).settle()
        assert (here.now.commit_seq, here.now.step, here.now.opened) == (2, 10, 1)


class TestAnOfferedRunThatTookOverUnseen:
    """A newcomer of run 2 is killed, and nobody tells in time that run 2 had begun at step 12: run 3 follows run 1."""

    def _handed_over(self) -> Job:
        here = job(disruption=PATIENT).having(nodes=tuple(NodeView(name=f"n{number + 1}") for number in range(5)))
        here = here.running(world=2).cordon("n2").settle().after(1).settle().ready().settle()
        here = here.exited(2, code=137).settle().cordon("n1").settle().after(1).settle()
        went = (HandoverRecord(2, HandoverWord.GO),)
        here = here.ended(1, ExitKind.HANDED_OVER, run=1, step=12, commit=(2, 10), handovers=went).settle()
        here = _next_run(here)
        assert (here.now.run, here.now.previous is None) == (3, False)
        return here

    def test_its_steps_are_lost_where_its_last_member_tells_of_them(self) -> None:
        here = self._handed_over().ended(0, ExitKind.PEER_LOST, run=2, step=13, commit=(2, 10)).settle()
        assert (here.now.previous, here.now.steps_lost, here.now.steps_in_doubt) == (None, 3, 0)
        assert "3 steps lost" in here.condition(ConditionType.SAVED).message

    def test_those_it_began_with_are_lost_where_its_last_member_is_silent(self) -> None:
        here = self._handed_over().exited(0, code=137).settle()
        assert (here.now.previous, here.now.steps_lost, here.now.steps_in_doubt) == (None, 2, 0)


def test_members_that_end_in_a_run_they_were_only_offered_tell_nothing_of_the_one_they_had_trained() -> None:
    here = job(disruption=PATIENT).having(nodes=tuple(NodeView(name=f"n{number + 1}") for number in range(5)))
    here = here.running(world=2).cordon("n2").settle().after(1).settle().ready().settle()
    here = here.ended(2, ExitKind.HANDOVER_FAILED, run=2).settle()
    here = here.exited(1, code=137).ended(0, ExitKind.PEER_LOST, run=2, opened=1).settle()
    assert (here.now.current, here.now.steps_lost, here.now.runs_unreported) == (None, 0, 1)


class TestARunThatWasNeverOpened:
    def test_a_leaver_that_saves_at_its_end_corrects_what_members_had_reported(self) -> None:
        for commit, lost in (((2, 12), 0), ((2, 10), 2), ((1, 0), 12)):
            here = _running().cordon("n2").settle().after(1).settle().ready().settle()
            assert (here.now.run, here.now.previous is None) == (2, False)
            told = {"run": 1, "step": 12, "opened": 1}
            here = here.ended(0, ExitKind.EXIT_TIMEOUT, **told).ended(2, ExitKind.EXIT_TIMEOUT, **told)
            here = here.exited(3, code=137).settle()
            assert (here.now.current, here.now.previous is None, here.now.steps_lost) == (None, False, 12)
            here = here.ended(1, ExitKind.PEER_LOST, commit=commit, **told).settle()
            assert (here.now.previous, here.now.steps_lost, here.now.runs_unreported) == (None, lost, 0)

    def _one_leaves(self) -> Job:
        """Run 2 should continue in the pods of 0 and 2, with 3, once 1 has saved and left."""
        here = _running().cordon("n2").settle().after(1).settle().ready().settle()
        assert (here.now.run, here.now.previous is None) == (2, False)
        return here

    def test_a_newcomer_that_has_done_no_step_hides_nothing_of_what_those_who_stayed_tell(self) -> None:
        here, told = self._one_leaves(), {"run": 1, "step": 12, "opened": 1}
        here = here.ended(0, ExitKind.EXIT_TIMEOUT, **told).ended(2, ExitKind.EXIT_TIMEOUT, **told)
        here = here.ended(3, ExitKind.FAILED, run=2, error=killed(), opened=1).settle()
        assert (here.now.current, here.now.steps_lost, here.now.runs_unreported) == (None, 12, 0)
        here = here.exited(1, code=137).settle()
        assert (here.now.previous, here.now.steps_lost, here.now.runs_unreported) == (None, 12, 0)

    def test_where_all_of_it_were_silent_the_leavers_words_are_taken_back_once_the_next_run_has_begun_with_them(
        self,
    ) -> None:
        here = self._one_leaves().exited(0, code=137).exited(2, code=137).exited(3, code=137).settle()
        assert (here.now.current, here.now.steps_lost, here.now.runs_unreported) == (None, 0, 1)
        here = here.ended(1, ExitKind.PEER_LOST, run=1, step=12, opened=1).settle()
        assert (here.now.previous, here.now.steps_lost, here.now.runs_unreported) == (None, 12, 1)
        here, told = _next_run(here), {"run": 3, "begun": (Beginning(3, 12),)}
        here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(5, 20), **told).settle()
        assert (here.now.steps_lost, here.now.runs_unreported) == (0, 1), "run 2 may have begun, and nobody has told"

    def test_of_one_that_has_begun_and_ended_before_the_leaver_nothing_is_counted_again(self) -> None:
        here, told = self._one_leaves(), {"run": 2, "step": 15, "opened": 2, "commit": (3, 15)}
        begun = (Beginning(2, 10, 1, 12),)
        here = here.ended(0, ExitKind.PEER_LOST, **told, begun=begun).ended(2, ExitKind.PEER_LOST, **told, begun=begun)
        here = here.ended(3, ExitKind.FAILED, **told, error=killed()).settle()
        assert (here.now.current, here.now.previous is None, here.now.steps_lost) == (None, False, 2)
        here = here.ended(1, ExitKind.PEER_LOST, run=1, step=12, opened=1, commit=(2, 10)).settle()
        assert (here.now.previous, here.now.steps_lost, here.now.runs_unreported) == (None, 2, 0)

    def test_a_newcomer_that_was_to_join_alive_tells_nothing_of_those_whom_it_was_to_join(self) -> None:
        here = job(disruption=PATIENT).running(world=1).spec(replicas=2).settle().after(1).settle().ready().settle()
        here = here.exited(0, code=137).ended(1, ExitKind.HANDOVER_FAILED, run=2).settle()
        assert here.now.current is None
        assert (here.now.steps_lost, here.now.steps_in_doubt, here.now.runs_unreported) == (0, 0, 1)


def test_what_an_older_operator_has_counted_stays() -> None:
    here = job().running(world=1)
    here = here.status(history=(HistoryEntry(run=1, size=1, steps_lost=5),), steps_lost=5)
    told = {"run": 1, "begun": (Beginning(1, 10),)}
    here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(5, 20), **told).settle()
    assert (here.now.steps_lost, here.now.history[0].steps_lost) == (5, 5)
