"""Requests for a member's eviction: the member's reaction, and the answers, starting from the raw object."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from perdure.wire import ExitKind
from perdure_operator.api.default_signals import DEFAULT_SIGNALS
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.signal_rows import Reaction
from perdure_operator.api.spec import DisruptionPolicy, JobReaction
from perdure_operator.api.status import Disruption
from perdure_operator.cluster.read import parse
from perdure_operator.state.decision import Answer, DeletePod
from perdure_operator.state.snapshot import EvictionView, NodeCondition
from tests.support import evictions
from tests.support.evictions import Json
from tests.support.jobs import PATIENT, START, Job, deletes, job, leaves

FIRST = "digits-ab12-0"
SECOND = "digits-ab12-1"
WANTED = f"{FIRST} is to be evicted, asked for by example.com/maintenance"


def uid_of(here: Job, pod: str) -> str:
    return next(one.uid for one in here.snapshot.pods if one.name == pod)


def view(here: Job, pod: str, status: Json) -> EvictionView:
    raw = evictions.eviction("default", pod, uid_of(here, pod)) | {"status": status}
    raw["metadata"]["uid"] = f"uid-of-evict-{pod}"
    seen = parse.eviction(raw)
    assert seen is not None
    return seen


def asked(here: Job, *pods: str, started: datetime | None = None) -> Job:
    """The operator's turn has begun for each of these pods."""
    status = evictions.turn_of_the_operator(started or here.snapshot.now)
    return here.having(evictions=tuple(view(here, pod, status) for pod in pods))


def changed(here: Job, **fields: object) -> Job:
    """What others write into the one Eviction, or what comes of an answer."""
    (one,) = here.snapshot.evictions
    return here.having(evictions=(one.model_copy(update=fields),))


def canceled(here: Job) -> Job:
    status = evictions.canceled(evictions.turn_of_the_operator(here.snapshot.now), here.snapshot.now)
    return here.having(evictions=(view(here, FIRST, status),))


def _flooded(here: Job, most: int) -> Job:
    """So many Evictions of one pod."""
    (one,) = asked(here, FIRST).snapshot.evictions
    names = [f"evict-{number:03}" for number in range(most)]
    return here.having(evictions=tuple(one.model_copy(update={"name": name, "uid": f"uid-{name}"}) for name in names))


def answers(here: Job) -> list[Answer]:
    return [one for one in here.plan().actions if isinstance(one, Answer)]


def said(here: Job) -> EvictionView:
    (one,) = here.snapshot.evictions
    return one


class TestMember:
    def test_a_request_moves_the_member_as_a_cordon_does(self) -> None:
        by_cordon = job(disruption=PATIENT).running(world=2).cordon("n1").settle().after(1).settle()
        by_request = asked(job(disruption=PATIENT).running(world=2), FIRST).settle().after(1).settle()
        assert by_request.intent is not None
        assert by_cordon.intent is not None
        assert by_request.intent.cause == WANTED
        assert by_request.intent.nodes == ()
        alike = by_request.intent.model_copy(update={"cause": by_cordon.intent.cause, "nodes": ("n1",)})
        assert alike == by_cordon.intent
        assert by_request.names() == by_cordon.names()
        moved = by_request.ready().settle()
        assert moved.now.next is not None
        assert moved.now.next.plan is not None
        assert [one.name for one in moved.now.next.plan.members] == ["digits-ab12-2", SECOND]

    def test_without_time_for_replacements_all_save_and_leave(self) -> None:
        here = asked(job().running(world=2), FIRST).settle().after(1)
        assert set(leaves(here.plan())) == {FIRST, SECOND}

    def test_two_members_within_a_second_cost_one_move(self) -> None:
        here = asked(job(disruption=PATIENT).running(world=2), FIRST).settle().after(0.5)
        both = asked(here, FIRST, SECOND).settle().after(1).settle()
        assert len(both.names()) == 4
        assert both.now.next is not None
        assert both.now.next.run == 2

    def test_what_is_canceled_before_anybody_was_asked_is_withdrawn(self) -> None:
        here = canceled(asked(job(disruption=PATIENT).running(world=2), FIRST).settle().after(2).settle()).settle()
        assert here.intent is None
        assert here.now.withdrawals is not None
        assert here.condition(ConditionType.DISRUPTED).status == "False"

    def test_what_is_canceled_later_is_finished(self) -> None:
        here = canceled(asked(job().running(world=2), FIRST).settle().after(1).settle()).settle()
        assert here.intent is not None
        assert here.intent.leave

    def test_while_it_is_the_turn_of_others_no_member_moves_and_nothing_is_said(self) -> None:
        here = changed(asked(job().running(world=2), FIRST), state="Inactive", started=None)
        assert here.plan().status is None
        assert here.plan().actions == ()

    @pytest.mark.parametrize("state", ["Interrupted", "Completed"])
    def test_after_the_operators_turn_the_member_leaves_all_the_same(self, state: str) -> None:
        """The job's budget refuses the responders after it."""
        here = asked(job().running(world=2), FIRST)
        raw = evictions.handed_on(evictions.turn_of_the_operator(here.snapshot.now), here.snapshot.now, state)
        here = here.having(evictions=(view(here, FIRST, raw),))
        assert answers(here) == []
        assert set(leaves(here.settle().after(1).plan())) == {FIRST, SECOND}

    def test_an_eviction_of_an_earlier_pod_of_that_name_is_not_this_ones(self) -> None:
        here = changed(asked(job().running(world=2), FIRST), pod="another")
        assert here.plan().status is None
        assert here.plan().actions == ()

    def test_one_that_others_answer_is_not_ours(self) -> None:
        status = evictions.turn_of_the_operator(job().snapshot.now)
        status["responders"] = [one for one in status["responders"] if one["name"] != evictions.OPERATOR]
        assert parse.eviction(evictions.eviction("default", FIRST, "u") | {"status": status}) is None
        assert parse.eviction(evictions.eviction("default", FIRST, "u")) is None

    def test_only_if_there_is_room_where_the_job_says_so(self) -> None:
        policy = DisruptionPolicy(signals={"eviction-request": JobReaction.VACATE_IF_ROOM})
        here = asked(job(disruption=policy).running(world=2), FIRST).settle().after(600).settle()
        assert here.intent is not None
        assert here.intent.ready_by is None
        assert not here.intent.leave
        words = f"{FIRST} trains on while another pod starts that takes its place, without a time limit"
        assert said(here).message == words


