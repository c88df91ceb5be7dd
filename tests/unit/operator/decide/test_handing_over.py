"""A living run is handed over: the plan and its offer, the evidence of its result, and what follows without
evidence."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest

from perdure.wire import (
    AttemptRecord,
    Beginning,
    CommitRef,
    ErrorKind,
    ErrorName,
    ExitKind,
    Handover,
    HandoverRecord,
    HandoverWord,
    Leave,
    Outcome,
    Rescue,
    Train,
    write_outcome,
)
from perdure_operator.api.reasons import ConditionType
from perdure_operator.api.spec import Elastic
from perdure_operator.api.status import Assigned, Disruption, LiveRefused, Phase, RunPlan, Takeover
from perdure_operator.decide import Stage, stage_of
from perdure_operator.decide.handing_over import NEWS_SECONDS, SILENT_SECONDS
from perdure_operator.decide.succession import BEGINNING_SECONDS
from perdure_operator.state.decision import CreatePod
from perdure_operator.state.snapshot import NodeView, PodView, RefusalKind, Taint, Terminated
from tests.support.jobs import PATIENT, START, UID, Job, assigns, creates, deletes, job, killed, leaves, raised, trains

SPOT = "aws-node-termination-handler/spot-itn"
GONE = {"run": 1, "step": 20, "commit": (4, 10), "opened": 2}
SAVED = {"run": 1, "step": 20, "commit": (4, 20)}


def _running(world: int = 2, nodes: int = 6, **spec: Any) -> Job:
    here = job(disruption=PATIENT, **spec)
    return here.having(nodes=tuple(NodeView(name=f"n{number + 1}") for number in range(nodes))).running(world=world)


def _ready(here: Job, node: str = "n2") -> Job:
    return here.cordon(node).settle().after(1).settle().ready()


def _offered(world: int = 2, node: str = "n2") -> Job:
    """Rank 1 leaves node n2, as long as nothing else is said."""
    return _ready(_running(world), node).settle()


def _stage(here: Job) -> Stage:
    return stage_of(here.now)


def _offer(here: Job) -> Handover:
    told = here.assignment(0)
    assert isinstance(told, Train)
    assert told.handover is not None
    return told.handover


def _plan(here: Job) -> RunPlan:
    assert here.now.next is not None
    assert here.now.next.plan is not None
    return here.now.next.plan


class TestOffer:
    def test_the_plan_is_in_status_before_any_member_gets_it_and_the_old_run_stays_current(self) -> None:
        here = _ready(_running())
        plan = here.plan()
        assert plan.status is not None
        assert plan.status.current is not None
        assert plan.status.current.run == 1
        assert plan.status.next is not None
        assert plan.status.next.plan is not None
        assert plan.status.run == 2
        assert set(trains(plan)) == {"digits-ab12-0", "digits-ab12-2"}
        assert set(leaves(plan)) == {"digits-ab12-1"}

    def test_standbys_that_are_ready_when_their_time_is_over_take_over_and_no_further_member_is_asked_to_leave(
        self,
    ) -> None:
        plan = _ready(_running()).after(60).plan()  # no leader meanwhile
        assert plan.status is not None
        assert stage_of(plan.status) is Stage.HANDING_OVER
        assert plan.status.run == 2
        assert set(leaves(plan)) == {"digits-ab12-1"}

    def test_a_condition_says_so_from_the_offer_until_a_member_reports(self) -> None:
        assert _ready(_running()).now.find(ConditionType.HANDING_OVER) is None
        here = _offered()
        said = here.condition(ConditionType.HANDING_OVER)
        words = "run 2 is offered to the members of run 1"
        assert (said.status, said.reason, said.message) == ("True", "HandoverOffered", words)
        said = here.ended(1, ExitKind.HANDED_OVER, **GONE).settle().condition(ConditionType.HANDING_OVER)
        assert (said.status, said.reason) == ("False", "NoHandover")

    def test_all_members_get_the_same_offer(self) -> None:
        here = _offered()
        told = [here.assignment(number) for number in (0, 1, 2)]
        assert [said.handover for said in told if isinstance(said, Train | Leave)] == [_offer(here)] * 3

    def test_it_names_the_living_run_and_who_comes_and_goes(self) -> None:
        offer = _offer(_offered(world=3))
        assert (offer.run, offer.world, offer.joins, offer.leavers) == (1, 3, (1,), (1,))

    def test_its_store_is_at_the_lowest_rank_that_stays_on_a_port_of_its_own(self) -> None:
        here = _ready(_running(), "n1").settle()
        told = here.assignment(1)
        assert isinstance(told, Train)
        assert told.handover is not None
        assert told.handover.master == "10.0.0.2:29602"
        assert told.master == "10.0.0.3:29502"

    def test_where_no_member_stays_it_is_at_the_lowest_that_leaves(self) -> None:
        here = _running().cordon("n1", "n2").settle().after(1).settle().ready().settle()
        assert _offer_of_leaver(here, 0).master == "10.0.0.1:29602"

    def test_its_token_follows_from_this_run_and_these_members_and_keeps_no_reader_of_status_out(self) -> None:
        here = _offered()
        assert _offer(here).token not in here.now.model_dump_json()
        words = " ".join(["2", "uid-of-digits-ab12-0", "uid-of-digits-ab12-2"])
        assert _offer(here).token == hashlib.sha256(words.encode()).hexdigest()

    def test_half_of_the_time_to_save_is_left_for_saving(self) -> None:
        assert _offer(_offered()).limit == 300

    def test_all_processes_of_a_member_come_and_go_together(self) -> None:
        offer = _offer(_ready(_running(processes_per_replica=2), "n2").settle())
        assert (offer.world, offer.joins, offer.leavers) == (4, (2, 3), (2, 3))

    def test_growing_and_shrinking_are_offers_too(self) -> None:
        grown = _running().spec(replicas=3).settle().after(1).settle().ready().settle()
        assert (_offer(grown).joins, _offer(grown).leavers) == ((1,), ())
        less = _running(world=3).spec(replicas=2).settle().after(1).settle()
        assert (_offer(less).joins, _offer(less).leavers) == ((), (2,))

    def test_the_job_is_running_and_counts_the_members_that_are_to_be(self) -> None:
        here = _offered()
        assert _stage(here) is Stage.HANDING_OVER
        assert here.now.phase is Phase.RUNNING
        assert here.now.replicas == 2
        assert (
            "run 2 is offered to the members: they hand over between two steps"
            in here.condition(ConditionType.DISRUPTED).message
        )

    def test_once_a_run_was_offered_nobody_is_said_to_train(self) -> None:
        """They stand still while a store or a member does not answer, and report it only when they end."""
        words = _offered().condition(ConditionType.DISRUPTED).message
        assert "no member has reported yet whether they train, or wait for" in words

    def test_while_members_get_the_offer_the_job_is_running(self) -> None:
        here = _running().cordon("n1").settle().after(1).settle().ready().step()
        assert _stage(here) is Stage.HANDING_OVER
        assert here.now.phase is Phase.RUNNING
        assert here.condition(ConditionType.RUNNING).status == "True"

    def test_the_budget_counts_old_members_and_new_ones(self) -> None:
        here = _offered()
        assert here.snapshot.budget is not None
        assert here.snapshot.budget.min_available == 3


def _offer_of_leaver(here: Job, number: int) -> Handover:
    told = here.assignment(number)
    assert isinstance(told, Leave)
    assert told.handover is not None
    return told.handover


class TestNoOffer:
    def _in_place(self, here: Job) -> str:
        after = here.settle()
        assert after.run_plan is not None
        assert (after.run_plan.run, after.run_plan.handover) == (2, None)
        (event,) = [
            event
            for decision in after.history
            for event in decision.events
            if event.reason == "RunPlanned" and event.message.startswith("run 2")
        ]
        return event.message

    def test_a_script_that_cannot_is_not_asked(self) -> None:
        here = _running().status(live_refused=LiveRefused(template="t1", why="its model is sharded"))
        assert "its model is sharded" in self._in_place(_ready(here))

    def test_that_counts_for_its_template_only(self) -> None:
        here = _running().status(live_refused=LiveRefused(template="t0", why="its model is sharded"))
        assert _stage(_ready(here).settle()) is Stage.HANDING_OVER

    def test_it_is_learned_from_an_outcome(self) -> None:
        here = (
            _running().deleted(1).ended(1, ExitKind.CHECKPOINTED, live=False, live_why="its model is sharded", **SAVED)
        )
        assert here.settle().now.live_refused == LiveRefused(template="t1", why="its model is sharded")

    @pytest.mark.parametrize(
        ("trainer", "why"),
        [
            ({"env": [{"name": "PERDURE_LIVE", "value": "no"}]}, "PERDURE_LIVE=no"),
            (
                {"resources": {"limits": {"cpu": "4", "nvidia.com/gpu": "1"}}},
                "on GPUs (nvidia.com/gpu) ranks change live only with PERDURE_LIVE=yes",
            ),
        ],
        ids=["said", "gpus"],
    )
    def test_what_its_template_rules_out_is_not_asked_of_a_script_even_once(
        self, trainer: dict[str, Any], why: str
    ) -> None:
        template = {"spec": {"containers": [{"name": "train", "image": "train:1", "command": ["python"], **trainer}]}}
        assert why in self._in_place(_ready(_running(template=template)))

    @pytest.mark.parametrize(
        "trainer",
        [
            {"env": None, "resources": {"limits": None}},
            {"env": [{"name": "PERDURE_LIVE", "value": "yes"}], "resources": {"limits": {"nvidia.com/gpu": "1"}}},
        ],
        ids=["may", "is-to-on-gpus"],
    )
    def test_a_script_that_may_is_asked(self, trainer: dict[str, Any]) -> None:
        containers = [{"name": "train", "image": "x", "command": ["python"], **trainer}]
        assert _stage(_ready(_running(template={"spec": {"containers": containers}})).settle()) is Stage.HANDING_OVER

    def test_a_lost_member_has_broken_the_groups_of_all(self) -> None:
        here = _running(world=3).ended(1, ExitKind.FAILED, error=killed()).settle().after(2).ready()
        assert "digits-ab12-1 has ended (" in self._in_place(here)

    def test_a_deleted_member_saves_now(self) -> None:
        assert "members are being deleted: digits-ab12-1" in self._in_place(_running().deleted(1).settle().ready())

    def test_another_template_is_another_program(self) -> None:
        here = _running().having(template_hash="t2").settle()
        assert _stage(_ready(here).settle()) is Stage.LEAVING

    def test_a_member_without_the_annotation_of_its_template_counts_as_made_from_this_one(self) -> None:
        """A person may have removed it."""
        here = _ready(_running().pod(0, template_hash=""))
        assert _stage(here.settle()) is Stage.HANDING_OVER

    def test_a_refusal_of_a_member_without_that_annotation_is_remembered_for_its_template(self) -> None:
        here = _running().pod(0, template_hash="").pod(1, template_hash="")
        here = here.ended(1, ExitKind.FAILED, error=killed(), live=False, live_why="its script cannot").settle()
        assert here.now.live_refused is not None
        assert here.now.live_refused.template == here.snapshot.template_hash

    def test_without_a_session_no_member_can_hand_over(self) -> None:
        assert "no Session" in self._in_place(_ready(_running(completion="ExitCode")))

    def test_an_assignment_without_room_for_it_offers_nothing(self) -> None:
        here = _running(world=200, nodes=400).cordon(*(f"n{number}" for number in range(1, 400, 2)))
        here = here.settle().after(1).settle().ready()
        assert "no room" in self._in_place(here)


class TestEvidence:
    def test_a_leaver_that_has_handed_over_shows_that_the_newer_run_is_on_and_costs_nothing(self) -> None:
        went = (HandoverRecord(2, HandoverWord.GO, parts={"pause": 0.05}),)
        here = _offered().ended(1, ExitKind.HANDED_OVER, handovers=went, **GONE).settle()
        assert _stage(here) is Stage.RUNNING
        assert here.now.current is not None
        assert (here.now.current.run, here.now.current.unconfirmed, here.now.previous) == (2, False, None)
        assert (here.now.steps_lost, here.now.lost, here.now.failures.infrastructure) == (0, (), 0)
        assert here.condition(ConditionType.SAVED).reason == "HandedOver"
        assert here.names() == ["0", "2"]
        assert here.snapshot.budget is not None
        assert here.snapshot.budget.min_available == 2
        assert here.plan().actions == ()

    def test_steps_that_were_handed_over_to_a_run_that_died_at_once_are_lost(self) -> None:
        here = _ready(_running(world=1), "n1").settle().exited(1, code=137).settle()
        here = here.ended(0, ExitKind.HANDED_OVER, **GONE).settle()
        assert here.now.steps_lost == 10

    def test_members_that_are_all_new_do_not_wait_for_an_attempt_that_cannot_save(self) -> None:
        here = _ready(_running(world=1), "n1").settle().exited(1, code=137).settle()
        here = here.ended(0, ExitKind.HANDED_OVER, **GONE).settle().after(9).settle().ready().settle()
        assert here.run_plan is not None
        assert (here.run_plan.takes_over, here.run_plan.lost) == (0, (2,))

    def test_a_leaver_that_has_saved_shows_that_it_goes_on_in_place(self) -> None:
        here = _offered().ended(1, ExitKind.CHECKPOINTED, **SAVED).settle()
        assert here.now.current is not None
        assert here.now.current.run == 2
        assert here.condition(ConditionType.SAVED).reason == "Checkpointed"

    def test_a_run_number_seen_in_the_log_shows_it_too(self) -> None:
        here = _running().spec(replicas=3).settle().after(1).settle().ready().settle()
        after = here.ended(2, ExitKind.FAILED, run=2, opened=2, error=killed()).settle()
        assert after.now.current is not None
        assert after.now.current.run == 2
        assert after.intent is not None
        assert after.intent.disruption is Disruption.MEMBER_LOST

    def test_a_newcomer_whose_attempt_was_aborted_shows_that_the_old_run_trains_on(self) -> None:
        here = _offered().ended(2, ExitKind.HANDOVER_FAILED, run=2)
        plan = here.plan()
        assert plan.status is not None
        assert plan.status.current is not None
        assert plan.status.current.run == 1
        assert "HandoverFailed" in {event.reason for event in plan.events}
        after = here.settle()
        assert _stage(after) is Stage.PREPARING
        assert after.now.failures.code == after.now.failures.infrastructure == 0

    @pytest.mark.parametrize(
        ("error", "why"),
        [
            ((ErrorKind.EXCEPTION, "HandoverFailed", "party 1 is gone"), "HandoverFailed: party 1 is gone"),
            ((ErrorKind.STORAGE, "StorageRefused", "403: AccessDenied"), "StorageRefused: 403: AccessDenied"),
            ((ErrorKind.EXCEPTION, "KeyError", "Traceback (most ...):\n  File ...\nKeyError: 7\n"), "KeyError: 7"),
        ],
    )
    def test_the_event_says_why_it_was(self, error: tuple[ErrorKind, str, str], why: str) -> None:
        plan = _offered().ended(2, ExitKind.HANDOVER_FAILED, run=2, error=error).plan()
        said = [event.message for event in plan.events if event.reason == "HandoverFailed"]
        assert said == [f"run 2 has not taken over from run 1: digits-ab12-2: handover-failed: {why}"]

    def test_no_member_of_the_old_run_gets_it_again(self) -> None:
        here = _offered().ended(2, ExitKind.HANDOVER_FAILED, run=2).settle()
        assert assigns(here.plan()) == {}
        told = here.assignment(0)
        assert isinstance(told, Train)
        assert told.run == 2

    def test_the_next_attempt_has_its_own_number_other_newcomers_and_names_the_one_that_failed(self) -> None:
        here = _offered().ended(2, ExitKind.HANDOVER_FAILED, run=2).settle().after(1).settle().ready().settle()
        assert _plan(here).run == 3
        told = here.assignment(3)
        assert isinstance(told, Train)
        assert (told.run, told.rank, told.lost) == (3, 1, (2,))
        assert _offer(here).run == 1

    def test_a_newcomer_that_dies_in_any_other_way_may_have_died_in_either_world(self) -> None:
        here = _offered().ended(2, ExitKind.FAILED, run=2, error=killed()).settle().after(1).settle().ready().settle()
        assert _plan(here).lost == (2,)
        assert _offer(here).run == 1
        assert here.now.failures.infrastructure == 0

    def test_the_drain_waits_since_its_signal_all_the_same(self) -> None:
        here = _offered()
        assert here.intent is not None
        since = here.intent.since
        here = here.ended(2, ExitKind.HANDOVER_FAILED, run=2).settle().after(1).settle().ready().settle()
        assert here.intent is not None
        assert here.intent.since == since

    def test_the_second_attempt_that_fails_is_the_last(self) -> None:
        here = _offered().ended(2, ExitKind.HANDOVER_FAILED, run=2).settle().after(1).settle().ready().settle()
        here = here.ended(3, ExitKind.HANDOVER_FAILED, run=3).settle().after(2).settle().ready().settle()
        assert here.run_plan is not None
        assert (here.run_plan.run, here.run_plan.handover, here.run_plan.lost) == (4, None, (2, 3))
        assert isinstance(here.assignment(0), Train)
        assert isinstance(here.assignment(1), Leave)

    def test_a_leaver_may_have_gone_over_to_the_run_of_an_earlier_attempt(self) -> None:
        here = _offered().ended(2, ExitKind.FAILED, run=2, error=killed()).settle().after(1).settle().ready().settle()
        earlier = here.ended(1, ExitKind.HANDED_OVER, run=1, opened=2).settle()
        assert (earlier.now.run, earlier.now.how) == (3, Takeover.UNKNOWN)
        newest = here.ended(1, ExitKind.HANDED_OVER, run=1, opened=3).settle()
        assert (newest.now.run, newest.now.how) == (3, Takeover.LIVE)

    def test_a_move_that_was_tried_again_is_known_to_be_live_where_the_leaver_tells_which_run_it_was(self) -> None:
        here = _offered().ended(2, ExitKind.FAILED, run=2, error=killed()).settle().after(1).settle().ready().settle()
        went = (HandoverRecord(3, HandoverWord.GO),)
        here = here.ended(1, ExitKind.HANDED_OVER, run=1, handovers=went).settle()
        assert (here.now.run, here.now.how) == (3, Takeover.LIVE)

    def test_a_lost_leaver_leaves_the_newer_run_to_go_on(self) -> None:
        here = _offered(world=3).ended(1, ExitKind.FAILED, run=1, error=killed()).settle().after(NEWS_SECONDS).settle()
        assert here.now.current is not None
        assert (here.now.current.run, here.now.current.unconfirmed) == (2, True)
        assert here.now.lost == (1,)

    def test_a_lost_stayer_is_a_lost_member_of_the_newer_run_and_neither_run_can_save(self) -> None:
        here = _offered(world=3).ended(2, ExitKind.FAILED, run=1, error=killed()).settle()
        assert _stage(here) is Stage.PREPARING
        here = here.ended(1, ExitKind.PEER_LOST, run=1).settle().after(2).ready().settle()
        assert here.run_plan is not None
        assert (here.run_plan.run, here.run_plan.lost) == (3, (1, 2))
        assert {member.name.rpartition("-")[2] for member in here.run_plan.members} == {"0", "3", "4"}

    def test_a_lost_stayer_leaves_neither_run_able_to_save_where_no_member_leaves(self) -> None:
        here = _running().spec(replicas=3).settle().after(1).settle().ready().settle()
        here = here.ended(0, ExitKind.FAILED, run=1, error=killed()).settle().after(2).ready().settle()
        assert here.run_plan is not None
        assert (here.run_plan.run, here.run_plan.lost) == (3, (1, 2))

    def test_a_lost_newcomer_breaks_the_newer_run_alone(self) -> None:
        here = _running().spec(replicas=3).settle().after(1).settle().ready().settle().after(600)
        here = here.ended(2, ExitKind.FAILED, run=2, error=killed()).settle().after(2).ready().settle()
        assert here.run_plan is not None
        assert here.run_plan.lost == (2,)

    @pytest.mark.parametrize("order", list(permutations(("stayer", "leaver", "other"))))
    @pytest.mark.parametrize("between", [0, 3])
    def test_a_lost_stayer_costs_one_failure_whichever_report_comes_first(
        self, order: tuple[str, ...], between: float
    ) -> None:
        ends: dict[str, tuple[int, ExitKind, dict[str, Any]]] = {
            "stayer": (2, ExitKind.FAILED, {"run": 1, "error": killed()}),
            "leaver": (1, ExitKind.PEER_LOST, {"run": 1}),
            "other": (0, ExitKind.PEER_LOST, {"run": 1}),
        }
        here = _offered(world=3)
        for who in order:
            number, kind, said = ends[who]
            here = here.ended(number, kind, **said).settle().after(between)
        here = here.settle().after(2).ready().settle()
        assert (here.now.failures.infrastructure, here.now.failures.code) == (1, 0)

    @pytest.mark.parametrize("order", list(permutations(("leaver", "stayer", "other", "newcomer"))))
    @pytest.mark.parametrize("between", [0, 3])
    def test_a_lost_leaver_costs_one_failure_whichever_report_comes_first(
        self, order: tuple[str, ...], between: float
    ) -> None:
        ends: dict[str, tuple[int, ExitKind, dict[str, Any]]] = {
            "leaver": (1, ExitKind.FAILED, {"run": 1, "error": killed()}),
            "stayer": (0, ExitKind.PEER_LOST, {"run": 1}),
            "other": (2, ExitKind.PEER_LOST, {"run": 1}),
            "newcomer": (3, ExitKind.HANDOVER_FAILED, {"run": 2}),
        }
        here = _offered(world=3)
        for who in order:
            number, kind, said = ends[who]
            here = here.ended(number, kind, **said).settle().after(between)
        here = here.settle().after(2).ready().settle()
        assert (here.now.failures.infrastructure, here.now.failures.code) == (1, 0)

    def test_another_death_in_the_run_that_follows_costs_another(self) -> None:
        here = _offered(world=3).ended(1, ExitKind.FAILED, run=1, error=killed()).settle()
        here = here.ended(0, ExitKind.PEER_LOST, run=1).settle().after(2).settle().ready().settle()
        assert here.now.failures.infrastructure == 1
        here = here.ended(here.members[1], ExitKind.FAILED, run=3, step=30, error=killed()).settle()
        here = here.after(5).settle().ready().settle()
        assert here.now.failures.infrastructure == 2

    def test_a_row_of_runs_that_only_lost_a_peer_is_counted(self) -> None:
        here = _running(world=3)
        for _ in range(2):
            run, name = here.now.run, here.members[1]
            here = here.ended(name, ExitKind.PEER_LOST, run=run).settle().after(20).settle().ready().settle()
        assert here.now.failures.infrastructure == 2

    def test_a_failure_that_is_counted_as_the_newer_run_is_taken_for_on_paces_the_members_that_follow(self) -> None:
        here = _offered().ended(1, ExitKind.FAILED, run=1, error=killed()).ended(0, ExitKind.PEER_LOST, run=1)
        before = here.now.failures.model_copy(update={"consecutive": 2, "infrastructure": 2})
        plan = here.status(failures=before).plan()
        assert plan.status is not None
        assert plan.status.failures.consecutive == 3
        assert creates(plan) == []

    def test_completion_of_the_old_run_completes_the_job(self) -> None:
        here = _offered().ended(0, ExitKind.COMPLETED, run=1, step=100, commit=(9, 100)).settle()
        assert here.now.phase is Phase.COMPLETED

    @pytest.mark.parametrize(("run", "ends"), [(1, ["digits-ab12-2"]), (2, [])])
    def test_completion_ends_newcomers_to_a_run_that_never_began_and_cuts_no_other_script(
        self, run: int, ends: list[str]
    ) -> None:
        here = _running().spec(replicas=3).settle().after(1).settle().ready().settle()
        done = here.ended(0, ExitKind.COMPLETED, run=run, step=100, commit=(9, 100))
        assert deletes(done.plan()) == ends
        assert done.settle().now.phase is Phase.COMPLETED

    def test_completion_of_the_old_run_ends_newcomers_to_one_that_was_taken_for_the_current_one(self) -> None:
        here = _offered(world=3).ended(1, ExitKind.FAILED, run=1, error=killed()).settle().after(NEWS_SECONDS).settle()
        assert here.now.history[-1].run == 2
        done = here.ended(0, ExitKind.COMPLETED, run=1, step=100, commit=(9, 100))
        assert deletes(done.plan()) == ["digits-ab12-3"]
        assert done.settle().now.phase is Phase.COMPLETED


_NEVER_SAID = ((None, None), (Takeover.NEVER, None), (Takeover.NEVER, False))
_UNKNOWN_SAID = ((None, None), (Takeover.UNKNOWN, None), (Takeover.UNKNOWN, True))


class TestBelief:
    """Only what a member read in the log is known; an end proves nothing else."""

    @pytest.mark.parametrize(
        "told",
        [
            {"outcome": ExitKind.FAILED, "error": killed()},
            {"outcome": ExitKind.FAILED, "error": killed(), "attempt": AttemptRecord(2, voted=True)},
            {"outcome": ExitKind.PEER_LOST, "attempt": AttemptRecord(2, voted=True)},
            {"outcome": ExitKind.EXIT_TIMEOUT},
            {"outcome": ExitKind.STOPPED},
            {"outcome": ExitKind.FAILED, "error": raised(), "attempt": AttemptRecord(1, True, HandoverWord.GO)},
        ],
        ids=["killed", "voted", "peer", "late", "stopped", "of the attempt before"],
    )
    def test_a_leaver_that_has_ended_tells_of_neither_run(self, told: dict[str, Any]) -> None:
        here = _offered(world=3).ended(1, run=1, **told).settle()
        assert (_stage(here), here.now.run, here.now.lost) == (Stage.HANDING_OVER, 2, ())
        assert here.now.current is not None
        assert here.now.current.run == 1
        assert "whether run 2 has taken over is unknown" in here.condition(ConditionType.DISRUPTED).message

    def test_whether_anybody_trains_is_unknown_once_the_older_run_has_lost_a_member(self) -> None:
        here = _offered(world=3).ended(1, ExitKind.FAILED, run=1, error=killed()).settle()
        running = here.condition(ConditionType.RUNNING)
        assert running.status == "Unknown"
        assert "run 1: 1 of 3 members have ended: digits-ab12-1" in running.message
        assert "whether run 2 has taken over is unknown" in running.message
        assert "kubectl logs digits-ab12-0" in running.message

    def test_it_is_not_known_a_moment_before_the_time_for_news_is_over_and_taken_for_on_then(self) -> None:
        here = _offered(world=3).ended(1, ExitKind.FAILED, run=1, error=killed()).settle()
        assert _stage(here.after(NEWS_SECONDS - 1).settle()) is Stage.HANDING_OVER
        after = here.after(NEWS_SECONDS).settle()
        assert after.now.current is not None
        assert (after.now.current.run, after.now.current.unconfirmed) == (2, True)
        assert "whether it has taken over from run 1" in after.condition(ConditionType.RUNNING).message

    @pytest.mark.parametrize(
        "attempt", [AttemptRecord(2), AttemptRecord(2, True, HandoverWord.ABORT)], ids=["not voted", "read"]
    )
    def test_who_had_not_voted_or_has_read_so_tells_that_it_never_takes_over(self, attempt: AttemptRecord) -> None:
        here = _offered(world=3).ended(1, ExitKind.FAILED, run=1, error=killed(), attempt=attempt).settle()
        assert here.now.current is not None
        assert (here.now.current.run, here.now.lost) == (1, ())
        assert "run 2 never takes over" in here.condition(ConditionType.DISRUPTED).message

    @pytest.mark.parametrize("who", ["decider", "leaver", "newcomer"])
    def test_a_run_that_never_takes_over_is_never_the_one_that_is_on(self, who: str) -> None:
        never = AttemptRecord(2)
        here = _offered(world=3)
        match who:
            case "decider" | "leaver":
                dead = 0 if who == "decider" else 1
                here = here.ended(dead, ExitKind.FAILED, run=1, error=killed(), attempt=never).settle()
            case _:
                here = here.ended(1, ExitKind.FAILED, run=1, error=killed()).settle()
                here = here.ended(3, ExitKind.HANDOVER_FAILED, run=2, attempt=never).settle()
        assert here.now.current is not None
        assert (here.now.current.run, here.now.lost, [one.run for one in here.now.history]) == (1, (), [1])
        assert here.now.phase is Phase.RECOVERING
        assert here.intent is not None
        assert here.intent.disruption is Disruption.MEMBER_LOST
        (said,) = [one for made in here.history for one in made.events if one.reason == "HandoverFailed"]
        assert said.message.startswith("run 2 has not taken over from run 1: digits-ab12-")
        here = here.ended(1, ExitKind.PEER_LOST, run=1) if who == "decider" else here
        after = here.settle().after(5).settle().ready().settle()
        assert after.run_plan is not None
        assert (after.run_plan.run, after.run_plan.lost, after.run_plan.takes_over) == (3, (1, 2), 1)
        assert [(one.run, one.how) for one in after.now.history] == [(1, Takeover.START), (3, Takeover.IN_PLACE)]

    @pytest.mark.parametrize("order", list(permutations(("stayer", "other", "leaver", "newcomer"))))
    @pytest.mark.parametrize("between", [0, 5, NEWS_SECONDS + 5])
    def test_whichever_member_reports_last_that_a_run_never_takes_over_history_and_status_know_it(
        self, order: tuple[str, ...], between: float
    ) -> None:
        """Only the newcomer reports it; until then it is unknown, and status claims nothing unreported."""
        ends: dict[str, tuple[int, ExitKind, dict[str, Any]]] = {
            "stayer": (2, ExitKind.FAILED, {"run": 1, "error": killed()}),
            "other": (0, ExitKind.PEER_LOST, {"run": 1, "attempt": AttemptRecord(2, voted=True)}),
            "leaver": (1, ExitKind.PEER_LOST, {"run": 1, "attempt": AttemptRecord(2, voted=True)}),
            "newcomer": (3, ExitKind.HANDOVER_FAILED, {"run": 2, "attempt": AttemptRecord(2)}),
        }
        here = _offered(world=3)
        for who in order:
            number, kind, said = ends[who]
            here = here.ended(number, kind, **said).settle()
            known = who == "newcomer" or "newcomer" in order[: order.index(who)]
            assert self._said_of_run_2(here) in (_NEVER_SAID if known else _UNKNOWN_SAID)
            here = here.after(between).settle()
        assert [one.how for one in here.now.history if one.run == 2] in ([], [Takeover.NEVER])
        told = [one for made in here.history for one in made.events if one.reason == "HandoverFailed"]
        assert len([one for one in told if one.message.startswith("run 2 has not taken over")]) == 1

    def _said_of_run_2(self, here: Job) -> tuple[Takeover | None, bool | None]:
        """How history has it, and whether status says that it is not reported yet; None if it is not named."""
        how = next((one.how for one in here.now.history if one.run == 2), None)
        running = here.condition(ConditionType.RUNNING).message
        on = here.now.current is not None and here.now.current.run == 2
        return how, ("no member has reported yet" in running if on and "run 2: " in running else None)

    def test_a_run_that_never_takes_over_is_never_confirmed_by_the_time_that_has_passed(self) -> None:
        here = _offered(world=3).exited(1, code=137).settle().after(NEWS_SECONDS).settle()
        assert here.now.current is not None
        assert (here.now.current.run, here.now.current.unconfirmed) == (2, True)
        here = here.ended(3, ExitKind.HANDOVER_FAILED, run=2, attempt=AttemptRecord(2)).step()
        assert [one.how for one in here.now.history if one.run == 2] == [Takeover.NEVER]
        assert here.now.how is Takeover.NEVER
        late = here.after(600 + 615 + 30).step()
        assert late.now.current is None or late.now.current.run != 2 or late.now.current.unconfirmed

    def test_where_the_older_run_has_saved_after_the_attempt_the_newer_one_goes_on_in_place(self) -> None:
        here = _running().spec(replicas=3).settle().after(1).settle().ready().settle()
        here = here.cordon("n1").settle().after(SILENT_SECONDS).settle()
        assert here.now.history[-1].how is Takeover.UNKNOWN
        never = AttemptRecord(2, True, HandoverWord.ABORT)
        after = here.ended(0, ExitKind.CHECKPOINTED, attempt=never, **SAVED).settle()
        assert [one.how for one in after.now.history if one.run == 2] == [Takeover.IN_PLACE]

    def test_a_run_that_is_reported_as_begun_after_all_was_begun_in_place(self) -> None:
        here = _offered(world=3).exited(1, code=137).settle().after(NEWS_SECONDS).settle()
        here = here.ended(3, ExitKind.HANDOVER_FAILED, run=2, attempt=AttemptRecord(2)).step()
        begun = (Beginning(2, 20, 1, 20),)
        here = here.ended(0, ExitKind.PEER_LOST, run=2, opened=2, begun=begun).step()
        assert [one.how for one in here.now.history if one.run == 2] == [Takeover.IN_PLACE]

    def test_the_pause_with_which_a_leaver_came_is_none_of_the_run_that_goes_on_without_it(self) -> None:
        came = (HandoverRecord(1, HandoverWord.GO, parts={"pause": 0.5}),)
        here = _offered().ended(1, ExitKind.FAILED, run=1, opened=2, error=killed(), handovers=came).settle()
        assert (here.now.history[-1].run, here.now.history[-1].pause) == (2, None)
        assert here.now.history[-1].disruption is Disruption.NODE_LEAVING

    @pytest.mark.parametrize("number", [1, 2], ids=["leaver", "newcomer"])
    def test_who_has_read_go_tells_that_it_has(self, number: int) -> None:
        went = AttemptRecord(2, True, HandoverWord.GO)
        here = _offered().ended(number, ExitKind.FAILED, run=1, error=killed(), attempt=went).settle()
        assert here.now.current is not None
        assert (here.now.current.run, here.now.current.unconfirmed) == (2, False)

    def test_a_newcomer_that_voted_and_read_nothing_tells_nothing_either(self) -> None:
        attempt = AttemptRecord(2, voted=True)
        here = _offered().after(400).ended(2, ExitKind.FAILED, run=2, error=killed(), attempt=attempt).settle()
        assert here.now.current is not None
        assert (here.now.current.run, here.now.current.unconfirmed) == (2, True)

    def test_one_that_had_not_voted_tells_so_however_late(self) -> None:
        late = _offered().after(400).ended(2, ExitKind.HANDOVER_FAILED, run=2, attempt=AttemptRecord(2)).settle()
        assert late.now.current is not None
        assert (late.now.current.run, _stage(late)) == (1, Stage.PREPARING)

    def test_both_runs_are_lost_once_each_of_them_has_lost_a_member_and_no_sooner(self) -> None:
        one = _offered(world=3).ended(1, ExitKind.FAILED, run=1, error=killed()).settle()
        assert one.now.lost == ()
        both = one.after(4).ended(3, ExitKind.HANDOVER_FAILED, run=2, attempt=AttemptRecord(2)).settle()
        assert both.intent is not None
        assert both.intent.disruption is Disruption.MEMBER_LOST
        after = both.after(5).settle().ready().settle()
        assert after.run_plan is not None
        assert (after.run_plan.run, after.run_plan.lost) == (3, (1, 2))
        assert [member.name.rpartition("-")[2] for member in after.run_plan.members] == ["0", "4", "2"]

    def test_a_leaver_at_its_rescue_commit_is_waited_for(self) -> None:
        here = _offered(world=3).ended(2, ExitKind.FAILED, run=1, error=killed()).settle()
        here = here.ended(3, ExitKind.HANDOVER_FAILED, run=2).settle().after(5).settle().ready().settle()
        assert here.now.run == 2
        assert "waiting for the exit save of digits-ab12-1" in here.condition(ConditionType.RUNNING).message
        after = here.after(20).ended(1, ExitKind.PEER_LOST, run=1, step=30, commit=(5, 30)).settle()
        assert after.run_plan is not None
        assert (after.run_plan.run, after.run_plan.floor and after.run_plan.floor.step) == (3, 30)

    def test_leavers_learn_that_no_member_is_left_of_the_run_that_took_over_and_commit_what_they_have(self) -> None:
        """It may be the only copy of that run's state, and their agents commit it only if that run is lost."""
        here = _running().spec(replicas=1).settle().after(1).settle().exited(0, code=137).settle()
        told = here.assignment(1)
        assert isinstance(told, Leave)
        assert (told.run, told.lost, told.handover) == (3, (2,), None)
        after = here.after(20).settle().ready().settle()
        assert "waiting for the exit save of digits-ab12-1" in after.condition(ConditionType.RUNNING).message
        after = after.ended(1, ExitKind.PEER_LOST, run=1, step=30, commit=(5, 30), opened=2).settle()
        assert after.run_plan is not None
        assert (after.run_plan.run, after.run_plan.floor and after.run_plan.floor.step) == (3, 30)
        assert after.now.steps_lost == 0

    def test_a_leaver_to_whom_that_cannot_be_told_is_not_deleted_before_its_time_is_over(self) -> None:
        """It was asked to leave before, so SIGTERM would ask for nothing that it does not do."""
        here = _running().spec(replicas=1).settle().after(1).settle().after(12).exited(0, code=137).step(writes=1)
        refused = here.refused(1, message="denied", kind=RefusalKind.PATCH_REFUSED)
        assert "digits-ab12-1" in assigns(refused.plan())
        assert "digits-ab12-1" not in deletes(refused.plan())
        assert "digits-ab12-1" in deletes(refused.after(630).plan())

    def test_a_run_without_members_left_is_not_the_current_one(self) -> None:
        here = _ready(_running(world=1), "n1").settle().exited(0, code=137).settle()
        assert here.now.current is not None
        assert (here.now.current.run, here.now.current.unconfirmed) == (2, True)


