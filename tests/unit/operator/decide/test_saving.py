"""A node shows what may end its members without a notice: the run saves, once, and trains on."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.wire import Completion, ExitKind, Train
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.signal_rows import SignalRow
from perdure_operator.decide.assignments import train
from perdure_operator.decide.saving import MOST_SHOWN
from perdure_operator.state.snapshot import EvictionView, NodeCondition, NodeView
from tests.support.jobs import Job, job, killed, trains

PRESSED = (NodeCondition(type="MemoryPressure", status="True"),)


def many_nodes(pressed: int) -> tuple[NodeView, ...]:
    """A hundred, of which so many show it."""
    numbers = range(100)
    return tuple(NodeView(name=f"n{one:03}", conditions=PRESSED if one < pressed else ()) for one in numbers)


def saves(here: Job) -> list[int]:
    """Each member's assignment."""
    said = [here.assignment(pod.name) for pod in here.living() if pod.role == "member"]
    return [one.save for one in said if isinstance(one, Train)]


def pressed(here: Job, node: str = "n1") -> Job:
    return here.node(node, conditions=PRESSED).settle()


def relieved(here: Job, node: str = "n1") -> Job:
    return here.node(node, conditions=()).settle()


def told(here: Job, reason: str) -> list[str]:
    return [event.message for plan in here.history for event in plan.events if event.reason == reason]


class TestOnce:
    def test_all_members_are_asked_with_their_ranks_and_nothing_else_changes(self) -> None:
        before = job().running(2)
        here = pressed(before)
        assert saves(here) == [1, 1]
        assert (here.now.run, here.intent) == (1, None)
        assert here.run_plan == before.run_plan
        assert told(here, "SaveAsked") == ["the run saves and trains on: node n1 has the condition MemoryPressure=True"]

    def test_the_run_counts_as_training_meanwhile(self) -> None:
        here = job().running(2).node("n1", conditions=PRESSED).step()
        assert here.condition(ConditionType.RUNNING).status == "True"
        assert here.now.phase == "Running"

    def test_not_again_as_long_as_it_is_shown(self) -> None:
        here = pressed(job().running(2))
        for _ in range(5):
            here = here.after(600).settle()
        assert saves(here) == [1, 1]

    def test_several_nodes_at_once_are_one_save(self) -> None:
        here = job().running(2).node("n1", conditions=PRESSED).node("n2", conditions=PRESSED).settle()
        assert saves(here) == [1, 1]

    def test_what_no_member_runs_on_asks_for_nothing(self) -> None:
        assert saves(pressed(job().running(2), "n3")) == [0, 0]

    def test_a_member_that_was_not_asked_is_asked_later(self) -> None:
        here = job().running(2).node("n1", conditions=PRESSED).step(writes=2)
        assert saves(here.settle()) == [1, 1]


class TestAgain:
    def test_after_a_pause_that_doubles(self) -> None:
        here, asked = pressed(job().running(2)), list[int]()
        for _ in range(40):
            here = pressed(relieved(here.after(15)).after(15))
            asked.append(saves(here)[0])
        times = [30 * (asked.index(number) + 1) for number in sorted(set(asked)) if number > 1]
        assert times == [60, 180, 420, 900]

    def test_what_is_shown_when_the_pause_is_over_is_asked_for_then(self) -> None:
        here = pressed(pressed(job().running(2)).after(20), "n2")
        assert saves(here) == [1, 1]
        assert here.plan().requeue_after == 40
        assert saves(here.after(40).settle()) == [2, 2]

    def test_what_went_away_meanwhile_is_not(self) -> None:
        here = relieved(pressed(pressed(job().running(2)).after(20), "n2"), "n2")
        assert saves(here.after(60).settle()) == [1, 1]

    def test_after_twenty_minutes_without_one_the_row_is_over(self) -> None:
        here = job().running(2)
        for _ in range(4):
            here = pressed(relieved(pressed(here).after(30)).after(60 * 20))
        assert here.now.saves is not None
        assert here.now.saves.count == 1

    def test_where_nothing_is_shown_for_long_status_forgets_it(self) -> None:
        here = relieved(pressed(job().running(2))).after(60 * 20).settle()
        assert here.now.saves is None

    def test_status_does_not_grow_with_the_nodes(self) -> None:
        here = job().having(nodes=many_nodes(0)).running(100).having(nodes=many_nodes(100)).settle()
        here = here.after(3600).settle()
        assert here.now.saves is not None
        assert len(here.now.saves.shown) == MOST_SHOWN
        assert set(saves(here)) == {1}


class TestBesideAMove:
    def test_a_run_that_follows_begins_without_a_request(self) -> None:
        here = pressed(job(disruption={}).running(2)).cordon("n1").settle().after(1).settle().ready().settle()
        said = trains(here.history[-1]) or {
            pod.name: one
            for pod in here.living()
            if isinstance(one := here.assignment(pod.name), Train) and one.run > 1
        }
        assert {one.save for one in said.values()} == {0}

    def test_a_member_that_has_to_leave_is_not_asked(self) -> None:
        here = job().running(2).leaving("n1").node("n2", conditions=PRESSED).settle()
        assert told(here, "SaveAsked") == []

    def test_nor_a_run_that_has_lost_a_member(self) -> None:
        here = job(disruption={}).running(2).ended(0, ExitKind.FAILED, error=killed())
        assert told(pressed(here, "n2"), "SaveAsked") == []

    def test_while_replacements_start_the_run_is_asked(self) -> None:
        here = job(disruption={}).running(2).cordon("n1").settle().after(1).settle()
        assert saves(pressed(here, "n2")) == [1, 1]