class TestStandby:
    def test_a_standby_that_is_to_go_is_replaced(self) -> None:
        here = job(disruption=PATIENT).running(world=2).cordon("n1").settle().after(1).settle()
        assert here.names() == ["0", "1", "2"]
        here = asked(here, "digits-ab12-2").settle()
        assert [pod.name for pod in here.living() if not pod.deleting] == [FIRST, SECOND, "digits-ab12-3"]

    def test_it_does_not_stay_to_keep_others_off_its_node(self) -> None:
        """A condition keeps no pod off, so an idle standby there stays as a former, unless it has to leave itself."""
        sick = (NodeCondition(type="DrainInProgress", status="True"),)
        here = job(disruption=PATIENT).running(world=2).node("n1", conditions=sick).settle().after(1).settle()
        here = here.node("n3", conditions=sick).settle()
        formers = [pod.name for pod in here.living() if pod.role == "former"]
        assert "digits-ab12-2" in formers
        gone = asked(here, "digits-ab12-2").settle()
        assert [pod.name for pod in gone.living() if pod.deleting] == ["digits-ab12-2"]

    def test_a_member_whose_run_has_not_begun_is_replaced_and_it_is_said(self) -> None:
        here = asked(job().starting(world=2), FIRST).settle()
        assert here.names() == ["0", "1", "2"]
        assert said(here).message == f"{FIRST} is in no run, and is deleted"

    def test_nothing_takes_the_place_of_one_that_a_suspended_job_lets_go(self) -> None:
        here = asked(job().starting(world=2).spec(suspend=True), FIRST)
        (answer,) = answers(here)
        assert answer.message == f"{FIRST} is in no run, and is deleted"
        assert FIRST in deletes(here.plan())

    def test_nor_of_one_of_a_finished_job(self) -> None:
        here = job().running(world=2).ended(0, ExitKind.COMPLETED, step=20, commit=(4, 20)).settle()
        here = asked(here, SECOND)
        (answer,) = answers(here)
        assert answer.message == f"the job is finished: {SECOND} is deleted if it does not end by itself"
        assert deletes(here.after(629).plan()) == []
        assert deletes(here.after(630).plan()) == [SECOND]

    def test_a_newcomer_has_been_offered_a_run(self) -> None:
        here = job(disruption=PATIENT).running(world=2).cordon("n1").settle().after(1).settle().ready().settle()
        (answer,) = answers(asked(here, "digits-ab12-2"))
        assert answer.message.startswith("digits-ab12-2 was offered run 2: another pod takes its place ")


