"""Reactions to a signal: rows of the configuration, a job's own choice, deadlines, moving only if there is room."""

from __future__ import annotations

from datetime import timedelta

import pytest

from perdure.wire import ExitKind, Leave, Train
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.signal_rows import Reaction, SignalRow, SignalSource
from perdure_operator.api.status import Disruption, Floor
from perdure_operator.state.snapshot import NodeCondition, NodeView, Taint
from tests.support.jobs import START, Job, creates, deletes, job, killed, leaves, raised, trains

SIX = tuple(NodeView(name=f"n{number}") for number in range(1, 7))

SPOT = "aws-node-termination-handler/spot-itn"
GPU_BROKEN = NodeCondition(type="GpuBroken", status="True")


def row(**fields: object) -> SignalRow:
    given = {"name": "ours", "source": "NodeCondition", "key": "GpuBroken", "reaction": "Vacate", **fields}
    return SignalRow.model_validate(given)


def sick(here: Job, node: str = "n1", *conditions: NodeCondition) -> Job:
    return here.node(node, conditions=conditions or (GPU_BROKEN,))


def cause(here: Job) -> str:
    intent = here.settle().intent
    return intent.cause if intent else ""


class TestRows:
    def test_a_condition_is_a_signal_only_where_a_row_says_so(self) -> None:
        here = sick(job().running(world=2))
        assert cause(here) == ""
        assert cause(here.having(signals=(row(),))) == "node n1 has the condition GpuBroken=True"

    @pytest.mark.parametrize(("key", "matches"), [("Gpu*", True), ("*Broken", True), ("Gpu", False), ("*", True)])
    def test_a_star_stands_for_any_characters(self, key: str, matches: bool) -> None:
        here = sick(job().running(world=2)).having(signals=(row(key=key),))
        assert bool(cause(here)) is matches

    def test_a_star_never_stands_for_a_node_being_ready(self) -> None:
        here = job().running(world=2).having(signals=(row(key="*"),))
        assert cause(sick(here, "n1", NodeCondition(type="Ready", status="True"))) == ""

    @pytest.mark.parametrize(
        ("reasons", "matches"),
        [((), True), (("Ecc",), True), (("Hot", "Ecc"), True), (("Hot",), False), (("ecc", "Ec", "Ecc2"), False)],
    )
    def test_a_reason_is_one_of_these_words_exactly(self, reasons: tuple[str, ...], matches: bool) -> None:
        told = NodeCondition(type="GpuBroken", status="True", reason="Ecc")
        here = sick(job().running(world=2), "n1", told).having(signals=(row(reasons=reasons),))
        assert bool(cause(here)) is matches

    def test_the_reason_is_reported_where_the_row_asks_for_it(self) -> None:
        told = NodeCondition(type="GpuBroken", status="True", reason="Ecc")
        here = sick(job().running(world=2), "n1", told).having(signals=(row(reasons=["Hot", "Ecc"]),))
        assert cause(here) == "node n1 has the condition GpuBroken=True (Ecc)"

    def test_of_two_rows_the_one_with_the_reason_is_asked_first_if_it_comes_first(self) -> None:
        rows = (row(reasons=["Ecc"], reaction="Ignore"), row(name="rest"))
        here = job().running(world=2).having(signals=rows)
        assert cause(sick(here, "n1", NodeCondition(type="GpuBroken", status="True", reason="Ecc"))) == ""
        assert cause(sick(here, "n1", NodeCondition(type="GpuBroken", status="True", reason="Hot"))) != ""

    def test_a_row_of_the_configuration_comes_before_the_shipped_ones(self) -> None:
        spared = row(source="Taint", key="example.com/*", effect="NoExecute", reaction="Ignore")
        here = job().running(world=2).taint("n1", "example.com/debug", "NoExecute")
        assert cause(here) == "node n1 has the taint example.com/debug:NoExecute"
        assert cause(here.having(signals=(spared,))) == ""

    def test_a_changed_shipped_row_keeps_its_place(self) -> None:
        everything = row(source="Taint", key="*", reaction="Ignore")
        cordon = SignalRow(name="cordon", source=SignalSource.CORDON, reaction=Reaction.IGNORE)
        assert cause(job().running(world=2).having(signals=(everything, cordon)).cordon("n1")) == ""

    def test_what_is_ignored_does_not_hide_what_else_the_node_shows(self) -> None:
        here = job().running(world=2).having(signals=(row(reaction="Ignore"),))
        assert cause(sick(here).cordon("n1")) == "node n1 is cordoned"

    def test_the_words_of_a_row_are_the_cause(self) -> None:
        here = sick(job().running(world=2)).having(signals=(row(says="{node}: {gpu} is broken"),))
        assert cause(here) == "n1: {gpu} is broken"

    def test_no_new_member_trains_on_a_sick_node_and_its_successor_keeps_off(self) -> None:
        here = sick(job().starting(world=2).ready().having(signals=(row(),)))
        assert creates(here.plan()) == ["digits-ab12-2"]
        assert deletes(here.plan()) == []
        roles = {pod.name: pod.role for pod in here.settle().snapshot.pods}
        assert roles["digits-ab12-0"] == "former"

    def test_where_it_finds_no_other_node_the_message_says_what_the_scheduler_cannot(self) -> None:
        here = sick(job().starting(world=2).ready().having(signals=(row(),))).settle()
        here = here.pod(2, node="", unschedulable="0/2 nodes are available: anti-affinity").settle()
        why = "no node for digits-ab12-2: 0/2 nodes are available: anti-affinity"
        held = "pods of this job keep it off nodes where no member may start: node n1 has the condition GpuBroken=True"
        assert here.condition(ConditionType.RUNNING).message.startswith(f"{why}; {held}; ")