class TestWho:
    def test_a_job_may_choose_it_and_then_no_member_leaves(self) -> None:
        sick = (NodeCondition(type="KernelDeadlock", status="True"),)
        here = job(disruption={"signals": {"npd-kernel-deadlock": "CheckpointNow"}}).running(2)
        here = here.node("n1", conditions=sick).settle().after(600).settle()
        assert (here.intent, saves(here)) == (None, [1, 1])

    def test_a_job_may_do_without(self) -> None:
        here = pressed(job(disruption={"signals": {"memory-pressure": "Ignore"}}).running(2))
        assert (saves(here), here.now.saves) == ([0, 0], None)

    def test_where_no_member_can_be_asked_that_is_reported_once(self) -> None:
        here = pressed(job(completion=Completion.EXIT_CODE).running(2)).after(600).settle()
        assert saves(here) == [0, 0]
        (words,) = told(here, "SaveNotAsked")
        assert words.endswith("no member can be asked to save and train on, as completion is ExitCode")

    def test_a_row_about_a_pod_may_ask_for_it(self) -> None:
        ours = SignalRow.model_validate(
            {"name": "ours", "source": "PodCondition", "key": "Hot", "reaction": "CheckpointNow"}
        )
        here = job().having(signals=(ours,)).running(2)
        shown: Any = (NodeCondition(type="Hot", status="True"),)
        assert saves(here.pod(0, conditions=shown).settle()) == [1, 1]

    @pytest.mark.parametrize("named", ["n1", "digits-ab12-0", "true"])
    def test_a_person_may_ask_for_it_by_the_jobs_annotation(self, named: str) -> None:
        here = job(disruption={"signals": {"vacate-job": "CheckpointNow"}}).running(2).having(vacate=named).settle()
        assert (saves(here.settle()), here.intent) == ([1, 1], None)

    def test_each_value_of_the_annotation_for_saves_asks_once(self) -> None:
        here = job().running(2).having(save="a").settle()
        assert (saves(here.after(600).settle()), here.intent) == ([1, 1], None)
        assert told(here, "SaveAsked") == ["the run saves and trains on: a user asks for it"]
        again = here.after(600).having(save="b").settle()
        assert saves(again) == [2, 2]
        assert saves(again.having(save="").settle().after(600).having(save="b").settle()) == [3, 3]

    def test_a_user_who_asks_again_at_once_waits_for_the_pause(self) -> None:
        here = job().running(2).having(save="a").settle().after(20).having(save="b").settle()
        assert (saves(here), here.plan().requeue_after) == ([1, 1], 40)
        assert saves(here.after(40).settle()) == [2, 2]

    def test_the_pauses_do_not_grow_with_what_a_user_asks_for(self) -> None:
        here = job().running(2)
        for value in "abcde":
            here = here.having(save=value).settle().after(60)
        assert saves(here) == [5, 5]
        here = here.having(save="f").settle().after(20)
        assert pressed(here).plan().requeue_after == 40
        assert saves(pressed(here).after(40).settle()) == [7, 7]

    def test_a_user_who_asks_beside_signals_of_nodes_does_not_end_their_row(self) -> None:
        here = pressed(relieved(pressed(job().running(2)).after(30)).after(30))
        here = here.after(120).having(save="a").settle()
        assert saves(here) == [3, 3]
        assert pressed(here, "n2").plan().requeue_after == 120

    def test_beside_many_signals_a_user_is_heard_once(self) -> None:
        here = (
            job()
            .having(nodes=many_nodes(0))
            .running(100)
            .having(nodes=many_nodes(100))
            .settle()
            .after(600)
            .having(save="a")
            .settle()
        )
        assert set(saves(here)) == {2}
        here = here.having(nodes=many_nodes(60)).settle().after(600).settle()
        assert set(saves(here.after(600).settle())) == {2}

    def test_status_keeps_little_of_a_long_value(self) -> None:
        here = job().running(2).having(save="x" * 100_000).settle()
        assert here.now.saves is not None
        assert sum(map(len, here.now.saves.shown)) < 100

    def test_an_eviction_may_request_a_save(self) -> None:
        here = job(disruption={"signals": {"eviction-request": "CheckpointNow"}}).running(2)
        wanted = EvictionView(name="e", uid="e", pod=here.living()[0].uid, place=0, state="Active", requesters=("a",))
        assert (saves(here.having(evictions=(wanted,)).settle()), here.intent) == ([1, 1], None)


def test_an_assignment_without_room_for_both_has_the_rank_alone() -> None:
    plan = job().running(2).run_plan
    assert plan is not None
    full = plan.model_copy(update={"lost": tuple(range(10**26, 10**26 + 40))})
    assert '"save"' not in train(full, full.members[0], 7)
    assert '"save":7' in train(plan, plan.members[0], 7)


@pytest.mark.parametrize("saves_told", [0, 3])
def test_an_operator_that_knows_nothing_of_it_takes_nothing_back(saves_told: int) -> None:
    """It writes the assignment without the number; an agent that has seen it saves no second time."""
    plan = job().running(2).run_plan
    assert plan is not None
    assert train(plan, plan.members[0], saves_told).startswith(train(plan, plan.members[0])[:-1])