def _recovered(world: int = 2, dead: int = 1) -> Job:
    """This member has died, and run 2 should continue in place with another one for it."""
    here = _running(world).exited(dead, code=137).settle().after(2).settle().ready().settle()
    assert here.run_plan is not None
    assert (here.run_plan.run, here.run_plan.lost, here.run_plan.handover) == (2, (1,), None)
    return here.after(1).settle()


class TestTheStateOfALostRunIsWithThoseWhoWereInIt:
    """Until the next run has begun: a new member has nothing of it."""

    @pytest.mark.parametrize(("world", "newcomer"), [(2, 2), (3, 3)])
    def test_who_has_just_come_leaves_first_where_the_run_gets_smaller(self, world: int, newcomer: int) -> None:
        here = _recovered(world, dead=0).spec(replicas=world - 1).settle().after(1).settle()
        assert _plan(here).leavers == (here.name(newcomer),)

    def test_once_that_run_has_begun_it_does_not_matter_who_came(self) -> None:
        """Another member's node becomes empty, and the newcomer's does not."""
        died = _running(3).exited(0, code=137).settle().after(2).settle()
        here = died.ready().pod(3, node="n3").settle().after(1).settle()
        assert _plan(here.spec(replicas=2).settle().after(1).settle()).leavers == ("digits-ab12-3",)
        for begun in (here.status(opened=2), here.after(BEGINNING_SECONDS)):
            assert _plan(begun.spec(replicas=2).settle().after(1).settle()).leavers == ("digits-ab12-1",)

    def test_where_all_of_them_have_to_leave_the_next_run_waits_until_theirs_can_have_begun(self) -> None:
        here = _recovered().cordon("n1").settle().after(1).settle().ready().settle()
        assert (here.now.run, _stage(here)) == (2, Stage.PREPARING)
        assert here.run_plan is not None
        assert here.run_plan.assigned_time is not None
        begins = here.run_plan.assigned_time + timedelta(seconds=BEGINNING_SECONDS)
        assert here.plan().requeue_after == (begins - here.snapshot.now).total_seconds()
        assert "digits-ab12-0" in here.condition(ConditionType.DISRUPTED).message
        after = here.after(BEGINNING_SECONDS).settle()
        assert (_plan(after).run, _offer_of_leaver(after, 0).run) == (3, 2)

    def test_where_they_cannot_wait_everybody_leaves_first_so_that_what_they_have_is_committed(self) -> None:
        assert _stage(_recovered().deleted(0, grace=60).settle()) is Stage.LEAVING

    def test_but_not_where_one_of_them_stays_or_the_run_has_begun(self) -> None:
        for here in (_recovered(world=3), _recovered().after(BEGINNING_SECONDS)):
            assert _stage(here.deleted(0, grace=60).settle()) is Stage.PREPARING