class TestAJobsOwnWord:
    @pytest.mark.parametrize(
        ("policy", "leaves_node"),
        [
            ({}, True),
            ({"on_cordon": "Move"}, True),
            ({"on_cordon": "Ignore"}, False),
            ({"signals": {"cordon": "Ignore"}}, False),
            ({"on_cordon": "Ignore", "signals": {"cordon": "Vacate"}}, True),
            ({"signals": {"karpenter": "Ignore"}}, True),
        ],
    )
    def test_it_decides_about_a_cordon(self, policy: dict[str, object], leaves_node: bool) -> None:
        here = job(disruption={**policy, "replacement_timeout_seconds": 0}).running(world=2).cordon("n1")
        assert bool(cause(here)) is leaves_node

    def test_move_is_stronger_than_a_configuration_that_ignores_cordons(self) -> None:
        ignored = SignalRow(name="cordon", source=SignalSource.CORDON, reaction=Reaction.IGNORE)
        here = job().running(world=2).having(signals=(ignored,)).cordon("n1")
        assert cause(here) == ""
        assert cause(here.spec(disruption={"on_cordon": "Move", "replacement_timeout_seconds": 0})) != ""

    def test_no_job_may_choose_silence(self) -> None:
        here = job(disruption={"signals": {"node-silence": "Ignore"}}).running(world=2).node("n1", ready=False)
        assert here.settle().plan().requeue_after == 60


