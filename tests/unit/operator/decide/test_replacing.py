"""Members that cannot train are replaced before their run is planned: elsewhere, and never as a storm."""

from __future__ import annotations

from datetime import timedelta

import pytest

from perdure.wire import Role, Standby, write_assignment
from perdure_operator.api.reasons import ConditionType
from perdure_operator.state.decision import CreatePod, DeletePod
from perdure_operator.state.snapshot import NodeView, PodView, Toleration
from tests.support.jobs import START, Job, creates, deletes, job, written

KARPENTER = Toleration(key="karpenter.sh/disrupted", operator="Exists")


def _pod(here: Job, number: int) -> PodView:
    return next(pod for pod in here.snapshot.pods if pod.name == here.name(number))


def _reaped(here: Job) -> Job:
    """A reaper deletes every pod, without any grace."""
    for pod in here.snapshot.pods:
        here = here.missing(pod.name) if pod.gone else here.pod(pod.name, gone=True)
    return here.settle()


def _reaped_in_a_row(times: int) -> Job:
    """At each pod's birth, as soon as the operator would have another."""
    here = job().starting(world=2)
    for _ in range(times):
        here = _reaped(here)
        while not here.members:
            here = here.after(here.plan().requeue_after or 0).settle()
    return here


class TestPace:
    def test_the_first_replacement_is_made_at_once(self) -> None:
        assert _reaped(job().starting(world=2)).names() == ["2", "3"]

    def test_each_further_one_waits_twice_as_long(self) -> None:
        times = [_reaped_in_a_row(count).snapshot.now - START for count in range(1, 7)]
        assert times == [timedelta(seconds=seconds) for seconds in (0, 1, 3, 7, 15, 31)]

    def test_the_pause_is_bounded(self) -> None:
        here = _reaped(_reaped_in_a_row(30))
        assert here.plan().requeue_after == 300

    def test_the_condition_says_what_happened_until_when_and_what_ends_it(self) -> None:
        running = _reaped(_reaped_in_a_row(3)).condition(ConditionType.RUNNING)
        assert running.reason == "ReplacingMembers"
        assert running.message.startswith(
            "4 times in a row members could not train and were replaced: digits-ab12-6 was deleted, digits-ab12-7 was "
            "deleted; the next ones are created at 12:00:07Z; to do: "
        )

    def test_a_warning_is_sent_when_it_begins(self) -> None:
        here = _reaped(_reaped_in_a_row(1))
        assert "ReplacingMembers" in {event.reason for decision in here.history for event in decision.events}

    def test_members_that_are_well_wait_with_it_and_stay(self) -> None:
        here = _reaped_in_a_row(3).pod(6, gone=True).settle()
        assert here.members == ("digits-ab12-7",)
        assert creates(here.plan()) == deletes(here.plan()) == []
        assert here.ready().settle().run_plan is None

    def test_an_edit_of_the_spec_ends_the_pause(self) -> None:
        here = _reaped(_reaped_in_a_row(5))
        assert here.members == ()
        assert here.spec(replicas=2).after(10).settle().members != ()

    def test_edits_that_never_end_do_not_make_it_a_storm(self) -> None:
        here = job().starting(world=2)
        for _ in range(60):
            here = _reaped(here).spec(replicas=2).after(1).settle()
        assert here.now.next_member < 25

    def test_a_planned_run_ends_the_row(self) -> None:
        here = _reaped_in_a_row(5).ready().settle()
        assert here.run_plan is not None
        again = here.spec(replicas=1).settle().after(1).settle()
        assert again.now.next is not None
        assert again.now.next.replacements is None

    def test_a_name_that_never_had_a_pod_costs_no_pause(self) -> None:
        here = job().step()
        for _ in range(5):
            here = here.step(writes=1)
        assert creates(here.plan()) != []