class TestAPodThatIsAtItsRescueCommit:
    """It was assigned a rank, belongs to no run any more, and has the state that a run of others alone would lack."""

    def _all_new(self) -> Job:
        """A newcomer of two has died as run 2 took over, and the leavers have ended: run 3 is one of new members."""
        went = (HandoverRecord(2, HandoverWord.GO),)
        here = _running().cordon("n1", "n2").settle().after(1).settle().ready().settle()
        here = here.ended(3, ExitKind.FAILED, run=2, error=killed()).settle()
        for leaver in (0, 1):
            here = here.ended(leaver, ExitKind.HANDED_OVER, run=1, step=20, handovers=went).settle()
        return here

    def test_is_waited_for_before_a_run_of_others_begins(self) -> None:
        here = self._all_new().deleted(2, grace=60).after(20).ready().settle()
        assert here.now.current is None
        said = here.condition(ConditionType.RUNNING).message
        assert "waiting for digits-ab12-2 (node n3) to end until 12:01:01Z" in said
        after = here.missing(2).settle()
        assert after.run_plan is not None
        assert after.run_plan.run == 3

    def test_until_its_grace_is_over(self) -> None:
        here = self._all_new().deleted(2, grace=60).after(60).ready().settle()
        assert here.now.current is not None

    def test_a_member_without_a_rank_or_on_a_lost_node_is_not_waited_for(self) -> None:
        here = self._all_new().deleted(2, grace=600)
        idle = here.pod(2, assignment="", role="standby").ready().settle()
        assert idle.now.current is not None
        lost = here.node("n3", ready=False).settle().after(300).ready().node("n3", ready=False).settle()
        assert lost.now.current is not None