class TestAnswer:
    def test_the_first_answer_comes_at_once_and_names_a_time(self) -> None:
        here = asked(job(disruption=PATIENT).running(world=2), FIRST)
        (first,) = answers(here)
        now = here.snapshot.now
        assert (first.name, first.place, first.completed) == (f"evict-{FIRST}", 0, None)
        assert first.heartbeat == now.replace(microsecond=0)
        limits = DisruptionPolicy()
        seconds = limits.replacement_timeout_seconds + limits.exit_timeout_seconds
        assert first.expected == now + timedelta(seconds=seconds)

    def test_it_says_how_far_the_move_is(self) -> None:
        here = asked(job(disruption=PATIENT).running(world=2), FIRST).settle()
        assert said(here).message == f"{FIRST} is about to be replaced"
        here = here.after(20).settle()
        assert said(here).message.startswith(f"{FIRST} trains on while another pod starts that takes its place, until ")
        here = here.ready().settle().after(20).settle()
        assert said(here).message.startswith(f"{FIRST} was asked at ")
        here = here.ended(FIRST, ExitKind.HANDED_OVER, step=7).step()
        assert said(here).completed is not None
        assert said(here).message == f"{FIRST} has ended"

    def test_a_member_of_a_run_that_stands_still_is_not_said_to_train(self) -> None:
        here = job(disruption=PATIENT).running(world=3).exited(1, code=137).settle()
        assert here.intent is not None
        assert here.intent.disruption is Disruption.MEMBER_LOST
        (answer,) = answers(asked(here, FIRST))
        assert answer.message.startswith(f"{FIRST} waits, as its run has lost a member, while another pod starts ")

    def test_completion_comes_before_the_pod_is_deleted(self) -> None:
        here = asked(job().running(world=2), FIRST).settle().after(1).settle().after(1)
        here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20))
        while not any(action.kind == "DeletePod" for action in here.plan().actions):
            assert here.plan().status is not None
            here = here.step()
        writes = [one for plan in (*here.history, here.plan()) for one in plan.actions]
        done = next(place for place, one in enumerate(writes) if isinstance(one, Answer) and one.completed)
        assert done < next(place for place, one in enumerate(writes) if isinstance(one, DeletePod))

    def test_a_heartbeat_comes_every_minute_and_no_sooner(self) -> None:
        policy = DisruptionPolicy(signals={"eviction-request": JobReaction.VACATE_IF_ROOM})
        here = asked(job(disruption=policy).running(world=2), FIRST).settle().after(25).settle()
        before = said(here).heartbeat
        assert before is not None
        assert answers(here.after(59)) == []
        here = here.after(60)
        assert len(answers(here)) == 1
        assert (said(here.settle()).heartbeat or before) > before

    def test_the_operator_looks_again_when_the_next_heartbeat_is_due(self) -> None:
        policy = DisruptionPolicy(signals={"eviction-request": JobReaction.VACATE_IF_ROOM})
        here = asked(job(disruption=policy).running(world=2), FIRST).settle().after(100).settle()
        assert here.plan().requeue_after == pytest.approx(60, abs=1)

    def test_news_wait_twenty_seconds_after_the_last_answer(self) -> None:
        here = asked(job(disruption=PATIENT).running(world=2), FIRST).settle().after(1).settle()
        assert said(here).message == f"{FIRST} is about to be replaced"
        assert (here.plan().requeue_after or 60) <= 20
        assert answers(here.after(18)) == []
        assert len(answers(here.after(20))) == 1

    def test_a_new_leader_goes_on_from_what_was_said(self) -> None:
        here = asked(job(disruption=PATIENT).running(world=2), FIRST).settle()
        assert answers(changed(here, tried=None)) == []

    def test_a_refused_answer_is_not_tried_again_at_once(self) -> None:
        here = asked(job(disruption=PATIENT).running(world=2), FIRST)
        tried = changed(here, tried=here.snapshot.now)
        assert answers(tried) == []
        assert tried.plan().requeue_after is not None
        assert len(answers(tried.after(21))) == 1

    @pytest.mark.parametrize("refused", [False, True])
    def test_after_the_clock_was_set_back_an_eviction_is_answered_and_no_more_often_than_before(
        self, refused: bool
    ) -> None:
        here = asked(job(disruption=PATIENT).running(world=2), FIRST).settle()
        if refused:
            (one,) = here.snapshot.evictions
            here = changed(here, heartbeat=None, tried=one.heartbeat)
        back = here.after(-3600)
        assert len(answers(back)) == 1
        (said,) = answers(back)
        again = changed(back, heartbeat=None if refused else said.heartbeat, tried=back.snapshot.now)
        assert answers(again) == []
        assert answers(again.after(19)) == []
        assert len(answers(again.after(20))) == 1

    def test_after_the_clock_was_set_back_no_answer_is_older_than_the_one_before(self) -> None:
        """The API server refuses a heartbeat that goes back."""
        here = asked(job(disruption=PATIENT).running(world=2), FIRST).settle().after(60).settle()
        (one,) = here.snapshot.evictions
        (said,) = answers(here.after(-3600))
        assert said.heartbeat == one.heartbeat

    def test_an_answer_that_was_refused_after_one_that_was_taken_is_tried_again_20_seconds_later(self) -> None:
        here = asked(job(disruption=PATIENT).running(world=2), FIRST).settle().after(100)
        here = changed(here, tried=here.snapshot.now)
        assert answers(here.after(19)) == []
        assert len(answers(here.after(20))) == 1

    def test_no_time_is_promised_before_the_one_that_kubernetes_gave(self) -> None:
        """Clocks differ, and the API server refuses a heartbeat before the beginning."""
        here = job(disruption=PATIENT).running(world=2)
        ahead = here.snapshot.now.replace(microsecond=0) + timedelta(seconds=9)
        (first,) = answers(asked(here, FIRST, started=ahead))
        assert first.heartbeat == ahead

    def test_the_expected_time_is_never_over(self) -> None:
        here = asked(job().running(world=2), FIRST).settle().after(1).settle()
        late = here.after(DisruptionPolicy().exit_timeout_seconds + 5)
        (answer,) = answers(late)
        assert late.intent is not None
        assert answer.expected == late.intent.deadline  # what still runs then is deleted

    def test_once_saves_were_measured_the_answer_tells_what_they_took(self) -> None:
        here = job().running(world=2).leaving("n1").after(7)
        here = here.all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle().ready().settle()
        assert here.now.exit_seconds == 7
        here = asked(here.uncordon("n1"), here.members[0] if here.members else here.living()[0].name)
        (answer,) = answers(here)
        assert answer.expected == here.snapshot.now + timedelta(seconds=7)

    def test_what_was_not_saved_is_no_measure(self) -> None:
        here = job().running(world=2).leaving("n1").after(7)
        assert here.all_ended(ExitKind.EXIT_TIMEOUT).settle().now.exit_seconds is None

    def test_a_job_that_ignores_requests_says_so_and_lets_others_have_their_turn(self) -> None:
        policy = DisruptionPolicy(signals={"eviction-request": JobReaction.IGNORE})
        here = asked(job(disruption=policy).running(world=2), FIRST)
        (answer,) = answers(here)
        assert answer.completed == answer.heartbeat
        assert "spec.disruption.signals" in answer.message
        here = here.settle()
        assert here.intent is None
        assert answers(here.after(600)) == []

    def test_of_a_node_that_was_given_up_others_may_take_the_pod(self) -> None:
        here = asked(job().running(world=2), FIRST).settle().node("n1", ready=False).settle().after(61)
        done = [one for one in answers(here) if one.completed]
        assert [one.message.partition(",")[0] for one in done] == ["node n1 does not answer"]

    def test_what_all_have_withdrawn_is_not_answered_any_more(self) -> None:
        here = asked(job(disruption=PATIENT).running(world=2), FIRST).settle()
        here = changed(here, withdrawn=True, requesters=()).settle().after(120)
        assert here.intent is None
        assert answers(here) == []

    def test_what_all_have_withdrawn_too_late_is_answered_to_the_end(self) -> None:
        here = asked(job().running(world=2), FIRST).settle().after(1).settle()
        here = changed(here, withdrawn=True, requesters=()).after(60)
        assert len(answers(here)) == 1

    def test_what_is_over_is_not_answered(self) -> None:
        here = changed(asked(job().running(world=2), FIRST), over=True)
        assert here.plan().status is None
        assert here.plan().actions == ()

    def test_of_three_hundred_for_one_pod_one_is_answered_and_stays_the_one(self) -> None:
        """Kubernetes makes one for each pod; a client that may make others cannot make the operator write for each."""
        here = _flooded(job(disruption=PATIENT).running(world=2), 300)
        (first,) = answers(here)
        here = here.settle()
        assert sum(isinstance(one, Answer) for plan in here.history for one in plan.actions) == 1
        (later,) = asked(here, FIRST).snapshot.evictions
        later = later.model_copy(update={"name": "evict", "uid": "uid-evict"})
        here = here.having(evictions=(later, *here.snapshot.evictions))
        assert answers(here) == []
        (heartbeat,) = answers(here.after(60))
        assert heartbeat.uid == first.uid

    def test_when_the_one_that_is_answered_is_withdrawn_another_one_is(self) -> None:
        here = _flooded(job(disruption=PATIENT).running(world=2), 3).settle()
        (told,) = (one for one in here.snapshot.evictions if one.heartbeat)
        gone = told.model_copy(update={"withdrawn": True, "requesters": ()})
        here = here.having(evictions=tuple(gone if one is told else one for one in here.snapshot.evictions))
        (other,) = answers(here.after(1))
        assert other.uid != told.uid

    def test_of_many_requests_one_learns_that_the_pod_has_ended(self) -> None:
        here = _flooded(job().running(world=2), 3).all_ended(ExitKind.COMPLETED, step=20, commit=(4, 20)).settle()
        assert here.now.finished_at is not None
        assert [one.completed is not None for one in here.snapshot.evictions].count(True) == 1

    def test_a_finished_job_completes_what_is_open(self) -> None:
        here = asked(job().running(world=2), FIRST).all_ended(ExitKind.COMPLETED, step=20, commit=(4, 20)).settle()
        assert here.now.finished_at is not None
        assert said(here).completed is not None