class TestIfThereIsRoom:
    def _cordoned(self, **policy: object) -> Job:
        """Standbys are wanted, and there is no node for them."""
        here = job(disruption={"on_cordon": "MoveIfRoom", **policy}).running(world=2)
        return here.cordon("n1").settle().after(1).settle()

    @pytest.mark.parametrize("timeout", [0, 30])
    def test_a_cordon_without_another_node_does_not_stop_the_training(self, timeout: int) -> None:
        here = self._cordoned(replacement_timeout_seconds=timeout)
        for _ in range(20):
            here = here.after(600).settle()
            assert leaves(here.plan()) == {}
        assert here.now.run == 1
        running, disrupted = here.condition(ConditionType.RUNNING), here.condition(ConditionType.DISRUPTED)
        assert (running.status, disrupted.status) == ("True", "True")
        assert "node n1 is cordoned; the run trains on while new members start, no time limit" in disrupted.message

    def test_it_moves_as_soon_as_a_replacement_is_ready(self) -> None:
        here = self._cordoned().after(6000).settle()
        assert [pod.node for pod in here.living()][-1] not in ("n1", "n2")
        moved = here.ready().plan()
        assert {name for name, told in trains(moved).items() if isinstance(told, Train)} == {
            "digits-ab12-1",
            "digits-ab12-2",
        }
        assert set(leaves(moved)) == {"digits-ab12-0"}

    def test_by_itself_a_job_saves_and_leaves_when_the_time_is_over(self) -> None:
        here = self._cordoned(on_cordon="Move").after(31)
        assert len(leaves(here.plan())) == 2

    def test_a_signal_that_is_no_mere_wish_sets_the_limit(self) -> None:
        here = self._cordoned().after(6000).settle().taint("n1", "karpenter.sh/disrupted").settle()
        assert leaves(here.plan()) == {}
        assert here.intent is not None
        assert here.intent.ready_by == here.snapshot.now + timedelta(seconds=30)
        assert here.intent.cause == "Karpenter removes node n1"
        assert len(leaves(here.after(30).plan())) == 2

    def test_and_when_it_is_withdrawn_there_is_none_again(self) -> None:
        here = self._cordoned().taint("n1", "karpenter.sh/disrupted").settle().after(20)
        here = here.node("n1", taints=()).settle()
        assert here.intent is not None
        assert here.intent.ready_by is None
        assert leaves(here.after(100).settle().plan()) == {}

    def test_one_node_that_must_be_left_limits_the_wait_for_all(self) -> None:
        here = self._cordoned().taint("n2", "karpenter.sh/disrupted").settle()
        assert here.intent is not None
        assert here.intent.ready_by is not None
        assert here.intent.nodes == ("n1", "n2")

    def test_uncordoned_it_lets_the_standby_go(self) -> None:
        here = self._cordoned().after(600).uncordon("n1").settle()
        assert here.intent is None
        assert [pod.name for pod in here.snapshot.pods if pod.deleting] == ["digits-ab12-2"]

    def test_a_job_that_is_being_deleted_trains_on_until_it_is_gone(self) -> None:
        here = job(disruption={"on_cordon": "MoveIfRoom"}).running(world=2).having(deleting=True).cordon("n1")
        assert cause(here.settle().after(5)) == ""

    def test_a_job_without_a_run_starts_on_a_sick_node_sooner_than_not_at_all(self) -> None:
        ours = row(reaction="VacateIfRoom")
        here = sick(job().starting(world=2).ready().having(signals=(ours,)))
        begun = here.settle()
        assert begun.now.run == 1
        assert begun.intent is not None  # and then looks for a better one

    def test_its_successor_does_not_go_to_the_sick_node_either(self) -> None:
        here = sick(job(disruption={}).running(world=2).having(signals=(row(reaction="VacateIfRoom"),)))
        here = here.settle().after(1).settle().pod(2, node="n1").ready().settle()
        assert here.now.run == 1
        assert here.names() == ["0", "1", "2", "3"]