NO_DRIVER = (ErrorKind.EXIT, "1", "ImportError: libcuda.so.1: cannot open shared object file")


class TestNewcomersThatFail:
    """A pool with a wrong driver: every new member dies at import, and the training ones are healthy."""

    def _failed(self, here: Job, number: int) -> Job:
        run = _plan(here).run
        return here.ended(number, ExitKind.FAILED, run=run, error=NO_DRIVER).settle()

    def _tried(self, times: int, here: Job | None = None) -> Job:
        here = here or _offered()
        for number in range(2, 2 + times):
            here = self._failed(here, number).after(300).settle().ready().settle()
        return here

    def test_a_healthy_run_is_never_stopped_for_them(self) -> None:
        here = self._tried(6)
        assert here.now.current is not None
        assert (here.now.current.run, _stage(here)) == (1, Stage.HANDING_OVER)
        assert _offer(here).run == 1
        assert here.now.failures.code == here.now.failures.infrastructure == 0

    def test_nor_for_those_that_die_before_they_are_warm(self) -> None:
        here = _running().cordon("n2").settle().after(1).settle()
        for number in range(2, 8):
            here = here.ended(number, ExitKind.FAILED, run=0, error=NO_DRIVER).settle().after(300).settle()
            assert _stage(here) is Stage.PREPARING
        assert here.now.failures.code == 0

    def test_they_come_ever_more_slowly(self) -> None:
        here = self._failed(self._tried(3), 5)
        assert creates(here.after(3).plan()) == []
        assert creates(here.after(4).plan()) == ["digits-ab12-6"]

    def test_the_next_ones_are_made_rather_elsewhere(self) -> None:
        here = _offered()
        node = next(pod.node for pod in here.snapshot.pods if pod.name == here.name(2))
        plan = here.ended(2, ExitKind.FAILED, run=2, error=NO_DRIVER).plan()
        assert [action.avoid for action in plan.actions if isinstance(action, CreatePod)] == [(node,)]

    def test_status_says_so_and_how_to_have_the_node_left_all_the_same(self) -> None:
        here = self._failed(self._tried(2), 4).after(31).settle()
        said = here.condition(ConditionType.DISRUPTED).message
        assert "libcuda" in said
        assert "kubectl delete pod -n default digits-ab12-1" in said
        assert "no time limit" in said
        assert here.condition(ConditionType.RUNNING).status == "True"

    def test_a_deadline_forces_everybody_to_save_in_time(self) -> None:
        here = _running().node("n2", taints=(Taint(key=SPOT, effect="NoSchedule"),)).settle()
        for number in range(2, 5):
            here = here.ended(number, ExitKind.FAILED, run=0, error=NO_DRIVER).settle().after(10).settle()
        assert _stage(here.after(30).settle()) is Stage.LEAVING

    def test_a_job_that_may_be_smaller_goes_on_with_those_that_are_well(self) -> None:
        here = _running(world=3, elastic=Elastic(min_replicas=1, max_replicas=3)).cordon("n2").settle().after(1)
        here = here.settle().ended(3, ExitKind.FAILED, run=0, error=NO_DRIVER).settle().after(30).settle()
        assert (_offer(here).joins, _offer(here).leavers) == ((), (1,))

    def test_an_attempt_that_only_did_not_come_about_is_still_tried_twice(self) -> None:
        aborted = (ErrorKind.EXCEPTION, "HandoverFailed", "party 1 is gone")
        here = self._failed(_offered(), 2).after(60).settle().ready().settle()
        for number in (3, 4):
            here = here.ended(number, ExitKind.HANDOVER_FAILED, run=_plan(here).run, error=aborted).settle()
            here = here.after(60).settle().ready().settle()
        assert here.run_plan is not None
        assert here.run_plan.run == 5
        assert here.run_plan.handover is None

    def test_of_a_run_that_goes_on_in_place_a_newcomer_before_its_first_step_is_no_failure_of_the_code(self) -> None:
        here = _in_place().ended(1, ExitKind.CHECKPOINTED, **SAVED).settle()
        here = here.ended(2, ExitKind.FAILED, run=2, error=NO_DRIVER).ended(0, ExitKind.PEER_LOST, run=2, step=20)
        here = here.settle().after(2).settle().ready().settle()
        assert (here.now.failures.code, here.now.failures.infrastructure) == (0, 1)

    def test_one_that_has_trained_is(self) -> None:
        here = _in_place().ended(1, ExitKind.CHECKPOINTED, **SAVED).settle()
        here = here.ended(2, ExitKind.FAILED, run=2, step=25, error=raised()).ended(0, ExitKind.PEER_LOST, run=2)
        here = here.settle().after(2).settle().ready().settle()
        assert here.now.failures.code == 1