class TestRead:
    """The status as the controller leaves it."""

    def _seen(self, status: Json) -> EvictionView:
        return view(job().running(world=2), FIRST, status)

    def test_the_turn_of_the_operator(self) -> None:
        seen = self._seen(evictions.turn_of_the_operator(START))
        assert (seen.state, seen.place, seen.started, seen.requesters) == ("Active", 0, START, (evictions.REQUESTER,))
        assert (seen.over, seen.withdrawn) == (False, False)
        assert (seen.heartbeat, seen.expected, seen.completed, seen.message) == (None, None, None, "")

    def test_canceled(self) -> None:
        seen = self._seen(evictions.canceled(evictions.turn_of_the_operator(START), START))
        assert (seen.state, seen.over, seen.withdrawn, seen.requesters) == ("Canceled", True, True, ())

    def test_evicted(self) -> None:
        seen = self._seen(evictions.evicted(evictions.turn_of_the_operator(START), START))
        assert (seen.over, seen.withdrawn) == (True, False)

    def test_one_of_two_has_withdrawn(self) -> None:
        status = evictions.turn_of_the_operator(START)
        status["requesters"].append({"name": "example.com/other", "intent": "Withdrawn"})
        assert self._seen(status) == self._seen(evictions.turn_of_the_operator(START))

    def test_what_the_operator_has_said_and_where(self) -> None:
        status = evictions.turn_of_the_operator(START)
        told = {"heartbeatTime": "2026-08-01T12:01:00Z", "expectedCompletionTime": "2026-08-01T12:02:00Z"}
        told |= {"completionTime": "2026-08-01T12:03:00Z", "message": "so far"}
        status["responders"] = [status["responders"][1], status["responders"][0] | told]
        seen = self._seen(status)
        times = [START + timedelta(minutes=minutes) for minutes in (1, 2, 3)]
        assert [seen.heartbeat, seen.expected, seen.completed] == times
        assert (seen.place, seen.message) == (1, "so far")