class TestDeadlines:
    def _spot(self, added: float | None = 0, **policy: object) -> Job:
        """The taint was added so many seconds before now."""
        when = START - timedelta(seconds=added) if added is not None else None
        told = Taint(key=SPOT, effect="NoSchedule", added=when)
        return job(disruption=policy).running(world=2).node("n1", taints=(told,))

    def test_there_is_no_quiet_second(self) -> None:
        here = self._spot()
        assert creates(here.plan()) == ["digits-ab12-2"]
        assert here.settle().intent is not None

    def test_replacements_are_waited_for_no_longer_than_half_of_the_notice(self) -> None:
        here = self._spot(replacement_timeout_seconds=600).settle()
        assert here.intent is not None
        assert here.intent.ready_by == START + timedelta(seconds=60)

    def test_the_save_ends_before_the_deadline(self) -> None:
        here = self._spot(replacement_timeout_seconds=600).settle().after(60)
        assert {said.seconds for said in leaves(here.plan()).values()} == {120 - 60 - 5}

    def test_of_a_short_notice_all_of_it_is_for_the_save(self) -> None:
        here = self._spot(added=95)
        assert {said.seconds for said in leaves(here.plan()).values()} == {20}
        assert creates(here.plan()) == ["digits-ab12-2", "digits-ab12-3"]

    def test_who_has_been_asked_already_gets_the_shorter_time(self) -> None:
        here = job().running(world=2).leaving("n2").after(10)
        here = here.node("n1", taints=(Taint(key=SPOT, effect="NoSchedule", added=here.snapshot.now),))
        assert {said.seconds for said in leaves(here.plan()).values()} == {10 + 115}

    def test_a_run_that_takes_over_has_no_more_time_than_the_node(self) -> None:
        here = self._spot().settle().after(10).ready()
        plan = here.settle().now.next
        assert plan is not None
        assert plan.plan is not None
        assert plan.plan.seconds == 120 - 10 - 5

    def test_without_a_time_it_counts_from_the_first_sight(self) -> None:
        here = self._spot(added=None, replacement_timeout_seconds=600).settle().after(59).settle()
        assert here.intent is not None
        assert here.intent.ready_by == START + timedelta(seconds=60)
        assert {said.seconds for said in leaves(here.after(1).plan()).values()} == {55}

    def test_a_deadline_that_is_over_takes_no_time_from_the_save_of_a_node_that_is_still_there(self) -> None:
        ours = row(source="Annotation", key="example.com/ends", reaction="VacateByDeadline", deadline_in_value=True)
        here = job(disruption={"exitTimeoutSeconds": 90}).running(world=2).having(signals=(ours,))
        here = here.node("n1", annotations={"example.com/ends": "2026-08-01T11:57:00Z"})
        assert {said.seconds for said in leaves(here.plan()).values()} == {90}

    def test_and_none_from_a_save_that_began_before_another_node_outlived_its_deadline(self) -> None:
        ours = row(source="Annotation", key="example.com/ends", reaction="VacateByDeadline", deadline_in_value=True)
        here = job().running(world=2).having(signals=(ours,)).leaving("n2").after(10)
        here = here.node("n1", annotations={"example.com/ends": "2026-08-01T11:57:00Z"})
        assert leaves(here.plan()) == {}

    def test_just_before_its_deadline_members_still_have_a_moment(self) -> None:
        here = self._spot(added=119)
        assert {said.seconds for said in leaves(here.plan()).values()} == {1}

    def test_a_notice_that_was_over_before_it_was_seen_counts_from_the_first_sight(self) -> None:
        here = self._spot(added=300, replacement_timeout_seconds=600).settle()
        assert here.intent is not None
        assert here.intent.ready_by == START + timedelta(seconds=60)
        assert {said.seconds for said in leaves(here.after(60).plan()).values()} == {120 - 60 - 5}

    @pytest.mark.parametrize("value", ["1785585720", "2026-08-01T12:02:00Z"])
    def test_the_value_of_an_annotation_may_be_the_deadline(self, value: str) -> None:
        ours = row(source="Annotation", key="example.com/ends", reaction="VacateByDeadline", deadline_in_value=True)
        here = job(disruption={"replacement_timeout_seconds": 600}).running(world=2).having(signals=(ours,))
        here = here.node("n1", annotations={"example.com/ends": value}).settle()
        assert here.intent is not None
        assert here.intent.ready_by == START + timedelta(seconds=60)

    @pytest.mark.parametrize("value", ["2026-08-01T12:02:00Z", "2026-08-01T14:02:00+02:00"])
    def test_a_deadline_in_another_time_zone_is_shown_in_utc(self, value: str) -> None:
        ours = row(source="Annotation", key="example.com/ends", reaction="VacateByDeadline", deadline_in_value=True)
        here = job(disruption={"replacement_timeout_seconds": 0}).running(world=2).having(signals=(ours,))
        here = here.node("n1", annotations={"example.com/ends": value}).settle()
        assert here.condition(ConditionType.RUNNING).message.split(" until ")[1].startswith("12:01:55Z")

    @pytest.mark.parametrize("value", ["soon", "", "2026-08-01T12:02:00", "9" * 30])
    def test_a_value_that_is_no_time_is_a_signal_without_a_deadline(self, value: str) -> None:
        ours = row(source="Label", key="example.com/ends", reaction="VacateByDeadline", deadline_in_value=True)
        here = job(disruption={}).running(world=2).having(signals=(ours,))
        here = here.node("n1", labels={"example.com/ends": value}).settle()
        assert here.intent is not None
        assert not here.intent.prepare  # the quiet second

    def _karpenter(self, ends: float | None, **disruption: object) -> Job:
        """The claim of the node says that it ends in so many seconds."""
        when = START + timedelta(seconds=ends) if ends is not None else None
        told = Taint(key="karpenter.sh/disrupted", effect="NoSchedule")
        return job(disruption=disruption).running(world=2).node("n1", taints=(told,), claim="c", claim_ends=when)

    def test_the_deadline_may_be_that_of_the_claim_to_which_the_node_belongs(self) -> None:
        here = self._karpenter(120, replacement_timeout_seconds=600).settle()
        assert here.intent is not None
        assert here.intent.ready_by == START + timedelta(seconds=60)
        assert {said.seconds for said in leaves(here.after(60).plan()).values()} == {120 - 60 - 5}

    def test_without_one_it_is_as_any_node_that_goes_away(self) -> None:
        here = self._karpenter(None, replacement_timeout_seconds=600).settle()
        assert here.intent is not None
        assert not here.intent.prepare  # the quiet second
        assert here.intent.deadline_seen is None

    def test_a_claim_that_has_ended_takes_no_time_from_the_save(self) -> None:
        assert {said.seconds for said in leaves(self._karpenter(-5).plan()).values()} == {600}

    def test_of_two_deadlines_the_one_counts_that_is_not_over(self) -> None:
        here = self._karpenter(-5)
        spot = Taint(key=SPOT, effect="NoSchedule", added=START - timedelta(seconds=95))
        here = here.node("n1", taints=(*here.snapshot.nodes[0].taints, spot), claim="c", claim_ends=START)
        assert {said.seconds for said in leaves(here.plan()).values()} == {20}

    def test_a_job_that_takes_it_for_a_mere_wish_has_no_deadline(self) -> None:
        here = self._karpenter(120, signals={"karpenter": "VacateIfRoom"}).settle().after(1).settle()
        assert here.intent is not None
        assert here.intent.ready_by is None

    def test_the_claim_of_a_node_with_another_taint_says_nothing(self) -> None:
        ends = START + timedelta(seconds=60)
        here = job().running(world=2).cordon("n1").node("n1", claim="c", claim_ends=ends)
        assert leaves(here.plan()) == {}

    def test_it_costs_no_step_and_no_failure(self) -> None:
        here = self._spot(added=95).settle().all_ended(ExitKind.CHECKPOINTED, step=20, commit=(4, 20)).settle()
        assert here.now.next is not None
        assert here.now.next.disruption is Disruption.NODE_LEAVING
        assert (here.now.steps_lost, here.now.failures.infrastructure) == (0, 0)