class TestNoEvidence:
    def test_a_leaver_is_deleted_when_its_time_is_over(self) -> None:
        here = _offered()
        assert deletes(here.after(629).plan()) == []
        assert deletes(here.after(630).plan()) == ["digits-ab12-1"]

    def test_newcomers_that_live_when_nothing_can_be_undecided_any_more_are_evidence(self) -> None:
        here = _running().spec(replicas=3).settle().after(1).settle().ready().settle()
        limit = 600 + 615 + 30
        assert _stage(here.after(limit - 1).settle()) is Stage.HANDING_OVER
        after = here.after(limit).settle()
        assert after.now.current is not None
        assert (after.now.current.run, after.now.current.unconfirmed) == (2, False)

    def test_another_move_waits_a_little_and_is_then_offered_to_the_newer_run(self) -> None:
        here = _running().spec(replicas=3).settle().after(1).settle().ready().settle().cordon("n1").settle()
        assert _stage(here) is Stage.HANDING_OVER
        assert here.after(4).settle().plan().requeue_after == SILENT_SECONDS - 4
        moved = here.after(SILENT_SECONDS).settle()
        assert moved.now.current is not None
        assert (moved.now.current.run, moved.now.current.unconfirmed) == (2, True)
        after = moved.after(1).settle().ready().settle()
        assert after.run_plan is not None
        assert (_plan(after).run, _plan(after).lost) == (3, ())
        offer = _offer_of_leaver(after, 0)
        assert (offer.run, offer.world, offer.joins, offer.leavers) == (2, 3, (0,), (0,))

    def test_where_a_leavers_end_will_show_it_waits_longer(self) -> None:
        here = _offered().cordon("n1").settle()
        assert _stage(here) is Stage.HANDING_OVER
        assert here.after(16).settle().plan().requeue_after == NEWS_SECONDS - 16

    def test_status_says_what_another_move_waits_for_and_until_when(self) -> None:
        here = _running().spec(replicas=3).settle().after(1).settle().ready().settle().cordon("n1").settle()
        said = here.condition(ConditionType.DISRUPTED).message
        assert "then node n1 is cordoned; that waits until 12:00:11Z" in said
        moved = here.after(SILENT_SECONDS).step().condition(ConditionType.RUNNING).message
        assert "no member has reported yet whether it has taken over from run 1" in moved

    def _grown(self) -> Job:
        """A third member was offered the run; none of the three ends by that."""
        return _running().spec(replicas=3).settle().after(1).settle().ready().settle().after(2)

    def test_a_node_that_ends_at_a_known_time_is_left_at_once(self) -> None:
        """The notice of a spot node may be as short as the wait."""
        here = self._grown().node("n1", taints=(Taint(key=SPOT, effect="NoSchedule"),)).settle()
        assert here.now.current is not None
        assert (here.now.current.run, here.now.current.unconfirmed) == (2, True)
        assert here.intent is not None
        assert here.intent.ready_by == here.snapshot.now + timedelta(seconds=PATIENT.replacement_timeout_seconds)
        assert here.names() == ["0", "1", "2", "3"]
        after = here.after(5).ready().settle()
        assert (_plan(after).run, _plan(after).lost) == (3, ())
        assert _offer_of_leaver(after, 0).run == 2

    def test_the_others_follow_a_deleted_member_at_once(self) -> None:
        here = self._grown().deleted(1, grace=30).settle()
        assert here.now.current is not None
        assert (here.now.current.run, here.now.current.unconfirmed) == (2, True)
        assert here.intent is not None
        assert here.intent.disruption is Disruption.MEMBER_DELETED

    def test_a_newcomer_that_is_deleted_has_its_end_awaited(self) -> None:
        """If it trains, it makes all save by itself; if not, the others train on, and none should save."""
        here = self._grown().deleted(2, grace=30).settle()
        assert _stage(here) is Stage.HANDING_OVER
        here = here.after(1).ended(2, ExitKind.HANDOVER_FAILED, run=2).settle()
        assert here.now.current is not None
        assert here.now.current.run == 1
        assert _stage(here) is Stage.PREPARING

    def test_of_two_moves_without_evidence_in_a_row_the_second_is_offered_too(self) -> None:
        here = _running().spec(replicas=3).settle().after(1).settle().ready().settle()
        here = here.after(30).spec(replicas=4).settle().after(1).settle().ready().settle()
        assert (_plan(here).run, _offer(here).run, _offer(here).joins) == (3, 2, (2,))
        here = here.after(30).spec(replicas=5).settle().after(1).settle().ready().settle()
        assert (_plan(here).run, _offer(here).run, _offer(here).joins) == (4, 3, (2,))

    def test_a_newcomer_that_dies_long_after_the_limit_is_a_lost_member_of_the_newer_run(self) -> None:
        here = _running().spec(replicas=3).settle().after(1).settle().ready().settle().after(330)
        here = here.ended(2, ExitKind.FAILED, run=2, error=killed()).settle()
        assert here.now.current is not None
        assert here.now.current.run == 2
        assert here.intent is not None
        assert here.intent.disruption is Disruption.MEMBER_LOST
        after = here.after(2).settle().ready().settle()
        assert after.run_plan is not None
        assert (after.run_plan.run, after.run_plan.lost, after.run_plan.handover) == (3, (2,), None)

    def test_suspending_asks_all_at_once_whichever_run_is_on(self) -> None:
        here = _offered().spec(suspend=True).settle()
        told = here.assignment(0)
        assert isinstance(told, Leave)
        assert (told.run, told.lost, told.handover) == (3, (), None)
        assert isinstance(here.assignment(2), Leave)
        assert _offer_of_leaver(here, 1).run == 1

    def test_a_name_planned_with_is_never_used_for_another_pod(self) -> None:
        here = _offered().missing(2).settle()
        assert here.names() == ["0", "1", "3"]

    def test_standbys_that_are_ready_when_their_time_is_over_are_handed_over_to(self) -> None:
        here = _ready(_running()).after(30)
        assert here.plan().status == here.step().now
        assert _stage(here.settle()) is Stage.HANDING_OVER

    def test_a_script_error_of_a_newcomer_costs_no_failure(self) -> None:
        here = _offered().ended(2, ExitKind.FAILED, run=2, error=raised()).settle()
        assert here.now.failures.code == 0