def test_a_deadline_of_the_configuration_counts_from_when_it_was_the_operators_turn() -> None:
    (row,) = (one for one in DEFAULT_SIGNALS if one.name == "eviction-request")
    by_deadline = row.model_copy(update={"reaction": Reaction.VACATE_BY_DEADLINE, "deadline_seconds": 120})
    here = job().running(world=2).having(signals=(by_deadline,))
    here = asked(here, FIRST, started=here.snapshot.now - timedelta(seconds=60))
    assert {said.seconds for said in leaves(here.plan()).values()} == {55}


def test_many_requesters_are_not_all_named() -> None:
    here = changed(asked(job().running(world=2), FIRST), requesters=tuple(f"example.com/{n}" for n in range(9)))
    intent = here.settle().intent
    assert intent is not None
    assert intent.cause.endswith("asked for by example.com/0, example.com/1, example.com/2, 6 others")


def test_the_words_of_the_configuration_count() -> None:
    (row,) = (one for one in DEFAULT_SIGNALS if one.name == "eviction-request")
    here = job().running(world=2).having(signals=(row.model_copy(update={"says": "sent away from {node}"}),))
    intent = asked(here, FIRST).settle().intent
    assert intent is not None
    assert intent.cause == "sent away from n1"
    assert intent.disruption is Disruption.NODE_LEAVING