class TestPlaces:
    def test_a_node_that_is_deleted_without_a_taint_takes_one_pod_and_no_other(self) -> None:
        here = job().starting(world=2).node("n1", deleting=True).settle()
        assert here.names() == ["0", "1", "2"]
        assert _pod(here, 0).role == Role.FORMER
        assert _pod(here, 2).node == "n3"
        assert deletes(here.plan()) == []

    def test_the_one_that_keeps_others_off_goes_once_the_run_is_planned(self) -> None:
        here = job().starting(world=2).node("n1", deleting=True).settle().ready()
        assert here.assignment(0) == Standby()
        assert deletes(here.plan()) == ["digits-ab12-0"]

    def test_one_for_each_node_is_enough(self) -> None:
        here = job().having(nodes=(NodeView(name="n1"), NodeView(name="n2"))).starting(world=4)
        here = here.node("n1", deleting=True).settle()
        assert [pod.name for pod in here.snapshot.pods if pod.role == Role.FORMER] == ["digits-ab12-0"]
        assert _pod(here, 2).deleting

    def test_a_tolerated_taint_keeps_no_pod_off_so_a_former_has_to(self) -> None:
        here = job().starting(world=2).pod(0, tolerations=(KARPENTER,)).taint("n1", "karpenter.sh/disrupted")
        assert CreatePod(name="digits-ab12-2", apart=True) in written(here.plan())
        assert _pod(here.settle(), 0).role == Role.FORMER

    @pytest.mark.parametrize("sign", ["cordon", "autoscaler", "deleted"])
    def test_where_kubernetes_keeps_them_off_nothing_stays_and_nothing_is_asked_of_the_scheduler(
        self, sign: str
    ) -> None:
        here = job().starting(world=2)
        here = {
            "cordon": lambda: here.cordon("n1"),
            "autoscaler": lambda: here.taint("n1", "ToBeDeletedByClusterAutoscaler"),
            "deleted": lambda: here.node("n1", exists=False, ready=False),
        }[sign]()
        plan = here.plan()
        assert deletes(plan) == ["digits-ab12-0"]
        assert [action.apart for action in plan.actions if isinstance(action, CreatePod)] == [False]

    def test_where_a_successor_is_refused_no_pod_takes_up_its_room(self) -> None:
        here = job().starting(world=2).node("n1", deleting=True).refused("digits-ab12-2").step().step()
        assert _pod(here, 0).deleting

    def test_a_suspended_job_keeps_none(self) -> None:
        here = job().starting(world=2).node("n1", deleting=True).settle().spec(suspend=True).settle()
        assert all(pod.deleting for pod in here.snapshot.pods)


def test_an_idle_pod_gets_a_short_grace_and_a_member_its_own() -> None:
    here = job().starting(world=2).spec(suspend=True)
    assert {action.grace for action in here.plan().actions if isinstance(action, DeletePod)} == {5}
    done = job().starting(world=2).spec(active_deadline_seconds=1).after(1)
    assert {action.grace for action in done.plan().actions if isinstance(action, DeletePod)} == {5}
    orphan = PodView(name="digits-0000-0", uid="orphan", assignment=write_assignment(Standby()))
    after = job().having(pods=(orphan,)).plan()
    assert [action.grace for action in after.actions if isinstance(action, DeletePod)] == [5]
    late = job().running(world=2).leaving("n1").after(630)
    assert {action.grace for action in late.plan().actions if isinstance(action, DeletePod)} == {None}


class TestWords:
    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"gone": True}, "digits-ab12-0 was deleted"),
            (
                {"gone": True, "reason": "PreemptionByScheduler", "message": "default-scheduler: preempting"},
                "digits-ab12-0 was deleted: PreemptionByScheduler on node n1: default-scheduler: preempting",
            ),
            ({"deleting": True}, "digits-ab12-0 is being deleted"),
        ],
    )
    def test_a_pods_fate_is_described(self, fields: dict[str, object], words: str) -> None:
        (event,) = job().starting(world=2).pod(0, **fields).plan().events
        assert event.message == f"new members take the place of those that cannot train: {words}"

    def test_a_pod_whose_end_was_not_seen_was_created(self) -> None:
        (event,) = job().starting(world=2).missing(0).plan().events
        assert event.message.endswith("digits-ab12-0 was created, or may have been, and is not there")

    def test_a_name_of_an_operator_before_this_one_may_have_been_used(self) -> None:
        (event,) = job().step().step(writes=1).plan().events
        assert "digits-ab12-0 may have been created by an operator before this one" in event.message


class TestNames:
    def test_a_round_that_was_overtaken_before_its_creations_burns_no_name(self) -> None:
        ours = job().step().having(allotted=("digits-ab12-0", "digits-ab12-1"))
        here = ours.step().having(pods=(), created=())
        assert creates(here.plan()) == ["digits-ab12-0", "digits-ab12-1"]
        assert here.plan().events == ()

    def test_one_that_vanished_is_burnt_though_another_was_refused(self) -> None:
        here = job().refused("digits-ab12-1").step().step()
        assert here.names() == ["0"]
        after = here.missing(0)
        assert creates(after.plan()) == ["digits-ab12-1", "digits-ab12-2"]