def _in_place(world: int = 2, *nodes: str) -> Job:
    """Run 2 is assigned to continue in the pods of run 1, and the members on these nodes to save and leave."""
    here = _running(world).status(live_refused=LiveRefused(template="t1", why="it cannot"))
    return here.cordon(*(nodes or ("n2",))).settle().after(1).settle().ready().settle()


class TestARunThatIsLostWhileTheNextOneWaitsForIt:
    @pytest.mark.parametrize("how", ["silent", "in time", "peer"])
    def test_the_next_one_is_planned_again_with_the_same_members_and_names_the_run_that_never_saves(
        self, how: str
    ) -> None:
        here, told = _in_place(), {"run": 1, "step": 20, "commit": (4, 10), "opened": 1}
        match how:
            case "silent":
                here = here.exited(1, code=137)
            case "in time":
                here = here.ended(1, ExitKind.EXIT_TIMEOUT, **told)
            case _:
                here = here.ended(1, ExitKind.PEER_LOST, **told)
        before = here.settle()
        assert before.now.lost == (1,)
        after = before.after(1).settle()
        assert after.run_plan is not None
        assert before.run_plan is not None
        assert (after.run_plan.run, after.run_plan.takes_over, after.run_plan.lost) == (3, 2, (1,))
        assert after.run_plan.members == before.run_plan.members
        assert (after.run_plan.handover, after.run_plan.leavers) == (None, ())
        assert [entry.how for entry in after.now.history[-2:]] == [Takeover.IN_PLACE] * 2
        assert "run 1 cannot save" in after.now.history[-1].why
        assert _stage(after) is Stage.RUNNING
        assert _stage(after.after(1).settle().after(1200).settle()) is Stage.RUNNING
        assert after.after(1).settle().now.run == 3

    def test_what_it_begins_with_is_not_lost_though_it_was_counted_for_the_run_before(self) -> None:
        """The members of the run in between never learned that it may begin."""
        here = _in_place().ended(1, ExitKind.EXIT_TIMEOUT, run=1, step=20, commit=(4, 10), opened=1)
        here = here.settle().after(1).settle()
        assert [(one.run, one.steps_lost, one.steps_in_doubt) for one in here.now.history[-2:]] == [
            (2, 0, 10),
            (3, 0, 0),
        ]
        assert (here.now.steps_lost, here.now.steps_in_doubt) == (0, 10)
        ends = {"run": 3, "step": 30, "commit": (6, 30), "rescue": Rescue(3, 10, 1)}
        here = here.all_ended(ExitKind.CHECKPOINTED, **ends).settle()
        assert [(one.run, one.steps_lost, one.rescued) for one in here.now.history[-2:]] == [(2, 0, 0), (3, 0, 10)]
        assert (here.now.steps_lost, here.now.steps_in_doubt) == (0, 0)

    def test_but_not_where_the_run_before_has_found_an_emptied_log(self) -> None:
        lost = (ErrorKind.EXCEPTION, ErrorName.LOG_LOST, "no commit")
        here = _in_place().ended(1, ExitKind.FAILED, error=lost, run=1).settle()
        assert here.now.log_lost is not None
        assert here.after(1).settle().now.run == here.now.run

    def test_so_is_one_whose_members_are_all_new_once_no_member_of_the_older_one_is_left(self) -> None:
        here = _in_place(2, "n1", "n2")
        assert here.run_plan is not None
        assert here.run_plan.wait == 765
        one = here.exited(0, code=137).settle().after(2).settle()
        assert one.now.run == 2
        after = one.exited(1, code=137).settle().after(1).settle()
        assert after.run_plan is not None
        assert (after.run_plan.run, after.run_plan.lost, after.run_plan.wait) == (3, (1,), 615)
        assert [member.name for member in after.run_plan.members] == [m.name for m in here.run_plan.members]

    @pytest.mark.parametrize(
        "told",
        [
            {"outcome": ExitKind.CHECKPOINTED, **SAVED},
            {"outcome": ExitKind.PEER_LOST, **GONE},
        ],
        ids=["the older one has saved", "the newer one has opened"],
    )
    def test_nothing_is_planned_where_a_member_has_reported_that_the_run_continues(self, told: dict[str, Any]) -> None:
        here = _in_place().ended(1, **told).settle().after(5).settle()
        assert here.now.run == 2
        assert _stage(here) is Stage.RUNNING

    def test_nor_where_there_is_no_log_to_wait_for(self) -> None:
        here = _ready(_running(completion="ExitCode")).settle().exited(1, code=137).settle().after(5).settle()
        assert (here.now.run, here.now.lost) == (2, (1,))

    def test_nor_once_the_next_one_has_waited_long_enough(self) -> None:
        here = _in_place().after(600 + 615 + 30).exited(1, code=137).settle().after(5).settle()
        assert here.now.run == 2

    def test_where_it_was_offered_alive_the_next_offer_is_right_whatever_has_become_of_it(self) -> None:
        here = _running(world=3).spec(replicas=2).settle().after(1).settle()
        here = here.exited(2, code=137).settle().after(NEWS_SECONDS).settle().after(1).settle()
        assert here.now.current is not None
        assert here.now.current.run == 2
        assert (_plan(here).run, _plan(here).lost) == (3, (1,))
        assert (_offer(here).run, _offer(here).joins, _offer(here).leavers) == (2, (), ())
        assert _plan(here).members == here.now.current.plan.members

    def test_newcomers_that_live_need_no_other_offer_for_they_end_where_the_older_run_goes_on(self) -> None:
        here = _offered(world=3).exited(1, code=137).settle().after(NEWS_SECONDS).settle().after(1).settle()
        assert here.now.current is not None
        assert (here.now.current.run, here.now.next, here.now.phase) == (2, None, Phase.RUNNING)
        never = here.ended(3, ExitKind.HANDOVER_FAILED, run=2, attempt=AttemptRecord(2)).settle()
        assert never.intent is not None
        assert never.intent.disruption is Disruption.MEMBER_LOST
        after = never.after(5).settle().ready().settle()
        assert after.run_plan is not None
        assert (after.run_plan.run, after.run_plan.lost) == (3, (1, 2))

    def test_where_no_member_of_either_run_is_left_neither_is_waited_for(self) -> None:
        here = _running(1).spec(replicas=2).settle().after(1).settle().ready().settle()
        here = here.exited(0, code=137).ended(1, ExitKind.HANDOVER_FAILED, run=2).settle()
        assert here.now.current is None
        assert here.now.lost == (1, 2)

    @pytest.mark.parametrize(
        "told",
        [{"outcome": ExitKind.CHECKPOINTED, **SAVED}, {"outcome": ExitKind.PEER_LOST, **GONE}],
        ids=["saved", "gone"],
    )
    def test_a_run_whose_end_was_reported_is_not_called_lost(self, told: dict[str, Any]) -> None:
        here = _running(1).spec(replicas=2).settle().after(1).settle().ready().settle()
        here = here.ended(0, **told).ended(1, ExitKind.FAILED, run=2, error=killed()).settle()
        assert here.now.current is None
        assert here.now.lost == (2,)

    @pytest.mark.parametrize(
        ("member", "told", "lost"),
        [
            (1, None, (1, 2)),
            (1, {"outcome": ExitKind.PEER_LOST, **GONE}, (2,)),
            (1, {"outcome": ExitKind.CHECKPOINTED, **SAVED}, (2,)),
            (2, None, (2,)),
        ],
        ids=["stayer", "stayer-of-the-newer", "stayer-that-has-saved", "newcomer"],
    )
    def test_who_was_in_both_runs_takes_the_older_one_along_unless_the_newer_has_begun(
        self, member: int, told: dict[str, Any] | None, lost: tuple[int, ...]
    ) -> None:
        here = _running().status(live_refused=LiveRefused(template="t1", why="it cannot")).spec(replicas=3)
        here = here.settle().after(1).settle().ready().settle()
        here = here.exited(member, code=137) if told is None else here.ended(member, **told)
        here = here.settle().after(2).settle().ready().settle()
        assert here.run_plan is not None
        assert (here.run_plan.run, here.run_plan.lost) == (3, lost)

    def test_a_node_that_leaves_as_well_is_moved_off_in_the_same_plan(self) -> None:
        here = _in_place().exited(1, code=137).cordon("n1").settle().after(1).settle().ready().settle()
        assert here.run_plan is not None
        assert (here.run_plan.run, here.run_plan.lost, here.run_plan.leavers) == (3, (1,), ("digits-ab12-0",))

    def test_suspending_comes_first(self) -> None:
        here = _in_place().exited(1, code=137).settle().spec(suspend=True).after(1).settle()
        assert _stage(here) is Stage.LEAVING
        assert here.intent is not None
        assert here.intent.disruption is Disruption.SUSPEND