class TestFault:
    """What a broken node has computed is not saved, nor taken along."""

    def _faulty(self, here: Job, node: str = "n1") -> Job:
        return sick(here.having(signals=(row(reaction="Fault"),)), node)

    @pytest.mark.parametrize("timeout", [0, 30])
    def test_all_members_stop_at_once_and_without_a_save(self, timeout: int) -> None:
        here = self._faulty(job(disruption={"replacement_timeout_seconds": timeout}).running(world=2))
        told = Leave(run=2, cause="node n1 has the condition GpuBroken=True", seconds=0, lost=(1,), suspect=True)
        assert leaves(here.plan()) == {"digits-ab12-0": told, "digits-ab12-1": told}
        assert here.settle().condition(ConditionType.DISRUPTED).reason == "NodeFault"

    def test_the_job_goes_on_with_new_members_from_the_last_commit(self) -> None:
        here = self._faulty(job().running(world=2)).settle()
        ended = here.all_ended(ExitKind.STOPPED, step=25, commit=(3, 20)).settle()
        assert (ended.now.steps_lost, ended.now.step, ended.now.lost) == (5, 20, (1,))
        saved = ended.condition(ConditionType.SAVED)
        assert (saved.status, saved.reason) == ("False", "NodeFault")
        cause = "node n1 has the condition GpuBroken=True"
        assert saved.message == f"run 1 ended at step 25: 5 steps lost; nothing was saved: {cause}"
        assert (ended.now.failures.code, ended.now.failures.infrastructure) == (0, 0)
        after = ended.ready().settle()
        assert after.run_plan is not None
        assert {member.node for member in after.run_plan.members} == {"n2", "n3"}
        assert (after.run_plan.takes_over, after.run_plan.lost) == (0, (1,))
        assert after.run_plan.floor == Floor(seq=3, step=20)

    def test_it_is_not_withdrawn_once_members_have_their_ranks(self) -> None:
        here = self._faulty(job().running(world=2)).settle().node("n1", conditions=()).settle()
        assert here.intent is not None
        assert here.intent.leave

    def test_a_member_that_dies_of_it_leaves_no_image_with_the_others(self) -> None:
        here = self._faulty(job(disruption={}).running(world=2)).ended(0, ExitKind.FAILED, error=raised())
        assert set(leaves(here.plan())) == {"digits-ab12-1"}
        assert here.settle().now.current is not None
        assert {(said.lost, said.suspect) for said in leaves(here.plan()).values()} == {((1,), True)}

    def test_standbys_that_were_awaited_for_another_reason_do_not_take_over(self) -> None:
        here = job(disruption={}).running(world=2).cordon("n1").settle().after(1).settle()
        assert here.now.next is not None
        here = self._faulty(here.ready(), "n2")
        assert {(said.seconds, said.suspect) for said in leaves(here.plan()).values()} == {(0, True)}

    def test_a_suspension_at_the_same_time_saves_nothing_either(self) -> None:
        here = job(disruption={}).running(world=2).cordon("n1").settle().after(1).settle()
        here = self._faulty(here.spec(suspend=True, disruption={}))
        assert {(said.seconds, said.lost, said.suspect) for said in leaves(here.plan()).values()} == {(0, (1,), True)}

    def test_which_of_two_runs_trains_does_not_matter_to_it(self) -> None:
        """A hand-over was under way: neither of them has to save. The leaver cannot save without the others."""
        here = job(disruption={}).running(world=2).cordon("n1").settle().after(1).settle().ready().settle()
        assert here.now.next is not None
        assert here.now.next.plan is not None
        late = self._faulty(here, "n2").settle().after(31).settle()
        told = [said for said in map(late.assignment, (1, 2)) if isinstance(said, Leave)]
        assert {(said.lost, said.suspect) for said in told} == {((1, 2), True)}

    def test_members_that_do_not_stop_are_deleted(self) -> None:
        here = self._faulty(job().running(world=2)).settle().after(30)
        assert deletes(here.plan()) == ["digits-ab12-0", "digits-ab12-1"]

    def test_a_job_may_choose_it(self) -> None:
        broken = NodeCondition(type="SysLogsXIDError", status="True")
        here = job(disruption={"signals": {"nvsentinel-xid": "Fault"}}).running(world=2)
        told = leaves(sick(here, "n1", broken).plan()).values()
        assert {(said.seconds, said.suspect) for said in told} == {(0, True)}


