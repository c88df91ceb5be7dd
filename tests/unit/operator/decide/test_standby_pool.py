"""Warm standbys beside the run replace leaving or lost members, and are the first to go."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure.wire import ExitKind, Role, Standby
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.spec import Elastic
from perdure_operator.api.status import Failures, LiveRefused, Phase
from perdure_operator.decide import Stage, stage_of
from perdure_operator.decide.sizing import SETTLING_SECONDS
from perdure_operator.decide.standby_pool import BEGINNING_SECONDS, CHANGED_SECONDS
from perdure_operator.state.decision import CreatePod
from perdure_operator.state.snapshot import NodeView
from tests.support.jobs import PATIENT, START, Job, creates, deletes, job, killed, raised

AFTER, TIMEOUT = 10, 60


def _job(nodes: int = 8, **elastic: Any) -> Job:
    """Its script cannot go over alive, so that a plan is at once that of the run."""
    given: dict[str, Any] = {"min_replicas": 1, "max_replicas": 8, "spares": 1}
    given |= {"grow_after_seconds": AFTER, "grow_timeout_seconds": TIMEOUT, **elastic}
    there = tuple(NodeView(name=f"n{number + 1}") for number in range(nodes))
    here = job(disruption=PATIENT, elastic=Elastic(**given)).having(nodes=there)
    return here.status(live_refused=LiveRefused(template="t1", why="its model is sharded"))


def _begun(world: int, nodes: int = 8, **elastic: Any) -> Job:
    """A run that has had time to begin."""
    return _job(nodes, **elastic).running(world).after(BEGINNING_SECONDS).settle()


def _spared(world: int = 2, nodes: int = 8, **elastic: Any) -> Job:
    """A run whose spares are warm."""
    return _begun(world, nodes, **elastic).ready().settle()


def _next(here: Job) -> tuple[str, ...]:
    """The members named for the next run."""
    return here.now.next.members if here.now.next else ()


def _numbers(names: tuple[str, ...]) -> list[str]:
    return [name.rpartition("-")[2] for name in names]


def _sized(here: Job) -> str:
    return here.condition(ConditionType.SIZED).message


class TestKeepingThem:
    def test_a_run_that_has_begun_gets_its_spares(self) -> None:
        here = _job(spares=2).starting(2).ready().settle()
        assert here.names() == ["0", "1"]
        assert here.plan().requeue_after == BEGINNING_SECONDS
        here = here.after(BEGINNING_SECONDS).settle()
        assert _numbers(here.spares()) == ["2", "3"]
        assert here.names() == ["0", "1", "2", "3"]

    def test_a_clock_that_was_set_back_delays_no_spare(self) -> None:
        here = _job().running(2)
        here = here.having(now=here.snapshot.now - timedelta(hours=3)).settle().after(BEGINNING_SECONDS).settle()
        assert _numbers(here.spares()) == ["2"]

    def test_no_spare_is_made_while_members_of_the_run_are_not_ready_yet(self) -> None:
        here = _job().starting(2)
        for number in (0, 1):
            here = here.pod(number, phase="Running", ip=f"10.0.0.{number + 1}")
        assert here.settle().after(60).settle().spares() == ()

    def test_a_job_that_asks_for_none_says_nothing_of_them(self) -> None:
        here = _begun(2, spares=0)
        assert here.now.spares is None
        assert "spare" not in _sized(here)
        assert here.names() == ["0", "1"]

    def test_they_are_standbys_outside_the_budget_and_no_members(self) -> None:
        here = _spared()
        assert here.snapshot.budget is not None
        assert here.snapshot.budget.min_available == 2
        assert here.assignment(2) == Standby()
        assert next(pod for pod in here.snapshot.pods if pod.name == here.name(2)).role == Role.STANDBY
        assert here.now.replicas == 2
        assert here.now.phase is Phase.RUNNING

    def test_they_are_made_for_nodes_without_a_member(self) -> None:
        here = _begun(2)
        made = [action for plan in here.history for action in plan.actions if isinstance(action, CreatePod)]
        assert [(one.name, one.away_from_members) for one in made] == [
            (here.name(0), False),
            (here.name(1), False),
            (here.name(2), True),
        ]

    def test_they_have_the_class_of_those_that_make_a_run_larger(self) -> None:
        here = _begun(2, joiner_priority_class_name="low")
        made = [action for plan in here.history for action in plan.actions if isinstance(action, CreatePod)]
        assert [one.priority_class for one in made] == ["", "", "low"]

    def test_status_says_how_many_are_warm_and_what_keeps_the_others(self) -> None:
        here = _begun(2, spares=2)
        assert _sized(here) == "2 members: spec.replicas is 2; 0 of 2 spares are warm"
        here = here.pod(2, ready=True, phase="Running", ip="10.0.0.9")
        here = here.pod(3, node="", unschedulable="0/8 nodes are available").settle()
        held = f"no node for {here.name(3)}: 0/8 nodes are available"
        assert _sized(here) == f"2 members: spec.replicas is 2; 1 of 2 spares are warm: {held}"
        assert here.condition(ConditionType.SIZED).status == "True"

    def test_fewer_are_wanted_and_those_that_are_warm_stay(self) -> None:
        here = _begun(2, spares=2).pod(3, ready=True, phase="Running", ip="10.0.0.9").settle()
        fewer = here.snapshot.spec.elastic
        assert fewer is not None
        here = here.spec(elastic=fewer.model_copy(update={"spares": 1}))
        assert deletes(here.plan()) == [here.name(2)]
        assert _numbers(here.settle().spares()) == ["3"]

    @pytest.mark.parametrize("change", [{"elastic": None}, {"suspend": True}])
    def test_a_job_that_wants_none_any_more_or_pauses_lets_them_go(self, change: dict[str, Any]) -> None:
        here = _spared().spec(**change)
        assert deletes(here.plan()) == [here.name(2)]
        assert here.settle().now.spares is None

    def test_a_job_that_is_done_lets_them_go(self) -> None:
        here = _spared().all_ended(ExitKind.COMPLETED, step=20, commit=(4, 20)).step()
        assert here.now.spares is None
        assert deletes(here.history[-1]) == [here.name(2)]

    def test_a_job_whose_deadline_is_over_lets_them_go_as_it_saves(self) -> None:
        here = _spared().spec(active_deadline_seconds=60).after(61)
        assert deletes(here.plan()) == [here.name(2)]

    def test_a_job_that_is_being_deleted_makes_none(self) -> None:
        here = _spared().having(deleting=True)
        assert deletes(here.plan()) == [here.name(2)]
        assert creates(here.settle().plan()) == []

    def test_a_job_that_waits_without_a_run_takes_no_room(self) -> None:
        here = _spared().having(same_uri=("default/other",)).all_ended(ExitKind.CHECKPOINTED, step=8, commit=(3, 8))
        here = here.settle()
        assert here.condition(ConditionType.RUNNING).reason == "SharedRoot"
        assert [pod.name for pod in here.living() if not pod.deleting] == []

    def test_spares_that_an_operator_without_spares_has_left_are_replaced(self) -> None:
        """Rolled back and forth: no number is used twice."""
        here = _spared().status(spares=None).having(allotted=(), created=()).settle()
        assert _numbers(here.spares()) == ["3"]
        assert next(pod for pod in here.snapshot.pods if pod.name == here.name(2)).deleting


class TestTakingTheirPlace:
    def test_a_lost_member_is_replaced_in_the_round_that_sees_it(self) -> None:
        here = _spared().ended(1, ExitKind.FAILED, error=killed()).step()
        assert _numbers(here.members) == ["0", "2"]
        assert here.now.run == 2
        assert 1 in here.now.lost

    def test_without_a_warm_one_the_others_go_on_at_once(self) -> None:
        here = _begun(2).ended(1, ExitKind.FAILED, error=killed()).step()
        assert _numbers(here.members) == ["0"]
        assert here.now.run == 2

    def test_the_next_failure_in_a_row_costs_its_pause(self) -> None:
        here = _spared(spares=2).ended(1, ExitKind.FAILED, error=killed()).settle().ready().settle()
        here = here.missing(1).ended(here.members[1], ExitKind.FAILED, error=killed()).settle()
        assert here.now.run == 2
        assert here.after(2).settle().now.run == 3

    def test_one_long_after_the_last_has_none(self) -> None:
        """Who trains on tells of no commit: the row of a job that trains for days would never end."""
        here = _spared(spares=2).ended(1, ExitKind.FAILED, error=killed()).settle().ready().settle().after(600).settle()
        here = here.missing(1).ended(here.members[1], ExitKind.FAILED, error=killed()).step()
        assert here.now.run == 3

    def test_after_a_new_commit_the_next_is_the_first_again(self) -> None:
        here = _spared(spares=2).ended(1, ExitKind.FAILED, error=killed()).settle().ready().settle()
        here = here.missing(1).ended(here.members[1], ExitKind.FAILED, error=killed(), commit=(7, 70), run=2).step()
        assert here.now.run == 3

    def test_a_failure_of_the_script_costs_its_pause(self) -> None:
        here = _spared().ended(1, ExitKind.FAILED, error=raised()).settle()
        assert here.now.run == 1
        assert _numbers(here.after(1).settle().members) == ["0", "2"]

    def test_a_leaving_member_is_replaced_after_the_quiet_second(self) -> None:
        here = _spared().cordon("n2").settle()
        assert here.now.run == 1
        here = here.after(1).step()
        assert _numbers(here.members) == ["0", "2"]
        assert here.run_plan is not None
        assert here.run_plan.leavers == (here.name(1),)

    def test_it_takes_over_alive_where_the_script_can(self) -> None:
        here = _spared().status(live_refused=None).cordon("n2").settle().after(1).settle()
        assert stage_of(here.now) is Stage.HANDING_OVER
        assert _numbers(_next(here)) == ["2"]
        assert here.spares() == ()

    def test_after_a_growth_without_a_reported_end_they_are_filled_up(self) -> None:
        """Who lives tells nothing: it may be twenty minutes until that run is known to be on."""
        here = _spared().status(live_refused=None).after(SETTLING_SECONDS).spec(replicas=3).settle().after(1).settle()
        assert stage_of(here.now) is Stage.HANDING_OVER
        here = here.after(CHANGED_SECONDS - 1).settle()
        assert here.spares() == ()
        assert _sized(here).endswith("0 of 1 spares are warm, others are made when this change is over")
        here = here.after(1).settle()
        assert stage_of(here.now) is Stage.HANDING_OVER
        assert _numbers(here.spares()) == ["3"]
        here = here.ready().settle()
        assert _sized(here).endswith("1 of 1 spares are warm")
        here = here.exited(1, code=137).settle()
        assert here.run_plan is not None
        assert here.name(3) in {member.name for member in here.run_plan.members}

    def test_a_spare_on_a_node_that_leaves_takes_no_place(self) -> None:
        here = _spared().cordon("n2", "n3").settle().after(1).settle()
        assert here.now.run == 1
        assert _numbers(_next(here)) == ["3"]
        assert here.spares() == ()

    def test_nor_where_the_node_leaves_in_the_moment_in_which_a_member_is_lost(self) -> None:
        here = _spared(min_replicas=2).cordon("n3").ended(1, ExitKind.FAILED, error=killed()).step()
        assert _numbers(_next(here)) == ["3"]

    def test_one_that_is_only_on_its_way_is_not_made_twice(self) -> None:
        here = _begun(2).cordon("n2").settle().after(1).settle()
        assert _numbers(_next(here)) == ["2"]
        assert here.names() == ["0", "1", "2"]

    def test_one_that_gets_warm_first_takes_the_place_of_one_that_waits(self) -> None:
        here = _begun(2, spares=2).cordon("n2").settle().after(1).settle()
        assert _numbers(_next(here)) == ["2"]
        here = here.pod(3, ready=True, phase="Running", ip="10.0.0.9").step()
        assert _numbers(here.members) == ["0", "3"]
        assert _numbers(here.spares()) == ["2"]

    def test_who_is_not_needed_any_more_is_a_spare_again(self) -> None:
        here = _begun(2).spec(replicas=3).settle().after(1).settle()
        assert _numbers(_next(here)) == ["2"]
        assert _numbers(here.spec(replicas=2).settle().spares()) == ["2"]

    def test_what_was_taken_is_made_again_once_the_run_has_begun(self) -> None:
        here = _spared().ended(1, ExitKind.FAILED, error=killed()).step()
        assert here.spares() == ()
        here = here.settle()
        assert here.spares() == ()
        assert _numbers(here.after(BEGINNING_SECONDS).settle().spares()) == ["3"]

    def test_new_spares_wait_for_the_backoff_after_repeated_failures(self) -> None:
        row = Failures(infrastructure=4, consecutive=4, last_time=START)
        here = _job().running(2).status(failures=row).after(BEGINNING_SECONDS).settle()
        assert here.spares() == ()
        assert len(here.after(8 - BEGINNING_SECONDS).settle().spares()) == 1

    def test_where_all_leave_they_are_members_of_the_run_that_starts_over(self) -> None:
        here = _spared().spec(processes_per_replica=2).settle().after(1).settle()
        assert here.name(2) in _next(here)

    def test_a_larger_run_takes_them_first(self) -> None:
        here = _spared(spares=2).after(SETTLING_SECONDS).spec(replicas=4).settle().after(1).step()
        assert _numbers(here.members) == ["0", "2", "1", "3"]

    def test_a_larger_run_that_needs_more_makes_only_those(self) -> None:
        here = _spared().after(SETTLING_SECONDS).spec(replicas=4).settle().after(1).settle()
        assert _numbers(_next(here)) == ["2", "3"]
        here = here.after(AFTER).settle()
        assert _numbers(here.members) == ["0", "2", "1"]


class TestReplacingThem:
    def test_one_on_a_node_that_leaves_is_replaced_and_members_are_not_affected(self) -> None:
        here = _spared().cordon("n3").settle()
        assert here.intent is None
        assert _numbers(here.spares()) == ["3"]
        assert next(pod for pod in here.snapshot.pods if pod.name == here.name(2)).deleting

    def test_those_that_die_one_after_the_other_are_replaced_later_and_later(self) -> None:
        here, pauses = _spared(), []
        for _ in range(4):
            here = here.ended(here.spares()[0], ExitKind.FAILED, run=0, error=raised()).settle()
            wait = here.plan().requeue_after or 0.0
            pauses.append(0 if here.spares() else wait)
            if not here.spares():
                assert "others are made at" in _sized(here)
                here = here.after(wait).settle()
        assert pauses == [0, 10, 20, 40]
        assert here.now.run == 1
        assert here.now.failures.infrastructure == here.now.failures.code == 0

    def test_an_edit_of_the_spec_ends_the_pause(self) -> None:
        here = _spared()
        for wait in (0, 10, 20):
            here = here.ended(here.spares()[0], ExitKind.FAILED, run=0, error=raised()).settle().after(wait).settle()
        here = here.ended(here.spares()[0], ExitKind.FAILED, run=0, error=raised()).settle()
        assert here.after(10).settle().spares() == ()
        assert len(here.spec(suspend=False).after(10).settle().spares()) == 1

    def test_one_that_was_good_for_long_begins_another_row(self) -> None:
        here = _spared()
        for _ in range(2):
            here = here.ended(here.spares()[0], ExitKind.FAILED, run=0, error=raised()).settle().after(10).settle()
        here = here.after(3600).ended(here.spares()[0], ExitKind.FAILED, run=0, error=raised()).settle()
        assert len(here.spares()) == 1

    def test_one_that_a_quota_refuses_is_not_asked_for_in_each_round(self) -> None:
        """Otherwise a round that fails again and again would delay urgent work."""
        here = _job().running(2).refused(2, 3, 4).after(BEGINNING_SECONDS).settle()
        assert here.spares() == ()
        assert "exceeded quota" in _sized(here)
        assert creates(here.plan()) == []

    def test_one_of_an_older_template_is_replaced(self) -> None:
        here = _spared().having(template_hash="t2").settle()
        assert here.intent is None
        assert _numbers(here.spares()) == ["3"]

    def test_no_time_lies_ahead(self) -> None:
        here = _spared()
        for _ in range(2):
            here = here.ended(here.spares()[0], ExitKind.FAILED, run=0, error=raised()).settle()
        assert here.now.spares is not None
        row = here.now.spares.replacements
        assert row is not None
        late = row.model_copy(update={"last_time": here.snapshot.now + timedelta(days=1)})
        here = here.status(spares=here.now.spares.model_copy(update={"replacements": late})).settle().after(10).settle()
        assert len(here.spares()) == 1


class TestThoseThatAreLeftOver:
    def test_a_pod_that_a_run_began_without_is_awaited_as_it_grows(self) -> None:
        here = _job(spares=0, min_replicas=2).starting(4)
        for number in (0, 1):
            here = here.pod(number, ready=True, phase="Running", ip=f"10.0.0.{number + 1}")
        here = here.settle().after(AFTER).settle()
        assert _numbers(here.members) == ["0", "1"]
        here = here.after(1).settle()
        assert _numbers(_next(here)) == ["2", "3"]
        assert here.names() == ["0", "1", "2", "3"]

    def test_a_pod_that_a_larger_run_did_not_wait_for_is_awaited_by_the_next(self) -> None:
        here = _begun(2, spares=0).spec(replicas=4).settle().after(1).settle()
        here = here.pod(2, ready=True, phase="Running", ip="10.0.0.9").settle()
        here = here.after(SETTLING_SECONDS).settle().after(0).settle()
        assert _numbers(here.members) == ["0", "2", "1"]
        here = here.after(1).settle()
        assert _numbers(_next(here)) == ["3"]
        assert here.names() == ["0", "1", "2", "3"]

    def test_without_spares_no_pod_stays_of_an_attempt_that_is_given_up(self) -> None:
        here = _begun(2, spares=0).spec(replicas=4).settle().after(1).settle()
        here = here.after(TIMEOUT).settle()
        assert here.now.spares is None
        assert sorted(pod.name for pod in here.living() if not pod.deleting) == [here.name(0), here.name(1)]

    def test_of_an_attempt_that_is_given_up_as_many_stay_as_there_are_spares(self) -> None:
        here = _spared(sizes=(2, 4), min_replicas=2).after(SETTLING_SECONDS).spec(replicas=4).settle().after(1).settle()
        assert _numbers(_next(here)) == ["2", "3"]
        here = here.after(TIMEOUT).settle()
        assert _numbers(here.spares()) == ["2"]

    def test_a_fixed_size_keeps_no_pod(self) -> None:
        here = _job().spec(elastic=None).running(2).cordon("n2").settle().after(1).settle()
        assert _numbers(_next(here)) == ["2"]
        here = here.uncordon("n2").settle()
        assert here.now.spares is None
        assert next(pod for pod in here.snapshot.pods if pod.name == here.name(2)).deleting