def _offering() -> Job:
    return _ready(_running())


def _gone() -> Job:
    return _offered().ended(1, ExitKind.HANDED_OVER, **GONE)


def _failed() -> Job:
    return _offered().ended(2, ExitKind.HANDOVER_FAILED, run=2)


@pytest.mark.parametrize("moment", [_offering, _gone, _failed])
def test_after_a_crash_between_any_two_writes_the_successor_comes_to_the_same_end(moment: Callable[[], Job]) -> None:
    before = moment()
    undisturbed = before.settle()
    for writes in range(len(before.plan().actions) + 2):
        after = before.step(writes=writes).settle()
        assert stage_of(after.now) is stage_of(undisturbed.now)
        assert after.run_plan == undisturbed.run_plan
        assert (after.now.next.plan if after.now.next else None) == (
            undisturbed.now.next.plan if undisturbed.now.next else None
        )
        assert after.now.failures == undisturbed.now.failures
        assert len(after.living()) == len(undisturbed.living())


class TestHistory:
    def test_a_first_run_begins_it(self) -> None:
        (entry,) = _running().now.history
        assert (entry.run, entry.size, entry.how, entry.changes) == (1, 2, Takeover.START, 2)
        assert entry.changed == ("+digits-ab12-0", "+digits-ab12-1")

    def test_a_hand_over_shows_which_members_changed_and_how_long_training_paused(self) -> None:
        went = (HandoverRecord(2, HandoverWord.GO, parts={"pause": 0.05}),)
        here = _offered().ended(1, ExitKind.HANDED_OVER, handovers=went, **GONE).settle()
        entry = here.now.history[-1]
        assert (entry.run, entry.how, entry.pause, entry.steps_lost) == (2, Takeover.LIVE, 0.05, 0)
        assert entry.changed == ("+digits-ab12-2", "-digits-ab12-1")
        assert entry.cause == "node n2 is cordoned"
        assert here.now.how is Takeover.LIVE

    def test_one_whose_members_saved_went_over_in_place(self) -> None:
        here = _offered().ended(1, ExitKind.CHECKPOINTED, **SAVED).settle()
        assert here.now.history[-1].how is Takeover.IN_PLACE

    def test_one_whose_first_evidence_is_the_save_of_the_newer_run_was_live_where_that_member_tells_of_go(self) -> None:
        went = (HandoverRecord(2, HandoverWord.GO, parts={"pause": 0.05}),)
        saved = {"run": 2, "step": 30, "commit": (5, 30), "opened": 2}
        here = _offered().ended(0, ExitKind.CHECKPOINTED, handovers=went, **saved).settle()
        entry = next(one for one in here.now.history if one.run == 2)
        assert (entry.how, entry.pause) == (Takeover.LIVE, 0.05)
        other = _offered().ended(0, ExitKind.CHECKPOINTED, **saved).settle()
        assert next(one for one in other.now.history if one.run == 2).how is Takeover.UNKNOWN

    def test_a_hand_over_of_an_earlier_run_does_not_make_a_later_one_live(self) -> None:
        here = _offered().ended(1, ExitKind.HANDED_OVER, **GONE).settle()
        here = here.cordon("n3").settle().after(1).settle().ready().settle()
        went = (HandoverRecord(2, HandoverWord.GO, parts={"pause": 0.05}),)
        saved = {"run": 3, "step": 30, "commit": (5, 30), "opened": 3}
        here = here.ended(0, ExitKind.CHECKPOINTED, handovers=went, **saved).settle()
        (entry,) = [one for one in here.now.history if one.run == 3]
        assert (entry.how, entry.pause) == (Takeover.UNKNOWN, None)

    def test_in_place_it_says_why_not_live(self) -> None:
        here = _running().status(live_refused=LiveRefused(template="t1", why="its model is sharded"))
        entry = _ready(here).settle().now.history[-1]
        assert (entry.how, entry.why) == (Takeover.IN_PLACE, "its model is sharded")

    def test_a_run_that_starts_over_says_why_no_standby_took_over_and_what_was_lost(self) -> None:
        here = _running().cordon("n2").settle().after(1).settle().after(30).settle()
        here = here.ended(0, ExitKind.EXIT_TIMEOUT, run=1, step=20, commit=(3, 10))
        here = here.ended(1, ExitKind.EXIT_TIMEOUT, run=1, step=20, commit=(3, 10)).settle().ready().settle()
        entry = here.now.history[-1]
        assert (entry.run, entry.how, entry.steps_lost) == (2, Takeover.RECREATE, 10)
        assert entry.why == "no standby was ready in time: StartingMembers"

    def test_whether_it_was_live_may_be_reported_much_later(self) -> None:
        here = _running().spec(replicas=3).settle().after(1).settle().ready().settle().after(1245).settle()
        assert here.now.history[-1].how is Takeover.UNKNOWN
        went = (HandoverRecord(2, HandoverWord.GO, parts={"pause": 0.04}),)
        late = here.ended(2, ExitKind.FAILED, run=2, opened=2, handovers=went, error=killed()).settle()
        assert (late.now.history[-1].how, late.now.history[-1].pause) == (Takeover.LIVE, 0.04)

    def test_a_member_that_knows_of_no_pause_does_not_erase_what_others_reported(self) -> None:
        """A newcomer was in no step before it, and tells of none."""
        here = _running().spec(replicas=4).settle().after(1).settle().ready().settle().after(1245).settle()
        for member, parts in ((1, {"pause": 0.05}), (0, {"pause": 0.04}), (3, {})):
            told = (HandoverRecord(2, HandoverWord.GO, parts=parts),)
            here = here.ended(member, ExitKind.FAILED, run=2, opened=2, handovers=told, error=killed()).step()
        (entry,) = [one for one in here.now.history if one.run == 2]
        assert (entry.how, entry.pause) == (Takeover.LIVE, 0.05)

    @pytest.mark.parametrize(("first", "parts"), [(0, {"pause": 0.05}), (2, {})])
    def test_a_run_first_reported_after_it_had_completed_is_in_it(self, first: int, parts: dict[str, float]) -> None:
        """Any member may report it first, one that was in the run before or a newcomer."""
        here = _running().spec(replicas=3).settle().after(1).settle().ready().settle()
        went = (HandoverRecord(2, HandoverWord.GO, parts=parts),)
        done = {"run": 2, "step": 30, "commit": (5, 30), "opened": 2}
        here = here.ended(first, ExitKind.COMPLETED, handovers=went, **done).settle()
        assert here.now.phase is Phase.COMPLETED
        assert [(one.run, one.size, one.how) for one in here.now.history] == [
            (1, 2, Takeover.START),
            (2, 3, Takeover.LIVE),
        ]
        assert here.now.how is Takeover.LIVE

    def test_a_leaver_that_died_before_it_could_tell_has_lost_nothing(self) -> None:
        dead = {"run": 1, "step": 20, "commit": (4, 10), "opened": 1, "error": killed()}
        here = _offered().ended(1, ExitKind.FAILED, **dead).settle().after(NEWS_SECONDS).settle()
        assert (here.now.steps_lost, here.now.steps_in_doubt) == (0, 10)  # it cannot be known yet
        went = (HandoverRecord(2, HandoverWord.GO, parts={"pause": 0.05}),)
        saved = {"run": 2, "step": 30, "commit": (5, 30), "opened": 2}
        here = here.after(1).settle().ended(0, ExitKind.CHECKPOINTED, handovers=went, **saved).settle()
        assert (here.now.steps_lost, here.now.steps_in_doubt) == (0, 0)
        assert [one.steps_lost for one in here.now.history if one.run == 2] == [0]

    def test_the_newest_twenty_are_kept(self) -> None:
        here = job().running(world=1)
        for _ in range(25):
            here = here.deleted(here.members[0]).settle().all_ended(ExitKind.CHECKPOINTED, **SAVED).settle()
            here = here.after(300).settle().ready().settle()
        assert [entry.run for entry in here.now.history] == list(range(7, 27))