class TestCatchAllTolerations:
    def _tolerating(self, **toleration: str) -> Job:
        return job(template={"spec": {"containers": [{"name": "trainer"}], "tolerations": [toleration]}}).running(2)

    @pytest.mark.parametrize(
        ("toleration", "warned"),
        [
            ({"operator": "Exists"}, True),
            ({"operator": "Exists", "effect": "NoExecute"}, True),
            ({"operator": "Exists", "key": "nvidia.com/gpu"}, False),
            ({"key": "nvidia.com/gpu", "value": "present"}, False),
        ],
    )
    def test_it_is_reported_in_the_condition_and_once_in_an_event(
        self, toleration: dict[str, str], warned: bool
    ) -> None:
        here = self._tolerating(**toleration)
        protected = here.condition(ConditionType.PROTECTED)
        assert (protected.status, protected.reason == "CatchAllToleration") == ("True", warned)
        told = [event.type for plan in here.history for event in plan.events if event.reason == "CatchAllToleration"]
        assert told == (["Warning"] if warned else [])


class TestFlapping:
    def _flapping(self, times: int, apart: float = 20, **policy: object) -> Job:
        here = job(disruption={"replacement_timeout_seconds": 0, **policy}).running(world=2)
        for _ in range(times):
            here = here.cordon("n1").settle().after(0.5).uncordon("n1").settle().after(apart)
        return here.cordon("n1").settle()

    @pytest.mark.parametrize(("times", "seconds"), [(0, 1), (2, 1), (3, 8), (4, 16), (9, 60)])
    def test_the_more_often_a_signal_was_withdrawn_the_longer_it_has_to_last(self, times: int, seconds: int) -> None:
        here = self._flapping(times)
        assert leaves(here.after(seconds - 0.1).plan()) == {}
        assert len(leaves(here.after(seconds).plan())) == 2

    def test_the_condition_names_it(self) -> None:
        quiet, flapping = (self._flapping(times).condition(ConditionType.DISRUPTED).message for times in (2, 3))
        assert quiet == "node n1 is cordoned"
        why = "signals like it were withdrawn 3 times in a row: it has to last 8 s before members leave"
        assert flapping == f"node n1 is cordoned; {why}"

    def test_a_drain_of_another_node_does_not_wait_for_it(self) -> None:
        here = self._flapping(9).uncordon("n1").settle().cordon("n2").settle()
        assert here.condition(ConditionType.DISRUPTED).message == "node n2 is cordoned"
        assert len(leaves(here.after(1).plan())) == 2

    def test_the_node_that_flaps_leaves_with_one_that_does_not(self) -> None:
        here = self._flapping(9).after(1).cordon("n2").settle()
        assert leaves(here.plan()) == {}
        assert len(leaves(here.after(1).plan())) == 2

    def test_two_nodes_that_flap_in_turn_have_to_last_as_one_does(self) -> None:
        here = job(disruption={"replacement_timeout_seconds": 0}).running(world=2)
        for node in ("n1", "n2", "n1"):
            here = here.cordon(node).settle().after(0.5).uncordon(node).settle().after(5)
        here = here.cordon("n2").settle()
        assert leaves(here.after(7.9).plan()) == {}
        assert len(leaves(here.after(8).plan())) == 2

    def test_after_ten_minutes_without_it_the_row_is_over(self) -> None:
        here = self._flapping(5, apart=300)
        assert leaves(here.after(1).plan()) == {}
        assert len(leaves(self._flapping(5, apart=600).after(1).plan())) == 2

    def test_one_that_is_withdrawn_while_standbys_start_counts_as_well(self) -> None:
        here = job(disruption={}).running(world=2)
        for _ in range(3):
            here = here.cordon("n1").settle().after(1).settle().after(3).uncordon("n1").settle()
        assert here.now.withdrawals is not None
        assert here.now.withdrawals.count == 3

    def test_a_deadline_does_not_wait_for_it(self) -> None:
        here = self._flapping(5).node("n1", taints=(Taint(key=SPOT, effect="NoSchedule"),))
        assert len(leaves(here.plan())) == 2

    def test_a_pod_that_has_to_go_does_not_wait_for_a_node_that_flaps(self) -> None:
        here = self._flapping(9).uncordon("n1").settle().having(vacate="digits-ab12-1").settle()
        assert here.condition(ConditionType.DISRUPTED).message.endswith("names digits-ab12-1")
        assert len(leaves(here.after(1).plan())) == 2

    def test_nor_a_node_for_what_was_said_of_pods(self) -> None:
        here = self._flapping(2).uncordon("n1").settle()
        assert here.now.withdrawals is not None
        count = here.now.withdrawals.count
        here = here.having(vacate="digits-ab12-1").settle().having(vacate="").settle()
        assert here.now.withdrawals is not None
        assert here.now.withdrawals.count == count

    def test_what_is_said_of_pods_again_and_again_has_to_last_as_well(self) -> None:
        here = job(disruption={"replacement_timeout_seconds": 0}).running(world=2)
        for _ in range(3):
            here = here.having(vacate="digits-ab12-1").settle().after(0.5).having(vacate="").settle()
        here = here.having(vacate="digits-ab12-1").settle()
        assert leaves(here.after(7.9).plan()) == {}
        assert len(leaves(here.after(8).plan())) == 2
        other = here.having(vacate="").cordon("n1").settle()
        assert len(leaves(other.after(1).plan())) == 2

    def test_a_member_that_is_lost_meanwhile_withdraws_no_signal(self) -> None:
        here = job(disruption={}).having(nodes=SIX).running(world=3).cordon("n1").settle().after(1).settle()
        here = here.ended(2, ExitKind.FAILED, error=killed()).settle()
        assert here.intent is not None
        assert (here.intent.disruption, here.intent.prepare) == (Disruption.MEMBER_LOST, True)
        assert here.now.withdrawals is None

    def test_nor_does_a_smaller_size_for_which_the_members_there_go_first(self) -> None:
        here = job(disruption={"signals": {"cordon": "VacateIfRoom"}}, replicas=3).having(nodes=SIX)
        here = here.running(world=3).cordon("n1").settle().after(1).settle()
        here = here.spec(replicas=2).settle()
        assert here.now.withdrawals is None

    def test_beside_one_that_stays_it_does_not_use_up_the_time_of_both(self) -> None:
        here = job(disruption={}).having(nodes=SIX).running(world=3)
        for _ in range(9):
            here = here.cordon("n1").settle().after(0.5).uncordon("n1").settle().after(2)
        here = here.cordon("n2").settle().after(1).settle().cordon("n1").settle().ready().settle()
        assert (here.now.run, here.names()) == (1, ["0", "1", "2", "3"])
        here = here.after(15).settle().ready().settle()
        assert leaves(here.after(15).plan()) == {}
        assert here.now.next is not None
        assert here.now.next.plan is not None
        assert {member.name[-1] for member in here.now.next.plan.members} == {"2", "3", "4"}

    def test_a_size_that_is_changed_and_changed_back_is_no_signal(self) -> None:
        here = job().running(world=2)
        for size in (3, 2, 3, 2, 3, 2):
            here = here.spec(replicas=size).settle()
        assert here.now.withdrawals is None