def _long(number: int, prefix: str = "a-training-job") -> str:
    return f"{prefix}-ab12-{number}"


def _assigned(first: int, many: int = 1000) -> tuple[Assigned, ...]:
    """Names as long as people and clouds give them."""
    return tuple(
        Assigned(
            name=_long(first + index),
            uid=f"ab12cd34-0000-4000-8000-{index:012}",
            rank=index,
            node=f"ip-10-0-{index // 256}-{index % 256}.eu-central-1.compute.internal",
        )
        for index in range(many)
    )


def _big() -> Job:
    """A thousand members, all of which leave, and twenty moves before."""
    here = _offered(world=2)
    assert here.now.current is not None
    assert here.now.next is not None
    plan = _plan(here)
    assert plan.handover is not None
    offer = plan.handover.model_copy(update={"joins": tuple(range(1000)), "leavers": tuple(range(1000))})
    leavers = tuple(member.name for member in _assigned(0))
    plan = plan.model_copy(update={"members": _assigned(1000), "leavers": leavers, "handover": offer})
    old = here.now.current.plan.model_copy(update={"members": _assigned(0)})
    entry = here.now.history[-1].model_copy(
        update={"changed": tuple(_long(number) for number in range(8)), "why": "w" * 160, "cause": "c" * 160}
    )
    return here.status(
        current=here.now.current.model_copy(update={"plan": old}),
        next=here.now.next.model_copy(update={"plan": plan, "members": tuple(m.name for m in plan.members)}),
        history=(entry,) * 20,
    )


def _bytes(here: Job) -> int:
    return len(here.now.model_dump_json(by_alias=True, exclude_none=True).encode())


def test_the_status_of_a_thousand_members_that_all_move_stays_small() -> None:
    here = _big().having(name="a-training-job")
    assert _bytes(here) < 512 * 1024
    assert here.now.next is not None
    pods = [
        PodView(name=one.name, uid=one.uid, owner_uid=UID, role="member", node=one.node, phase="Running", ready=True)
        for one in (*_assigned(0), *_assigned(1000))
    ]
    words = write_outcome(Outcome(ExitKind.HANDED_OVER, run=1, rank=0, step=10**6, commit=CommitRef(10**4, 10**6)))
    over = Terminated(exit_code=0, message=words, finished_at=START)
    ended = [pod.model_copy(update={"terminated": over, "phase": "Succeeded"}) for pod in pods[:999]]
    after = here.having(pods=(*ended, *pods[999:])).step(writes=1)
    assert after.now.previous is not None
    assert len(after.now.previous.outcomes) == 999
    assert _bytes(after) < 512 * 1024
